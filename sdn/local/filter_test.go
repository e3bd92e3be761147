package local

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"github.com/kuryr/kuryr/sdn/sdntest"
	"go.etcd.io/bbolt"
)

// A kernel that can neither filter nor limit: the SDN says so beforehand and when asked.
func TestContractWithoutFilter(t *testing.T) {
	once(t)
	t.Parallel()
	sdntest.Run(t, func(t *testing.T) sdntest.Fixture {
		fake := newFake()
		fake.can.Support = securitygroup.Support{}
		p := open(t, Options{PortsPerNetwork: 400, Datapath: fake, NoSync: true})
		t.Cleanup(func() { checkSum(t, p) })
		return sdntest.Fixture{Provider: p, Host: testHost}
	})
}

// world is two networks, each on a router, and a third without; and a way to count what the kernel is told.
type world struct {
	*Provider
	fake     *fakeKernel
	networks []sdn.Network
	routers  []sdn.ID
	calls    map[string]int // by call and domain
	refuse   string         // the call that fails
	failIn   string         // the domain in which all calls fail
	path     string         // of the store
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{fake: newFake(), calls: map[string]int{}, path: filepath.Join(t.TempDir(), "sdn.db")}
	w.Provider = open(t, Options{Path: w.path, Datapath: w.fake})
	for i, cidr := range []string{"10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/24"} {
		n, err := w.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix(cidr)}}})
		ok(t, err)
		w.networks = append(w.networks, n)
		if i == 2 {
			break
		}
		r, err := w.EnsureRouter(t.Context(), sdn.RouterSpec{})
		ok(t, err)
		ok(t, w.AttachSubnet(t.Context(), r.ID, n.Subnets[0], netip.Addr{}))
		w.routers = append(w.routers, r.ID)
	}
	w.fake.fail = func(call, domain string) error {
		if call == w.refuse || w.failIn != "" && domain == w.failIn {
			return errInjected
		}
		w.calls[call+" "+domain]++
		return nil
	}
	return w
}

func (w *world) group(t *testing.T, id sdn.ID, rules ...sdn.Rule) sdn.ID {
	t.Helper()
	g, err := w.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: id, Rules: rules})
	ok(t, err)
	return g.ID
}

func (w *world) port(t *testing.T, spec sdn.PortSpec) sdn.ID {
	t.Helper()
	made, err := w.EnsurePorts(t.Context(), []sdn.PortSpec{spec})
	ok(t, err)
	return made[0].ID
}

// told wants the kernel to have been told this since the last time, and to be as the store says.
func (w *world) told(t *testing.T, want map[string]int) {
	t.Helper()
	if len(w.calls) != len(want) {
		t.Errorf("told %v, want %v", w.calls, want)
	}
	for call, n := range want {
		if w.calls[call] != n {
			t.Errorf("told %v, want %v", w.calls, want)
		}
	}
	checkSum(t, w.Provider)
	clear(w.calls)
}

func egress(port uint16) sdn.Rule {
	return sdn.Rule{Direction: sdn.Egress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: port}}
}

// A change of a group, or of an address group that its rules name, reaches the domains where a plugged port has it, those alone and by one call;
// the ports themselves are not even read. What does not concern the kernel does not reach it.
func TestGroupReachesItsDomains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set, err := w.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}})
	ok(t, err)
	named := sdn.Rule{Direction: sdn.Ingress, RemoteSet: set.ID}
	web, other := w.group(t, "", egress(80), named), w.group(t, "", egress(81))
	a, b := string(w.routers[0]), string(w.networks[2].ID)
	for _, n := range []int{0, 2} {
		for range 3 {
			w.port(t, sdn.PortSpec{Network: w.networks[n].ID, Host: testHost, Groups: []sdn.ID{web}})
		}
	}
	w.port(t, sdn.PortSpec{Network: w.networks[1].ID, Host: testHost, Groups: []sdn.ID{other}})
	w.port(t, sdn.PortSpec{Network: w.networks[1].ID, Groups: []sdn.ID{web}}) // not plugged
	clear(w.calls)
	damagePorts(t, w.Provider, func(sdn.ID) bool { return true })
	w.group(t, web, egress(80), named, egress(443))
	if want := map[string]int{"groups " + a: 1, "groups " + b: 1}; len(w.calls) != 2 || w.calls["groups "+a] != 1 || w.calls["groups "+b] != 1 {
		t.Errorf("told %v, want %v", w.calls, want)
	}
	clear(w.calls)
	_, err = w.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{ID: set.ID, Prefixes: []netip.Prefix{prefix("192.0.2.0/25")}})
	ok(t, err)
	if len(w.calls) != 2 || w.calls["groups "+a] != 1 || w.calls["groups "+b] != 1 {
		t.Errorf("of the address group told %v", w.calls)
	}
	clear(w.calls)
	_, err = w.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: web, Base: sdn.Base{Name: "renamed"}, Rules: []sdn.Rule{named, egress(443), egress(80)}})
	ok(t, err)
	if len(w.calls) != 0 {
		t.Errorf("of a name told %v", w.calls)
	}
	mendPorts(t, w.Provider)
	checkSum(t, w.Provider)
}

// damagePorts makes ports unreadable: who reads them fails.
func damagePorts(t *testing.T, p *Provider, which func(sdn.ID) bool) {
	t.Helper()
	eachPort(t, p, func(id, row []byte) []byte {
		if !which(sdn.ID(id)) {
			return row
		}
		return append([]byte("damaged"), row...)
	})
}

func mendPorts(t *testing.T, p *Provider) {
	t.Helper()
	eachPort(t, p, func(_, row []byte) []byte { return slices.Clone(row[len("damaged"):]) })
}

func eachPort(t *testing.T, p *Provider, f func(id, row []byte) []byte) {
	t.Helper()
	ok(t, p.db.Update(func(b *bbolt.Tx) error {
		rows := map[string][]byte{}
		bucket := b.Bucket([]byte(engine.Ports.Noun))
		err := bucket.ForEach(func(k, v []byte) error { rows[string(k)] = f(k, v); return nil })
		for k, v := range rows {
			if err == nil {
				err = bucket.Put([]byte(k), v)
			}
		}
		return err
	}))
}

// A port brings its groups along: when it comes, when it gets another group, and when it is plugged.
func TestPortBringsItsGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.group(t, "", egress(80)), w.group(t, "", egress(81))
	r := string(w.routers[0])
	clear(w.calls)
	id := w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Groups: []sdn.ID{one}})
	w.told(t, nil)
	_, err := w.UpdatePort(t.Context(), id, sdn.PortPatch{Host: new(testHost)})
	ok(t, err)
	w.told(t, map[string]int{"groups " + r: 1, "ports " + r: 1})
	ok(t, w.AddGroups(t.Context(), id, []sdn.ID{two, one}))
	w.told(t, map[string]int{"groups " + r: 1, "ports " + r: 1})
	if got := w.fake.state[r].ports[string(id)].Groups; len(got) != 2 || !slices.IsSorted(got) {
		t.Errorf("the port has the groups %v", got)
	}
	// Groups that the domain knows are not told again.
	w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{one, two}})
	w.told(t, map[string]int{"ports " + r: 1})
	ok(t, w.RemoveGroups(t.Context(), id, []sdn.ID{one}))
	w.told(t, map[string]int{"ports " + r: 1})
}

// What the kernel has forgotten, as no port had it any more, or has lost, is told anew.
func TestForgottenGroupsAreToldAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.group(t, "", egress(80))
	r := string(w.routers[0])
	id := w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{one}})
	ok(t, w.RemoveGroups(t.Context(), id, []sdn.ID{one}))
	if groups := w.fake.state[r].groups; len(groups) != 0 {
		t.Errorf("the domain knows of %v", groups)
	}
	w.group(t, one, egress(81))
	clear(w.calls)
	ok(t, w.AddGroups(t.Context(), id, []sdn.ID{one}))
	w.told(t, map[string]int{"groups " + r: 1, "ports " + r: 1})
	clear(w.fake.state[r].groups)
	w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{one}})
	w.told(t, map[string]int{"groups " + r: 1, "ports " + r: 2})
	_, err := w.Reconcile(t.Context())
	ok(t, err)
	clear(w.calls)
	w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{one}})
	w.told(t, map[string]int{"groups " + r: 1, "ports " + r: 1})
}

// A group of no rules, and an address group of no prefixes, are told as the others are, and become others.
func TestEmptyGroupsAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set, err := w.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{})
	ok(t, err)
	empty, named := w.group(t, ""), w.group(t, "", sdn.Rule{Direction: sdn.Ingress, RemoteSet: set.ID})
	w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{empty, named}})
	checkSum(t, w.Provider)
	w.group(t, empty, egress(80))
	_, err = w.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{ID: set.ID, Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}})
	ok(t, err)
	checkSum(t, w.Provider)
	w.group(t, empty)
	checkSum(t, w.Provider)
}

// A QoS policy's change reaches the plugged ports that name it, and no others.
func TestLimitsReachTheirPorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q, err := w.ApplyQoSPolicy(t.Context(), sdn.QoSPolicySpec{Limits: sdn.Limits{EgressKbps: 1000}})
	ok(t, err)
	var limited []sdn.ID
	for _, n := range w.networks {
		limited = append(limited, w.port(t, sdn.PortSpec{Network: n.ID, Host: testHost, QoSPolicy: q.ID}))
	}
	unplugged := w.port(t, sdn.PortSpec{Network: w.networks[0].ID, QoSPolicy: q.ID})
	free := w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost})
	clear(w.calls)
	damagePorts(t, w.Provider, func(id sdn.ID) bool { return id == unplugged || id == free })
	want := sdn.Limits{IngressKbps: 5, IngressBurst: 6, EgressKbps: 2000, EgressBurst: 7, DSCP: 46}
	_, err = w.ApplyQoSPolicy(t.Context(), sdn.QoSPolicySpec{ID: q.ID, Limits: want})
	ok(t, err)
	for i, domain := range []sdn.ID{w.routers[0], w.routers[1], w.networks[2].ID} {
		if n := w.calls["ports "+string(domain)]; n != 1 || len(w.calls) != 3 {
			t.Errorf("told %v", w.calls)
		}
		if got := w.fake.state[string(domain)].ports[string(limited[i])].Limits; got != securitygroup.Limits(want) {
			t.Errorf("the limits are %+v", got)
		}
	}
	_, err = w.UpdatePort(t.Context(), limited[0], sdn.PortPatch{QoSPolicy: new(sdn.ID(""))})
	ok(t, err)
	if got := w.fake.state[string(w.routers[0])].ports[string(limited[0])].Limits; got != (securitygroup.Limits{}) {
		t.Errorf("the limits without a policy are %+v", got)
	}
}

// Where a network moves to, its filtered and limited ports are told anew, also when that does not succeed at once and more changes meanwhile.
func TestMovedNetworkIsFilteredAnew(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{"", "shape", "groups", "ports"} {
		t.Run("refused "+refused, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := w.networks[2]
			g := w.group(t, "", egress(80))
			q, err := w.ApplyQoSPolicy(t.Context(), sdn.QoSPolicySpec{Limits: sdn.Limits{EgressKbps: 1000}})
			ok(t, err)
			var ids []sdn.ID
			for range 2 {
				ids = append(ids, w.port(t, sdn.PortSpec{Network: n.ID, Host: testHost, Groups: []sdn.ID{g}}))
			}
			w.port(t, sdn.PortSpec{Network: n.ID, Host: testHost, QoSPolicy: q.ID})
			w.port(t, sdn.PortSpec{Network: n.ID, Host: testHost})
			for _, move := range []func(context.Context) error{
				func(ctx context.Context) error { return w.AttachSubnet(ctx, w.routers[0], n.Subnets[0], netip.Addr{}) },
				func(ctx context.Context) error { return w.DetachSubnet(ctx, w.routers[0], n.Subnets[0]) },
			} {
				w.refuse = refused
				if err := move(t.Context()); err != nil && !sdn.IsUnavailable(err) {
					t.Fatal(err)
				}
				_, err := w.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g, Rules: []sdn.Rule{egress(81), egress(uint16(90 + len(ids)))}})
				if err != nil && !sdn.IsUnavailable(err) {
					t.Fatal(err)
				}
				if len(ids) > 1 {
					ok(t, w.DeletePorts(t.Context(), ids[1:]))
					ids = ids[:1]
				}
				w.refuse = ""
				ok(t, w.sync.retry(t.Context()))
				checkSum(t, w.Provider)
			}
		})
	}
}

// What the kernel refused of groups is not lost: the last definition is told, before the ports that need it.
func TestFailedGroupChangesMerge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := string(w.routers[0])
	g := w.group(t, "", egress(80))
	first := w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{g}})
	w.refuse = "groups"
	for port := range uint16(3) {
		if _, err := w.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g, Rules: []sdn.Rule{egress(81 + port)}}); !sdn.IsUnavailable(err) {
			t.Errorf("got error %v, want unavailable", err)
		}
	}
	made, err := w.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{g}}})
	if !sdn.IsUnavailable(err) || made[0].Status != sdn.PortDown {
		t.Errorf("got %+v, %v; want a port that is down", made, err)
	}
	ok(t, w.DeletePorts(t.Context(), []sdn.ID{first}))
	w.refuse = ""
	clear(w.calls)
	// Repeating what is there already mends it too.
	w.group(t, g, egress(83))
	w.told(t, map[string]int{"groups " + r: 1, "ports " + r: 1})
	if got := w.fake.state[r].groups[string(g)].Rules; len(got) != 1 || got[0].First != 83 {
		t.Errorf("the domain knows the rules %+v", got)
	}
}

// The projection of everything: groups that plugged ports have, the address groups they name, and limits, field by field.
func TestProjectionOfFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set, err := w.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}})
	ok(t, err)
	unused, err := w.ApplyAddressGroup(t.Context(), sdn.AddressGroupSpec{})
	ok(t, err)
	idle := w.group(t, "", sdn.Rule{Direction: sdn.Ingress, RemoteSet: unused.ID})
	g, err := w.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{Rules: []sdn.Rule{
		{Direction: sdn.Egress, IPv6: true, Protocol: 58, ICMPType: new(uint8(1)), ICMPCode: new(uint8(2))},
		{Direction: sdn.Ingress, Protocol: sdn.UDP, Ports: sdn.PortRange{First: 5, Last: 9}, RemotePrefix: prefix("10.0.0.0/8")},
		{Direction: sdn.Ingress, RemoteGroup: idle}, {Direction: sdn.Ingress, RemoteSet: set.ID},
	}})
	ok(t, err)
	q, err := w.ApplyQoSPolicy(t.Context(), sdn.QoSPolicySpec{Limits: sdn.Limits{EgressKbps: 1}})
	ok(t, err)
	id := w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{g.ID, g.ID}, QoSPolicy: q.ID})
	w.port(t, sdn.PortSpec{Network: w.networks[0].ID, Groups: []sdn.ID{idle}})
	var s router.State
	ok(t, w.view(func(b engine.Tx) (err error) { s, err = w.projectAll(b); return err }))
	want := securitygroup.Group{ID: string(g.ID), Revision: g.Revision, Rules: []securitygroup.Rule{
		{ID: string(g.Rules[0].ID), Direction: securitygroup.Egress, IPv6: true, Protocol: 58, ICMPType: new(uint8(1)), ICMPCode: new(uint8(2))},
		{
			ID: string(g.Rules[1].ID), Direction: securitygroup.Ingress, Protocol: 17, First: 5, Last: 9,
			Remote: prefix("10.0.0.0/8"),
		},
		{ID: string(g.Rules[2].ID), RemoteGroup: string(idle)}, {ID: string(g.Rules[3].ID), RemoteSet: string(set.ID)},
	}}
	if len(s.Groups) != 1 || !sameJSON(t, s.Groups[0], want) {
		t.Errorf("the groups are %+v, want %+v", s.Groups, want)
	}
	if len(s.Sets) != 1 || !sameJSON(t, s.Sets[0], securitygroup.Set{ID: string(set.ID), Revision: set.Revision, Prefixes: set.Prefixes}) {
		t.Errorf("the sets are %+v", s.Sets)
	}
	port := s.Ports[string(w.routers[0])][0]
	if port.ID != string(id) || !slices.Equal(port.Groups, []string{string(g.ID)}) || port.Limits != (securitygroup.Limits{EgressKbps: 1}) || !port.Filtered() {
		t.Errorf("the port is %+v", port)
	}
}

// What a new program finds in the store it tells the kernel whole.
func TestReconcileTellsFilters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p := open(t, Options{Path: path, Datapath: newFake()})
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	_, err = p.EnsurePorts(t.Context(), []sdn.PortSpec{{Base: sdn.Base{Project: "p"}, Network: n.ID, Host: testHost}})
	ok(t, err)
	ok(t, p.Close())
	p = open(t, Options{Path: path, Datapath: newFake()})
	_, err = p.Reconcile(t.Context())
	ok(t, err)
	checkSum(t, p)
	if d := p.datapath.(*fakeKernel).state[string(n.ID)]; len(d.groups) != 1 {
		t.Errorf("the domain knows the groups %v", d.groups)
	}
}

// A change that the disk refused is not what the kernel is told by the next port.
func TestUnwrittenRulesAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.group(t, "", egress(80))
	spec := sdn.PortSpec{Network: w.networks[0].ID, Host: testHost, Groups: []sdn.ID{g}}
	w.port(t, spec)
	onDisk(w.Provider, func(b *bbolt.Tx) error { return errors.Join(errInjected, b.Rollback()) })
	if _, err := w.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{ID: g, Rules: []sdn.Rule{egress(81)}}); !sdn.IsUnavailable(err) {
		t.Errorf("got error %v, want unavailable", err)
	}
	onDisk(w.Provider, (*bbolt.Tx).Commit)
	w.port(t, spec)
	checkSum(t, w.Provider)
}

func sameJSON(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	ok(t, err)
	y, err := json.Marshal(b)
	ok(t, err)
	return string(x) == string(y)
}
