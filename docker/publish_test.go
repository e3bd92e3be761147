package docker

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// forwards are an endpoint's forwardings by address of the host.
func (b *box) forwards(endpoint string) map[string][]sdn.Forward {
	b.t.Helper()
	found := map[string][]sdn.Forward{}
	for f, err := range b.provider.FindFloatingIPs(b.t.Context(), sdn.FloatingIPQuery{}) {
		b.must(err)
		if !strings.HasPrefix(f.Key.Name, endpoint+"/") {
			continue
		}
		list, err := sdn.All(b.provider.FindForwards(b.t.Context(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}))
		b.must(err)
		found[f.Address.String()] = list
	}
	return found
}

func TestPublish(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	e := b.run(&endpoint{net: n, published: []m{
		{"Proto": 6, "IP": "", "Port": 80, "HostIP": "", "HostPort": 8080, "HostPortEnd": 8080},
		{"Proto": 17, "IP": "", "Port": 53, "HostIP": "0.0.0.0", "HostPort": 5353, "HostPortEnd": 5353},
		{"Proto": 132, "IP": "", "Port": 9, "HostIP": "0.0.0.0", "HostPort": 9, "HostPortEnd": 9},
	}})
	got := b.forwards(e.id)
	if len(got["0.0.0.0"]) != 3 || len(got["::"]) != 1 {
		t.Fatalf("forwardings %+v", got)
	}
	six := got["::"][0]
	if six.Protocol != sdn.TCP || six.External.First != 8080 || six.Internal.First != 80 ||
		six.Target.Addr != netip.MustParseAddr(e.ip6) {
		t.Errorf("forwarding %+v", six)
	}
	// The engine moves the gateway to another endpoint and back.
	b.ok("NetworkDriver.RevokeExternalConnectivity", e.body())
	if got := b.forwards(e.id); len(got) != 0 {
		t.Errorf("after Revoke %+v", got)
	}
	b.publish(e)
	// Engines from 29 on do not revoke what they published before a restart of theirs.
	b.ok("NetworkDriver.Leave", e.body())
	if got := b.forwards(e.id); len(got) != 0 {
		t.Errorf("after Leave %+v", got)
	}
	b.publish(e)
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	if got := b.forwards(e.id); len(got) != 0 {
		t.Errorf("after DeleteEndpoint %+v", got)
	}
	b.giveBack(e)
	b.remove(n)
	b.clean()
}

func TestPublishConflict(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	one := b.create(v4Network("10.1.0.0/24"))
	two := b.create(v4Network("10.2.0.0/24"))
	b.run(&endpoint{net: one, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	b.run(&endpoint{net: one, published: []m{{"Proto": 17, "Port": 80, "HostPort": 8080}}}) // another protocol
	before := b.dump()
	e := &endpoint{net: two, published: []m{
		{"Proto": 6, "Port": 81, "HostPort": 8081}, {"Proto": 6, "Port": 80, "HostPort": 8080},
	}}
	b.join(e)
	b.contains(b.publishFails(e), "8080/tcp")
	b.stop(e)
	b.unchanged(before)
}

// fakePorts is a host whose ports some programs have.
type fakePorts struct {
	mu    sync.Mutex
	fail  func(hostports.Port) error
	users []hostports.Program
	held  map[string]string // port: owner
}

func portText(p hostports.Port) string { return p.Address.String() + "/" + ipproto.Name(p.Protocol) }

func (f *fakePorts) Reserve(owner string, p hostports.Port) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if had := f.held[portText(p)]; had != "" && had != owner {
		return hostports.ErrHeld
	}
	if f.fail != nil {
		if err := f.fail(p); err != nil {
			return err
		}
	}
	f.held[portText(p)] = owner
	return nil
}

func (f *fakePorts) Restore(owner string, p hostports.Port) error { return f.Reserve(owner, p) }

func (f *fakePorts) Release(owner string, ports ...hostports.Port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range ports {
		if f.held[portText(p)] == owner {
			delete(f.held, portText(p))
		}
	}
}

func (f *fakePorts) ReleaseAll(owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.held, func(_, had string) bool { return had == owner })
}

func (f *fakePorts) Retain(owner string, ports ...hostports.Port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := map[string]bool{}
	for _, p := range ports {
		keep[portText(p)] = true
	}
	maps.DeleteFunc(f.held, func(port, had string) bool { return had == owner && !keep[port] })
}

func (f *fakePorts) Users(hostports.Port) []hostports.Program { return f.users }

// ports are those that are held now, in order.
func (f *fakePorts) ports() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(f.held)), " ")
}

func withPorts(t testing.TB, fail func(hostports.Port) error) (*box, *fakePorts) {
	f := &fakePorts{held: map[string]string{}, fail: fail}
	return newBox(t, func(c *Config) { c.HostPorts = f }), f
}

// A port that a program of the host has is never taken from it: one that was asked for is refused, another is chosen.
func TestPublishKeepsListeners(t *testing.T) {
	t.Parallel()
	b, host := withPorts(t, func(p hostports.Port) error {
		if p.Protocol == sdn.TCP && p.Address.Addr().Is4() && p.Address.Port() <= 8081 {
			return hostports.ErrInUse
		}
		return nil
	})
	n := b.create(dualNetwork())
	before := b.dump()
	for words, users := range map[string][]hostports.Program{
		"a program of this host uses it: sshd (process 12)":                       {{Name: "sshd", PID: 12}},
		"another driver's network has published it, by docker-proxy (process 13)": {{Name: "docker-proxy", PID: 13}},
		"host port 22/tcp is already allocated: " + hostports.ErrInUse.Error():    nil,
		"a program of this host uses it: nginx (process 14), nginx (process 15)": {
			{Name: "nginx", PID: 14}, {Name: "nginx", PID: 15},
		},
	} {
		host.users = users
		e := &endpoint{net: n, published: []m{
			{"Proto": 17, "Port": 22, "HostPort": 22}, {"Proto": 6, "Port": 22, "HostPort": 22},
		}}
		b.join(e)
		b.contains(b.publishFails(e), "22/tcp", words)
		b.stop(e)
		b.unchanged(before)
		if left := host.ports(); left != "" {
			t.Errorf("a refused publication left ports reserved: %s", left)
		}
	}
	e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080, "HostPortEnd": 8083}}})
	forwards, err := sdn.All(b.provider.FindForwards(t.Context(), sdn.ForwardQuery{}))
	b.must(err)
	if len(forwards) != 2 {
		t.Errorf("forwardings: %v, want one of each family", forwards)
	}
	for _, f := range forwards {
		if f.External.First != 8082 {
			t.Errorf("published at %d, want 8082", f.External.First)
		}
	}
	if got := host.ports(); got != "0.0.0.0:8082/tcp [::]:8082/tcp" {
		t.Errorf("reserved: %s", got)
	}
	// A repeat chooses the same, and changes nothing.
	b.publish(e)
	if got := host.ports(); got != "0.0.0.0:8082/tcp [::]:8082/tcp" {
		t.Errorf("reserved after a repeat: %s", got)
	}
	for _, method := range []string{
		"RevokeExternalConnectivity", "RevokeExternalConnectivity", "Leave", "DeleteEndpoint",
	} {
		b.ok("NetworkDriver."+method, e.body())
		if got := host.ports(); got != "" {
			t.Errorf("reserved after %s: %s", method, got)
		}
	}
}

// TestPublishAgain checks that ports that are no longer requested are withdrawn and
// released.
func TestPublishAgain(t *testing.T) {
	t.Parallel()
	b, host := withPorts(t, nil)
	n := b.create(v4Network("10.1.0.0/24"))
	e := b.run(&endpoint{net: n, published: []m{
		{"Proto": 17, "Port": 80, "HostPort": 8080}, {"Proto": 17, "Port": 81, "HostPort": 8081},
		{"Proto": 17, "Port": 82, "HostPort": 8082}, {"Proto": 6, "Port": 80},
	}})
	isRange := func(f sdn.Forward) bool { return f.External == sdn.PortRange{First: 8080, Last: 8082} }
	if got := b.forwards(e.id)["0.0.0.0"]; len(got) != 2 || !slices.ContainsFunc(got, isRange) {
		t.Errorf("forwardings %+v, want one port and a range of three", got)
	}
	b.ok("NetworkDriver.ProgramExternalConnectivity", e.program(m{"Proto": 17, "Port": 81, "HostPort": 8081}))
	if got := b.forwards(e.id)["0.0.0.0"]; len(got) != 1 || got[0].External != (sdn.PortRange{First: 8081, Last: 8081}) {
		t.Errorf("forwardings %+v, want that of port 8081", got)
	}
	if got := host.ports(); got != "0.0.0.0:8081/udp" {
		t.Errorf("reserved: %s", got)
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// What the host cannot give is told with the address's or the limit's name, and chosen ports are no way around.
func TestPublishRefusedByHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		words []string
	}{
		{hostports.ErrNoAddress, []string{"80/tcp", "203.0.113.9", "cannot assign requested address"}},
		{hostports.ErrNoFiles, []string{"LimitNOFILE"}},
		{hostports.ErrHeld, []string{"another endpoint has published it", "203.0.113.9:8080/tcp"}},
		{errors.New("the kernel's secret"), []string{"203.0.113.9:8080/tcp", "cannot be published"}},
	} {
		b, host := withPorts(t, func(p hostports.Port) error {
			if p.Protocol == sdn.TCP {
				return c.err
			}
			return nil
		})
		n := b.create(v4Network("10.1.0.0/24"))
		e := &endpoint{net: n}
		b.take(e)
		b.ok("NetworkDriver.CreateEndpoint", e.createBody())
		before := b.dump()
		text := b.fails("NetworkDriver.ProgramExternalConnectivity", e.program(
			m{"Proto": 17, "Port": 80, "HostIP": "203.0.113.9", "HostPort": 8080}, m{
				"Proto": 6, "Port": 80, "HostIP": "203.0.113.9", "HostPort": 8080,
			}))
		b.contains(text, c.words...)
		if !errors.Is(c.err, hostports.ErrHeld) {
			b.fails("NetworkDriver.ProgramExternalConnectivity", e.program(
				m{"Proto": 17, "Port": 80}, m{"Proto": 6, "Port": 80, "HostIP": "203.0.113.9"},
			))
		}
		if now := b.dump(); now != before || host.ports() != "" {
			t.Errorf("%v left %s and\n%s\nbefore\n%s", c.err, host.ports(), now, before)
		}
	}
}

// A network of Docker's option host_binding_ipv4 publishes there what names no address of
// the host, and by IPv6 nothing.
func TestPublishWhereTheNetworkBinds(t *testing.T) {
	t.Parallel()
	b, host := withPorts(t, nil)
	n := dualNetwork()
	n.options = m{optBinding: "127.0.0.1"}
	e := b.run(
		&endpoint{net: b.create(n), published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}, {
			"Proto": 6, "Port": 22, "HostIP": "198.51.100.1", "HostPort": 8022,
		}}},
	)
	if got := b.forwards(e.id); len(got) != 2 || len(got["127.0.0.1"]) != 1 || len(got["198.51.100.1"]) != 1 {
		t.Errorf("forwardings: %+v", got)
	}
	if n := len(strings.Fields(host.ports())); n != 2 {
		t.Errorf("reserved %s", host.ports())
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// One port is published on several addresses of the host, to several endpoints of one network.
func TestPublishOnOneAddress(t *testing.T) {
	t.Parallel()
	b, host := withPorts(t, nil)
	n := b.create(dualNetwork())
	var published []m
	for i := range 20 {
		published = append(published, m{
			"Proto": 6, "Port": 80,
			"HostIP": netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}).String(), "HostPort": 8080,
		})
	}
	published = append(
		published, m{"Proto": 6, "Port": 80, "HostIP": "::1", "HostPort": 8080},
		m{"Proto": 6, "Port": 443, "HostIP": "::1", "HostPort": 0},
		m{"Proto": 6, "Port": 22, "HostPort": 8022},
	)
	one := b.run(&endpoint{net: n, published: published})
	two := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": 8080}}})
	got := b.forwards(one.id)
	if len(got) != 23 || len(got["198.51.100.7"]) != 1 || len(got["::1"]) != 2 ||
		len(got["0.0.0.0"]) != 1 || len(got["::"]) != 1 {
		t.Errorf("forwardings: %+v", got)
	}
	if f := got["::1"][0]; f.Target.Addr.String() != one.ip6 {
		t.Errorf("::1 leads to %v", f.Target)
	}
	if f := b.forwards(two.id)["127.0.0.1"]; len(f) != 1 || f[0].Target.Addr.String() != two.ip4 ||
		f[0].External.First != 8080 {
		t.Errorf("127.0.0.1 leads to %+v", f)
	}
	// Every address counts as each.
	three := &endpoint{net: n}
	b.take(three)
	b.ok("NetworkDriver.CreateEndpoint", three.createBody())
	for _, m := range []m{
		{"Proto": 6, "Port": 80, "HostPort": 8080},
		{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": 8080},
		{"Proto": 6, "Port": 1, "HostIP": "127.0.0.1", "HostPort": 8022},
	} {
		b.contains(
			b.fails("NetworkDriver.ProgramExternalConnectivity", three.program(m)),
			"already allocated", "another endpoint",
		)
	}
	b.ok("NetworkDriver.ProgramExternalConnectivity", three.program(
		m{"Proto": 6, "Port": 80, "HostIP": "127.0.0.2", "HostPort": 8080},
	))
	// Asked for again with one address more, what is there stays.
	b.ok("NetworkDriver.ProgramExternalConnectivity", one.program(
		append(published, m{"Proto": 6, "Port": 80, "HostIP": "::2", "HostPort": 8080})...,
	))
	if again := b.forwards(one.id); len(again) != 24 || again["198.51.100.7"][0].ID != got["198.51.100.7"][0].ID {
		t.Errorf("forwardings after a repeat: %+v", again)
	}
	reserved := host.ports()
	if want := 20 + 1 + 1 + 2 + 1 + 1 + 1; len(strings.Fields(reserved)) != want {
		t.Errorf("reserved %d: %s; want %d", len(strings.Fields(reserved)), reserved, want)
	}

	// A restart loses the sockets. They are opened again for what the SDN has.
	host.held = map[string]string{}
	b.restart()
	b.reconcile()
	if now := host.ports(); now != reserved {
		t.Errorf("reserved after a restart: %s\nbefore %s", now, reserved)
	}
	for _, e := range []*endpoint{one, two, three} {
		b.stop(e)
		if left := b.forwards(e.id); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
	if left := host.ports(); left != "" {
		t.Errorf("reserved after all: %s", left)
	}
	b.remove(n)
	b.clean()
}

// A program that took a published port while Kuryr did not run is logged, and delays
// nothing.
func TestPublishedPortTakenWhileStopped(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	host := &fakePorts{held: map[string]string{}, users: []hostports.Program{{Name: "thief", PID: 7}}}
	b := newBox(t, func(c *Config) { c.HostPorts, c.Logger = host, slog.New(slog.NewTextHandler(&log, nil)) })
	n := b.create(v4Network("10.1.0.0/24"))
	e := b.run(&endpoint{net: n, published: []m{
		{"Proto": 6, "Port": 80, "HostPort": 8080}, {"Proto": 17, "Port": 80, "HostPort": 8080},
		{"Proto": 6, "Port": 81},
	}})
	published := b.forwards(e.id)
	host.held = map[string]string{}
	host.fail = func(p hostports.Port) error {
		if p.Protocol == sdn.TCP {
			return hostports.ErrInUse
		}
		return nil
	}
	b.restart()
	b.reconcile()
	b.contains(log.String(), "level=WARN", "8080", "thief (process 7)")
	if got := host.ports(); got != "0.0.0.0:8080/udp" {
		t.Errorf("reserved: %s", got)
	}
	// Nor does it hinder a repeat of what is published; but what is not.
	b.publish(e)
	if now := b.forwards(e.id); !reflect.DeepEqual(now, published) {
		t.Errorf("published after a repeat: %v, before %v", now, published)
	}
	b.contains(
		b.fails("NetworkDriver.ProgramExternalConnectivity", e.program(
			append(e.published, m{"Proto": 6, "Port": 82, "HostPort": 8082})...,
		)),
		"8082/tcp", "thief",
	)
}

// learning is a provider that does not know its capabilities before its first answer.
func learning(p sdn.Provider) sdn.Provider {
	known := false
	return &dockertest.Provider{
		Provider: p,
		Can:      func(can *sdn.Capabilities) { can.Forwards, can.HostAddresses = known, known },
		Before:   func(c dockertest.Call) error { known = known || c.Method == "Ping"; return nil },
	}
}

// TestPublishedPortsOfUnknownSDN checks that host ports are reserved again after a restart with an
// SDN in another process, whose capabilities are not known yet.
func TestPublishedPortsOfUnknownSDN(t *testing.T) {
	t.Parallel()
	b, host := withPorts(t, nil)
	n := b.create(v4Network("10.1.0.0/24"))
	b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	host.held = map[string]string{}
	b.config.Provider = learning(b.provider)
	b.restart()
	b.reconcile()
	if got := host.ports(); got != "0.0.0.0:8080/tcp" {
		t.Errorf("reserved after a restart: %q", got)
	}
}

func TestPublishChoosesPorts(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	dynamic := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80}, {"Proto": 17, "Port": 80}}})
	first := b.forwards(dynamic.id)
	for _, f := range slices.Concat(first["0.0.0.0"], first["::"]) {
		if f.External.First < 49153 {
			t.Errorf("forwarding %+v", f)
		}
	}
	host := func(list []sdn.Forward, p sdn.Protocol) uint16 {
		i := slices.IndexFunc(list, func(f sdn.Forward) bool { return f.Protocol == p })
		return list[i].External.First
	}
	if host(first["0.0.0.0"], sdn.TCP) != host(first["::"], sdn.TCP) {
		t.Errorf("the families differ: %+v", first)
	}
	// Three endpoints share a range of three ports; there is none for a fourth.
	ports := map[uint16]bool{}
	for range 3 {
		e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 9000, "HostPortEnd": 9002}}})
		ports[host(b.forwards(e.id)["0.0.0.0"], sdn.TCP)] = true
	}
	if len(ports) != 3 || !ports[9000] || !ports[9001] || !ports[9002] {
		t.Errorf("ports %v", ports)
	}
	e := &endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 9000, "HostPortEnd": 9002}}}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	b.contains(b.publishFails(e), "9000", "9002")
}

func TestPublishRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	before := b.dump()
	for _, host := range []string{"::", "::1", "2001:db8::1"} {
		program := e.program(m{"Proto": 6, "Port": 80, "HostIP": host, "HostPort": 8080})
		b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "family", host)
	}
	b.unchanged(before)
	program := (&endpoint{net: n, id: newID()}).program(m{"Proto": 6, "Port": 80, "HostPort": 1})
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "no endpoint")
}
