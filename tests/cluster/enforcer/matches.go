package main

import (
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// matches turns allowances into what nft compares packets with, one line for each combination of peer and port.
func (w world) matches(own *core.Pod, allowed []policyAllowance, d direction, pods []*core.Pod) []string {
	var out []string
	for _, rule := range allowed {
		for _, peer := range w.peers(rule, d, pods) {
			for _, port := range ports(rule.ports, own, peer.pods, d) {
				// A rule without any condition still needs one for nft.
				match := strings.TrimSpace(peer.match + " " + port)
				if match == "" {
					match = "meta nfproto ipv4"
				}
				out = append(out, match)
			}
		}
	}
	return out
}

type peer struct {
	match string
	pods  []*core.Pod
}

func (w world) peers(rule policyAllowance, d direction, pods []*core.Pod) []peer {
	if len(rule.peers) == 0 {
		return []peer{{pods: pods}}
	}
	var out []peer
	for _, wanted := range rule.peers {
		if wanted.IPBlock != nil {
			if strings.Contains(wanted.IPBlock.CIDR, ":") {
				continue
			}
			match := fmt.Sprintf("ip %s %s", d.peer, wanted.IPBlock.CIDR)
			if len(wanted.IPBlock.Except) > 0 {
				match += fmt.Sprintf(" ip %s != { %s }", d.peer, strings.Join(wanted.IPBlock.Except, ", "))
			}
			out = append(out, peer{match: match})
			continue
		}
		// Each pod is a peer of its own, because a port's name means another number in each.
		for _, pod := range pods {
			if w.selects(wanted, rule.namespace, pod) {
				out = append(out, peer{fmt.Sprintf("ip %s %s", d.peer, pod.Status.PodIP), []*core.Pod{pod}})
			}
		}
	}
	return out
}

func (w world) selects(wanted networking.NetworkPolicyPeer, namespace string, pod *core.Pod) bool {
	if wanted.NamespaceSelector == nil {
		if pod.Namespace != namespace {
			return false
		}
	} else {
		home, err := w.namespaces.Get(pod.Namespace)
		if err != nil || !fits(wanted.NamespaceSelector, home.Labels) {
			return false
		}
	}
	return wanted.PodSelector == nil || fits(wanted.PodSelector, pod.Labels)
}

// fits refuses what it cannot read: a broken selector allows nobody.
func fits(selector *meta.LabelSelector, set map[string]string) bool {
	parsed, err := meta.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

func ports(wanted []networking.NetworkPolicyPort, own *core.Pod, peers []*core.Pod, d direction) []string {
	if len(wanted) == 0 {
		return []string{""}
	}
	var out []string
	for _, port := range wanted {
		protocol := "tcp"
		if port.Protocol != nil {
			protocol = strings.ToLower(string(*port.Protocol))
		}
		switch {
		case port.Port == nil:
			out = append(out, "meta l4proto "+protocol)
		case port.Port.Type == intstr.String:
			targets := []*core.Pod{own}
			if d.kind == networking.PolicyTypeEgress {
				targets = peers
			}
			out = append(out, named(port.Port.StrVal, protocol, targets, d)...)
		case port.EndPort != nil:
			out = append(out, fmt.Sprintf("%s dport %d-%d", protocol, port.Port.IntVal, *port.EndPort))
		default:
			out = append(out, fmt.Sprintf("%s dport %d", protocol, port.Port.IntVal))
		}
	}
	return out
}

func named(name, protocol string, targets []*core.Pod, d direction) []string {
	var out []string
	for _, pod := range targets {
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				if port.Name != name || !strings.EqualFold(string(port.Protocol), protocol) {
					continue
				}
				match := fmt.Sprintf("%s dport %d", protocol, port.ContainerPort)
				if d.kind == networking.PolicyTypeEgress && len(targets) > 1 {
					match = fmt.Sprintf("ip daddr %s %s", pod.Status.PodIP, match)
				}
				out = append(out, match)
			}
		}
	}
	return out
}
