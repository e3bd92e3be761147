package docker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/sdn"
)

// plain is an SDN as Neutron is: it has security groups, and its floating IPs cannot
// stand for the host's own addresses. The groups are kept in a folder, so that they
// outlive the process as the rest does.
type plain struct {
	sdn.Provider
	groups string
	asked  []string // what was asked of floating IPs and groups
}

type plainGroup struct {
	sdn.SecurityGroup
	Ports []sdn.ID
}

func (p *plain) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.HostAddresses, can.FloatingIPv6, can.SecurityGroups, can.GrouplessOpen = false, false, true, false
	return can
}

func (p *plain) load() (*jsonstore.Store, map[string]plainGroup, error) {
	folder, err := jsonstore.Open(p.groups)
	if err != nil {
		return nil, nil, err
	}
	all, err := jsonstore.Load[plainGroup](folder)
	return folder, all, err
}

func (p *plain) ApplySecurityGroup(_ context.Context, s sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	p.asked = append(p.asked, "ApplySecurityGroup")
	folder, all, err := p.load()
	if err != nil {
		return sdn.SecurityGroup{}, err
	}
	g := plainGroup{SecurityGroup: sdn.SecurityGroup{Meta: sdn.Meta{ID: sdn.ID(uuid.NewString()), Base: s.Base}}}
	for _, has := range all {
		if has.Key == s.Key {
			g = has
		}
	}
	g.Rules = s.Rules
	return g.SecurityGroup, folder.Put(string(g.ID), g)
}

func (p *plain) FindSecurityGroups(_ context.Context, q sdn.SecurityGroupQuery) iter.Seq2[sdn.SecurityGroup, error] {
	p.asked = append(p.asked, "FindSecurityGroups")
	return func(yield func(sdn.SecurityGroup, error) bool) {
		_, all, err := p.load()
		if err != nil {
			yield(sdn.SecurityGroup{}, err)
			return
		}
		for _, g := range all {
			if q.Matches(g.Meta) && !yield(g.SecurityGroup, nil) {
				return
			}
		}
	}
}

func (p *plain) DeleteSecurityGroup(_ context.Context, id sdn.ID) error {
	folder, all, err := p.load()
	if err != nil {
		return err
	}
	if len(all[string(id)].Ports) > 0 {
		return sdn.Conflict(sdn.InUse, "security group", "", "ports have it")
	}
	return folder.Delete(string(id))
}

func (p *plain) change(id sdn.ID, groups []sdn.ID, change func([]sdn.ID) []sdn.ID) error {
	folder, all, err := p.load()
	if err != nil {
		return err
	}
	for _, group := range groups {
		g, ok := all[string(group)]
		if !ok {
			return sdn.NotFound("security group", group)
		}
		g.Ports = change(slices.DeleteFunc(g.Ports, func(has sdn.ID) bool { return has == id }))
		if err := folder.Put(string(group), g); err != nil {
			return err
		}
	}
	return nil
}

func (p *plain) AddGroups(_ context.Context, id sdn.ID, groups []sdn.ID) error {
	return p.change(id, groups, func(ports []sdn.ID) []sdn.ID { return append(ports, id) })
}

func (p *plain) RemoveGroups(_ context.Context, id sdn.ID, groups []sdn.ID) error {
	return p.change(id, groups, func(ports []sdn.ID) []sdn.ID { return ports })
}

func (p *plain) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	if len(q.Groups) == 0 {
		return p.Provider.FindPorts(ctx, q)
	}
	_, all, err := p.load()
	if err != nil {
		return func(yield func(sdn.Port, error) bool) { yield(sdn.Port{}, err) }
	}
	with := all[string(q.Groups[0])].Ports
	if q.Groups = nil; len(with) == 0 {
		return func(func(sdn.Port, error) bool) {}
	}
	q.IDs = with
	return p.Provider.FindPorts(ctx, q)
}

func (p *plain) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	p.asked = append(p.asked, "FindFloatingIPs")
	return p.Provider.FindFloatingIPs(ctx, q)
}

func plainBox(t *testing.T, change ...func(*Config)) (*box, *plain) {
	t.Helper()
	folder := t.TempDir()
	p := &plain{Provider: openStore(t, filepath.Join(t.TempDir(), "store"), true), groups: filepath.Join(folder, "groups")}
	b := boxOn(t, p, append([]func(*Config){func(c *Config) {
		c.StateDir, c.RunDir, c.ProcessExternalConnectivity = filepath.Join(folder, "state"),
			filepath.Join(folder, "run"), true
	}}, change...)...)
	t.Cleanup(func() { b.driver.Close() })
	return b, p
}

// start is docker run, in the namespace of the test.
func (b *box) start(e *endpoint) *endpoint {
	b.t.Helper()
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	join := e.joinBody()
	join["SandboxKey"] = "/proc/self/ns/net"
	b.ok("NetworkDriver.Join", join)
	return e
}

func TestProxied(t *testing.T) {
	t.Parallel()
	b, p := plainBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	e := b.start(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1"}, {
		"Proto": 17, "Port": 53, "HostIP": "127.0.0.1",
	}}})
	b.publish(e)
	forwards := b.driver.proxy.Forwards(e.id)
	b.publish(e)
	published := func() (all []portproxy.Forward) {
		for _, f := range endpoints.Publications(b.driver.Intents()) {
			if f.Endpoint != e.id || f.Port != b.portOf(e.id).ID {
				t.Errorf("publication %+v", f)
			}
			all = append(all, f.Forward)
		}
		return all
	}
	same := func(when string) {
		t.Helper()
		for _, f := range forwards {
			if !slices.Contains(b.driver.proxy.Forwards(e.id), f) || !slices.Contains(published(), f) {
				t.Errorf("%s: %v is missing", when, f)
			}
		}
		if got := b.driver.proxy.Forwards(e.id); len(got) != 2 || len(published()) != 2 {
			t.Errorf("%s: %v", when, got)
		}
	}
	same("a repeat")
	var listen netip.AddrPort
	for _, f := range forwards {
		if f.Target.Addr().String() != e.ip4 || f.Namespace != "/proc/self/ns/net" ||
			f.Listen.Addr().String() != "127.0.0.1" {
			t.Errorf("forward %+v", f)
		}
		if f.Protocol == sdn.TCP {
			listen = f.Listen
		}
	}
	b.driver.Close()
	if c, err := net.Dial("tcp", listen.String()); err == nil {
		c.Close()
		t.Error("it listens after Close")
	}
	b.restart()
	same("after a restart")
	// The proxy resets the connection, as nothing listens in the container: also during the Dial.
	if c, err := net.Dial("tcp", listen.String()); err == nil {
		c.Close()
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}

	// What another container or a program has is refused.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	defer taken.Close()
	for _, port := range []int{int(listen.Port()), taken.Addr().(*net.TCPAddr).Port} {
		two := b.start(&endpoint{net: n, published: []m{
			{"Proto": 6, "Port": 81, "HostIP": "127.0.0.1"},
			{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": port},
		}})
		b.contains(b.publishFails(two), "already allocated")
		if got := b.driver.proxy.Forwards(two.id); len(got) > 0 {
			t.Errorf("a refused publication left %v", got)
		}
		b.stop(two)
	}
	three := b.start(&endpoint{net: n, published: []m{{"Proto": 132, "Port": 80, "HostIP": "127.0.0.1", "HostPort": 9}}})
	b.contains(b.publishFails(three), "80/sctp", "TCP and UDP")
	b.stop(three)

	// A range is gone through; Leave ends all, and costs nothing in the SDN.
	low := int(listen.Port())
	four := b.start(&endpoint{net: n, published: []m{{
		"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": low,
		"HostPortEnd": min(low+20, 65535),
	}}})
	b.publish(four)
	if got := b.driver.proxy.Forwards(four.id); len(got) != 1 || int(got[0].Listen.Port()) <= low {
		t.Errorf("of a range: %v", got)
	}
	b.stop(four)
	p.asked = nil
	b.ok("NetworkDriver.Leave", e.body())
	if got := b.driver.proxy.Forwards(e.id); len(got)+len(published()) > 0 {
		t.Errorf("after Leave %v", got)
	}
	b.stop(e)
	if len(p.asked) > 0 {
		t.Errorf("a stop asked for %v", p.asked)
	}
	b.remove(n)
	b.clean()
	b.nothingPlugged()
}

// An engine that restarts while Kuryr does not run forgets its endpoints. The next
// container that asks for their host ports gets them.
func TestProxiedForgotten(t *testing.T) {
	t.Parallel()
	b, _ := plainBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	one := b.start(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1"}}})
	b.publish(one)
	port := b.driver.proxy.Forwards(one.id)[0].Listen.Port()
	two := b.start(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": port}}})
	b.contains(b.publishFails(two), "already allocated")
	b.must(b.binder.Unplug(t.Context(), b.portOf(one.id))) // its container is gone
	b.publish(two)
	if got := b.driver.proxy.Forwards(one.id); len(got) > 0 {
		t.Errorf("still published %v", got)
	}
	b.stop(two)
	b.stop(one)
	b.remove(n)
	b.clean()
}

func TestForwarded(t *testing.T) {
	t.Parallel()
	for _, ofNetwork := range []bool{false, true} {
		b, p := plainBox(t)
		n := v4Network("10.1.0.0/24")
		e := &endpoint{net: n, published: []m{
			{"Proto": 6, "Port": 80, "HostPort": 8080}, {"Proto": 6, "Port": 81, "HostPort": 0},
			{"Proto": 17, "Port": 80, "HostPort": 8080},
		}}
		if ofNetwork {
			n.options = m{optPublish: publishFloating}
		} else {
			e.driver = m{optPublish: publishFloating}
		}
		b.create(n)
		b.start(e)
		for range 2 {
			b.publish(e)
			floating, err := sdn.All(b.provider.FindFloatingIPs(t.Context(), sdn.FloatingIPQuery{}))
			b.must(err)
			if len(floating) != 1 || floating[0].Address.IsUnspecified() {
				t.Fatalf("floating IPs %+v", floating)
			}
			forwards, err := sdn.All(b.provider.FindForwards(
				t.Context(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{floating[0].ID}},
			))
			b.must(err)
			if len(forwards) != 3 || slices.ContainsFunc(
				forwards, func(f sdn.Forward) bool { return f.Target.Addr.String() != e.ip4 },
			) {
				t.Errorf("forwardings %+v", forwards)
			}
		}
		elsewhere := e.programBody()
		elsewhere["Options"] = m{optPortMap: []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": 8080}}}
		b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", elsewhere), "127.0.0.1", "floating IP")
		b.publish(e)
		b.restart()
		b.stop(e)
		p.asked = nil
		other := b.start(&endpoint{net: n})
		b.stop(other)
		if slices.Contains(p.asked, "FindFloatingIPs") {
			t.Errorf("a container that publishes nothing asked for %v", p.asked)
		}
		b.remove(n)
		b.clean()
	}
}

// A floating IP that its user made forwards to several endpoints, and stays.
func TestForwardedByGiven(t *testing.T) {
	t.Parallel()
	b, p := plainBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	before := b.dump()
	theirs, err := b.provider.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork})
	b.must(err)
	forwards := func() int {
		all, err := sdn.All(b.provider.FindForwards(t.Context(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{theirs.ID}}))
		b.must(err)
		return len(all)
	}
	asked := m{optPublish: publishFloating, optFloatingIP: theirs.Address.String()}
	one := b.start(&endpoint{net: n, driver: asked, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	two := b.start(&endpoint{net: n, driver: asked, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8081}}})
	same := b.start(&endpoint{net: n, driver: asked, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	b.publish(one)
	b.publish(two)
	b.contains(b.publishFails(same), "8080/tcp", "already allocated")
	if n := forwards(); n != 2 {
		t.Errorf("%d forwardings", n)
	}
	b.ok("NetworkDriver.RevokeExternalConnectivity", one.body())
	if n := forwards(); n != 1 {
		t.Errorf("after Revoke %d forwardings", n)
	}
	b.restart()
	for _, e := range []*endpoint{one, two, same} {
		b.stop(e)
	}
	if n := forwards(); n != 0 {
		t.Errorf("at the end %d forwardings", n)
	}
	own := b.start(&endpoint{
		net: n, driver: m{optPublish: publishFloating, optFloatingIP: "auto"},
		published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}},
	})
	b.publish(own)
	b.stop(own)
	b.must(b.provider.DeleteFloatingIP(t.Context(), theirs.ID))
	b.unchanged(before)
}

// After a reboot, which leaves no record, the forwardings of a user's floating IP are
// deleted too: those to a port of its user, which stays, and those of an endpoint that
// exposes a port and was created again. That also holds if a second floating IP has the
// address by then.
func TestForwardedByGivenAfterReboot(t *testing.T) {
	t.Parallel()
	b, p := plainBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	before := b.dump()
	was := b.port(n, usersPort, "10.1.0.77")
	theirs, err := b.provider.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork})
	b.must(err)
	reboot := func() {
		b.binder.unplugAll()
		b.config.Provider = alike{p}
		b.forget()
	}
	for _, exposes := range []bool{false, true} {
		b.config.Provider = p
		b.restart()
		e := &endpoint{net: n, ip4: "10.1.0.77", published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}},
			driver: m{optPublish: publishFloating, optFloatingIP: theirs.Address.String()}}
		if exposes {
			e.ip4 = "" // a port of Kuryr's, for a user's has no group of Kuryr's
		}
		b.start(e)
		b.publish(e)
		reboot()
		if exposes {
			e.published, e.exposed = nil, []m{{"Proto": 6, "Port": 80}}
			b.publish(e)
			b.ok("NetworkDriver.RevokeExternalConnectivity", e.body())
		} else {
			b.stop(e)
		}
		forwards, err := sdn.All(b.provider.FindForwards(t.Context(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{theirs.ID}}))
		if b.must(err); len(forwards) > 0 {
			t.Errorf("left are %+v (exposes: %v)", forwards, exposes)
		}
		if exposes {
			b.stop(e)
		}
	}
	if now, err := b.provider.Port(t.Context(), was.ID); err != nil || len(now.Tags) != len(was.Tags) {
		t.Errorf("the user's port is %+v, %v", now, err)
	}
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{was.ID}))
	b.must(b.provider.DeleteFloatingIP(t.Context(), theirs.ID))
	b.unchanged(before)
}

func TestExposedGroup(t *testing.T) {
	t.Parallel()
	b, p := plainBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	e := b.start(&endpoint{net: n, exposed: []m{
		{"Proto": 6, "Port": 81}, {"Proto": 6, "Port": 80}, {"Proto": 17, "Port": 53},
		{"Proto": 132, "Port": 9}, {"Proto": 6, "Port": 443},
	}})
	id := b.portOf(e.id).ID
	groups := func() []plainGroup {
		_, all, err := p.load()
		b.must(err)
		var list []plainGroup
		for _, g := range all {
			list = append(list, g)
		}
		return list
	}
	for range 2 { // a repeat makes no second one
		b.publish(e)
		got := groups()
		if len(got) != 1 || got[0].Name != string(id)+"-exposed_ports" || !slices.Equal(got[0].Ports, []sdn.ID{id}) {
			t.Fatalf("groups %+v", got)
		}
		var rules []string
		for _, r := range got[0].Rules {
			family := "IPv4"
			if r.IPv6 {
				family = "IPv6"
			}
			rules = append(rules, strings.Join(
				[]string{string(r.Direction), family, ipproto.Name(r.Protocol), rangeText(r.Ports)},
				" ",
			))
		}
		want := []string{
			"ingress IPv4 tcp 80-81", "ingress IPv6 tcp 80-81", "ingress IPv4 tcp 443", "ingress IPv6 tcp 443",
			"ingress IPv4 udp 53", "ingress IPv6 udp 53", "ingress IPv4 sctp 9", "ingress IPv6 sctp 9",
		}
		if !slices.Equal(rules, want) {
			t.Errorf("rules %q", rules)
		}
		b.restart()
	}
	b.ok("NetworkDriver.RevokeExternalConnectivity", e.body())
	if got := groups(); len(got) > 0 {
		t.Errorf("after Revoke %+v", got)
	}
	b.publish(e)
	b.forget() // the row is lost
	b.stop(e)
	if got := groups(); len(got) > 0 {
		t.Errorf("after DeleteEndpoint %+v", got)
	}
	late := b.start(&endpoint{net: n, exposed: []m{{"Proto": 6, "Port": 80}}})
	b.publish(late)
	b.config.ProcessExternalConnectivity = false // switched off since
	b.forget()
	b.stop(late)
	if got := groups(); len(got) > 0 {
		t.Errorf("switched off, after DeleteEndpoint %+v", got)
	}
	p.asked = nil
	b.stop(b.start(&endpoint{net: n}))
	off := b.start(&endpoint{net: n, exposed: []m{{"Proto": 6, "Port": 80}}})
	b.publish(off)
	b.stop(off)
	if len(p.asked) > 0 {
		t.Errorf("containers that need no group asked for %v", p.asked)
	}
	b.remove(n)
	b.clean()
}

func rangeText(r sdn.PortRange) string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}
