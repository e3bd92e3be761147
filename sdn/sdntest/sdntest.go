// Package sdntest is the contract of package sdn as a test suite: what every provider must do, whatever is behind it.
//
// It owns the meaning of the contract where the documentation of sdn leaves a doubt. It asks a provider only through
// sdn.Provider, skips what Capabilities say the SDN lacks (and checks that it then says IsUnsupported), and removes what it
// makes. It must not know any provider.
package sdntest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/sdn"
)

// Fixture is a provider to be tested and what the suite must know of it.
type Fixture struct {
	Provider sdn.Provider
	Host     string // one that ports can be bound to; "": none
	// Reopen ends the provider as a crash would and opens the same SDN again; nil where that cannot be done.
	Reopen func(t *testing.T) sdn.Provider
	// DropReply makes the next changing call do its work and then fail with an error that IsUnavailable, as if the answer had been lost;
	// nil where that cannot be done.
	DropReply func(t *testing.T)
	// MonitorOwner is the device owner of a port that a network needs before its members can have
	// health monitors. "" is for an SDN that needs none.
	MonitorOwner string
	// Timeout is for one subtest; 0 is five minutes.
	Timeout time.Duration
}

// Run runs the suite. open is called for each subtest; it may give the same SDN each time, for every subtest's objects have
// Keys and names of their own.
func Run(t *testing.T, open func(t *testing.T) Fixture) { run(t, open, false) }

// RunSideBySide is Run with as many groups at a time as the flag -parallel lets, for an SDN that is slow and serves several at once. open must give the same one each time: what costs such an SDN
// much a group makes once, and its tests, each with Keys, names and addresses of its own, then run side by side too.
func RunSideBySide(t *testing.T, open func(t *testing.T) Fixture) { run(t, open, true) }

func run(t *testing.T, open func(t *testing.T) Fixture, sideBySide bool) {
	for _, group := range []struct {
		name   string
		needs  func(sdn.Capabilities) bool
		tests  []test
		ground func(*suite) sdn.Network // that the tests share side by side; nil is none
	}{
		{"Common", nil, commonTests, nil},
		{"Networks", nil, networkTests, nil},
		{"Subnets", nil, subnetTests, nil},
		{"SubnetPools", func(c sdn.Capabilities) bool { return c.SubnetPools }, subnetPoolTests, nil},
		{"Ports", nil, portTests, nil},
		{"Bulk", nil, bulkTests, nil},
		{"Trunks", func(c sdn.Capabilities) bool { return c.Trunks }, trunkTests, nil},
		{"Routers", func(c sdn.Capabilities) bool { return c.Routers }, routerTests, nil},
		{"FloatingIPs", func(c sdn.Capabilities) bool { return c.Routers && c.FloatingIPs }, floatingIPTests, nil},
		{"Forwards", func(c sdn.Capabilities) bool { return c.Routers && c.FloatingIPs && c.Forwards }, forwardTests, nil},
		{"Publications", func(c sdn.Capabilities) bool { return c.HostAddresses }, publicationTests, nil},
		{"SecurityGroups", func(c sdn.Capabilities) bool { return c.SecurityGroups }, securityGroupTests, nil},
		{"PortGroups", func(c sdn.Capabilities) bool { return c.SecurityGroups }, portGroupTests, nil},
		{"AddressGroups", func(c sdn.Capabilities) bool { return c.SecurityGroups && c.AddressGroups }, addressGroupTests, nil},
		{"QoSPolicies", func(c sdn.Capabilities) bool { return c.QoS }, qosTests, nil},
		{"LoadBalancers", func(c sdn.Capabilities) bool { return len(c.LoadBalancer.Protocols) > 0 }, append(loadBalancerTests, loadBalancerCapabilityTests...), vipGround},
		{"Quotas", func(c sdn.Capabilities) bool { return c.Quotas }, quotaTests, nil},
		{"Unsupported", nil, unsupportedTests, nil},
		{"Concurrency", nil, concurrencyTests, nil},
		{"Recovery", nil, recoveryTests, nil},
	} {
		t.Run(group.name, func(t *testing.T) {
			var ground *sdn.Network
			if sideBySide {
				t.Parallel()
				if group.ground != nil {
					if s := newSuite(t, open(t)); group.needs(s.can) {
						ground = new(group.ground(s))
					}
				}
			}
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) {
					if ground != nil {
						t.Parallel()
					}
					s := newSuite(t, open(t))
					if group.needs != nil && !group.needs(s.can) {
						t.Skip("this SDN has no such thing")
					}
					s.ground = ground
					test.run(s)
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(*suite)
}

// suite is one subtest's world.
type suite struct {
	*testing.T
	fixture Fixture
	p       sdn.Provider
	can     sdn.Capabilities
	ctx     context.Context
	run     string // part of every Key and name
	serial  int
	ground  *sdn.Network // the group's; nil is none
}

func newSuite(t *testing.T, f Fixture) *suite {
	timeout := f.Timeout
	if timeout == 0 {
		timeout = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return &suite{T: t, fixture: f, p: f.Provider, can: f.Provider.Capabilities(), ctx: ctx, run: uuid.NewString()[:8]}
}

// base makes a Key and a name that nothing else has.
func (s *suite) base(name string) sdn.Base {
	s.serial++
	unique := fmt.Sprintf("%s-%d-%s", s.run, s.serial, name)
	return sdn.Base{Key: sdn.Key{Owner: s.p.Installation(), Kind: "sdntest", Name: unique}, Name: unique}
}

// cleanup runs f at the end with a context that still lives.
func (s *suite) cleanup(what string, f func(context.Context) error) {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := f(ctx); err != nil && !sdn.IsConflict(err) {
			s.Errorf("cleaning up %s: %v", what, err)
		}
	})
}

func must[T any](v T, err error) func(*suite) T {
	return func(s *suite) T {
		s.Helper()
		if err != nil {
			s.Fatalf("unexpected error: %v", err)
		}
		return v
	}
}

func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("unexpected error: %v", err)
	}
}

// conflict wants a conflict for a reason.
func (s *suite) conflict(err error, reason sdn.Reason) {
	s.Helper()
	if !sdn.IsConflict(err) || sdn.ReasonOf(err) != reason {
		s.Errorf("got error %v, want a conflict (%s)", err, reason)
	}
}

// immutable wants a conflict that names the field which cannot be changed.
func (s *suite) immutable(err error, field string) {
	s.Helper()
	s.conflict(err, sdn.Immutable)
	if got := sdn.FieldOf(err); got != field {
		s.Errorf("the error %v names the field %q, want %q", err, got, field)
	}
}

// invalid wants an invalid request that names the field, or a part of it.
func (s *suite) invalid(err error, field string) {
	s.Helper()
	if !sdn.IsInvalid(err) {
		s.Errorf("got error %v, want an invalid %s", err, field)
	} else if got := sdn.FieldOf(err); !strings.HasPrefix(got, field) {
		s.Errorf("the error %v names the field %q, want %q", err, got, field)
	}
}

func (s *suite) exhausted(err error, reason sdn.Reason) {
	s.Helper()
	if !sdn.IsExhausted(err) || sdn.ReasonOf(err) != reason {
		s.Errorf("got error %v, want exhausted (%s)", err, reason)
	}
}

func (s *suite) notFound(err error) {
	s.Helper()
	if !sdn.IsNotFound(err) {
		s.Errorf("got error %v, want not found", err)
	}
}

func equal[T comparable](s *suite, what string, got, want T) {
	s.Helper()
	if got != want {
		s.Errorf("%s is %v, want %v", what, got, want)
	}
}

// absent is an id that no object has.
const absent = sdn.ID("00000000-0000-4000-8000-000000000000")

func prefix(p string) netip.Prefix { return netip.MustParsePrefix(p) }
func addr(a string) netip.Addr     { return netip.MustParseAddr(a) }
func ptr[T any](v T) *T            { return &v }

// network makes a network with a subnet for each CIDR. Its Subnets are in the order of the CIDRs, which an SDN need not keep.
func (s *suite) network(cidrs ...string) sdn.Network {
	s.Helper()
	n := must(s.p.EnsureNetwork(s.ctx, s.networkSpec(cidrs...)))(s)
	s.cleanup("network", func(ctx context.Context) error { return s.p.DeleteNetwork(ctx, n.ID) })
	equal(s, "number of subnets", len(n.Subnets), len(cidrs))
	if len(cidrs) < 2 {
		return n
	}
	at := map[sdn.ID]int{}
	for _, sub := range must(sdn.All(s.p.FindSubnets(s.ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}})))(s) {
		at[sub.ID] = slices.Index(cidrs, sub.CIDR.String())
	}
	slices.SortFunc(n.Subnets, func(a, b sdn.ID) int { return at[a] - at[b] })
	return n
}

func (s *suite) networkSpec(cidrs ...string) sdn.NetworkSpec {
	spec := sdn.NetworkSpec{Base: s.base("network")}
	for _, c := range cidrs {
		spec.Subnets = append(spec.Subnets, sdn.SubnetSpec{Base: s.base("subnet"), CIDR: prefix(c)})
	}
	return spec
}

// port makes one port.
func (s *suite) port(spec sdn.PortSpec) sdn.Port {
	s.Helper()
	p, err := s.tryPort(spec)
	s.ok(err)
	return p
}

// tryPort makes one port and gives the error of it alone.
func (s *suite) tryPort(spec sdn.PortSpec) (sdn.Port, error) {
	if spec.Key.IsZero() {
		spec.Base = s.base("port")
	}
	ports, err := s.p.EnsurePorts(s.ctx, []sdn.PortSpec{spec})
	if err != nil {
		return sdn.Port{}, err
	}
	id := ports[0].ID
	s.cleanup("port", func(ctx context.Context) error { return s.p.DeletePorts(ctx, []sdn.ID{id}) })
	return ports[0], nil
}

// routed makes a network on a router that has a gateway.
func (s *suite) routed(cidrs ...string) (sdn.Network, sdn.Router) {
	s.Helper()
	n := s.network(cidrs...)
	return n, s.onRouter(n)
}

// onRouter puts a network on a router that has a gateway.
func (s *suite) onRouter(n sdn.Network) sdn.Router {
	s.Helper()
	r := s.router(&sdn.ExternalGateway{Network: s.can.ExternalNetwork, SNAT: true})
	for _, id := range n.Subnets {
		s.attach(r.ID, id)
	}
	return must(s.p.Router(s.ctx, r.ID))(s)
}

func (s *suite) router(gw *sdn.ExternalGateway) sdn.Router {
	s.Helper()
	r := must(s.p.EnsureRouter(s.ctx, sdn.RouterSpec{Base: s.base("router"), Gateway: gw}))(s)
	s.cleanup("router", func(ctx context.Context) error { return s.p.DeleteRouter(ctx, r.ID) })
	return r
}

func (s *suite) attach(router, subnet sdn.ID) {
	s.Helper()
	s.ok(s.p.AttachSubnet(s.ctx, router, subnet, netip.Addr{}))
	s.cleanup("leg", func(ctx context.Context) error { return s.p.DetachSubnet(ctx, router, subnet) })
}

func addresses(p sdn.Port) []netip.Addr {
	var out []netip.Addr
	for _, a := range p.Addresses {
		out = append(out, a.Addr)
	}
	return out
}
