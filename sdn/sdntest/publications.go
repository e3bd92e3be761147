package sdntest

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// manyPublished is how many ports the tests publish by one call.
const manyPublished = 2000

// publicationKey makes the Key of a publication, which the test's end deletes.
func (s *suite) publicationKey() sdn.Key {
	key := s.base("publication").Key
	s.cleanup("publication", func(ctx context.Context) error { return s.p.Unpublish(ctx, key) })
	return key
}

// publish publishes ports, which must succeed.
func (s *suite) publish(key sdn.Key, ports ...sdn.PublishedPort) []sdn.PublishedPort {
	s.Helper()
	p := must(s.p.Publish(s.ctx, sdn.PublicationSpec{Key: key, Ports: ports}))(s)
	equal(s, "key", p.Key, key)
	equal(s, "number of answers", len(p.Ports), len(ports))
	return p.Ports
}

// refused publishes ports, which must fail and change nothing.
func (s *suite) refused(key sdn.Key, ports ...sdn.PublishedPort) error {
	s.Helper()
	before := s.published(key)
	_, err := s.p.Publish(s.ctx, sdn.PublicationSpec{Key: key, Ports: ports})
	if err == nil {
		s.Error("the ports were published")
	}
	after := s.published(key)
	equal(s, "number of ports after a refusal", len(after), len(before))
	for id, port := range before {
		equal(s, "port after a refusal", after[id], port)
	}
	return err
}

// published are a publication's ports by id.
func (s *suite) published(key sdn.Key) map[sdn.ID]sdn.PublishedPort {
	s.Helper()
	ports := map[sdn.ID]sdn.PublishedPort{}
	for _, port := range must(s.p.Publication(s.ctx, key))(s).Ports {
		ports[port.ID] = port
	}
	return ports
}

// hostFloating counts the floating IPs of the publications of a Key's kind.
func (s *suite) hostFloating(key sdn.Key) (count int) {
	s.Helper()
	match := sdn.Match{Owner: key.Owner, Kind: key.Kind}
	for f, err := range s.p.FindFloatingIPs(s.ctx, sdn.FloatingIPQuery{Match: match}) {
		s.ok(err)
		if len(f.Key.Name) > len(key.Name) && f.Key.Name[:len(key.Name)+1] == key.Name+"/" {
			count++
		}
	}
	return count
}

// at is a published UDP port.
func at(host netip.Addr, external uint16, port sdn.ID, internal uint16) sdn.PublishedPort {
	return sdn.PublishedPort{Host: host, Forward: sdn.Forward{
		Protocol: sdn.UDP, External: sdn.PortRange{First: external, Last: external},
		Target: sdn.Target{Port: port}, Internal: sdn.PortRange{First: internal, Last: internal},
	}}
}

// The ports differ from those of the forwardings' tests, which may run on the same host at
// the same time: an address of every interface is in conflict with each other address.
var publicationTests = []test{
	{"whole value", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24", "fd00:8::/64")
		p := s.port(sdn.PortSpec{Network: n.ID})
		key := s.publicationKey()
		every4, every6, one := netip.IPv4Unspecified(), netip.IPv6Unspecified(), addr("203.0.113.7")
		first := s.publish(key, at(every4, 60, p.ID, 8080), at(every6, 60, p.ID, 8080), at(one, 61, p.ID, 8080))
		equal(s, "floating IPs", s.hostFloating(key), 3)
		for i, port := range first {
			equal(s, "family", port.Target.Addr.Is6(), i == 1)
		}
		second := s.publish(key, at(one, 60, p.ID, 8080), at(every6, 60, p.ID, 8080), at(every6, 62, p.ID, 8080))
		equal(s, "floating IPs", s.hostFloating(key), 2)
		equal(s, "id of the port that stays", second[1].ID, first[1].ID)
		equal(s, "number of ports", len(s.published(key)), 3)
		moved := s.publish(key, at(every6, 60, p.ID, 8081))
		equal(s, "number of ports", len(s.published(key)), 1)
		equal(s, "port", s.published(key)[moved[0].ID], moved[0])
		s.publish(key)
		equal(s, "floating IPs of none", s.hostFloating(key), 0)
	}},
	{"many ports by one call", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p, q := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		key, other, host := s.publicationKey(), s.publicationKey(), netip.IPv4Unspecified()
		var ports []sdn.PublishedPort
		for i := range uint16(manyPublished) {
			ports = append(ports, at(host, 10000+2*i, p.ID, 20000+i))
		}
		middle := ports[manyPublished/2].External.First
		s.publish(other, at(addr("203.0.113.7"), middle, q.ID, 53))
		err := s.refused(key, ports...)
		s.conflict(err, sdn.Exists)
		equal(s, "field", sdn.FieldOf(err), "ports[1000].external")
		equal(s, "floating IPs", s.hostFloating(key), 0)
		s.ok(s.p.Unpublish(s.ctx, other))

		made := s.publish(key, ports...)
		there := s.published(key)
		equal(s, "number of ports", len(there), manyPublished)
		for i, again := range s.publish(key, ports...) {
			equal(s, "id", again.ID, made[i].ID)
			equal(s, "port", there[again.ID], again)
		}
		equal(s, "floating IPs", s.hostFloating(key), 1)
		s.conflict(s.refused(other, at(host, middle, q.ID, 53)), sdn.Exists)
		for range 2 {
			s.ok(s.p.Unpublish(s.ctx, key))
		}
		equal(s, "number of ports at the end", len(s.published(key)), 0)
		left := must(sdn.All(s.p.FindForwards(s.ctx, sdn.ForwardQuery{Ports: []sdn.ID{p.ID}})))(s)
		equal(s, "forwardings at the end", len(left), 0)
	}},
	{"ranges", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		key, host := s.publicationKey(), netip.IPv4Unspecified()
		s.publish(key, at(host, 7000, p.ID, 8000), at(host, 7001, p.ID, 8001))
		wide := at(host, 7000, p.ID, 8000)
		wide.External.Last, wide.Internal.Last = 7999, 8999
		s.publish(key, wide)
		equal(s, "number of ports", len(s.published(key)), 1)
		err := s.refused(s.publicationKey(), at(host, 6999, p.ID, 80), at(host, 7500, p.ID, 80))
		s.conflict(err, sdn.Exists)
		equal(s, "field", sdn.FieldOf(err), "ports[1].external")
	}},
	{"invalid", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		key := s.publicationKey()
		good := at(netip.IPv4Unspecified(), 90, p.ID, 80)
		for field, change := range map[string]func(*sdn.PublishedPort){
			"ports[1].host":     func(w *sdn.PublishedPort) { w.Host = netip.Addr{} },
			"ports[1].protocol": func(w *sdn.PublishedPort) { w.Protocol = 1 },
			"ports[1].external": func(w *sdn.PublishedPort) { w.External = sdn.PortRange{} },
			"ports[1].target":   func(w *sdn.PublishedPort) { w.Target.Addr = addr("10.8.0.254") },
		} {
			bad := at(netip.IPv4Unspecified(), 91, p.ID, 80)
			change(&bad)
			s.invalid(s.refused(key, good, bad), field)
		}
		s.notFound(s.refused(key, good, at(netip.IPv4Unspecified(), 91, absent, 80)))
		s.invalid(s.refused(key, at(netip.IPv6Unspecified(), 90, p.ID, 80)), "ports[0].target")
		_, err := s.p.Publish(s.ctx, sdn.PublicationSpec{Ports: []sdn.PublishedPort{good}})
		s.invalid(err, "key")
	}},
	{"floating IPs made one by one", func(s *suite) {
		n, _ := s.routed("10.8.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		key := s.publicationKey()
		part := func(word, host string) sdn.FloatingIP {
			k := key
			k.Name += "/" + word
			return s.floating(sdn.FloatingIPSpec{Base: sdn.Base{Key: k}, Address: addr(host), OfHost: true})
		}
		every, one := part("4", "0.0.0.0"), part("at1", "203.0.113.7")
		want := at(every.Address, 70, p.ID, 80)
		made := must(s.p.EnsureForwards(s.ctx, every.ID, []sdn.Forward{want.Forward}))(s)
		equal(s, "id", s.publish(key, want, at(one.Address, 71, p.ID, 80))[0].ID, made[0].ID)
		equal(s, "floating IPs", s.hostFloating(key), 2)
		s.ok(s.p.Unpublish(s.ctx, key))
		equal(s, "floating IPs at the end", s.hostFloating(key), 0)
	}},
}
