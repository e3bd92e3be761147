package kubelab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Where a node has what CNI needs, as its containerd is told.
const (
	PluginFolder        = "/opt/cni/bin"
	ConfigurationFolder = "/etc/cni/net.d"
)

// Node is a host of the cluster with containerd and a kubelet.
type Node struct {
	*privatehost.Host
	Name     string
	Number   int
	Address  netip.Addr // where the other hosts reach it
	Address6 netip.Addr // the same

	cluster    *Cluster
	kubeconfig string
	imported   bool
	containerd *privatehost.Service
	kubelet    *privatehost.Service
	proxy      *privatehost.Service
}

func (c *Cluster) newNode(ctx context.Context, number int) (*Node, error) {
	a := Nodes.Addr().As4()
	a[3] = byte(number)
	b := Nodes6.Addr().As16()
	b[15] = byte(number)
	n := &Node{
		Name: fmt.Sprintf("node%d", number), Number: number, Address: netip.AddrFrom4(a),
		Address6: netip.AddrFrom16(b), cluster: c,
	}
	host, err := privatehost.New(ctx, privatehost.Options{Hostname: n.Name, Booted: n.boot})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", n.Name, err)
	}
	n.Host = host
	return n, nil
}

// boot makes the host a node. What containerd and the kubelet keep on the disk is there again after a reboot.
func (n *Node) boot(ctx context.Context, host *privatehost.Host) error {
	n.Host = host
	if err := n.folders(ctx); err != nil {
		return err
	}
	if err := n.keepMachine(ctx); err != nil {
		return err
	}
	if err := host.MakeGroup(); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	if err := host.Join(cable, n.cluster.Central, bridge); err != nil {
		return err
	}
	// A machine has the same MAC after a reboot: others remember it, and for IPv6 they
	// ask anew only when it has not answered for longer than the API server waits for a
	// kubelet.
	err := run(ctx, host, []string{"ip", "link", "set", cable, "address", fmt.Sprintf("0e:00:00:00:01:%02x", n.Number)},
		[]string{"ip", "addr", "add", netip.PrefixFrom(n.Address, Nodes.Bits()).String(), "dev", cable},
		[]string{"ip", "addr", "add", netip.PrefixFrom(n.Address6, Nodes6.Bits()).String(), "dev", cable, "nodad"},
		[]string{"sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"})
	if err != nil {
		return err
	}
	if n.cluster.opts.Booted != nil {
		if err := n.cluster.opts.Booted(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	if err := n.StartContainerd(ctx); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

// folders gives the node its own of what a node writes to, the first two on the disk.
func (n *Node) folders(ctx context.Context) error {
	// As init does on every machine: what a kubelet mounts then reaches the pods that ask for it.
	commands := [][]string{{"mount", "--make-rshared", "/"}}
	for name, at := range map[string]string{"kubelet": "/var/lib/kubelet", "containerd": "/var/lib/containerd"} {
		dir := filepath.Join(n.Dir(), name)
		commands = append(commands, []string{"mkdir", "-p", dir, at}, []string{"mount", "--bind", dir, at})
	}
	for _, dir := range []string{"/opt", "/var/log"} {
		commands = append(commands, []string{"mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", dir})
	}
	commands = append(commands, []string{
		"mkdir", "-p", PluginFolder, ConfigurationFolder, "/run/containerd", "/var/log/pods",
		"/var/log/containers", n.StaticPods(),
	},
		[]string{"mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", ConfigurationFolder})
	return run(ctx, n.Host, commands...)
}

// machineWide are the settings that a kubelet makes for its whole machine.
var machineWide = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// keepMachine hides those settings behind files that say what the kubelet wants to read.
func (n *Node) keepMachine(ctx context.Context) error {
	for name, value := range machineWide {
		file := "/run/" + strings.ReplaceAll(name, "/", ".")
		if err := os.WriteFile(n.Path(file), []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := run(ctx, n.Host, []string{"mount", "--bind", file, "/proc/sys/" + name}); err != nil {
			return err
		}
	}
	return nil
}

const containerdSocket = "/run/containerd/containerd.sock"

const containerdConfig = `version = 2
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + PluginFolder + `"
    conf_dir = "` + ConfigurationFolder + `"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "runc"
      SystemdCgroup = false
`

// StartContainerd starts containerd and returns when it answers; the first time it imports the images.
func (n *Node) StartContainerd(ctx context.Context) error {
	config := filepath.Join(n.Dir(), "containerd.toml")
	if err := os.WriteFile(config, []byte(containerdConfig), 0o644); err != nil {
		return err
	}
	var err error
	n.containerd, err = n.StartService(ctx, "containerd", nil, []string{
		"containerd", "-c", config,
	}, func(ctx context.Context) bool {
		if _, err := os.Stat(n.Path(containerdSocket)); err != nil {
			return false
		}
		return n.Exec(ctx, "ctr", "version").OK()
	})
	if err != nil || n.imported {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(n.cluster.images, "*.tar"))
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := run(ctx, n.Host, []string{"ctr", "-n", "k8s.io", "images", "import", archive}); err != nil {
			return err
		}
	}
	n.imported = true
	return nil
}

// StopContainerd ends containerd with sig. The containers go on.
func (n *Node) StopContainerd(sig syscall.Signal) error { return n.containerd.Stop(sig, stopLimit) }

// kubeletConfig is a KubeletConfiguration.
func (n *Node) kubeletConfig() map[string]any {
	ca := n.cluster.file("ca.crt")
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true}, "x509": map[string]any{"clientCAFile": ca},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"tlsCertFile":   filepath.Join(n.Dir(), "kubelet.crt"), "tlsPrivateKeyFile": filepath.Join(n.Dir(), "kubelet.key"),
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs", "cgroupRoot": "/" + n.Group(),
		"failCgroupV1": false, "failSwapOn": false,
		"clusterDNS": []string{ServiceDNS}, "clusterDomain": "cluster.local",
		"resolvConf": filepath.Join(n.Dir(), "resolv.conf"),
		// The machine's disk is not the node's to judge.
		"evictionHard": map[string]any{
			"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%",
		}, "imageGCHighThresholdPercent": 100,
		"kubeAPIQPS": 200, "kubeAPIBurst": 400,
		"nodeLeaseDurationSeconds": 10, // a dead node is seen as such in seconds
		"staticPodPath":            n.StaticPods(),
	}
}

// StaticPods is the folder whose files the kubelet runs as pods, whatever the API server says.
func (n *Node) StaticPods() string { return filepath.Join(n.Dir(), "static") }

// StartKubelet starts the kubelet, and does not wait for it: the node's condition says how far it is.
func (n *Node) StartKubelet(ctx context.Context) error {
	if n.kubeconfig == "" {
		if err := n.identify(); err != nil {
			return err
		}
	}
	config := filepath.Join(n.Dir(), "kubelet.json")
	text, err := json.Marshal(n.kubeletConfig())
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return err
	}
	n.kubelet, err = n.StartService(ctx, "kubelet", nil, []string{filepath.Join(n.cluster.programs, "kubelet"),
		"--config=" + config, "--kubeconfig=" + n.kubeconfig, "--node-ip=" +
			n.cluster.opts.Families.of(
				n.Address.String(), n.Address6.String(),
			), "--hostname-override=" +
			n.Name, "--v=2"}, nil)
	return err
}

// StopKubelet ends the kubelet with sig. The pods go on.
func (n *Node) StopKubelet(sig syscall.Signal) error { return n.kubelet.Stop(sig, stopLimit) }

// identify makes the kubelet's certificates and the file of what it resolves names by.
func (n *Node) identify() error {
	server, err := n.cluster.ca.server(n.Name, []string{n.Name}, n.Address.String(), n.Address6.String())
	if err == nil {
		err = server.write(n.Dir(), "kubelet")
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(n.Dir(), "resolv.conf"), []byte("nameserver "+ServiceDNS+"\n"), 0o644)
	}
	if err != nil {
		return err
	}
	user, err := n.cluster.ca.client("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	n.kubeconfig = filepath.Join(n.Dir(), "kubeconfig")
	return n.cluster.ca.kubeconfig(n.kubeconfig, n.cluster.Endpoint(), user)
}

// Crash loses the node at once, as a cut of power does; Reboot brings it back.
func (n *Node) Crash() error { return unix.Kill(n.Pid(), unix.SIGKILL) }
