//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The plugins of Debian's package containernetworking-plugins.
const debianPlugins = "/usr/lib/cni"

// atOnce is how many ADDs the second measurement of CNI makes at the same time.
const atOnce = 30

// cniPlugin is a CNI plugin with a network.
type cniPlugin struct {
	path, config string
	args         func(container string) string // CNI_ARGS; nil is none
	cpu          *time.Duration                // of the calls so far, where it is counted: without a daemon's
}

// bridgePlugin is Debian's bridge with host-local.
func bridgePlugin() cniPlugin {
	return cniPlugin{path: debianPlugins + "/bridge", config: `{"cniVersion": "1.0.0", "name": "white", "type": "bridge", "bridge": "cni0", "isGateway": true,
		"ipam": {"type": "host-local", "subnet": "10.2.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}`}
}

// cniADD measures ADD from exec to exit on a named network of the embedded SDN, against Debian's bridge with host-local, and against what neither can do
// without: to execute a program that does nothing, and to make and configure the interface.
func cniADD(ctx context.Context, b *bench) error {
	h, err := privatehost.New(ctx, privatehost.Options{})
	if err != nil {
		return err
	}
	defer h.Close()
	if err := cniHost(ctx, b, h); err != nil {
		return err
	}
	empty, err := emptyProgram(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(empty))
	ours := cniPlugin{path: filepath.Join(filepath.Dir(b.kuryr), "kuryr-cni"), config: `{"cniVersion": "1.0.0", "name": "blue", "type": "kuryr"}`}
	bridge := bridgePlugin()
	var mine, theirs, floor []time.Duration
	for range b.rounds {
		for _, m := range []struct {
			took *[]time.Duration
			add  func() (time.Duration, error)
		}{
			{&mine, func() (time.Duration, error) { took, _, err := ours.once(ctx, h, "one"); return took, err }},
			{&theirs, func() (time.Duration, error) { took, _, err := bridge.once(ctx, h, "one"); return took, err }},
			{&floor, func() (time.Duration, error) { return leastADD(ctx, h, empty) }},
		} {
			took, err := m.add()
			if err != nil {
				return err
			}
			*m.took = append(*m.took, took)
		}
	}
	// The goals are of a warm pool. Here each ADD makes its port first, which the store confirms on the disk.
	b.add("CNI ADD on a named network, exec to exit: against bridge and host-local", mine, theirs, 0)
	b.add("CNI ADD on a named network: against raw netlink and an empty program", mine, floor, 0)
	var mineAtOnce, theirsAtOnce []time.Duration
	for range max(3, b.rounds/3) {
		for _, side := range []struct {
			p    cniPlugin
			took *[]time.Duration
		}{{ours, &mineAtOnce}, {bridge, &theirsAtOnce}} {
			took, _, err := side.p.many(ctx, h, atOnce)
			if err != nil {
				return err
			}
			*side.took = append(*side.took, took...)
		}
	}
	b.add(fmt.Sprintf("CNI ADD on a named network, %d at once, p99: against bridge", atOnce), []time.Duration{percentile99(mineAtOnce)}, []time.Duration{percentile99(theirsAtOnce)}, 0)
	return nil
}

func percentile99(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}

// cniHost runs kuryr node with the network blue.
func cniHost(ctx context.Context, b *bench, h *privatehost.Host) error {
	client := h.UnixClient("/run/kuryr/sdn.sock")
	post := func(nouns, body string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kuryr/v2.0/"+nouns, strings.NewReader(body))
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusCreated {
			return fmt.Errorf("make %s: %s", nouns, response.Status)
		}
		return nil
	}
	_, err := h.StartService(ctx, "kuryr-node", nil, []string{b.kuryr, "node"}, func(context.Context) bool {
		conn, err := net.Dial("unix", h.Path("/run/kuryr/node.sock"))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if err := post("networks", `{"network": {"name": "blue"}}`); err != nil {
		return err
	}
	list := h.Exec(ctx, b.kuryr, "network", "list", "-o", "json")
	network := between(list.Stdout, `"id": "`, `"`)
	if network == "" {
		return fmt.Errorf("no network: %s", list)
	}
	return post("subnets", fmt.Sprintf(`{"subnet": {"network_id": %q, "ip_version": 4, "cidr": "10.1.0.0/16"}}`, network))
}

func between(text, before, after string) string {
	_, rest, _ := strings.Cut(text, before)
	found, _, _ := strings.Cut(rest, after)
	return found
}

// emptyProgram builds a Go program that does nothing, in a folder of its own.
func emptyProgram(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "kuryr-empty-")
	if err != nil {
		return "", err
	}
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "empty")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build an empty program: %w\n%s", err, out)
	}
	return program, nil
}

// call runs the plugin for a container named as its namespace, and tells how long that took.
func (p cniPlugin) call(ctx context.Context, h *privatehost.Host, verb, ns string) (time.Duration, error) {
	cmd := h.Command(ctx, p.path)
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+ns, "CNI_NETNS=/run/netns/"+ns, "CNI_IFNAME=eth0", "CNI_PATH="+debianPlugins)
	if p.args != nil {
		cmd.Env = append(cmd.Env, "CNI_ARGS="+p.args(ns))
	}
	cmd.Stdin = strings.NewReader(p.config)
	var out strings.Builder
	cmd.Stdout = &out
	start := time.Now()
	err := h.StartCommand(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w\n%s", p.path, verb, err, out.String())
	}
	took := time.Since(start)
	if p.cpu != nil {
		*p.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return took, nil
}

// once is an ADD into a new namespace, which goes again, and its DEL.
func (p cniPlugin) once(ctx context.Context, h *privatehost.Host, ns string) (add, del time.Duration, err error) {
	if r := h.Exec(ctx, "ip", "netns", "add", ns); !r.OK() {
		return 0, 0, r.Err()
	}
	if err := settle(ctx, h); err != nil {
		return 0, 0, err
	}
	if add, err = p.call(ctx, h, "ADD", ns); err != nil {
		return 0, 0, err
	}
	if del, err = p.call(ctx, h, "DEL", ns); err != nil {
		return 0, 0, err
	}
	return add, del, h.Exec(ctx, "ip", "netns", "del", ns).Err()
}

// many are n ADDs at once, each into a namespace of its own, which go again, and their DELs at once.
func (p cniPlugin) many(ctx context.Context, h *privatehost.Host, n int) (adds, dels []time.Duration, err error) {
	name := func(i int) string { return fmt.Sprintf("many%d", i) }
	adds, dels = make([]time.Duration, n), make([]time.Duration, n)
	for i := range n {
		if r := h.Exec(ctx, "ip", "netns", "add", name(i)); !r.OK() {
			return nil, nil, r.Err()
		}
	}
	if err := settle(ctx, h); err != nil {
		return nil, nil, err
	}
	for _, phase := range []struct {
		verb string
		took []time.Duration
	}{{"ADD", adds}, {"DEL", dels}} {
		var all errgroup.Group
		for i := range n {
			all.Go(func() (err error) { phase.took[i], err = p.call(ctx, h, phase.verb, name(i)); return err })
		}
		if err := all.Wait(); err != nil {
			return nil, nil, err
		}
	}
	for i := range n {
		if r := h.Exec(ctx, "ip", "netns", "del", name(i)); !r.OK() {
			return nil, nil, r.Err()
		}
	}
	return adds, dels, nil
}

// leastADD executes the empty program in the host, and makes and configures an interface in a new namespace, by netlink alone.
func leastADD(ctx context.Context, h *privatehost.Host, empty string) (time.Duration, error) {
	const ns = "least"
	if r := h.Exec(ctx, "ip", "netns", "add", ns); !r.OK() {
		return 0, r.Err()
	}
	defer func() {
		_ = h.Exec(ctx, "ip", "link", "del", leastName) // which goes later than its namespace otherwise
		_ = h.Exec(ctx, "ip", "netns", "del", ns)
	}()
	if err := settle(ctx, h); err != nil {
		return 0, err
	}
	host, err := netns.GetFromPid(h.Pid())
	if err != nil {
		return 0, err
	}
	defer host.Close()
	cmd := h.Command(ctx, empty)
	start := time.Now()
	if err := h.StartCommand(cmd); err != nil {
		return 0, err
	}
	if err := cmd.Wait(); err != nil {
		return 0, err
	}
	// A pin is seen by another mount namespace only through who holds it.
	inside, err := netns.GetFromPath(h.Path("/run/netns/" + ns))
	if err != nil {
		return 0, err
	}
	defer inside.Close()
	near, err := netlink.NewHandleAt(host)
	if err != nil {
		return 0, err
	}
	defer near.Close()
	far, err := netlink.NewHandleAt(inside)
	if err != nil {
		return 0, err
	}
	defer far.Close()
	if err := leastLink(near, far, inside); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

// settle returns when the kernel is done with the namespaces and links that were deleted before. It holds its lock of all links for tens of milliseconds
// meanwhile, and whoever is measured next would be charged with what the one before has left.
func settle(ctx context.Context, h *privatehost.Host) error {
	const ns, near = "settle", "settle0"
	host, err := netns.GetFromPid(h.Pid())
	if err != nil {
		return err
	}
	defer host.Close()
	// The kernel collects namespaces in batches, one after the other: the first to go may be of the batch that is awaited, the second is of a later one.
	for range 2 {
		for _, argv := range [][]string{{"ip", "netns", "add", ns}, {"ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", ns}} {
			if r := h.Exec(ctx, argv...); !r.OK() {
				return r.Err()
			}
		}
		if err := deleteAndAwait(ctx, h, host, ns, near); err != nil {
			return err
		}
	}
	return nil
}

// deleteAndAwait deletes a namespace, and returns when the link that had its other end in it is gone.
func deleteAndAwait(ctx context.Context, h *privatehost.Host, host netns.NsHandle, ns, link string) error {
	gone, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	if err := netlink.LinkSubscribeAt(host, gone, done); err != nil {
		return err
	}
	defer close(done)
	if r := h.Exec(ctx, "ip", "netns", "del", ns); !r.OK() {
		return r.Err()
	}
	for {
		select {
		case u := <-gone:
			if u.Header.Type == unix.RTM_DELLINK && u.Attrs().Name == link {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leastName is the host's end of the interface that leastADD makes.
const leastName = "least0"

// leastLink makes a pair, one end in the namespace with an address and a default route.
func leastLink(near, far *netlink.Handle, inside netns.NsHandle) error {
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(inside)}
	veth.Name = leastName
	if err := near.LinkAdd(veth); err != nil {
		return err
	}
	if err := near.LinkSetUp(veth); err != nil {
		return err
	}
	link, err := far.LinkByName("eth0")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr("10.3.0.2/24")
	if err != nil {
		return err
	}
	if err := far.AddrAdd(link, address); err != nil {
		return err
	}
	if err := far.LinkSetUp(link); err != nil {
		return err
	}
	return far.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 3, 0, 1)})
}
