//go:build linux

package bind

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestAgentBridge: ports as Neutron's Linux bridge agent expects them, whose bridge the
// first of them finds missing.
func TestAgentBridge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const network = sdn.ID("1d2e3f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6")
	const bridge = "brq1d2e3f4a-5b"
	boxes := make([]struct {
		ns   netns.NsHandle
		port sdn.Port
	}, 3)
	var all sync.WaitGroup
	for n := range boxes {
		p := w.port()
		p.Network, p.VIF = network, sdn.VIF{Type: sdn.VIFBridge, Details: map[string]string{"port_filter": "true"}}
		boxes[n].ns, boxes[n].port = nstest.New(t), p
		if got, err := w.b.State(t.Context(), p); err != nil || got != Absent {
			t.Errorf("state before the plug is %s, %v", got, err)
		}
		all.Go(func() {
			if _, err := w.b.Plug(t.Context(), w.in(p, boxes[n].ns)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	wantForwardsAtOnce(t, w.host, bridge, 1)
	for _, b := range boxes[1:] {
		ping(t, boxes[0].ns, b.port.Addresses[0].Addr.String())
		ping(t, boxes[0].ns, b.port.Addresses[1].Addr.String())
	}
	nstest.Do(t, w.host, func() {
		br, err := netlink.LinkByName(bridge)
		must(t, err)
		for _, b := range boxes {
			l, err := netlink.LinkByName(HostName(b.port.ID))
			if err != nil || l.Attrs().MasterIndex != br.Attrs().Index || l.Attrs().MTU != testMTU {
				t.Errorf("%s is not on its bridge: %+v, %v", HostName(b.port.ID), l, err)
			}
		}
		if addrs, err := netlink.AddrList(br, netlink.FAMILY_ALL); err != nil || len(addrs) > 0 {
			t.Errorf("the bridge has addresses %v, %v", addrs, err)
		}
	})
	if got, err := w.b.State(t.Context(), boxes[0].port); err != nil || got != Whole {
		t.Errorf("state is %s, %v", got, err)
	}
	for _, b := range boxes {
		w.unplug(b.port)
		w.unplug(b.port)
	}
	w.wantHost(bridge) // it is the agent's to remove

	// The agent's own may have other settings, which stay.
	off := false
	nstest.Do(t, w.host, func() {
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "brqagents"}, MulticastSnooping: &off}))
	})
	agents := boxes[0].port
	agents.Network = "agents"
	w.plug(w.in(agents, boxes[0].ns))
	nstest.Do(t, w.host, func() {
		br, err := netlink.LinkByName("brqagents")
		if must(t, err); *br.(*netlink.Bridge).MulticastSnooping || br.Attrs().Flags&net.FlagUp == 0 {
			t.Errorf("the agent's bridge is now %+v", br)
		}
	})
	w.unplug(agents)

	// Only what is named by the network is made. A link of the name that is no bridge is left alone.
	p := w.port()
	p.VIF.Details = map[string]string{sdn.DetailBridge: "br-lan"}
	if _, err := w.b.Plug(t.Context(), w.in(p, boxes[0].ns)); !sdn.IsNotFound(err) ||
		!strings.Contains(err.Error(), "br-lan") {
		t.Errorf("a bridge that is named and not there: %v", err)
	}
	p.Network, p.VIF.Details = "7777777", nil
	nstest.Do(t, w.host, func() {
		must(t, netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "brq7777777"}}))
	})
	if _, err := w.b.Plug(t.Context(), w.in(p, boxes[0].ns)); !sdn.IsConflict(err) ||
		!strings.Contains(err.Error(), "brq7777777") {
		t.Errorf("no bridge: %v", err)
	}
	p.Network = ""
	if _, err := w.b.Plug(t.Context(), w.in(p, boxes[0].ns)); !sdn.IsInvalid(err) ||
		sdn.FieldOf(err) != "vif.details.bridge_name" {
		t.Errorf("neither bridge nor network: %v", err)
	}
	w.wantHost(bridge, "brqagents", "brq7777777")
}

// TestHidden: a port that the SDN tells a part of alone is not plugged by guess, and can
// be unplugged all the same.
func TestHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.port()
	p.VIF = sdn.VIF{Type: sdn.VIFTap, Hidden: []string{"binding:vif_details"}}
	_, err := w.b.Plug(t.Context(), w.in(p, nstest.New(t)))
	if !sdn.IsDenied(err) || !strings.Contains(err.Error(), "binding:vif_details") {
		t.Errorf("plug: %v", err)
	}
	must(t, w.b.Unplug(t.Context(), p))
}

// TestTap: the host reaches the container by way of the host end, as an agent's routes
// would have it.
func TestTap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	p := w.port()
	p.VIF = sdn.VIF{Type: sdn.VIFTap}
	w.plug(w.in(p, a))
	w.plug(w.in(p, a))
	nstest.Do(t, w.host, func() {
		l, err := netlink.LinkByName(HostName(p.ID))
		must(t, err)
		if at := l.Attrs(); at.MasterIndex != 0 || at.OperState != netlink.OperUp || at.MTU != testMTU ||
			at.RawFlags&unix.IFF_NOARP != 0 {
			t.Errorf("host end is %+v", at)
		}
		must(t, netlink.AddrAdd(l, &netlink.Addr{IPNet: netlink.NewIPNet(net.IPv4(10, 1, 0, 1))}))
		must(t, netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet(p.Addresses[0].Addr.AsSlice()),
			Scope: netlink.SCOPE_LINK,
		}))
	})
	ping(t, w.host, p.Addresses[0].Addr.String())
	w.wantConnected("plugged", p, true)
	if got, err := w.b.State(t.Context(), p); err != nil || got != Whole {
		t.Errorf("state is %s, %v", got, err)
	}
	nstest.Do(t, w.host, func() {
		l, err := netlink.LinkByName(HostName(p.ID))
		must(t, err)
		must(t, netlink.LinkSetDown(l))
	})
	if got, err := w.b.State(t.Context(), p); err != nil || got != Loose {
		t.Errorf("down: state is %s, %v", got, err)
	}
	must(t, w.b.Attach(t.Context(), p))
	if got, err := w.b.State(t.Context(), p); err != nil || got != Whole {
		t.Errorf("attached: state is %s, %v", got, err)
	}
	w.unplug(p)
	w.wantHost()
	wantNames(t, a)
}

// TestNowhere: VIF types by which nothing is made.
func TestNowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	p := w.port()
	p.VIF = sdn.VIF{Type: sdn.VIFNoop}
	i := w.in(p, a)
	if r := w.plug(i); r.Name != i.Name || r.MAC.String() != p.MAC.String() || r.MTU != i.MTU || r.HostName != "" {
		t.Errorf("noop gives %+v", r)
	}
	w.wantConnected("noop", p, true)
	w.unplug(p)

	p.VIF.Type, p.Host = sdn.VIFBindingFailed, "host7"
	if _, err := w.b.Plug(t.Context(), w.in(p, a)); !sdn.IsUnavailable(err) ||
		sdn.FieldOf(err) != "vif.type" || !strings.Contains(err.Error(), `"host7"`) ||
		!strings.Contains(err.Error(), "no agent") {
		t.Errorf("binding failed: %v", err)
	}
	if got, err := w.b.State(t.Context(), p); err != nil || got != Absent {
		t.Errorf("binding failed: state is %s, %v", got, err)
	}
	w.wantConnected("binding failed", p, false)
	w.unplug(p)
	if err := w.b.Wait(t.Context(), p); !sdn.IsUnavailable(err) {
		t.Errorf("binding failed: wait %v", err)
	}
	p.VIF.Type = sdn.VIFBridge
	if err := w.b.Wait(t.Context(), p); !sdn.IsUnsupported(err) {
		t.Errorf("a bridge's driver cannot wait: %v", err)
	}
	w.wantHost()
	wantNames(t, a)
}
