//go:build linux

package claim

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/datapath/hostport"
	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// led stands for the kernel: what it is told stays when the daemon ends.
type led struct {
	mu     sync.Mutex
	owners map[string][]hostport.Mapping
	during func() // each change for a pod; nil is nothing
}

func (l *led) Restore(owners map[string][]hostport.Mapping) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owners = maps.Clone(owners)
	return nil
}

func (l *led) Set(owner string, list []hostport.Mapping) error {
	if l.during != nil && len(list) > 0 {
		l.during()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, has := range l.owners {
		if other != owner && slices.ContainsFunc(list, func(m hostport.Mapping) bool {
			return slices.ContainsFunc(has, func(h hostport.Mapping) bool { return h.Port == m.Port })
		}) {
			return sdn.Conflict(sdn.Exists, "host port", "hostPort", "another's")
		}
	}
	l.owners[owner] = list
	if len(list) == 0 {
		delete(l.owners, owner)
	}
	return nil
}

// to is where a port of the host leads; "" is nowhere.
func (l *led) to(port uint16) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, list := range l.owners {
		for _, m := range list {
			if m.Port == port {
				return m.To.String()
			}
		}
	}
	return ""
}

func TestHostPorts(t *testing.T) {
	kernel := &led{owners: map[string][]hostport.Mapping{}}
	w := aWorld(t, aPort(1), aPort(2), aPod("a", "ua"), aPod("b", "ub"))
	w.host = kernel
	w.start()
	t.Cleanup(func() { w.kill() })
	w.begun()
	want := agent.Want{Published: []agent.Published{{HostPort: 8080, Port: 80, Protocol: sdn.TCP}}, Bandwidth: sdn.Limits{IngressKbps: 1000}}
	a, b := ask("ca", "a", "ua"), ask("cb", "b", "ub")
	a.Want, b.Want = want, want
	got := w.adds(a)
	if got.Limits != want.Bandwidth {
		t.Errorf("limits %+v", got.Limits)
	}
	address := func(w agent.Wiring) string { return netip.AddrPortFrom(w.Port.Addresses[0].Addr, 80).String() }
	if to := kernel.to(8080); to != address(got) {
		t.Errorf("led to %q, not %s", to, address(got))
	}
	// Who asks for another's gets nothing, and nothing is lost by it.
	if _, err := w.Claim(t.Context(), b); !sdn.IsConflict(err) {
		t.Errorf("the same port of the node twice: %v", err)
	}
	// A DEL of a pod of before changes nothing.
	stale := ask("ca", "a", "old")
	w.dels(stale)
	kernel.owners = map[string][]hostport.Mapping{"stranger": {{Port: 9}}}
	w.restart()
	w.begun()
	if to := kernel.to(8080); to != address(got) || kernel.to(9) != "" {
		t.Errorf("after a restart led to %q, not %s; to what nobody has: %q", to, address(got), kernel.to(9))
	}
	w.dels(a)
	if to := kernel.to(8080); to != "" {
		t.Errorf("taken away it is led to %s", to)
	}
	if got := w.adds(b); kernel.to(8080) != address(got) {
		t.Errorf("given to another it is led to %q, not %s", kernel.to(8080), address(got))
	}
	w.dels(b)
	if len(kernel.owners) > 0 {
		t.Errorf("left: %v", kernel.owners)
	}
}

// A pod's next sandbox that cannot be stored has nothing, after a restart too. Its pod keeps the
// port.
func TestHeirNotStored(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"), aPod("b", "ub"))
	w.begun()
	got := w.adds(ask("before", "a", "ua"))
	w.says(string(got.Port.ID), v1.PortBound, "before")
	kernel := &led{owners: map[string][]hostport.Mapping{}}
	w.kill()
	reboot(w)
	w.host = kernel
	w.start()
	w.begun()
	heir := ask("heir", "a", "ua")
	heir.Want.Published = []agent.Published{{HostPort: 8080, Port: 80, Protocol: sdn.TCP}}
	room := fill(w)
	if _, err := w.Claim(t.Context(), heir); !sdn.IsOfHost(err) {
		t.Fatalf("error %v", err)
	}
	must(t, w.do(t.Context(), task{port: string(got.Port.ID)}))
	w.says(string(got.Port.ID), v1.PortBound, "before")
	room()
	w.restart()
	w.begun()
	if has, err := w.Find(t.Context(), heir); !sdn.IsNotFound(err) {
		t.Errorf("it has %s, error %v", has.Port.ID, err)
	}
	if again := w.adds(heir); again.Port.ID != got.Port.ID {
		t.Errorf("asked again it has %s", again.Port.ID)
	}
	w.says(string(got.Port.ID), v1.PortBound, "heir")
}

// One that is stored and whose ports of the node are another's has nothing either.
func TestHeirNotPublished(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	got := w.adds(ask("before", "a", "ua"))
	w.says(string(got.Port.ID), v1.PortBound, "before")
	w.kill()
	reboot(w)
	kernel := &led{owners: map[string][]hostport.Mapping{}}
	w.host = kernel
	w.start()
	w.begun()
	kernel.owners["another"] = []hostport.Mapping{{Port: 8080}}
	heir := ask("heir", "a", "ua")
	heir.Want.Published = []agent.Published{{HostPort: 8080, Port: 80, Protocol: sdn.TCP}}
	if _, err := w.Claim(t.Context(), heir); !sdn.IsConflict(err) {
		t.Fatalf("error %v", err)
	}
	w.says(string(got.Port.ID), v1.PortAvailable, "")
	w.settled(0)
	delete(kernel.owners, "another")
	w.adds(heir)
}

func TestMappings(t *testing.T) {
	t.Parallel()
	both := []sdn.Address{{Addr: netip.MustParseAddr("10.1.0.5")}, {Addr: netip.MustParseAddr("fd00::5")}, {Addr: netip.MustParseAddr("10.1.0.6")}}
	one := func(host string) []agent.Published {
		addr, _ := netip.ParseAddr(host)
		return []agent.Published{{HostIP: addr, HostPort: 8080, Port: 80, Protocol: sdn.UDP}}
	}
	for name, row := range map[string]struct {
		asks []agent.Published
		has  []sdn.Address
		want []string
		fail bool
	}{
		"all of both families":   {one(""), both, []string{"10.1.0.5:80", "[fd00::5]:80"}, false},
		"one of IPv4":            {one("192.0.2.1"), both, []string{"10.1.0.5:80"}, false},
		"all of IPv6":            {one("::"), both, []string{"[fd00::5]:80"}, false},
		"a family it has not":    {one("2001:db8::1"), both[:1], nil, true},
		"all of those it has":    {one(""), both[:1], []string{"10.1.0.5:80"}, false},
		"none is no port at all": {nil, both, nil, false},
	} {
		list, err := mappings(row.asks, row.has)
		var to []string
		for _, m := range list {
			to = append(to, m.To.String())
		}
		if (err != nil) != row.fail || row.fail && !sdn.IsInvalid(err) || !slices.Equal(to, row.want) {
			t.Errorf("%s: %v, %v", name, to, err)
		}
	}
}
