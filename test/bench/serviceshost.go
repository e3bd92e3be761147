//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// balancerHost is a host whose kernel one of them has balance: Kuryr's daemons, or kube-proxy. Behind it are a client and the endpoints, each in a network namespace of its own, with routes to one
// another by the host.
type balancerHost struct {
	name     string
	host     *privatehost.Host
	client   netns.NsHandle
	servers  netns.NsHandle
	listen   net.Listener
	programs []program
	daemons  []*privatehost.Service                        // the programs, running
	kernel   func(h *balancerHost) (netns.NsHandle, error) // where it balances
	asker    *http.Client                                  // of the metrics of the daemon that tells the kernel
	timed    string                                        // the histogram of what it tells
}

// program is a daemon that a host has to run.
type program struct {
	name  string
	env   []string
	argv  func() ([]string, error)
	ready func(context.Context) bool // what the next one waits for; nil: nothing
}

// The links of a host to its client and to the endpoints, and their addresses.
var (
	clientLink = [2]netip.Prefix{netip.MustParsePrefix("10.255.255.1/30"), netip.MustParsePrefix("10.255.255.2/30")}
	serverLink = [2]netip.Prefix{netip.MustParsePrefix("10.255.255.5/30"), netip.MustParsePrefix("10.255.255.6/30")}
)

// metricsAddress is where kube-proxy tells its metrics, by itself.
const metricsAddress = "127.0.0.1:10249"

// newBalancerHost makes a host that reaches the API server, with this number among the cluster's hosts.
func newBalancerHost(ctx context.Context, c *kubelab.Cluster, name string, number int) (*balancerHost, error) {
	at := kubelab.Nodes.Addr().As4()
	at[3] = byte(number)
	host, err := privatehost.New(ctx, privatehost.Options{Hostname: name, Booted: func(_ context.Context, h *privatehost.Host) error {
		return h.Join("node0", c.Central, "nodes")
	}})
	if err != nil {
		return nil, err
	}
	h := &balancerHost{name: name, host: host, client: netns.None(), servers: netns.None(), kernel: (*balancerHost).own}
	if err := h.build(ctx, netip.PrefixFrom(netip.AddrFrom4(at), kubelab.Nodes.Bits())); err != nil {
		h.close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

func (h *balancerHost) close() {
	if h.listen != nil {
		h.listen.Close()
	}
	for _, ns := range []*netns.NsHandle{&h.client, &h.servers} {
		if ns.IsOpen() {
			ns.Close()
		}
	}
	h.host.Close()
}

func (h *balancerHost) build(ctx context.Context, address netip.Prefix) (err error) {
	if h.client, err = h.attach("client", clientLink); err != nil {
		return err
	}
	if h.servers, err = h.attach("servers", serverLink); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"ip", "addr", "add", address.String(), "dev", "node0"},
		{"sysctl", "-qw", "net.ipv4.ip_forward=1"},
		{"ip", "route", "add", targetRange.String(), "via", serverLink[1].Addr().String()},
		// What is not balanced goes nowhere, instead of out of the host.
		{"ip", "route", "add", "blackhole", kubelab.ServiceRange},
	} {
		if r := h.host.Exec(ctx, argv...); !r.OK() {
			return r.Err()
		}
	}
	if err := inNamespace(h.servers, func() (err error) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		const local = 255 // the table of what is the host's own
		every := &net.IPNet{IP: targetRange.Addr().AsSlice(), Mask: net.CIDRMask(targetRange.Bits(), 32)}
		if err := netlink.RouteAdd(&netlink.Route{Dst: every, LinkIndex: lo.Attrs().Index, Table: local, Type: syscall.RTN_LOCAL, Scope: netlink.SCOPE_HOST}); err != nil {
			return fmt.Errorf("addresses of endpoints: %w", err)
		}
		h.listen, err = net.Listen("tcp4", ":"+strconv.Itoa(endpointPort))
		return err
	}); err != nil {
		return err
	}
	go swallow(h.listen)
	return nil
}

// attach makes a namespace that is joined to the host, and knows of the rest of the world by it.
func (h *balancerHost) attach(name string, addrs [2]netip.Prefix) (netns.NsHandle, error) {
	inside, err := newNamespace()
	if err != nil {
		return inside, err
	}
	outside, err := netns.GetFromPid(h.host.Pid())
	if err != nil {
		return inside, err
	}
	defer outside.Close()
	if err := inNamespace(outside, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(inside))}
		veth.Name = name
		return errors.Join(netlink.LinkAdd(veth), raise(name, addrs[0]))
	}); err != nil {
		return inside, fmt.Errorf("link %s: %w", name, err)
	}
	return inside, inNamespace(inside, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), raise("eth0", addrs[1]), netlink.RouteAdd(&netlink.Route{Gw: addrs[0].Addr().AsSlice()}))
	})
}

// raise gives a link an address and sets it up.
func raise(name string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	own := &netlink.Addr{IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), 32)}}
	return errors.Join(netlink.AddrAdd(link, own), netlink.LinkSetUp(link))
}

// own is the host's own network namespace.
func (h *balancerHost) own() (netns.NsHandle, error) { return netns.GetFromPid(h.host.Pid()) }

// within runs f in the namespace that is balanced in.
func (h *balancerHost) within(f func() error) error {
	ns, err := h.kernel(h)
	if err != nil {
		return err
	}
	defer ns.Close()
	return inNamespace(ns, f)
}

func (h *balancerHost) start(ctx context.Context) error {
	h.daemons = nil
	for _, p := range h.programs {
		argv, err := p.argv()
		if err != nil {
			return err
		}
		daemon, err := h.host.StartService(ctx, p.name, p.env, argv, p.ready)
		if err != nil {
			return err
		}
		h.daemons = append(h.daemons, daemon)
	}
	return nil
}

// whileRunning ends with the first daemon that does: nobody waits for what it would have done.
func (h *balancerHost) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	for i, d := range h.daemons {
		go func() {
			select {
			case <-d.Gone():
				cancel(fmt.Errorf("%s has ended", h.programs[i].name))
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

// stop ends the daemons, the last first. What they have told the kernel stays there.
func (h *balancerHost) stop() (err error) {
	for _, d := range slices.Backward(h.daemons) {
		err = errors.Join(err, d.Stop(syscall.SIGTERM, 30*time.Second))
	}
	return err
}

// signal is for who has the daemons pause.
func (h *balancerHost) signal(s syscall.Signal) (err error) {
	for _, d := range h.daemons {
		err = errors.Join(err, syscall.Kill(d.Pid(), s))
	}
	return err
}

// forget takes away what the kernel was told.
func (h *balancerHost) forget(ctx context.Context) error {
	return h.within(func() error {
		said, err := exec.CommandContext(ctx, "nft", "flush", "ruleset").CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft flush ruleset: %w: %s", err, said)
		}
		return nil
	})
}

// kuryrNode is Kuryr's daemon of a node that balances ClusterIPs too.
func (h *balancerHost) kuryrNode(path, kubeconfig string) {
	env := []string{"NODE_NAME=" + servicesNode, "KURYR_NODE_SERVICES=true", "KURYR_NODE_LOAD_BALANCERS=node"}
	h.programs = []program{{name: h.name, env: env, argv: always(path, "node", "--kubernetes-kubeconfig", kubeconfig)}}
	h.timed = "kuryr_balancing_transaction_duration_seconds"
	h.asker = h.host.UnixClient("/run/kuryr/kuryr-node.sock")
}

func always(argv ...string) func() ([]string, error) {
	return func() ([]string, error) { return argv, nil }
}

// kubeProxy is the release's own in nftables mode. It is told not to put changes off, which it does by a second to have several at once.
func (h *balancerHost) kubeProxy(kubeconfig string) {
	h.timed = "kubeproxy_sync_proxy_rules_duration_seconds"
	h.asker = &http.Client{Transport: &http.Transport{DialContext: h.host.Dial}}
	argv := func() ([]string, error) {
		text, err := json.Marshal(map[string]any{
			"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables", "hostnameOverride": servicesNode,
			"clientConnection": map[string]any{"kubeconfig": kubeconfig}, "clusterCIDR": localRange.String(),
			"nftables": map[string]any{"minSyncPeriod": "1ms"}, "metricsBindAddress": metricsAddress,
			// The limits of connection tracking are the machine's.
			"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		})
		if err != nil {
			return nil, err
		}
		file := filepath.Join(h.host.Dir(), "kube-proxy.json")
		return []string{filepath.Join(os.Getenv(kubelab.ProgramsEnv), "kube-proxy"), "--config=" + file}, os.WriteFile(file, text, 0o644)
	}
	h.programs = []program{{name: h.name, argv: argv}}
}

// transactions are how often the daemon has told the kernel something, and how many seconds that took, by its own metrics.
func (h *balancerHost) transactions(ctx context.Context) (count, seconds float64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return 0, 0, err
	}
	answer, err := h.asker.Do(request)
	if err != nil {
		return 0, 0, fmt.Errorf("metrics: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, 0, fmt.Errorf("metrics: %w", err)
	}
	for suffix, to := range map[string]*float64{"_count": &count, "_sum": &seconds} {
		found := regexp.MustCompile(`(?m)^` + h.timed + suffix + `(?:\{ip_family="IPv4"\})? (\S+)$`).FindSubmatch(text)
		if found == nil {
			continue // nothing was told yet: kube-proxy notes what has ended
		}
		if *to, err = strconv.ParseFloat(string(found[1]), 64); err != nil {
			return 0, 0, fmt.Errorf("metrics: %w", err)
		}
	}
	return count, seconds, nil
}

// spent is what the daemons and the programs that they have run have used of processors: in all, and of that in the kernel.
func (h *balancerHost) spent() (all, kernel time.Duration, err error) {
	for _, d := range h.daemons {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.Pid()))
		if err != nil {
			return 0, 0, err
		}
		// After the name, which may hold anything but ends with the last parenthesis: state is field 3, utime 14, stime 15, and the same of ended children.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for i, f := range fields[11:15] {
			ticks, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, 0, err
			}
			all += time.Duration(ticks) * clockTick
			if i%2 == 1 {
				kernel += time.Duration(ticks) * clockTick
			}
		}
	}
	return all, kernel, nil
}

// memory is the proportional set size of each daemon, in KiB.
func (h *balancerHost) memory() (each []float64, err error) {
	for _, d := range h.daemons {
		kib, err := pss(d.Pid())
		if err != nil {
			return nil, err
		}
		each = append(each, kib)
	}
	return each, nil
}
