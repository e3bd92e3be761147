package docker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// TestManyPublishedPorts checks -p 10000-20000:10000-20000/udp: Docker's calls are then longer
// than 1 MiB. The SDN is called once to publish them, and once to withdraw them.
func TestManyPublishedPorts(t *testing.T) {
	t.Parallel()
	b, c := countedBox(t)
	n := b.create(v4Network("10.50.0.0/24"))
	published, exposed := []m{}, []m{}
	for p := 10000; p <= 20000; p++ {
		published = append(published, m{
			"Proto": 17, "IP": "", "Port": p, "HostIP": "", "HostPort": p, "HostPortEnd": p,
		})
		exposed = append(exposed, m{"Proto": 17, "Port": p})
	}
	e := b.run(&endpoint{net: n, published: published, exposed: exposed})
	ports := 0
	for _, f := range b.forwards(e.id)["0.0.0.0"] {
		ports += int(f.External.Last-f.External.First) + 1
	}
	if ports != len(published) {
		t.Errorf("%d ports are published, want %d", ports, len(published))
	}
	b.stop(e)
	calls := slices.DeleteFunc(c.calls, func(call string) bool {
		return !slices.Contains([]string{"Publish", "Publication", "Unpublish"}, call)
	})
	if want := []string{"Publish", "Unpublish"}; !slices.Equal(calls, want) {
		t.Errorf("calls %v, want %v", calls, want)
	}
	b.remove(n)
	b.clean()
}

// TestManyTakenPorts checks that every port of a range is tried, however many are taken.
func TestManyTakenPorts(t *testing.T) {
	t.Parallel()
	b, host := withPorts(t, nil)
	n := b.create(v4Network("10.50.0.0/24"))
	take := func(first, last int) {
		for p := first; p <= last; p++ {
			host.held[fmt.Sprintf("0.0.0.0:%d/tcp", p)] = "other"
		}
	}
	publish := func(first, last, want int) {
		t.Helper()
		e := &endpoint{net: n, published: []m{
			{"Proto": 6, "Port": 80, "HostPort": first, "HostPortEnd": last},
		}}
		b.join(e)
		if want == 0 {
			b.contains(b.publishFails(e), "no host port from 21000 to 21999 is free")
		} else {
			b.publish(e)
			got := b.forwards(e.id)["0.0.0.0"]
			if len(got) != 1 || int(got[0].External.First) != want {
				t.Errorf("published at %v, want %d", got, want)
			}
		}
		b.stop(e)
	}
	take(21000, 21298)
	publish(21000, 21999, 21299)
	take(21299, 21998)
	publish(21000, 21999, 21999)
	take(21999, 21999)
	publish(21000, 21999, 0)
	take(49153, 65535)
	delete(host.held, "0.0.0.0:60000/tcp")
	publish(0, 0, 60000)
}

// TestManyTakenPortsOfFloatingIP checks that the SDN is not asked for each port of a floating IP
// that is taken.
func TestManyTakenPortsOfFloatingIP(t *testing.T) {
	t.Parallel()
	c := &counting{}
	b, p := plainBox(t, func(config *Config) { config.Provider = c.of(config.Provider) })
	n := b.create(v4Network("10.1.0.0/24"))
	shared, err := b.provider.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{
		Network: p.Capabilities().ExternalNetwork,
	})
	b.must(err)
	driver := m{optPublish: publishFloating, optFloatingIP: shared.Address.String()}
	var many []m
	for port := 21000; port < 21300; port++ {
		many = append(many, m{"Proto": 6, "Port": 80, "HostPort": port})
	}
	first := b.start(&endpoint{net: n, driver: driver, published: many})
	b.publish(first)
	second := b.start(&endpoint{net: n, driver: driver, published: []m{
		{"Proto": 6, "Port": 80, "HostPort": 21000, "HostPortEnd": 21999},
	}})
	c.calls = nil
	b.publish(second)
	calls := slices.DeleteFunc(c.calls, func(call string) bool { return call != "EnsureForwards" })
	if len(calls) != 1 {
		t.Errorf("%d calls of EnsureForwards, want 1", len(calls))
	}
	all, err := sdn.All(b.provider.FindForwards(t.Context(), sdn.ForwardQuery{
		FloatingIPs: []sdn.ID{shared.ID},
	}))
	b.must(err)
	if !slices.ContainsFunc(all, func(f sdn.Forward) bool { return f.External.First == 21300 }) {
		t.Errorf("none of %d forwardings is of port 21300", len(all))
	}
}
