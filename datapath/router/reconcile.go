//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/failpoint"
	"golang.org/x/sys/unix"
)

// Reconcile makes the kernel hold exactly what s says of what is ours, and touches
// nothing else; where nothing differs nothing is changed, so no traffic is interrupted. s
// must be current: what other calls made that s does not know is removed. One router that
// cannot be mended does not hinder the others; its error is in the joined error.
func (k *Kernel) Reconcile(ctx context.Context, s State) (Report, error) {
	return k.compare(ctx, s, false)
}

// Diff is what Reconcile would change. What hangs on something missing is not listed beside it.
func (k *Kernel) Diff(ctx context.Context, s State) ([]Difference, error) {
	report, err := k.compare(ctx, s, true)
	return report.Changed, err
}

// Down takes everything of ours out of the kernel: all namespaces of the store, and what
// is ours in the host's.
func (k *Kernel) Down(ctx context.Context) error {
	k.gate.Lock()
	defer k.gate.Unlock()
	_, err := k.compareLocked(ctx, State{}, false)
	if err != nil {
		return err
	}
	host, err := k.openHost()
	if err != nil {
		return err
	}
	defer host.close()
	k.hostReady.Store(false)
	failpoint.Here("router.down.swept")
	if err := k.host.remove(&run{ctx: ctx}, host); err != nil {
		return err
	}
	k.collector.Wait()
	return nil
}

func (k *Kernel) compare(ctx context.Context, s State, dry bool) (Report, error) {
	k.gate.Lock()
	defer k.gate.Unlock()
	return k.compareLocked(ctx, s, dry)
}

func (k *Kernel) compareLocked(ctx context.Context, state State, dry bool) (Report, error) {
	report := Report{Unreached: map[string][]Unreached{}, Whole: map[string]bool{}}
	routers := make([]Shape, len(state.Shapes))
	for i, d := range state.Shapes {
		if err := d.validate(k.options); err != nil {
			return report, err
		}
		routers[i] = k.feasible(d)
	}
	state.Shapes = routers
	host, err := k.openHost()
	if err != nil {
		return report, err
	}
	defer host.close()
	r := &run{ctx: ctx, dry: dry}
	if r.hostAddrs, err = host.addrs(); err != nil {
		return report, err
	}
	if r.hostLoopbacks, err = host.loopbacks(); err != nil {
		return report, err
	}
	err = k.compareAll(r, host, state, &report)
	report.Changed = r.diffs
	return report, err
}

func (k *Kernel) compareAll(r *run, host *space, state State, report *Report) error {
	k.places.mu.Lock()
	k.places.of = nil
	err := k.loadPlaces()
	k.places.loaded = err == nil
	k.places.mu.Unlock()
	if err != nil {
		return err
	}
	needed := len(state.Shapes) > 0
	if needed {
		if err := k.host.converge(r, host); err != nil {
			return err
		}
		k.hostReady.Store(!r.dry)
	}
	var errs []error
	var all claims
	wanted, failed := map[string]bool{}, map[string]bool{}
	for _, d := range state.Shapes {
		wanted[d.ID] = true
		own := r.in(d.ID)
		c, err := k.compareRouter(own, host, d, state)
		r.join(own)
		if err != nil {
			errs = append(errs, fmt.Errorf("router %s: %w", d.ID, err))
			failed[d.ID] = true
		}
		report.Unreached[d.ID] = c.result.Unreached
		all.elements = append(all.elements, c.elements...)
		all.proxies = append(all.proxies, c.proxies...)
	}
	failpoint.Here("router.reconcile.routers")
	// Ports move before anything is deleted: they may lie in a namespace that goes.
	for _, d := range state.Shapes {
		own := r.in(d.ID)
		if err := k.compareTaps(own, d, state.Ports[d.ID]); err != nil {
			errs = append(errs, err)
			failed[d.ID] = true
		}
		r.join(own)
	}
	shared := k.compareLegs(r, state, wanted)
	failpoint.Here("router.reconcile.ports")
	if needed {
		remove, add, err := k.host.syncChanges(r, host, all.elements)
		shared = errors.Join(shared, err, host.forgetElements(remove, add))
	}
	errs = append(errs, shared)
	for id := range wanted {
		report.Whole[id] = shared == nil && !failed[id]
	}
	failpoint.Here("router.reconcile.elements")
	if err := errors.Join(errs...); err != nil {
		return err // nothing is swept on the word of a comparison that failed
	}
	return k.sweep(r, host, wanted, all.proxies)
}

// compareRouter repairs one router's shape and elements.
func (k *Kernel) compareRouter(r *run, host *space, d Shape, state State) (claims, error) {
	c, err := k.converge(r, host, d)
	if c.space != nil {
		defer c.space.close()
	}
	wantedForwards := k.feasibleForwards(state.Forwards[d.ID])
	var forwards []nft.Element
	if d.Uplink != nil {
		for _, w := range wantedForwards {
			if err := w.validate(); err != nil {
				return c, err
			}
		}
		if err := d.Uplink.carries(wantedForwards); err != nil {
			return c, err
		}
		var there []nft.Element
		forwards, there = forwardElements(wantedForwards, d.Uplink)
		c.elements = append(c.elements, there...)
	}
	if err != nil || c.space == nil {
		return c, err
	}
	routes := k.convergeRoutes(r, c.space, d)
	for _, p := range state.Ports[d.ID] {
		if err := p.validate(); err != nil {
			return c, errors.Join(routes, err)
		}
	}
	// The filter first: what the guard does not know cannot send.
	if err := c.space.compareFilter(r, state.Ports[d.ID], state.Groups, state.Sets); err != nil {
		return c, errors.Join(routes, err)
	}
	failpoint.Here("router.reconcile.filtered")
	if err := downPorts.compare(r, c.space, state.Ports[d.ID]); err != nil {
		return c, errors.Join(routes, err)
	}
	if err := guardTable().sync(r, c.space, portsElements(state.Ports[d.ID])); err != nil {
		return c, errors.Join(routes, err)
	}
	if err := parents.compare(r, c.space, state.Ports[d.ID]); err != nil {
		return c, errors.Join(routes, err)
	}
	// What is wrong with these hinders no forwarding. VIPs come when what they lead to is there.
	rest := errors.Join(
		routes, k.compareFrontends(r, c.space, state.Frontends[d.ID]),
		c.space.compareVIPs(r, k.feasibleVIPs(state.VIPs[d.ID])),
	)
	if d.Uplink == nil {
		return c, rest
	}
	var names []string
	for _, v := range nft.Versions {
		names = append(names, setPublished+v.String(), setOrigin+v.String(), setForward+v.String())
	}
	remove, _, err := routerTable(d.Uplink.SNAT).syncChanges(r, c.space, forwards, names...)
	return c, errors.Join(rest, err, c.space.forgetElements(remove, nil))
}

// compareTaps fetches the router's networks from other routers, puts its ports' links
// below their bridges, and removes links of ports that do not exist.
func (k *Kernel) compareTaps(r *run, d Shape, ports []Port) error {
	came := false
	for _, b := range d.Bridges {
		others, err := k.others(BridgeName(b.Network), d.ID)
		if err != nil {
			return err
		}
		for _, from := range others {
			if err := k.migrate(r, BridgeName(b.Network), from, d.ID); err != nil {
				return err
			}
			came = true
		}
	}
	s, err := k.openRouter(d.ID)
	if err != nil || s == nil {
		return err
	}
	defer s.close()
	if came && !r.dry { // ports that were down where they came from may be up by now
		if err := downPorts.compare(r, s, ports); err != nil {
			return err
		}
	}
	links, err := s.links("", 0)
	if err != nil {
		return err
	}
	bridges := map[string]int{}
	for _, l := range links {
		if l.Type() == "bridge" {
			bridges[l.Attrs().Name] = l.Attrs().Index
		}
	}
	networks := map[string]string{}
	for _, p := range ports {
		networks[TapName(p.ID)] = p.Network
	}
	for _, l := range links {
		name := l.Attrs().Name
		if !strings.HasPrefix(name, tapPrefix) {
			continue
		}
		network, known := networks[name]
		if !known {
			if err := r.mend(
				"port "+name, "", "present", func() error { return ignore(s.rt.LinkDel(l), unix.ENODEV) },
			); err != nil {
				return err
			}
			continue
		}
		if master := bridges[BridgeName(network)]; master != 0 && l.Attrs().MasterIndex != master {
			err := r.mend("port "+name, "below "+BridgeName(network), "not so", func() error {
				return s.rt.LinkSetMasterByIndex(l, master)
			})
			if err != nil {
				return err
			}
		}
		if l.Attrs().Flags&net.FlagUp == 0 && l.Attrs().MasterIndex == 0 {
			if err := r.mend("port "+name, "up", "down", func() error { return s.rt.LinkSetUp(l) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweep removes what is ours and belongs to no wanted router.
func (k *Kernel) sweep(r *run, host *space, wanted map[string]bool, proxies []proxy) error {
	routers, err := k.options.Namespaces.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range routers {
		if wanted[id] {
			continue
		}
		own := r.in(id)
		errs = append(errs, k.deleteRouter(own, host, id))
		r.join(own)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	failpoint.Here("router.sweep.namespaces")
	links, err := host.links("veth", 0)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for id := range maps.Keys(wanted) {
		names[UplinkName(id)] = true
	}
	ours := map[int]bool{}
	for _, l := range links {
		if !isUplink(l) {
			continue
		}
		if names[l.Attrs().Name] {
			ours[l.Attrs().Index] = true
			continue
		}
		if !r.dry && strings.HasPrefix(l.Attrs().Name, dyingPrefix) {
			_ = ignore(host.rt.LinkDel(l), unix.ENODEV) // one whose deletion is already under way is no difference
			continue
		}
		if strings.HasPrefix(l.Attrs().Name, dyingPrefix) {
			continue
		}
		if err := r.mend(
			"link "+l.Attrs().Name, "", "present",
			func() error { return ignore(host.rt.LinkDel(l), unix.ENODEV) },
		); err != nil {
			return err
		}
	}
	failpoint.Here("router.sweep.links")
	if err := r.sweepLoopbacks(host, ours); err != nil {
		return err
	}
	routes, err := host.routes(0)
	if err != nil {
		return err
	}
	for _, route := range routes {
		if ours[route.LinkIndex] {
			continue
		}
		err := r.mend("host route "+routeKey(route), "", "present", func() error {
			return ignore(host.rt.RouteDel(&route), unix.ESRCH, unix.ENODEV)
		})
		if err != nil {
			return err
		}
	}
	have, err := host.proxies()
	if err != nil {
		return err
	}
	for _, p := range have {
		if !slices.Contains(proxies, p) {
			err := r.mend("proxy neighbour "+p.String(), "", "present", func() error {
				return ignore(host.changeProxy(unix.RTM_DELNEIGH, 0, p), unix.ENOENT)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
