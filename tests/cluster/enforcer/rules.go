package main

import (
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
)

type world struct {
	node       string
	addresses  string
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister
}

// direction is seen from the guarded pod: which address of a packet is its own and which the peer's.
type direction struct {
	name, own, peer string
	kind            networking.PolicyType
}

var directions = []direction{
	{"egress", "saddr", "daddr", networking.PolicyTypeEgress},
	{"ingress", "daddr", "saddr", networking.PolicyTypeIngress},
}

// allowance is one rule of a policy, in the same words for both directions.
type allowance struct {
	peers []networking.NetworkPolicyPeer
	ports []networking.NetworkPolicyPort
}

// rules is the whole table as nft reads it. What the node itself sends to its pods is never filtered, as probes need.
func (w world) rules() (string, error) {
	pods, err := w.pods.List(labels.Everything())
	if err != nil {
		return "", err
	}
	pods = slices.DeleteFunc(pods, func(pod *core.Pod) bool { return !hasOwnAddress(pod) })
	slices.SortFunc(pods, func(a, b *core.Pod) int { return strings.Compare(a.Status.PodIP, b.Status.PodIP) })

	var out strings.Builder
	out.WriteString("add table inet network_policy\ndelete table inet network_policy\ntable inet network_policy {\n")
	for _, direction := range directions {
		var chains, gates strings.Builder
		for number, pod := range pods {
			if pod.Spec.NodeName != w.node {
				continue
			}
			allowed, isolated, err := w.allowances(pod, direction)
			if err != nil {
				return "", err
			}
			if !isolated {
				fmt.Fprintf(&gates, "    ip %s %s return\n", direction.own, pod.Status.PodIP)
				continue
			}
			name := fmt.Sprintf("%s_%d", direction.name, number)
			fmt.Fprintf(&gates, "    ip %s %s goto %s\n", direction.own, pod.Status.PodIP, name)
			fmt.Fprintf(&chains, "  chain %s { # %s/%s\n", name, pod.Namespace, pod.Name)
			for _, match := range w.matches(pod, allowed, direction, pods) {
				fmt.Fprintf(&chains, "    %s return\n", match)
			}
			chains.WriteString("    drop\n  }\n")
		}
		fmt.Fprintf(&out, "%s  chain %s {\n%s    drop\n  }\n", chains.String(), direction.name, gates.String())
	}
	fmt.Fprintf(&out, "  chain forward {\n    type filter hook forward priority filter; policy accept;\n"+
		"    ct state established,related accept\n    ip saddr %[1]s jump egress\n    ip daddr %[1]s jump ingress\n  }\n", w.addresses)
	fmt.Fprintf(&out, "  chain input {\n    type filter hook input priority filter; policy accept;\n"+
		"    ct state established,related accept\n    ip saddr %s jump egress\n  }\n}\n", w.addresses)
	return out.String(), nil
}

func hasOwnAddress(pod *core.Pod) bool {
	ended := pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
	return pod.Status.PodIP != "" && !pod.Spec.HostNetwork && !ended
}

// allowances collects what all policies that select the pod allow; isolated says that there is one at all.
func (w world) allowances(pod *core.Pod, d direction) (allowed []policyAllowance, isolated bool, err error) {
	policies, err := w.policies.NetworkPolicies(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(policies, func(a, b *networking.NetworkPolicy) int { return strings.Compare(a.Name, b.Name) })
	for _, policy := range policies {
		selector, err := meta.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			return nil, false, err
		}
		if !selector.Matches(labels.Set(pod.Labels)) || !slices.Contains(policy.Spec.PolicyTypes, d.kind) {
			continue
		}
		isolated = true
		if d.kind == networking.PolicyTypeEgress {
			for _, rule := range policy.Spec.Egress {
				allowed = append(allowed, policyAllowance{policy.Namespace, allowance{rule.To, rule.Ports}})
			}
			continue
		}
		for _, rule := range policy.Spec.Ingress {
			allowed = append(allowed, policyAllowance{policy.Namespace, allowance{rule.From, rule.Ports}})
		}
	}
	return allowed, isolated, nil
}

// policyAllowance carries the namespace that selectors without one of their own mean.
type policyAllowance struct {
	namespace string
	allowance
}
