//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/trace"
	"github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
	"github.com/spf13/cobra"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// tracer finds out what a trace's words mean.
type tracer struct {
	client     *admin.Client
	objects    topology.Objects
	containers []engine.Container
	proxied    []endpoint.Publication
	pods       map[string]admin.PodPort // of a cluster's node, by the port's id
	opened     []netns.NsHandle
	paths      map[string]string // of sites' namespaces, by the site's name
}

func (a *app) newTracer(c *cobra.Command) (*tracer, error) {
	client, err := a.client(c)
	if err != nil {
		return nil, err
	}
	t := &tracer{client: client, paths: map[string]string{}}
	if t.objects, err = gather(c.Context(), client); err != nil {
		return nil, err
	}
	t.objects.Names, t.containers = a.engineNames(c)
	if cfg, err := a.load(c); err == nil {
		t.pods = podsByPort(c.Context(), cfg)
		rows, err := dockerIntents(c.Context(), cfg)
		if err != nil {
			_, _ = fmt.Fprintln(a.err, "ports that the proxy publishes are unknown:", err)
		}
		t.proxied = endpoint.Publications(rows)
	}
	return t, nil
}

func (t *tracer) close() {
	for _, ns := range t.opened {
		_ = ns.Close()
	}
}

// ports gives the ports that a word stands for: those of a container, or one.
func (t *tracer) ports(word string) ([]api.Port, error) {
	endpoints := map[string]bool{}
	for _, c := range t.containers {
		if c.Name == word || len(word) >= 12 && strings.HasPrefix(c.ID, word) {
			for _, e := range c.Endpoints {
				endpoints[e.ID] = true
			}
			if len(endpoints) == 0 {
				return nil, fmt.Errorf("container %q is on no network", word)
			}
		}
	}
	addr, _ := netip.ParseAddr(word)
	var out []api.Port
	for _, p := range t.objects.Ports {
		if strings.HasPrefix(p.DeviceOwner, "network:") {
			continue
		}
		byEndpoint := p.DeviceID != "" && (endpoints[p.DeviceID] || p.DeviceID == word || len(word) >= 12 && strings.HasPrefix(p.DeviceID, word))
		if byEndpoint || p.ID == word || t.pods[p.ID].Pod == word || addr.IsValid() && slices.Contains(addresses(p), addr) {
			out = append(out, p)
		}
	}
	switch {
	case len(out) > 0 && (!addr.IsValid() || len(out) == 1):
		return out, nil
	case len(out) > 1:
		return nil, fmt.Errorf("%d ports have the address %s: name the container or the port", len(out), word)
	case len(endpoints) > 0:
		return nil, fmt.Errorf("container %q is on no network of Kuryr's", word)
	}
	if strings.Contains(word, "/") {
		return nil, fmt.Errorf("there is no pod %q (namespace/name) with a port on this node", word)
	}
	return nil, fmt.Errorf("there is no running container, endpoint, port or address of a port %q", word)
}

func addresses(p api.Port) (out []netip.Addr) {
	for _, ip := range p.FixedIPs {
		if a, err := netip.ParseAddr(ip.IPAddress); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// ofFamily is the port's first address of a family; invalid if it has none.
func ofFamily(p api.Port, four bool) netip.Addr {
	for _, a := range addresses(p) {
		if a.Is4() == four {
			return a
		}
	}
	return netip.Addr{}
}

func (t *tracer) name(p api.Port) string {
	if name := t.objects.Names.Endpoints[p.DeviceID]; name != "" {
		return "container " + name
	}
	if pod := t.pods[p.ID].Pod; pod != "" {
		return "pod " + pod
	}
	return "port " + p.ID[:min(len(p.ID), 11)]
}

func (t *tracer) open(name, path string) (trace.Site, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return trace.Site{}, fmt.Errorf("%s: network namespace %s: %w", name, path, err)
	}
	return t.site(name, path, ns), nil
}

func (t *tracer) site(name, path string, ns netns.NsHandle) trace.Site {
	t.opened = append(t.opened, ns)
	t.paths[name] = path
	return trace.Site{Name: name, NS: ns}
}

func (t *tracer) path(s trace.Site) string { return t.paths[s.Name] }

// router opens the namespace of a port's network.
func (t *tracer) router(p api.Port) (trace.Site, error) {
	path := p.VIFDetails[sdn.DetailNamespace]
	if p.VIFType != sdn.VIFBridge || path == "" {
		return trace.Site{}, fmt.Errorf("port %s: VIF type %q: only ports on bridges of the embedded SDN can be traced", p.ID, p.VIFType)
	}
	id := filepath.Base(path)
	name := "network " + id[:min(len(id), 11)]
	for _, n := range t.objects.Networks {
		if docker := t.objects.Names.Networks[n.Key().Name]; n.ID == id && docker != "" {
			name = "network " + docker
		}
	}
	for _, r := range t.objects.Routers {
		if r.ID != id {
			continue
		}
		name = "router " + id[:min(len(id), 11)]
		if key := r.Key(); key.Kind == "docker-shared-router" {
			name = "router " + key.Name
		} else if docker := t.objects.Names.Networks[key.Name]; docker != "" {
			name = "router of " + docker
		}
	}
	if t.paths[name] != "" && t.paths[name] != path { // two routers of one name
		name += " " + id[:min(len(id), 11)]
	}
	s, err := t.open(name, path)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w; to repair it: kuryr sdn reconcile", err)
	}
	return s, err
}

func place(p api.Port) trace.Port {
	mac, _ := net.ParseMAC(p.MACAddress)
	return trace.Port{Tap: router.TapName(p.ID), Bridge: p.VIFDetails[sdn.DetailBridge], MAC: mac, Addrs: addresses(p)}
}

// container opens the namespace that a port is plugged into.
func (t *tracer) container(rt trace.Site, p api.Port) (trace.Site, error) {
	ns, err := trace.Peer(rt.NS, router.TapName(p.ID))
	if err != nil {
		return trace.Site{}, fmt.Errorf("port %s is not plugged into a running container: %w", p.ID, err)
	}
	return t.site(t.name(p), "", ns), nil
}

// resolve finds the ends, the namespaces between, and which of them is called (-1: none).
func (t *tracer) resolve(ctx context.Context, from string, to target, o traceOptions) (way trace.Way, sites []trace.Site, called int, err error) {
	fail := func(err error) (trace.Way, []trace.Site, int, error) { return way, nil, -1, err }
	ports, err := t.ports(from)
	if err != nil {
		return fail(err)
	}
	if way.Host, err = t.open("host", "/proc/thread-self/ns/net"); err != nil {
		return fail(err)
	}
	first := ports[0]
	if ports, err = t.chosen(ports, o.from); err != nil {
		return fail(err)
	}
	if o.from != "" {
		first = ports[0]
	}
	if way.Router, err = t.router(first); err != nil {
		return fail(err)
	}
	if way.Container, err = t.container(way.Router, first); err != nil {
		return fail(err)
	}
	way.Flow = trace.Flow{Protocol: to.protocol, Port: to.port}
	target, err := t.address(&way, ports, to, o.family)
	if err != nil {
		return fail(err)
	}
	if err := t.balanced(ctx, filepath.Base(t.path(way.Router)), way.Dst, way.Flow); err != nil {
		return fail(err)
	}
	port, err := t.leaving(&way, ports)
	if err != nil {
		return fail(err)
	}
	if o.from != "" {
		way.Device = trace.Holder(way.Container, way.Src)
	}
	if port.ID != first.ID { // another network of the container's
		if way.Router, err = t.router(port); err != nil {
			return fail(err)
		}
	}
	way.From = place(port)
	way.Uplink = router.UplinkName(filepath.Base(t.path(way.Router)))
	if target == nil {
		target = t.behind(port, way.Flow)
	}
	way.Router.Tap = way.From.Tap
	sites = []trace.Site{way.Container, way.Router, way.Host}
	if target == nil {
		if to.host {
			return way, sites, 2, nil
		}
		return way, sites, -1, nil
	}
	way.To, way.Called = place(*target), t.name(*target)
	if way.CalledRouter, err = t.router(*target); err != nil {
		return fail(err)
	}
	if t.path(way.CalledRouter) != t.path(way.Router) {
		sites = append(sites, way.CalledRouter)
	}
	if way.Called == way.Container.Name { // it calls itself
		return way, sites, 0, nil
	}
	if site, err := t.container(way.CalledRouter, *target); err == nil {
		sites = append(sites, site)
		return way, sites, len(sites) - 1, nil
	}
	return way, sites, -1, nil
}

// chosen keeps the port that --from names, by its id, an address, or its network.
func (t *tracer) chosen(ports []api.Port, word string) ([]api.Port, error) {
	if word == "" {
		return ports, nil
	}
	for _, p := range ports {
		addr, _ := netip.ParseAddr(word)
		network := ""
		for _, n := range t.objects.Networks {
			if n.ID == p.NetworkID {
				network = cmp.Or(t.objects.Names.Networks[n.Key().Name], n.Name)
			}
		}
		if p.ID == word || p.NetworkID == word || network == word || slices.Contains(addresses(p), addr) {
			return []api.Port{p}, nil
		}
	}
	return nil, fmt.Errorf("--from %q: the container has no such port", word)
}

// address sets the destination, and gives the port that is called where TO names a container.
func (t *tracer) address(way *trace.Way, ports []api.Port, to target, family int) (*api.Port, error) {
	switch {
	case to.addr.IsValid():
		if family != 0 && (family == 4) != to.addr.Is4() {
			return nil, fmt.Errorf("%s is not an address of family %d", to.addr, family)
		}
		way.Dst = to.addr
		return nil, nil
	case to.host:
		for _, four := range families4(family) {
			if a := trace.HostAddress(way.Host, four); a.IsValid() && ofFamily(ports[0], four).IsValid() {
				way.Dst = a
				return nil, nil
			}
		}
		return nil, errors.New("host: container and host have no address of one family")
	}
	all, err := t.ports(to.name)
	if err != nil {
		return nil, err
	}
	// Best on the same network, else behind the same router, else anywhere.
	closeness := func(p api.Port) int {
		for _, own := range ports {
			if own.NetworkID == p.NetworkID {
				return 0
			}
		}
		for _, own := range ports {
			if own.VIFDetails[sdn.DetailNamespace] == p.VIFDetails[sdn.DetailNamespace] {
				return 1
			}
		}
		return 2
	}
	sortslice.Stable(all, func(x, y api.Port) int { return closeness(x) - closeness(y) })
	for _, p := range all {
		for _, four := range families4(family) {
			if a := ofFamily(p, four); a.IsValid() && ofFamily(ports[0], four).IsValid() {
				way.Dst = a
				return &p, nil
			}
		}
	}
	return nil, fmt.Errorf("%s and %s have no address of one family that was asked for", t.name(ports[0]), t.name(all[0]))
}

// families4 are the families to try; true is IPv4.
func families4(family int) []bool {
	switch family {
	case 4:
		return []bool{true}
	case 6:
		return []bool{false}
	}
	return []bool{true, false}
}

// leaving is the port by which the container's kernel sends there, and sets the source. Where it has no route it is the first that fits.
func (t *tracer) leaving(way *trace.Way, ports []api.Port) (api.Port, error) {
	src, err := trace.Source(way.Container, way.Dst)
	if err == nil && src.IsValid() {
		for _, p := range ports {
			if slices.Contains(addresses(p), src) {
				way.Src = src
				return p, nil
			}
		}
	}
	for _, p := range ports {
		if a := ofFamily(p, way.Dst.Is4()); a.IsValid() {
			way.Src = a
			return p, nil
		}
	}
	return api.Port{}, fmt.Errorf("%s has no address of the family of %s", way.Container.Name, way.Dst)
}

// behind is the port that has the address behind the same router, or that the host's address and port lead to; nil for none.
func (t *tracer) behind(from api.Port, f trace.Flow) *api.Port {
	for _, p := range t.objects.Ports {
		if p.VIFDetails[sdn.DetailNamespace] == from.VIFDetails[sdn.DetailNamespace] && p.DeviceID != "" && slices.Contains(addresses(p), f.Dst) {
			return &p
		}
	}
	protocol := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[f.Protocol]
	for _, floating := range t.objects.FloatingIPs {
		at, err := netip.ParseAddr(floating.FloatingIPAddress)
		if err != nil || at != f.Dst && (!at.IsUnspecified() || at.Is4() != f.Dst.Is4() || !hostHas(f.Dst)) {
			continue
		}
		led := api.Value(floating.PortID)
		for _, pf := range t.objects.Forwards[floating.ID] {
			first, last, _ := bounds(pf.ExternalPort, pf.ExternalPortRange)
			if pf.Protocol == protocol && first <= f.Port && f.Port <= last {
				led = pf.InternalPortID
			}
		}
		for _, p := range t.objects.Ports {
			if p.ID == led {
				return &p
			}
		}
	}
	return nil
}

// hostHas tells whether this machine has the address.
func hostHas(a netip.Addr) bool {
	all, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(own net.Addr) bool {
		p, err := netip.ParsePrefix(own.String())
		return err == nil && p.Addr() == a
	})
}

// completeContainers gives the names of containers to the shell.
func (a *app) completeContainers(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completeTimeout)
	defer cancel()
	c.SetContext(ctx)
	var out []string
	_, containers, _ := a.askEngine(c) // the shell shows no errors
	for _, container := range containers {
		out = append(out, container.Name)
	}
	if len(args) == 1 {
		out = append(out, "host")
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
