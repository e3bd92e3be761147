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

// TestUnavailableStop stops containers and removes their networks in all orders while the
// SDN is unavailable, from each call on. The plugin is killed between every two calls or
// not.
func TestUnavailableStop(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprintf("kill=%v remove=%v", kill, remove), func(t *testing.T) {
				t.Parallel()
				gone := true
				for after := int64(0); gone && !t.Failed(); after += int64(every(3)) {
					t.Run(fmt.Sprintf("after=%d", after), func(t *testing.T) {
						gone = unavailableStop(t, kill, remove, after)
					})
				}
			})
		}
	}
}

// unavailableStop makes the SDN unavailable after a number of calls, and reports whether there
// were so many.
func unavailableStop(t *testing.T, kill, remove bool, after int64) (gone bool) {
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}, v6: []*pool{{}}})
	one := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	two := b.run(&endpoint{net: n})
	before := l.calls.Load()
	if l.after.Store(after); after == 0 {
		l.gone.Store(true)
	}
	call := func(method string, body m) {
		if kill {
			b.driver.Close()
			b.restart()
		}
		b.ok(method, body)
	}
	for _, e := range []*endpoint{one, two} {
		call("NetworkDriver.RevokeExternalConnectivity", e.body())
		call("NetworkDriver.Leave", e.body())
		call("NetworkDriver.DeleteEndpoint", e.body())
	}
	if got := b.binder.count(); got != 0 {
		t.Errorf("%d interfaces are plugged while the SDN is unavailable", got)
	}
	for _, e := range []*endpoint{two, one} {
		call("IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": e.ip4})
		call("IpamDriver.ReleaseAddress", m{"PoolID": n.v6[0].id, "Address": e.ip6})
	}
	if remove {
		for _, p := range slices.Concat(n.v4, n.v6) {
			call("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway})
			call("IpamDriver.ReleasePool", m{"PoolID": p.id})
		}
		call("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
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
		t.Error("the SDN was not called")
	}
	return gone
}

// TestUnavailableRefused checks that requests fail immediately, with a text for users,
// and succeed when the SDN answers.
func TestUnavailableRefused(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
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
			t.Errorf("%s: %q has the text of an error of package net", method, text)
		}
	}
	b.ok("NetworkDriver.EndpointOperInfo", e.body())
	// An endpoint that was created before can be joined.
	b.ok("NetworkDriver.Leave", e.body())
	l.gone.Store(false)
	b.ok("NetworkDriver.Join", e.joinBody())
	if b.binder.count() != 1 {
		t.Error("the pending Leave took the interface of the Join after it")
	}
	b.idle()
	if b.binder.count() != 1 {
		t.Error("the pending Leave took the interface of the Join after it")
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// TestUnavailableUse checks that an existing network is as before if the SDN became
// unavailable during its CreateNetwork, at any call. Before the first change nothing is
// pending, nor tried.
func TestUnavailableUse(t *testing.T) {
	t.Parallel()
	pending := 0
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
				t.Errorf("status %d, %v, while the SDN is unavailable: %v", status, answer, gone)
			}
			// The network and its subnets are read.
			if rows, calls := len(b.pendingRows()), l.calls.Load()-asked; after <= 2 && (rows > 0 || calls != after) {
				t.Errorf("%d cleanups are pending; of %d calls that could be made %d were tried", rows, after, calls)
			}
			pending += len(b.pendingRows())
			b.release(n)
			if answer["Err"] == nil {
				b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
			}
			b.restart()
			b.back(l)
			b.unchanged(before)
		})
		if !gone {
			break
		}
	}
	if pending == 0 {
		t.Error("the SDN was never unavailable for a cleanup")
	}
}

// TestUnavailableGivenAgain checks that a pending cleanup does not delete what was
// requested again since.
func TestUnavailableGivenAgain(t *testing.T) {
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
			// The same container is started again, with its address and its MAC.
			again := b.run(&endpoint{net: n, ip4: e.ip4, mac: e.mac})
			b.idle()
			port := b.portOf(again.id)
			if port.DeviceID != again.id || !slices.ContainsFunc(
				port.Addresses, func(a sdn.Address) bool { return a.Addr.String() == again.ip4 },
			) {
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
			n = b.create(v4Network("10.1.0.0/24"))
			b.idle()
			b.stop(b.run(&endpoint{net: n}))
			b.remove(n)
			b.clean()
		})
	}
}

// TestUnavailableOtherHost checks that a release that was completed, which a restored database
// does not know, takes nothing from another endpoint that has got the address since.
func TestUnavailableOtherHost(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} { // whether the SDN answers DeleteEndpoint
		t.Run(fmt.Sprintf("deleted=%v", deleted), func(t *testing.T) {
			t.Parallel()
			b, l := awayBox(t)
			n := b.create(v4Network("10.1.0.0/24"))
			e := b.run(&endpoint{net: n})
			l.gone.Store(!deleted)
			b.ok("NetworkDriver.Leave", e.body())
			b.ok("NetworkDriver.DeleteEndpoint", e.body())
			l.gone.Store(true)
			b.giveBack(e)
			path := DatabasePath(b.config.StateDir)
			backup, err := os.ReadFile(path)
			b.must(err)
			if !strings.Contains(string(backup), `"phase":2`) {
				t.Error("the backup has no pending release")
			}
			b.back(l)
			other := b.run(&endpoint{net: n, ip4: e.ip4})
			b.driver.closeDatabase()
			b.must(os.WriteFile(path, backup, 0o600))
			b.restart()
			b.reconcile()
			port := b.portOf(other.id)
			if len(port.Addresses) != 1 || port.Addresses[0].Addr.String() != e.ip4 ||
				len(identity.Values(port.Tags, identity.TagFreed)) > 0 {
				t.Errorf("the other's port is %+v", port)
			}
			b.stop(other)
			b.remove(n)
			b.clean()
		})
	}
}

// TestUnavailableRun checks that pending cleanups are done when a call shows that the SDN
// answers, also after a start while it did not.
func TestUnavailableRun(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
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
		// Each round calls the SDN, which notifies Run.
		b.requestGateway(&pool{id: n.v4[0].id})
	}
	stop()
	b.must(<-ended)
	if ports, err := sdn.All(
		l.FindPorts(t.Context(), sdn.PortQuery{Devices: []string{e.id}}),
	); err != nil || len(ports) > 0 {
		t.Errorf("ports %+v, %v", ports, err)
	}
}

// TestPortUnseen checks that a container keeps its interface if the SDN no longer shows
// its port. Nothing is left when it is stopped.
func TestPortUnseen(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
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

// TestUnavailableFolder checks that calls are served if the runtime folder cannot be
// created.
func TestUnavailableFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
	b := boxOn(t, l, func(c *Config) { c.RunDir = file })
	n := b.create(v4Network("10.1.0.0/24"))
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	b.stop(e)
	b.back(l)
	b.remove(n)
	b.clean()
}
