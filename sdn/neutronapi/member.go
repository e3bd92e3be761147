package neutronapi

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// maxMembers is how many members a body may name for one pool.
const maxMembers = 4096

func commonOfMember(m *sdn.Member) partCommon { return partCommon{&m.ID, &m.Name, &m.Tags} }

// membersOf returns the members of a pool.
func membersOf(p *part[sdn.Pool]) []part[sdn.Member] {
	out := make([]part[sdn.Member], len(p.value.Members))
	for i, m := range p.value.Members {
		out[i] = part[sdn.Member]{value: m, of: p.of, pool: p.value.ID}
	}
	return out
}

// memberNoun describes the members of one pool.
func memberNoun(pool sdn.ID) *partNoun[sdn.Member] {
	return &partNoun[sdn.Member]{
		title: "member", common: commonOfMember,
		all: func(l sdn.LoadBalancer) []part[sdn.Member] {
			p, err := poolNoun.within(l, pool)
			if err != nil {
				return nil
			}
			return membersOf(&p)
		},
		at: func(all *sdn.LoadBalancerSpec, id sdn.ID) *sdn.Member {
			p, _ := poolAt(all, pool)
			if p == nil {
				return nil
			}
			i := slices.IndexFunc(p.Members, func(m sdn.Member) bool { return m.ID == id })
			if i < 0 {
				return nil
			}
			p.Members = slices.Clone(p.Members) // the provider's own may not be changed
			return &p.Members[i]
		},
	}
}

var memberAttributes = memberFields

// memberFields are the attributes of members. memberIn reads those that do not change.
var memberFields = append(partFields(commonOfMember, noMonitor), []field{
	{name: "address", access: hookPost, show: via(func(p *part[sdn.Member]) any { return p.value.Addr.Addr().String() })},
	{name: "ip_address", access: hookPost}, // the older name
	{name: "protocol_port", access: hookPost, show: via(func(p *part[sdn.Member]) any { return int(p.value.Addr.Port()) })},
	{name: "subnet_id", access: hookPost, show: via(func(p *part[sdn.Member]) any { return some(string(p.value.Subnet)) })},
	changeable("weight", nullIs(1, isInt(0, 256)), showWeight,
		func(m *sdn.Member, weight int) { m.Weight, m.Drain = weight, weight == 0 }),
	{name: "backup", is: isUnset(), show: never, why: noSuchThing},
	{name: "monitor_address", is: isUnset(), show: null, why: noSuchThing},
	{name: "monitor_port", is: isUnset(), show: null, why: noSuchThing},
	{name: "request_sni", is: isUnset(), why: noSuchThing},
}...)

func showWeight(p *part[sdn.Member]) any {
	if p.value.Drain {
		return 0
	}
	return max(p.value.Weight, 1)
}

// serveMembers adds the members of pools, one by one and all together.
func (s *server) serveMembers() {
	const path = "/pools/{pool}/members"
	members := func(c *call) (*resource, error) {
		p, err := s.pools().need(c, sdn.ID(c.PathValue("pool")))
		return s.members(p).resource(), err
	}
	s.serveWithin(path, members, map[string]handler{http.MethodPut: s.putMembers})
}

// members are those of a pool.
func (s *server) members(p part[sdn.Pool]) tableOf[part[sdn.Member]] {
	n := memberNoun(p.value.ID)
	t := n.table(s)
	t.member, t.collection, t.fields = "member", "members", memberFields
	t.find = sought(func(_ context.Context, f *filter) iter.Seq2[part[sdn.Member], error] {
		f.named = true
		f.partTags()
		return func(yield func(part[sdn.Member], error) bool) {
			for _, m := range membersOf(&p) {
				if !yield(m, nil) {
					return
				}
			}
		}
	})
	t.beforePost = hook(func(c *call, b *body, e *partEdit[sdn.Member]) {
		if !c.owns(p.of.Meta) {
			b.fail(c.denied("it is another project's"))
		}
		s.beginMember(b, e, p.of.Project)
	})
	t.create = creates(func(ctx context.Context, e partEdit[sdn.Member]) (part[sdn.Member], error) {
		m := e.value
		return n.add(ctx, s, p.of.ID, func(all *sdn.LoadBalancerSpec) error {
			to, _ := poolAt(all, p.value.ID)
			switch {
			case to == nil:
				return sdn.NotFound("pool", p.value.ID)
			case slices.ContainsFunc(to.Members, func(o sdn.Member) bool { return o.Addr == m.Addr }):
				return errSameMember(m.Addr)
			}
			to.Members = append(slices.Clone(to.Members), m)
			return nil
		}, func(o *part[sdn.Member]) bool { return o.value.Addr == m.Addr })
	})
	t.removeIf = func(ctx context.Context, id sdn.ID, revision int64) error {
		return s.changePool(ctx, p.of.ID, p.value.ID, revision, func(p *sdn.Pool) {
			p.Members = slices.DeleteFunc(p.Members, func(m sdn.Member) bool { return m.ID == id })
		})
	}
	t.remove = func(ctx context.Context, id sdn.ID) error { return t.removeIf(ctx, id, 0) }
	return t
}

func errSameMember(at netip.AddrPort) error {
	return refuse(http.StatusConflict, "DuplicateMemberEntry", "Another member on this pool is already using ip %s on protocol_port %d", at.Addr(), at.Port())
}

// membersIn reads members, nil for none given.
func (s *server) membersIn(b *body, project string) *[]partEdit[sdn.Member] {
	members := objectsUpTo(b, "members", maxMembers, func(b *body) partEdit[sdn.Member] { return s.memberIn(b, project) })
	seen := map[netip.AddrPort]bool{}
	for _, m := range or(members) {
		if seen[m.value.Addr] {
			b.fail(errSameMember(m.value.Addr))
		}
		seen[m.value.Addr] = true
	}
	return members
}

// memberIn reads a member in a list. Its edits say what changes of one that exists.
func (s *server) memberIn(b *body, project string) (e partEdit[sdn.Member]) {
	s.beginMember(b, &e, project)
	b.attributes(memberAttributes, &e)
	return e
}

// beginMember reads of a member what identifies it, and its subnet.
func (s *server) beginMember(b *body, e *partEdit[sdn.Member], project string) {
	at, port := b.place()
	e.value = sdn.Member{Addr: netip.AddrPortFrom(at, port), Subnet: or(b.id("subnet_id")), Weight: 1}
	if subnet := e.value.Subnet; subnet != "" && !b.knows(subnet) {
		_, _ = refer(b, subnet, s.subnets().need)
	}
	b.ofProject(project)
}

// place reads the address and the port of a member.
func (b *body) place() (netip.Addr, uint16) {
	if b.has("ip_address") && !b.has("address") {
		b.values["address"], _ = b.take("ip_address")
	}
	for _, name := range []string{"address", "protocol_port"} {
		if !b.has(name) {
			b.fail(badRequest("Invalid input for field/attribute " + name + ". Value: 'None'. Mandatory field missing."))
		}
	}
	return or(b.addr("address")), uint16(or(b.integer("protocol_port", 1, 65535)))
}

// putMembers makes a pool's members those of the body, or adds them if the query says
// additive_only. Members that exist keep what the body does not say.
func (s *server) putMembers(w http.ResponseWriter, c *call) error {
	p, err := s.pools().own(c, sdn.ID(c.PathValue("pool")))
	if err != nil {
		return err
	}
	additive := false
	if text := c.URL.Query().Get("additive_only"); text != "" {
		if additive, err = strconv.ParseBool(text); err != nil {
			return badRequest("Invalid input for field/attribute additive_only. Value: '" + text + "'.")
		}
	}
	document, err := c.document()
	if err != nil {
		return err
	}
	if _, ok := document["members"].([]any); !ok {
		return badRequest("Invalid input for field/attribute members. Mandatory field missing.")
	}
	revision, err := c.condition("pool", p.of.Meta)
	if err != nil {
		return err
	}
	b := &body{call: c, noun: "member", values: map[string]any{"members": document["members"]}}
	members := s.membersIn(b, p.of.Project)
	if err := b.done(); err != nil {
		return err
	}
	err = s.changePool(c.ctx(), p.of.ID, p.value.ID, revision, func(p *sdn.Pool) {
		p.Members = mergeMembers(p.Members, *members, additive)
	})
	if err == nil {
		w.WriteHeader(http.StatusAccepted)
	}
	return err
}

// mergeMembers returns the members that a pool shall have.
func mergeMembers(have []sdn.Member, wanted []partEdit[sdn.Member], additive bool) []sdn.Member {
	at := make(map[netip.AddrPort]sdn.Member, len(have))
	for _, m := range have {
		at[m.Addr] = m
	}
	out := make([]sdn.Member, 0, len(wanted))
	for _, w := range wanted {
		m := w.value
		if there, is := at[m.Addr]; is {
			delete(at, m.Addr)
			there.Subnet = cmp.Or(m.Subnet, there.Subnet)
			w.apply(&there)
			m = there
		}
		out = append(out, m)
	}
	for _, m := range have {
		if _, left := at[m.Addr]; left && additive {
			out = append(out, m)
		}
	}
	return out
}
