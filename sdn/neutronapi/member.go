package neutronapi

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// PoolMembers are served below /v2.0/lbaas/pools/ID/members.
var PoolMembers = Resource[PoolMember]{"member", "members"}

// PoolMember is a member of a pool in Octavia's JSON.
type PoolMember struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	ProjectID string   `json:"project_id"`
	Tags      []string `json:"tags"`
	balancerStatus
	Address        string  `json:"address"`
	ProtocolPort   uint16  `json:"protocol_port"`
	SubnetID       *string `json:"subnet_id"`
	Weight         int     `json:"weight"`
	Backup         bool    `json:"backup"`
	MonitorAddress *string `json:"monitor_address"`
	MonitorPort    *int    `json:"monitor_port"`
}

// maxMembers is how many members a body may name for one pool.
const maxMembers = 4096

func encodeMember(p part[sdn.Member]) PoolMember {
	m := p.value
	out := PoolMember{ID: string(m.ID), Name: m.Name, ProjectID: p.of.Project, Tags: list(m.Tags), balancerStatus: balancerState(p.of), Address: m.Addr.Addr().String(), ProtocolPort: m.Addr.Port(),
		SubnetID: optional(string(m.Subnet)), Weight: max(m.Weight, 1)}
	if m.Drain {
		out.Weight = 0
	}
	if out.OperatingStatus == online {
		out.OperatingStatus = noMonitor
	}
	return out
}

// memberPatch changes a member.
type memberPatch struct {
	ifRevision int64
	change     func(*sdn.Member)
}

// serveMembers adds the members of pools, one by one and all at once.
func (s *server) serveMembers() {
	const path = "/pools/{pool}/members"
	members := func(c *call) (*resource, error) {
		p, err := s.pools().need(c, sdn.ID(c.PathValue("pool")))
		return s.members(p).resource(), err
	}
	s.serveWithin(path, members, map[string]handler{http.MethodPut: s.putMembers})
}

// members are those of a pool.
func (s *server) members(p part[pool]) *definition[part[sdn.Member], PoolMember, sdn.Member, memberPatch] {
	type member = part[sdn.Member]
	get := func(ctx context.Context, id sdn.ID) (member, error) {
		now, err := s.pool(ctx, p.value.ID)
		if err != nil {
			return member{}, err
		}
		i := slices.IndexFunc(now.value.Members, func(m sdn.Member) bool { return m.ID == id })
		if i < 0 {
			return member{}, sdn.NotFound("member", id)
		}
		return member{now.value.Members[i], now.of}, nil
	}
	change := func(ctx context.Context, ifRevision int64, by func(*sdn.Pool) error) error {
		_, err := s.changePool(ctx, p.of.ID, p.value.ID, ifRevision, by)
		return err
	}
	remove := func(ctx context.Context, id sdn.ID, ifRevision int64) error {
		return change(ctx, ifRevision, func(p *sdn.Pool) error {
			p.Members = slices.DeleteFunc(p.Members, func(m sdn.Member) bool { return m.ID == id })
			return nil
		})
	}
	return &definition[member, PoolMember, sdn.Member, memberPatch]{
		Resource: PoolMembers, title: "member",
		meta: func(m member) sdn.Meta { return m.meta(m.value.ID, m.value.Name, m.value.Tags) },
		get:  get, encode: encodeMember,
		find: func(_ context.Context, f *filter) iter.Seq2[member, error] {
			f.named = true
			f.partTags()
			return func(yield func(member, error) bool) {
				for _, m := range p.value.Members {
					if !yield(member{m, p.of}, nil) {
						return
					}
				}
			}
		},
		spec: func(c *call, b *body) sdn.Member {
			if !c.owns(p.of.Meta) {
				b.fail(c.denied("it is another project's"))
			}
			return s.memberIn(b, p.of.Project)
		},
		create: func(ctx context.Context, m sdn.Member) (member, error) {
			err := change(ctx, 0, func(p *sdn.Pool) error {
				if slices.ContainsFunc(p.Members, func(o sdn.Member) bool { return o.Addr == m.Addr }) {
					return errSameMember(m.Addr)
				}
				p.Members = append(p.Members, m)
				return nil
			})
			if err != nil {
				return member{}, err
			}
			now, err := s.pool(ctx, p.value.ID)
			for _, o := range now.value.Members {
				if o.Addr == m.Addr {
					return member{o, now.of}, nil
				}
			}
			if err == nil {
				err = sdn.Conflict(sdn.Stale, "member", "", "it was taken away at once")
			}
			return member{}, err
		},
		patch: func(_ *call, b *body, _ member) memberPatch {
			b.readOnly("address", "protocol_port", "ip_address", "subnet_id")
			b.ofProject(p.of.Project)
			given := maps.Clone(b.values)
			b.member(new(sdn.Member))
			return memberPatch{b.ifRevision, func(m *sdn.Member) {
				(&body{call: b.call, noun: b.noun, values: maps.Clone(given)}).member(m)
			}}
		},
		update: func(ctx context.Context, id sdn.ID, by memberPatch) (member, error) {
			err := change(ctx, by.ifRevision, func(p *sdn.Pool) error {
				i := slices.IndexFunc(p.Members, func(m sdn.Member) bool { return m.ID == id })
				if i < 0 {
					return sdn.NotFound("member", id)
				}
				by.change(&p.Members[i])
				return nil
			})
			if err != nil {
				return member{}, err
			}
			return get(ctx, id)
		},
		remove: func(ctx context.Context, id sdn.ID) error { return remove(ctx, id, 0) }, removeIf: remove,
	}
}

func errSameMember(at netip.AddrPort) error {
	return refuse(http.StatusConflict, "DuplicateMemberEntry", "Another member on this pool is already using ip %s on protocol_port %d", at.Addr(), at.Port())
}

// membersIn reads members; nil where there is nothing said of them.
func (s *server) membersIn(b *body, project string) *[]sdn.Member {
	members := objectsUpTo(b, "members", maxMembers, func(b *body) sdn.Member { return s.memberIn(b, project) })
	if members == nil {
		return nil
	}
	seen := make(map[netip.AddrPort]bool, len(*members))
	for _, m := range *members {
		if seen[m.Addr] {
			b.fail(errSameMember(m.Addr))
		}
		seen[m.Addr] = true
	}
	return members
}

// memberIn reads a member.
func (s *server) memberIn(b *body, project string) sdn.Member {
	at, port := b.place()
	out := sdn.Member{Addr: netip.AddrPortFrom(at, port), Subnet: or(b.id("subnet_id")), Weight: 1}
	if out.Subnet != "" && !b.knows(out.Subnet) {
		_, _ = refer(b, out.Subnet, s.subnets().need)
	}
	b.ofProject(project)
	b.member(&out)
	return out
}

// place reads where a member answers.
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

// member reads what can be changed of a member into what it is so far.
func (b *body) member(m *sdn.Member) {
	b.blank("name")
	if name := b.text("name"); name != nil {
		m.Name = *name
	}
	b.partTags(&m.Tags)
	if b.null("weight") {
		m.Weight, m.Drain = 1, false
	} else if weight := b.integer("weight", 0, 256); weight != nil {
		m.Weight, m.Drain = *weight, *weight == 0
	}
	b.unset(nil, "backup", "monitor_address", "monitor_port", "request_sni")
}

// putMembers makes a pool's members those of the body, or has them too where it says additive_only. Of those that are there what is not said stays.
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
	items, ok := document["members"].([]any)
	if !ok {
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
	if _, err := s.changePool(c.ctx(), p.of.ID, p.value.ID, revision, func(p *sdn.Pool) error {
		p.Members = mergeMembers(c, p.Members, *members, items, additive)
		return nil
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// mergeMembers gives the members that a pool is to have; items are what was said of each wanted one.
func mergeMembers(c *call, have, wanted []sdn.Member, items []any, additive bool) []sdn.Member {
	at := make(map[netip.AddrPort]sdn.Member, len(have))
	for _, m := range have {
		at[m.Addr] = m
	}
	out := make([]sdn.Member, 0, len(wanted))
	for i, m := range wanted {
		if there, is := at[m.Addr]; is {
			delete(at, m.Addr)
			values, _ := items[i].(map[string]any)
			if subnet := m.Subnet; subnet != "" {
				there.Subnet = subnet
			}
			(&body{call: c, noun: "member", values: maps.Clone(values)}).member(&there)
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
