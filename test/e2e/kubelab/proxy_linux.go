package kubelab

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
)

// PodRange and PodRange6 are where ReferenceNetwork's pods are, and what kube-proxy takes for the cluster's own.
const (
	PodRange  = "10.244.0.0/16"
	PodRange6 = "fd00:244::/48"
)

// StartProxy starts kube-proxy in nftables mode on the node, and does not wait for it. No
// cluster has one unless it is asked for.
func (n *Node) StartProxy(ctx context.Context) error { return n.StartProxyIn(ctx, "nftables") }

// StartProxyIn is StartProxy in another of its modes, such as iptables.
func (n *Node) StartProxyIn(ctx context.Context, mode string) error {
	config, err := n.proxyConfig(map[string]any{"mode": mode})
	if err != nil {
		return err
	}
	n.proxy, err = n.StartService(
		ctx, "kube-proxy", nil,
		[]string{filepath.Join(n.cluster.programs, "kube-proxy"), "--config=" + config}, nil,
	)
	return err
}

// proxyConfig writes a KubeProxyConfiguration, with more of it, and returns its path.
func (n *Node) proxyConfig(more map[string]any) (string, error) {
	user, err := n.cluster.ca.client("system:kube-proxy")
	if err != nil {
		return "", err
	}
	kubeconfig := filepath.Join(n.Dir(), "kube-proxy.kubeconfig")
	if err := n.cluster.ca.kubeconfig(kubeconfig, n.cluster.Endpoint(), user); err != nil {
		return "", err
	}
	all := map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "hostnameOverride": n.Name,
		"clientConnection": map[string]any{"kubeconfig": kubeconfig},
		"clusterCIDR":      n.cluster.opts.Families.of(PodRange, PodRange6),
		// The limits of connection tracking are the machine's.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
	for key, value := range more {
		all[key] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	file := filepath.Join(n.Dir(), "kube-proxy.json")
	return file, os.WriteFile(file, text, 0o644)
}

// StopProxy ends kube-proxy with sig. What it has written into the kernel stays.
func (n *Node) StopProxy(sig syscall.Signal) error { return n.proxy.Stop(sig, stopLimit) }

// CleanProxy takes away what kube-proxy has left in the kernel, as "kube-proxy --cleanup" does.
func (n *Node) CleanProxy(ctx context.Context) error {
	return run(ctx, n.Host, []string{
		filepath.Join(n.cluster.programs, "kube-proxy"),
		"--config=" + filepath.Join(n.Dir(), "kube-proxy.json"), "--cleanup",
	})
}
