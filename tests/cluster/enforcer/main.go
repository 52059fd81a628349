// Command enforcer puts NetworkPolicy in force on one node with nftables.
//
// A kernel that tests run on may have no queue to user space for packets, so nothing is decided there: the policies of
// the pods on this node are compiled into one table, which is replaced whole.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API")
	node := flag.String("node", "", "whose pods are guarded")
	pods := flag.String("pods", "", "addresses of pods on the node; one that no pod has claimed yet may not talk")
	flag.Parse()
	if err := run(*kubeconfig, *node, *pods); err != nil {
		log.Fatal(err)
	}
}

func run(kubeconfig, node, pods string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	world := world{
		node:       node,
		addresses:  pods,
		pods:       factory.Core().V1().Pods().Lister(),
		namespaces: factory.Core().V1().Namespaces().Lister(),
		policies:   factory.Networking().V1().NetworkPolicies().Lister(),
	}
	changed := make(chan struct{}, 1)
	notice := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notice() },
		UpdateFunc: func(any, any) { notice() },
		DeleteFunc: func(any) { notice() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(),
		factory.Core().V1().Namespaces().Informer(),
		factory.Networking().V1().NetworkPolicies().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return follow(ctx, world, changed)
}

// follow keeps the table equal to the world. The table stays when this program ends: what was denied remains so.
func follow(ctx context.Context, world world, changed <-chan struct{}) error {
	applied := ""
	for {
		rules, err := world.rules()
		if err != nil {
			return fmt.Errorf("compile policies: %w", err)
		}
		if rules != applied {
			nft := exec.CommandContext(ctx, "nft", "-f", "-")
			nft.Stdin = strings.NewReader(rules)
			if output, err := nft.CombinedOutput(); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("nft: %w: %s\n%s", err, output, rules)
			}
			applied = rules
			log.Printf("in force: %d lines", strings.Count(rules, "\n"))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			// Changes come in bursts; a table is made once for each.
			time.Sleep(10 * time.Millisecond)
		}
	}
}
