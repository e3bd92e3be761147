package neutronapi

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// SecurityGroupRules are served below /v2.0/security-group-rules.
var SecurityGroupRules = Resource[SecurityGroupRule]{"security_group_rule", "security_group_rules"}

func (s *server) securityGroupRules() *definition[ruleOf, SecurityGroupRule, ruleSpec, struct{}] {
	return &definition[ruleOf, SecurityGroupRule, ruleSpec, struct{}]{
		Resource: SecurityGroupRules, path: "security-group-rules", title: "security group rule",
		meta: func(r ruleOf) sdn.Meta {
			m := r.group.Meta
			return sdn.Meta{ID: r.rule.ID, Base: sdn.Base{Project: m.Project}, Revision: m.Revision, Created: m.Created, Updated: m.Updated}
		},
		get: s.rule, find: s.findRules, encode: func(r ruleOf) SecurityGroupRule { return EncodeSecurityGroupRule(r.group, r.rule) },
		// A rule can be made and deleted, not changed: each attribute of a change is refused.
		patch: func(_ *call, b *body, r ruleOf) struct{} {
			b.readOnly(slices.Sorted(maps.Keys(objectOf(EncodeSecurityGroupRule(r.group, r.rule))))...)
			return struct{}{}
		},
		update: func(ctx context.Context, id sdn.ID, _ struct{}) (ruleOf, error) { return s.rule(ctx, id) },
		spec:   s.specRule, createAll: bulkOf(s.createRules), remove: s.deleteRule,
		create: func(ctx context.Context, spec ruleSpec) (ruleOf, error) {
			made, err := s.createRules(ctx, []ruleSpec{spec})
			if err != nil {
				return ruleOf{}, err
			}
			return made[0], nil
		},
	}
}

// rule finds a rule by its id.
func (s *server) rule(ctx context.Context, id sdn.ID) (ruleOf, error) {
	g, there, err := sdn.First(s.p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Rules: []sdn.ID{id}}))
	if err != nil {
		return ruleOf{}, err
	}
	if i := slices.IndexFunc(g.Rules, func(r sdn.Rule) bool { return r.ID == id }); there && i >= 0 {
		return ruleOf{g, g.Rules[i]}, nil
	}
	return ruleOf{}, errNoRule(id)
}

func errNoRule(id sdn.ID) error {
	return refuse(http.StatusNotFound, "SecurityGroupRuleNotFound", "Security group rule %s does not exist", id)
}

// findRules lists the rules of groups. A protocol can be asked for by name or number.
func (s *server) findRules(ctx context.Context, f *filter) iter.Seq2[ruleOf, error] {
	f.named = true // they come group by group
	q := sdn.SecurityGroupQuery{Rules: f.ids("id"), Match: sdn.Match{IDs: f.ids("security_group_id"), Projects: f.projects()}}
	if asked := f.texts("protocol"); len(asked) > 0 {
		f.wants = append(f.wants, want{"protocol", func(value any) bool {
			return slices.ContainsFunc(asked, func(p string) bool { return sameProtocol(p, text(value)) })
		}})
	}
	return func(yield func(ruleOf, error) bool) {
		if err := s.meetDefault(ctx, q.Match); err != nil {
			yield(ruleOf{}, err)
			return
		}
		for g, err := range s.p.FindSecurityGroups(ctx, q) {
			if err != nil {
				yield(ruleOf{}, err)
				return
			}
			for _, r := range g.Rules {
				if (len(q.Rules) == 0 || slices.Contains(q.Rules, r.ID)) && !yield(ruleOf{g, r}, nil) {
					return
				}
			}
		}
	}
}

// sameProtocol compares two words for protocols, be they names or numbers.
func sameProtocol(a, b string) bool {
	p, _, ok := ipproto.Parse(a)
	q, _, also := ipproto.Parse(b)
	return a == b || ok && also && p == q
}

// specRule reads a rule. Its group, and a group or an address group that it names, must be ones that the caller sees.
func (s *server) specRule(c *call, b *body) ruleSpec {
	var asked ruleAsked
	b.required("security_group_id", "direction")
	b.project()
	b.readOnly(append(systems, "tags", "normalized_cidr", "belongs_to_default_sg")...)
	asked.description = or(b.description(""))
	asked.group = or(b.id("security_group_id"))
	asked.direction = sdn.Direction(or(b.oneOf("direction", string(sdn.Ingress), string(sdn.Egress))))
	asked.ipv6 = b.etherType()
	asked.protocol = b.protocol()
	asked.min, asked.max = b.rulePort("port_range_min"), b.rulePort("port_range_max")
	asked.prefix = b.remotePrefix()
	asked.remoteGroup, asked.remoteSet = or(b.id("remote_group_id")), or(b.id("remote_address_group_id"))
	rule, err := asked.rule()
	b.fail(err)
	if b.err == nil {
		b.fail(s.checkRuleNames(c, asked))
	}
	return ruleSpec{asked.group, rule}
}

// checkRuleNames wants what a rule names to be there for the caller.
func (s *server) checkRuleNames(c *call, asked ruleAsked) error {
	for _, id := range []sdn.ID{asked.remoteGroup, asked.group} {
		if id == "" {
			continue
		}
		if _, err := s.securityGroups().need(c, id); err != nil {
			return err
		}
	}
	if asked.remoteSet != "" {
		_, err := s.addressGroups().need(c, asked.remoteSet)
		return err
	}
	return nil
}

// etherType reads the family of a rule, in any case; IPv4 where none is said.
func (b *body) etherType() (ipv6 bool) {
	value, given := b.take("ethertype")
	said, _ := value.(string)
	switch {
	case !given || strings.EqualFold(said, "IPv4"):
		return false
	case strings.EqualFold(said, "IPv6"):
		return true
	}
	b.fail(refuse(http.StatusBadRequest, "SecurityGroupRuleInvalidEtherType", "Security group rule for ethertype '%s' not supported. Allowed values are ['IPv4', 'IPv6'].", show(value)))
	return false
}

// protocol reads a protocol, which may be a number.
func (b *body) protocol() *string {
	value, given := b.take("protocol")
	if !given || value == nil {
		return nil
	}
	out := show(value)
	switch value.(type) {
	case string, json.Number:
	default:
		b.fail(errProtocol(out))
	}
	return &out
}

// rulePort reads an end of a port range.
func (b *body) rulePort(name string) *int {
	value, given := b.take(name)
	if !given || value == nil {
		return nil
	}
	port, err := strconv.Atoi(show(value))
	if err != nil || port < 0 || port > 65535 {
		b.fail(refuse(http.StatusBadRequest, "SecurityGroupInvalidPortValue", "Invalid value for port %s", show(value)))
		return nil
	}
	return &port
}

// remotePrefix reads a remote range, invalid where there is none.
func (b *body) remotePrefix() netip.Prefix {
	value, given := b.take("remote_ip_prefix")
	said, isText := value.(string)
	if !given || value == nil || isText && said == "" {
		return netip.Prefix{}
	}
	prefix, ok := parseAsSent(said)
	if !ok {
		b.fail(refuse(http.StatusBadRequest, "InvalidCIDR", "Invalid CIDR %s given as IP prefix.", show(value)))
	}
	return prefix
}

// createRules adds rules to a group, all or none.
func (s *server) createRules(ctx context.Context, specs []ruleSpec) ([]ruleOf, error) {
	group := specs[0].group
	added := make([]sdn.Rule, len(specs))
	for i, spec := range specs {
		if spec.group != group {
			return nil, refuse(http.StatusBadRequest, "SecurityGroupNotSingleGroupRules", "Only allowed to update rules for one security profile at a time")
		}
		added[i] = spec.rule
	}
	g, err := s.updateSecurityGroup(ctx, group, securityGroupChange{change: func(g *sdn.SecurityGroupSpec) (err error) {
		g.Rules, err = addRules(g.Rules, added)
		return err
	}})
	if err != nil {
		return nil, err
	}
	out := make([]ruleOf, len(added))
	for i, r := range added {
		at := slices.IndexFunc(g.Rules, func(have sdn.Rule) bool { return ruleKey(have) == ruleKey(r) })
		if at < 0 {
			return nil, sdn.Unavailable(nil, "security group rule", "it is gone as soon as it was made")
		}
		out[i] = ruleOf{g, g.Rules[at]}
	}
	return out, nil
}

// deleteRule takes a rule out of its group.
func (s *server) deleteRule(ctx context.Context, id sdn.ID) error {
	r, err := s.rule(ctx, id)
	if err != nil {
		return err
	}
	_, err = s.updateSecurityGroup(ctx, r.group.ID, securityGroupChange{change: func(g *sdn.SecurityGroupSpec) error {
		left := slices.DeleteFunc(slices.Clone(g.Rules), func(r sdn.Rule) bool { return r.ID == id })
		if len(left) == len(g.Rules) {
			return errNoRule(id)
		}
		g.Rules = left
		return nil
	}})
	if sdn.IsNotFound(err) {
		return errNoRule(id) // the group has gone with it
	}
	return err
}
