package docker

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// filtering is an SDN with security groups and QoS policies, made of the embedded one,
// which has neither: it keeps those of ports itself.
type filtering struct {
	sdn.Provider
	groups   []sdn.SecurityGroup
	policies []sdn.QoSPolicy

	mu     sync.Mutex
	has    map[sdn.ID][]sdn.ID
	policy map[sdn.ID]sdn.ID
}

func newFiltering(t *testing.T) (*filtering, *box) {
	f := &filtering{has: map[sdn.ID][]sdn.ID{}, policy: map[sdn.ID]sdn.ID{}}
	for _, name := range []string{"web", "db", "twice", "twice"} {
		f.groups = append(f.groups, sdn.SecurityGroup{Meta: sdn.Meta{
			ID: sdn.ID(uuid.NewString()), Base: sdn.Base{Name: name, Project: "other"},
		}})
	}
	// An administrator sees the group of each project.
	for _, project := range []string{"", "other", "third"} {
		f.groups = append(f.groups, sdn.SecurityGroup{Meta: sdn.Meta{
			ID: sdn.ID(uuid.NewString()), Base: sdn.Base{Name: "default", Project: project},
		}})
	}
	f.policies = []sdn.QoSPolicy{{Meta: sdn.Meta{ID: sdn.ID(uuid.NewString()), Base: sdn.Base{Name: "gold"}}}}
	b := newBox(t, func(c *Config) { f.Provider = c.Provider; c.Provider = f })
	b.provider = f
	return f, b
}

func (f *filtering) group(name string) sdn.ID {
	return f.groups[slices.IndexFunc(f.groups, func(g sdn.SecurityGroup) bool { return g.Name == name })].ID
}

func (f *filtering) Capabilities() sdn.Capabilities {
	can := f.Provider.Capabilities()
	can.SecurityGroups, can.QoS = true, true
	return can
}

func (f *filtering) FindSecurityGroups(
	_ context.Context, q sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	return func(yield func(sdn.SecurityGroup, error) bool) {
		for _, g := range f.groups {
			if q.Match.Matches(g.Meta) && !yield(g, nil) {
				return
			}
		}
	}
}

func (f *filtering) FindQoSPolicies(_ context.Context, q sdn.QoSPolicyQuery) iter.Seq2[sdn.QoSPolicy, error] {
	return func(yield func(sdn.QoSPolicy, error) bool) {
		for _, p := range f.policies {
			if q.Match.Matches(p.Meta) && !yield(p, nil) {
				return
			}
		}
	}
}

func (f *filtering) show(p sdn.Port) sdn.Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.Groups, p.QoSPolicy = f.has[p.ID], f.policy[p.ID]
	return p
}

func (f *filtering) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	specs = slices.Clone(specs)
	groups, policy := specs[0].Groups, specs[0].QoSPolicy
	specs[0].Groups, specs[0].QoSPolicy = nil, ""
	ports, err := f.Provider.EnsurePorts(ctx, specs)
	if err != nil {
		return ports, err
	}
	f.mu.Lock()
	f.has[ports[0].ID], f.policy[ports[0].ID] = groups, policy
	f.mu.Unlock()
	return []sdn.Port{f.show(ports[0])}, nil
}

func (f *filtering) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	groups, policy := patch.Groups, patch.QoSPolicy
	patch.Groups, patch.QoSPolicy = nil, nil
	p, err := f.Provider.UpdatePort(ctx, id, patch)
	if err != nil {
		return p, err
	}
	f.mu.Lock()
	if groups != nil {
		f.has[id] = *groups
	}
	if policy != nil {
		f.policy[id] = *policy
	}
	f.mu.Unlock()
	return f.show(p), nil
}

func (f *filtering) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	p, err := f.Provider.Port(ctx, id)
	return f.show(p), err
}

func (f *filtering) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		for p, err := range f.Provider.FindPorts(ctx, q) {
			if !yield(f.show(p), err) {
				return
			}
		}
	}
}

// with is CreateEndpoint's body with options more.
func (e *endpoint) with(options m) m {
	body := e.createBody()
	maps.Copy(body["Options"].(m), options)
	return body
}

// Security groups and QoS policies are named or given by their ids; those of the network
// are in force where the endpoint has none of its own.
func TestGroupsAndPolicy(t *testing.T) {
	t.Parallel()
	f, b := newFiltering(t)
	web, db, own, gold := f.group("web"), f.group("db"), f.group("default"), f.policies[0].ID
	plain := b.create(dualNetwork())
	guarded := b.create(&network{v4: []*pool{{cidr: "10.52.0.0/24"}}, options: m{optGroups: "web," + string(db)}})
	for _, c := range []struct {
		net     *network
		options m
		groups  []sdn.ID
		policy  sdn.ID
	}{
		{plain, m{}, nil, ""},
		{plain, m{optGroups: "web"}, []sdn.ID{web}, ""},
		{plain, m{optGroups: string(db) + " web,web", optQoSPolicy: "gold"}, []sdn.ID{db, web}, gold},
		{plain, m{optQoSPolicy: string(gold)}, nil, gold},
		{plain, m{optGroups: "default"}, []sdn.ID{own}, ""},
		{guarded, m{}, []sdn.ID{web, db}, ""},
		{guarded, m{optGroups: "default"}, []sdn.ID{own}, ""},
		{guarded, m{optPortSecurity: "false"}, []sdn.ID{}, ""},
	} {
		e := &endpoint{net: c.net}
		b.take(e)
		for range 2 { // also when it comes again
			b.ok("NetworkDriver.CreateEndpoint", e.with(c.options))
			p := b.portOf(e.id)
			if !sameIDs(p.Groups, c.groups) || p.QoSPolicy != c.policy {
				t.Errorf("options %v: groups %v, want %v; policy %q, want %q", c.options, p.Groups, c.groups, p.QoSPolicy, c.policy)
			}
		}
		b.stop(e)
	}
	// An endpoint whose addresses another IPAM driver chose.
	other := b.otherIPAM("172.18.0.0/16")
	e := &endpoint{net: other, id: newID(), ip4: "172.18.0.2"}
	b.ok("NetworkDriver.CreateEndpoint", e.with(m{optGroups: "db", optQoSPolicy: "gold"}))
	if p := b.portOf(e.id); !sameIDs(p.Groups, []sdn.ID{db}) || p.QoSPolicy != gold {
		t.Errorf("port %+v", p)
	}
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
}

// What cannot be is refused with the option's name, and leaves nothing.
func TestGroupsAndPolicyRefused(t *testing.T) {
	t.Parallel()
	_, b := newFiltering(t)
	n := b.create(dualNetwork())
	e := &endpoint{net: n}
	b.take(e)
	before := b.dump()
	for _, c := range []struct {
		options m
		says    string
	}{
		{m{optGroups: "unknown"}, `no security group "unknown"`},
		{m{optGroups: newID()}, "no security group"},
		{m{optGroups: uuid.NewString()}, "no security group"},
		{m{optGroups: "twice"}, "more than one security group"},
		{m{optQoSPolicy: "silver"}, `no QoS policy "silver"`},
	} {
		text := b.fails("NetworkDriver.CreateEndpoint", e.with(c.options))
		b.contains(text, c.says)
		for option := range c.options {
			b.contains(text, option)
		}
	}
	b.unchanged(before)
}

// TestNetworkWithUnknownGroup checks that CreateNetwork refuses a security group that the SDN does
// not have, on a new network and on an existing one.
func TestNetworkWithUnknownGroup(t *testing.T) {
	t.Parallel()
	f, b := newFiltering(t)
	f.group("web")
	theirs := b.theirs("net", "10.53.0.0/24")
	for _, group := range []string{"unknown", uuid.NewString()} {
		before := b.dump()
		made := &network{v4: []*pool{{cidr: "10.52.0.0/24"}}, options: m{optGroups: "web " + group}}
		existing := b.zun(theirs, "10.53.0.0/24", "")
		existing.options = maps.Clone(existing.options) // those of its pools stay
		existing.options[optGroups] = group
		for _, n := range []*network{made, existing} {
			text := b.fails("NetworkDriver.CreateNetwork", b.request(n))
			b.contains(text, "option "+optGroups, "no security group", group)
			b.release(n)
		}
		b.unchanged(before)
	}
}

// TestNetworkWithAmbiguousGroup checks that of several groups with one name CreateNetwork
// takes that of the network's project, as CreateEndpoint does.
func TestNetworkWithAmbiguousGroup(t *testing.T) {
	t.Parallel()
	_, b := newFiltering(t)
	theirs := b.theirs("net", "10.53.0.0/24")
	before := b.dump()
	made := &network{v4: []*pool{{cidr: "10.52.0.0/24"}}, options: m{}}
	existing := b.zun(theirs, "10.53.0.0/24", "")
	existing.options = maps.Clone(existing.options) // those of its pools stay
	for _, n := range []*network{made, existing} {
		n.options[optGroups] = "twice"
		text := b.fails("NetworkDriver.CreateNetwork", b.request(n))
		b.contains(text, "more than one security group", "twice")
		b.release(n)
		n.options[optGroups] = "default"
		b.remove(b.create(n))
	}
	b.unchanged(before)
}

// TestRepeatedNetworkWithDeletedGroup checks that a repeated CreateNetwork succeeds after a
// security group of the network's options was deleted.
func TestRepeatedNetworkWithDeletedGroup(t *testing.T) {
	t.Parallel()
	f, b := newFiltering(t)
	made := &network{v4: []*pool{{cidr: "10.52.0.0/24"}}, options: m{}}
	existing := b.zun(b.theirs("net", "10.53.0.0/24"), "10.53.0.0/24", "")
	existing.options = maps.Clone(existing.options) // those of its pools stay
	var bodies []m
	for _, n := range []*network{made, existing} {
		n.options[optGroups] = "web"
		body := b.request(n)
		b.ok("NetworkDriver.CreateNetwork", body)
		bodies = append(bodies, body)
	}
	f.groups = slices.DeleteFunc(f.groups, func(g sdn.SecurityGroup) bool { return g.Name == "web" })
	for _, restarted := range []bool{false, true} {
		if restarted {
			b.restart()
		}
		for _, body := range bodies {
			b.ok("NetworkDriver.CreateNetwork", body)
		}
	}
	e := &endpoint{net: made}
	b.take(e)
	text := b.fails("NetworkDriver.CreateEndpoint", e.createBody())
	b.contains(text, "of the network", `no security group "web"`)
}

// An SDN without security groups, QoS policies or floating IPs says so by the option's name.
func TestOptionsUnsupported(t *testing.T) {
	t.Parallel()
	p := &dockertest.Provider{Can: func(c *sdn.Capabilities) {
		c.FloatingIPs, c.SecurityGroups, c.QoS = false, false, false
	}}
	b := newBox(t, func(c *Config) { p.Provider = c.Provider; c.Provider = p })
	n := b.create(dualNetwork())
	e := &endpoint{net: n}
	b.take(e)
	for option, value := range map[string]string{optGroups: "web", optQoSPolicy: "gold", optFloatingIP: floatingAuto} {
		b.contains(b.fails("NetworkDriver.CreateEndpoint", e.with(m{option: value})), option, "this SDN has no")
	}
	grouped := &network{v4: []*pool{{cidr: "10.52.0.0/24"}}, options: m{optGroups: "web"}}
	text := b.fails("NetworkDriver.CreateNetwork", b.request(grouped))
	b.contains(text, optGroups, "this SDN has no security groups")
}

// sameIDs reports whether two lists have the same ids in any order.
func sameIDs(a, b []sdn.ID) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
