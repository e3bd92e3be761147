package docker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// TestAwayStop stops containers and removes their networks in all orders while the SDN is away, with the plugin killed between every two calls or
// not, and from every moment on at which the SDN can go away.
func TestAwayStop(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		for _, remove := range []bool{false, true} {
			for after := int64(0); ; after++ {
				gone := false
				name := fmt.Sprintf("kill=%v remove=%v after=%d", kill, remove, after)
				t.Run(name, func(t *testing.T) {
					b, l := awayBox(t)
					n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}, v6: []*pool{{}}})
					one := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
					two := b.run(&endpoint{net: n})
					before := l.calls.Load()
					if l.after.Store(after); after == 0 {
						l.gone.Store(true)
					}
					tidy := func(method string, body m) {
						if kill {
							b.driver.Close()
							b.restart()
						}
						b.ok(method, body)
					}
					for _, e := range []*endpoint{one, two} {
						tidy("NetworkDriver.RevokeExternalConnectivity", e.body())
						tidy("NetworkDriver.Leave", e.body())
						tidy("NetworkDriver.DeleteEndpoint", e.body())
					}
					if got := b.binder.count(); got != 0 {
						t.Errorf("%d interfaces are plugged while the SDN is away", got)
					}
					for _, e := range []*endpoint{two, one} {
						tidy("IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": e.ip4})
						tidy("IpamDriver.ReleaseAddress", m{"PoolID": n.v6[0].id, "Address": e.ip6})
					}
					if remove {
						for _, p := range append(slices.Clone(n.v4), n.v6...) {
							tidy("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway})
							tidy("IpamDriver.ReleasePool", m{"PoolID": p.id})
						}
						tidy("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
					}
					gone = l.gone.Load()
					l.after.Store(0)
					b.back(l)
					if !remove {
						b.remove(n)
					}
					b.clean()
					b.nothingPlugged()
					if !gone && l.calls.Load() == before {
						t.Error("the SDN was not asked")
					}
				})
				if after > 0 && !gone {
					break // it went away after all was done
				}
			}
		}
	}
}

// TestAwayFails: what gives fails at once and says so in words, and what it is asked anew when the SDN is back is done.
func TestAwayFails(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	b.restart() // it starts while the SDN is down
	b.ok("Plugin.Activate", nil)
	b.ok("NetworkDriver.GetCapabilities", nil)
	for method, body := range map[string]m{
		"IpamDriver.RequestPool":       {"AddressSpace": localSpace, "Pool": "10.2.0.0/24"},
		"IpamDriver.RequestAddress":    {"PoolID": n.v4[0].id, "Options": m{optMAC: "02:00:00:00:00:09"}},
		"NetworkDriver.CreateNetwork":  {"NetworkID": newID(), "Options": m{}, "IPv4Data": []m{}},
		"NetworkDriver.CreateEndpoint": {"NetworkID": n.id, "EndpointID": newID()},
	} {
		text := b.fails(method, body)
		b.contains(text, "the SDN does not answer")
		if strings.Contains(text, "dial tcp") {
			t.Errorf("%s: %q tells of Go's insides", method, text)
		}
	}
	b.ok("NetworkDriver.EndpointOperInfo", e.body())
	// An endpoint that was made before can be joined: what is needed for that is remembered.
	b.ok("NetworkDriver.Leave", e.body())
	l.gone.Store(false)
	b.ok("NetworkDriver.Join", e.joinBody())
	if b.binder.count() != 1 {
		t.Error("the Leave that was owed took the interface of the Join after it")
	}
	b.idle()
	if b.binder.count() != 1 {
		t.Error("the Leave that was owed took the interface of the Join after it")
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// TestAwayCreate: a network for whose making the SDN goes away, at every moment, is gone when it is back. The engine never has it, and releases its range alone.
func TestAwayCreate(t *testing.T) {
	t.Parallel()
	owed := 0
	for after := int64(1); ; after++ {
		gone := false
		t.Run(fmt.Sprintf("after=%d", after), func(t *testing.T) {
			b, l := awayBox(t)
			n := &network{v4: []*pool{{cidr: "10.1.0.0/24"}}}
			body := b.request(n)
			l.after.Store(after)
			status, answer := b.post("NetworkDriver.CreateNetwork", encode(body))
			gone = l.gone.Load()
			l.after.Store(0)
			if status != http.StatusOK || (answer["Err"] != nil) != gone {
				t.Errorf("status %d, %v, while the SDN is away: %v", status, answer, gone)
			}
			owed += len(b.pendingRows())
			b.release(n)
			if !gone {
				b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
			}
			b.restart()
			b.back(l)
			b.clean()
		})
		if !gone {
			break
		}
	}
	if owed == 0 {
		t.Error("the SDN never went away between what was made and its end")
	}
}

// TestAwayUse: an existing network for whose use the SDN goes away, at every moment, is as before when it is back. Until the first change nothing is owed, nor tried.
func TestAwayUse(t *testing.T) {
	t.Parallel()
	owed := 0
	for after := int64(1); ; after++ {
		gone := false
		t.Run(fmt.Sprintf("after=%d", after), func(t *testing.T) {
			b, l := awayBox(t)
			b.config.Routed = false
			b.restart()
			theirs := b.theirs("net", "10.50.0.0/24")
			before := b.dump()
			n := b.zun(theirs, "10.50.0.0/24", "")
			body := b.request(n)
			asked := l.calls.Load()
			l.after.Store(after)
			status, answer := b.post("NetworkDriver.CreateNetwork", encode(body))
			gone = l.gone.Load()
			l.after.Store(0)
			if status != http.StatusOK || answer["Err"] != nil && !gone {
				t.Errorf("status %d, %v, while the SDN is away: %v", status, answer, gone)
			}
			// The network, its subnets and the subnet that is named are read.
			if debts, calls := len(b.pendingRows()), l.calls.Load()-asked; after <= 3 && (debts > 0 || calls != after) {
				t.Errorf("%d calls are owed, of %d that could be made %d were tried", debts, after, calls)
			}
			owed += len(b.pendingRows())
			b.release(n)
			if answer["Err"] == nil {
				b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
			}
			b.restart()
			b.back(l)
			if now := b.dump(); now != before {
				t.Errorf("before\n%s\nafter\n%s", before, now)
			}
		})
		if !gone {
			break
		}
	}
	if owed == 0 {
		t.Error("the SDN never went away between what was made and its end")
	}
}

// TestAwayGivenAgain: what was given again meanwhile is not destroyed by a clean-up that is still owed.
func TestAwayGivenAgain(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			t.Parallel()
			b, l := awayBox(t)
			n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}, v6: []*pool{{}}})
			e := b.run(&endpoint{net: n, ip4: "10.1.0.9"})
			l.gone.Store(true)
			b.stop(e)
			if restart {
				b.restart()
			}
			l.gone.Store(false)
			// The same container is started again at once, with its address and its MAC.
			again := b.run(&endpoint{net: n, ip4: e.ip4, mac: e.mac})
			b.idle()
			port := b.portOf(again.id)
			if port.DeviceID != again.id || !slices.ContainsFunc(port.Addresses, func(a sdn.Address) bool { return a.Addr.String() == again.ip4 }) {
				t.Errorf("the port that was given again is %+v", port)
			}
			if b.binder.count() != 1 {
				t.Errorf("%d interfaces", b.binder.count())
			}
			// A range is given again.
			b.stop(again)
			l.gone.Store(true)
			b.release(n)
			b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
			l.gone.Store(false)
			n = b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
			b.idle()
			b.stop(b.run(&endpoint{net: n}))
			b.remove(n)
			b.clean()
		})
	}
}

// TestAwayOtherHost: a release is done, and the note of that is lost with the machine; meanwhile another host has got the address.
func TestAwayOtherHost(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} { // whether DeleteEndpoint was done before the SDN was away
		t.Run(fmt.Sprintf("deleted=%v", deleted), func(t *testing.T) {
			t.Parallel()
			b, l := awayBox(t)
			n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
			e := b.run(&endpoint{net: n})
			l.gone.Store(!deleted)
			b.ok("NetworkDriver.Leave", e.body())
			b.ok("NetworkDriver.DeleteEndpoint", e.body())
			l.gone.Store(true)
			b.giveBack(e)
			debts := map[string][]byte{}
			files, err := filepath.Glob(filepath.Join(b.config.StateDir, "owed", "*"))
			b.must(err)
			for _, f := range files {
				debts[f], err = os.ReadFile(f)
				b.must(err)
			}
			b.back(l)
			other := &endpoint{net: n, ip4: e.ip4}
			b.run(other)
			for f, text := range debts {
				b.must(os.WriteFile(f, text, 0o600))
			}
			b.restart()
			b.idle()
			if port := b.portOf(other.id); len(port.Addresses) != 1 || port.Addresses[0].Addr.String() != e.ip4 || len(identity.Values(port.Tags, identity.TagFreed)) > 0 {
				t.Errorf("the other's port is %+v", port)
			}
			b.stop(other)
			b.remove(n)
			b.clean()
		})
	}
}

// TestAwayRun: what is owed is done as soon as a call shows that the SDN is back, and after a start while it was down.
func TestAwayRun(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	b.stop(e)
	b.restart()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.driver.Run(ctx) }()
	l.gone.Store(false)
	b.requestPool(&pool{cidr: "10.7.0.0/24"}, false)
	for len(b.pendingRows()) > 0 {
		// Each turn asks the SDN, which is what wakes Run.
		b.requestGateway(&pool{id: n.v4[0].id})
	}
	stop()
	b.must(<-ended)
	if ports, err := sdn.All(l.FindPorts(t.Context(), sdn.PortQuery{Devices: []string{e.id}})); err != nil || len(ports) > 0 {
		t.Errorf("ports %+v, %v", ports, err)
	}
}

// TestPortUnseen: a container whose port the SDN does not show, to other credentials than before it may be, is not cut off by a restart; when it is stopped
// nothing is left.
func TestPortUnseen(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	b.must(l.DeletePorts(t.Context(), []sdn.ID{b.portOf(e.id).ID}))
	b.restart()
	b.reconcile()
	if b.binder.count() != 1 {
		t.Error("the container has lost its interface")
	}
	b.stop(e)
	if b.binder.count() != 0 {
		t.Error("the interface is left")
	}
	b.nothingPlugged()
	b.remove(n)
	b.clean()
}

// TestAwayNoRoom: a folder that cannot be made keeps nobody from being served.
func TestAwayNoRoom(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
	b := boxOn(t, l, func(c *Config) { c.RunDir = file })
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	b.stop(e)
	b.back(l)
	b.remove(n)
	b.clean()
}
