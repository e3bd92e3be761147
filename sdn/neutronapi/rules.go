package neutronapi

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// ruleFields are the attributes of rules. The times and the revision are those of the group, of
// whose value a rule is a part. A rule cannot be changed.
var ruleFields = []field{
	{name: "id", show: via(func(r *ruleOf) any { return string(r.rule.ID) })},
	{name: "project_id", access: hookPost, show: via(func(r *ruleOf) any { return r.group.Project })},
	{name: "tenant_id", access: hookPost, show: via(func(r *ruleOf) any { return r.group.Project })},
	{name: "security_group_id", is: isID, access: required, show: via(func(r *ruleOf) any { return string(r.group.ID) }),
		post: set(func(a *ruleAsked) *sdn.ID { return &a.group })},
	{name: "description", access: hookPost, show: via(func(r *ruleOf) any { return r.rule.Description })},
	{name: "direction", is: isWord(string(sdn.Ingress), string(sdn.Egress)), access: required,
		show: via(func(r *ruleOf) any { return string(r.rule.Direction) }),
		post: store(func(a *ruleAsked, v any) { a.direction = sdn.Direction(v.(string)) })},
	{name: "ethertype", is: kindOf((*body).etherType), show: via(func(r *ruleOf) any { return etherType(r.rule.IPv6) }),
		post: set(func(a *ruleAsked) *bool { return &a.ipv6 })},
	{name: "protocol", is: kindOf((*body).protocol), show: via(showProtocol), taken: "all but `0`", why: whyProtocol,
		post: change(func(a *ruleAsked) **string { return &a.protocol })},
	{name: "port_range_min", is: kindOf((*body).rulePort), show: via(func(r *ruleOf) any { return rangeEnd(r, r.rule.Ports.First, r.rule.ICMPType) }),
		post: change(func(a *ruleAsked) **int { return &a.min })},
	{name: "port_range_max", is: kindOf((*body).rulePort),
		show: via(func(r *ruleOf) any { return rangeEnd(r, max(r.rule.Ports.First, r.rule.Ports.Last), r.rule.ICMPCode) }),
		post: change(func(a *ruleAsked) **int { return &a.max })},
	{name: "remote_ip_prefix", is: kindOf((*body).remotePrefix), show: via(func(r *ruleOf) any { return prefixText(r.rule.RemotePrefix) }),
		post: set(func(a *ruleAsked) *netip.Prefix { return &a.prefix })},
	{name: "normalized_cidr", show: via(func(r *ruleOf) any { return prefixText(r.rule.RemotePrefix.Masked()) })},
	{name: "remote_group_id", is: isID, show: via(func(r *ruleOf) any { return some(string(r.rule.RemoteGroup)) }),
		post: set(func(a *ruleAsked) *sdn.ID { return &a.remoteGroup })},
	{name: "remote_address_group_id", is: isID, show: via(func(r *ruleOf) any { return some(string(r.rule.RemoteSet)) }),
		post: set(func(a *ruleAsked) *sdn.ID { return &a.remoteSet })},
	{name: "belongs_to_default_sg", show: via(func(r *ruleOf) any { return isDefaultGroup(r.group) })},
	{name: "tags", show: empty},
	{name: "revision_number", show: via(func(r *ruleOf) any { return r.group.Revision })},
	{name: "created_at", show: via(func(r *ruleOf) any { return timestamp(r.group.Created) })},
	{name: "updated_at", show: via(func(r *ruleOf) any { return timestamp(r.group.Updated) })},
}

var ruleAttributes = ruleFields

// showRules shows the rules of a group.
func showRules(g *sdn.SecurityGroup) any {
	out := json.RawMessage{'['}
	for i, r := range g.Rules {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendObject(out, ruleAttributes, &ruleOf{*g, r}, view{admin: true})
	}
	return append(out, ']')
}

func showProtocol(r *ruleOf) any {
	switch {
	case r.rule.Protocol == 0:
		return nil
	case r.rule.Numeric:
		return strconv.Itoa(int(r.rule.Protocol))
	}
	return ipproto.Name(r.rule.Protocol)
}

// rangeEnd shows an end of a range of ports, which for ICMP is a type or a code.
func rangeEnd(r *ruleOf, port uint16, octet *uint8) any {
	switch {
	case octet != nil:
		return int(*octet)
	case r.rule.Ports.First != 0:
		return int(port)
	}
	return nil
}

func prefixText(p netip.Prefix) any {
	if !p.IsValid() {
		return nil
	}
	return p.String()
}

func (s *server) securityGroupRules() tableOf[ruleOf] {
	t := &table{
		member: "security_group_rule", collection: "security_group_rules", path: "security-group-rules", title: "security group rule",
		meta: via(func(r *ruleOf) sdn.Meta {
			m := r.group.Meta
			return sdn.Meta{ID: r.rule.ID, Base: sdn.Base{Project: m.Project}, Revision: m.Revision, Created: m.Created, Updated: m.Updated}
		}),
		fields:    ruleFields,
		get:       getCall{made[ruleOf], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.rule(ctx, id)) }},
		find:      func(ctx context.Context, f *filter) iter.Seq2[any, error] { return pointers(s.findRules(ctx, f)) },
		checkPost: hook(s.checkRule), createAll: bulk(s.createRules),
		create: createCall{made[ruleAsked], func(ctx context.Context, askedFor any) (any, error) {
			asked := *askedFor.(*ruleAsked)
			made, err := s.createRules(ctx, []ruleAsked{asked})
			if err != nil {
				return pointer(ruleOf{}, err)
			}
			return pointer(made[0], nil)
		}},
		update: updateCall{made[struct{}], func(ctx context.Context, id sdn.ID, _ any) (any, error) { return pointer(s.rule(ctx, id)) }},
		remove: s.deleteRule,
	}
	return tableOf[ruleOf]{t}
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

// checkRule checks a new rule. Its group must be one that the caller may change, and a group or an
// address group that it names one that the caller sees.
func (s *server) checkRule(c *call, b *body, asked *ruleAsked) {
	b.project()
	b.readOnly(systems...)
	asked.description = or(b.description(""))
	rule, err := asked.judge()
	asked.rule = rule
	b.fail(err)
	if b.err == nil {
		b.fail(s.checkRuleNames(c, asked))
	}
}

// checkRuleNames wants the group to be the caller's, and what the rule names to be there for the caller.
func (s *server) checkRuleNames(c *call, asked *ruleAsked) error {
	if asked.remoteGroup != "" {
		if _, err := s.securityGroups().need(c, asked.remoteGroup); err != nil {
			return err
		}
	}
	if asked.group != "" {
		if _, err := s.securityGroups().own(c, asked.group); err != nil {
			return err
		}
	}
	if asked.remoteSet != "" {
		_, err := s.addressGroups().need(c, asked.remoteSet)
		return err
	}
	return nil
}

// etherType reads the family of a rule, in any case: true for IPv6.
func (b *body) etherType(name string) *bool {
	value, _ := b.take(name)
	said, _ := value.(string)
	ipv6 := strings.EqualFold(said, "IPv6")
	if !ipv6 && !strings.EqualFold(said, "IPv4") {
		b.fail(refuse(http.StatusBadRequest, "SecurityGroupRuleInvalidEtherType", "Security group rule for ethertype '%s' not supported. Allowed values are ['IPv4', 'IPv6'].", show(value)))
	}
	return &ipv6
}

// protocol reads a protocol, which may be a number.
func (b *body) protocol(name string) *string {
	value, _ := b.take(name)
	if value == nil {
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
	value, _ := b.take(name)
	if value == nil {
		return nil
	}
	port, err := strconv.Atoi(show(value))
	if err != nil || port < 0 || port > 65535 {
		b.fail(refuse(http.StatusBadRequest, "SecurityGroupInvalidPortValue", "Invalid value for port %s", show(value)))
		return nil
	}
	return &port
}

// remotePrefix reads a remote range, invalid for none.
func (b *body) remotePrefix(name string) *netip.Prefix {
	value, _ := b.take(name)
	said, isText := value.(string)
	if value == nil || isText && said == "" {
		return &netip.Prefix{}
	}
	prefix, ok := parseAsSent(said)
	if !ok {
		b.fail(refuse(http.StatusBadRequest, "InvalidCIDR", "Invalid CIDR %s given as IP prefix.", show(value)))
	}
	return &prefix
}

// createRules adds rules to a group, all or none.
func (s *server) createRules(ctx context.Context, specs []ruleAsked) ([]ruleOf, error) {
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
