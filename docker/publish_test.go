package docker

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func (b *box) forwards(endpoint string) map[string][]sdn.Forward {
	b.t.Helper()
	found := map[string][]sdn.Forward{}
	for _, v6 := range []bool{false, true} {
		floating, err := sdn.All(b.provider.FindFloatingIPs(b.t.Context(),
			sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{b.driver.publishKey(endpoint, v6)}}}))
		b.must(err)
		for _, f := range floating {
			list, err := sdn.All(b.provider.FindForwards(b.t.Context(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}))
			b.must(err)
			found[f.Address.String()] = list
		}
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
	}})
	got := b.forwards(e.id)
	if len(got["0.0.0.0"]) != 2 || len(got["::"]) != 1 {
		t.Fatalf("forwardings %+v", got)
	}
	six := got["::"][0]
	if six.Protocol != sdn.TCP || six.External.First != 8080 || six.Internal.First != 80 || six.Target.Addr != netip.MustParseAddr(e.ip6) {
		t.Errorf("forwarding %+v", six)
	}
	// The engine moves the gateway away and back again.
	b.ok("NetworkDriver.RevokeExternalConnectivity", e.body())
	if got := b.forwards(e.id); len(got) != 0 {
		t.Errorf("after Revoke %+v", got)
	}
	program := e.body()
	program["Options"] = e.options()
	b.ok("NetworkDriver.ProgramExternalConnectivity", program)
	// Engines from 29 on do not revoke what they published before a restart of theirs.
	b.ok("NetworkDriver.Leave", e.body())
	if got := b.forwards(e.id); len(got) != 0 {
		t.Errorf("after Leave %+v", got)
	}
	b.ok("NetworkDriver.ProgramExternalConnectivity", program)
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
	one := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	two := b.create(&network{v4: []*pool{{cidr: "10.2.0.0/24"}}})
	b.run(&endpoint{net: one, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	b.run(&endpoint{net: one, published: []m{{"Proto": 17, "Port": 80, "HostPort": 8080}}}) // another protocol
	before := b.dump()
	e := &endpoint{net: two, published: []m{{"Proto": 6, "Port": 81, "HostPort": 8081}, {"Proto": 6, "Port": 80, "HostPort": 8080}}}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	b.ok("NetworkDriver.Join", e.joinBody())
	program := e.body()
	program["Options"] = e.options()
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "8080/tcp")
	b.stop(e)
	if now := b.dump(); now != before {
		t.Errorf("a refused publication left\n%s\nbefore\n%s", now, before)
	}
}

// A port that a program of the host listens at is never taken from it: one that was asked for is refused, another is chosen.
func TestPublishKeepsListeners(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) {
		c.PortFree = func(_ context.Context, protocol sdn.Protocol, v6 bool, port uint16) error {
			if protocol == sdn.TCP && !v6 && port <= 8081 {
				return errors.New("a program of this host listens there")
			}
			return nil
		}
	})
	n := b.create(dualNetwork())
	before := b.dump()
	e := &endpoint{net: n, published: []m{{"Proto": 6, "Port": 22, "HostPort": 22}}}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	b.ok("NetworkDriver.Join", e.joinBody())
	program := e.body()
	program["Options"] = e.options()
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "22/tcp", "listens there")
	b.stop(e)
	if now := b.dump(); now != before {
		t.Errorf("a refused publication left\n%s\nbefore\n%s", now, before)
	}
	b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080, "HostPortEnd": 8083}}})
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
}

func TestPublishChoosesPorts(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	dynamic := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80}, {"Proto": 17, "Port": 80}}})
	first := b.forwards(dynamic.id)
	for _, f := range slices.Concat(first["0.0.0.0"], first["::"]) {
		if f.External.First < firstDynamic {
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
	program := e.body()
	program["Options"] = e.options()
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "9000", "9002")
}

func TestPublishRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	before := b.dump()
	for text, published := range map[string]m{
		"127.0.0.1": {"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": 8080},
		"family":    {"Proto": 6, "Port": 80, "HostIP": "::", "HostPort": 8080},
	} {
		program := e.body()
		program["Options"] = m{optPortMap: []m{published}}
		b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), text)
	}
	if now := b.dump(); now != before {
		t.Errorf("left\n%s\nbefore\n%s", now, before)
	}
	program := (&endpoint{net: n, id: newID()}).body()
	program["Options"] = m{optPortMap: []m{{"Proto": 6, "Port": 80, "HostPort": 1}}}
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "no endpoint")
}
