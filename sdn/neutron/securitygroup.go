package neutron

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sync/errgroup"
)

var (
	securityGroups = collection[*securityGroupWire]{
		title: "security group", item: "security_group", items: "security_groups", path: "/security-groups",
	}
	rules = collection[*ruleWire]{
		title: "security group rule", item: "security_group_rule", items: "security_group_rules", path: "/security-group-rules",
	}
)

const (
	maxRuleBulk  = 100 // rules in one request
	ruleDeletes  = 4   // concurrent requests: Neutron deletes rules one by one
	defaultGroup = "default"
)

// securityGroupWire is a security group. gophercloud's SecGroup has rules without null (ruleWire), and
// cannot tell an absent stateful from false.
type securityGroupWire struct {
	meta
	Stateful *bool       `json:"stateful"` // not where Neutron lacks stateful-security-group
	Rules    []*ruleWire `json:"security_group_rules"`
}

func (w *securityGroupWire) stateless() bool { return w.Stateful != nil && !*w.Stateful }

func (w *securityGroupWire) decode(o *owner) sdn.SecurityGroup {
	g := sdn.SecurityGroup{Meta: w.meta.decode(o), Stateless: w.stateless()}
	for _, r := range w.Rules {
		if rule, ok := r.decode(); ok {
			g.Rules = append(g.Rules, rule)
		}
	}
	return g
}

// SecurityGroup gets a security group.
func (p *Provider) SecurityGroup(ctx context.Context, id sdn.ID) (sdn.SecurityGroup, error) {
	w, err := securityGroups.read(ctx, p, id)
	return decoded(p.owner, w, err)
}

// FindSecurityGroups streams security groups. For rules it asks first which groups have them.
func (p *Provider) FindSecurityGroups(
	ctx context.Context, q sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	filter := p.query(q.Match)
	if len(q.Rules) > 0 {
		ids, err := p.groupsOf(ctx, q.Rules)
		if err != nil {
			return failed[sdn.SecurityGroup](err)
		}
		if len(q.IDs) > 0 {
			ids = slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(q.IDs, sdn.ID(id)) })
		}
		if len(ids) == 0 {
			return func(func(sdn.SecurityGroup, error) bool) {}
		}
		filter["id"] = ids
	}
	matches := func(g sdn.SecurityGroup) bool { return q.Matches(g.Meta) }
	return matching(ctx, p, securityGroups, filter, matches, nil)
}

// groupsOf returns the ids of the groups that have one of the rules.
func (p *Provider) groupsOf(ctx context.Context, ids []sdn.ID) (groups []string, err error) {
	q := url.Values{"fields": {"id", "security_group_id"}}
	addIDs(q, "id", ids)
	for r, err := range rules.find(ctx, p, q) {
		if err != nil {
			return nil, err
		}
		groups = append(groups, r.Group)
	}
	return asSet(groups), nil
}

// wantedRules are the rules of a value by their normal form, with their position. A rule
// in several forms is one.
type wantedRules map[ruleKey]int

func (p *Provider) wanted(ctx context.Context, spec sdn.SecurityGroupSpec) (wantedRules, error) {
	want := wantedRules{}
	for i, r := range spec.Rules {
		field := fmt.Sprintf("rules[%d]", i)
		k, err := keyOf(r, field)
		if err != nil {
			return nil, err
		}
		if err := valid.Text("security group", field+".description", r.Description); err != nil {
			return nil, err
		}
		if k.set != "" {
			if err := p.needAddressGroups(ctx); err != nil {
				return nil, err
			}
		}
		if _, twice := want[k]; !twice {
			want[k] = i
		}
	}
	return want, nil
}

// ApplySecurityGroup makes a group have this value. A new group and its rules take
// several requests: a repeat finishes them.
func (p *Provider) ApplySecurityGroup(ctx context.Context, spec sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	none := sdn.SecurityGroup{}
	p.owner.note(spec.Project)
	if err := valid.Base("security group", spec.Base); err != nil {
		return none, err
	}
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return none, err
	}
	if spec.Stateless && !p.extensions.has("stateful-security-group") {
		return none, sdn.Unsupported("security group", "this Neutron has stateful ones only: it lacks the extension stateful-security-group")
	}
	want, err := p.wanted(ctx, spec)
	if err != nil {
		return none, err
	}
	w, made, err := p.baseOfGroup(ctx, spec, want)
	if err != nil {
		return none, err
	}
	w, err = p.applyRules(ctx, w, spec.Rules, want)
	if err == nil {
		w, err = tagged(ctx, p, securityGroups, w, spec.Tags)
	}
	if err != nil {
		if made && !sdn.IsUnavailable(err) {
			if errBack := securityGroups.erase(context.WithoutCancel(ctx), p, sdn.ID(w.ID), 0); errBack != nil {
				p.log.Warn("security group without rules could not be deleted", "security_group", w.ID, "err", errBack)
			}
		}
		return none, err
	}
	return w.decode(p.owner), nil
}

// baseOfGroup returns the group of the value, made or changed in all but its rules and
// tags.
func (p *Provider) baseOfGroup(
	ctx context.Context, spec sdn.SecurityGroupSpec, want wantedRules,
) (w *securityGroupWire, made bool, err error) {
	create := func(ctx context.Context) (*securityGroupWire, error) {
		if spec.Name == defaultGroup {
			return nil, sdn.Conflict(sdn.Exists, "security group", "name",
				"each project has one of the name %s, which Neutron makes", defaultGroup)
		}
		if err := p.checkRemotes(ctx, nil, want); err != nil {
			return nil, err
		}
		body := p.body(spec.Base)
		if spec.Stateless {
			body["stateful"] = false
		}
		return securityGroups.create(ctx, p, body)
	}
	change := func(w *securityGroupWire, body map[string]any) error {
		if spec.Stateless != w.stateless() {
			body["stateful"] = !spec.Stateless
		}
		return p.checkRemotes(ctx, w.Rules, want)
	}
	return applied(ctx, p, securityGroups, spec.ID, spec.Base, spec.IfRevision, create, change)
}

// checkRemotes refuses new rules that refer to groups and address groups that do not
// exist, before anything is changed.
func (p *Provider) checkRemotes(ctx context.Context, have []*ruleWire, want wantedRules) error {
	known := map[sdn.ID]bool{}
	for _, r := range have {
		known[sdn.ID(text(r.RemoteGroup))], known[sdn.ID(text(r.RemoteSet))] = true, true
	}
	groups, sets := url.Values{}, url.Values{}
	for k := range want {
		if k.group != "" && !known[k.group] {
			groups.Add("id", string(k.group))
		}
		if k.set != "" && !known[k.set] {
			sets.Add("id", string(k.set))
		}
	}
	return errors.Join(allThere(ctx, p, securityGroups, groups), allThere(ctx, p, addressGroups, sets))
}

// allThere refuses ids of the query that no object has.
func allThere[W wire](ctx context.Context, p *Provider, k collection[W], q url.Values) error {
	ids := valid.TagSet(q["id"])
	if len(ids) == 0 {
		return nil
	}
	for w, err := range k.find(ctx, p, url.Values{"id": ids, "fields": {"id"}}) {
		if err != nil {
			return err
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { return id == w.common().ID })
	}
	if len(ids) > 0 {
		return sdn.NotFound(k.title, ids[0])
	}
	return nil
}

// applyRules makes the rules of a group those of the value. It adds rules before it
// deletes others, so what is allowed before and after is never forbidden between. If
// another process does the same, Neutron refuses the whole request; then the group is
// read again.
func (p *Provider) applyRules(ctx context.Context, w *securityGroupWire, said []sdn.Rule, want wantedRules) (*securityGroupWire, error) {
	for n := 1; ; n++ {
		add, drop := ruleDifference(w, said, want)
		if len(add) == 0 && len(drop) == 0 {
			return w, nil
		}
		err := p.addRules(ctx, add)
		if err == nil {
			err = p.dropRules(ctx, drop)
		}
		if err != nil && (sdn.ReasonOf(err) != sdn.Exists || n >= maxRaces) {
			return w, err
		}
		now, errRead := securityGroups.read(ctx, p, sdn.ID(w.ID))
		if errRead != nil {
			return w, errRead
		}
		w = now
		if n >= maxRaces {
			return w, sdn.Conflict(sdn.Stale, "security group", "rules", "others change them at the same time")
		}
	}
}

// ruleDifference returns the rules to add and the ids of those to delete.
func ruleDifference(w *securityGroupWire, said []sdn.Rule, want wantedRules) (add []ruleWire, drop []sdn.ID) {
	have := map[ruleKey]bool{}
	for _, r := range w.Rules {
		k, ok := r.key()
		if _, wanted := want[k]; !ok || !wanted || have[k] {
			drop = append(drop, sdn.ID(r.ID))
			continue
		}
		have[k] = true
	}
	missing := make([]ruleKey, 0, len(want))
	for k := range want {
		if !have[k] {
			missing = append(missing, k)
		}
	}
	sortslice.Func(missing, func(a, b ruleKey) int { return want[a] - want[b] })
	for _, k := range missing {
		add = append(add, k.body(sdn.ID(w.ID), w.Project, said[want[k]]))
	}
	return add, drop
}

// addRules adds rules, as many by a request as Neutron handles well. Each request is
// whole or nothing.
func (p *Provider) addRules(ctx context.Context, add []ruleWire) error {
	for some := range slices.Chunk(add, maxRuleBulk) {
		var bodies []any
		for _, r := range some {
			bodies = append(bodies, r)
		}
		if err := p.client.post(ctx, rules.path, map[string]any{rules.items: bodies}, nil); err != nil {
			return inField(err, "rules")
		}
	}
	return nil
}

func (p *Provider) dropRules(ctx context.Context, drop []sdn.ID) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(ruleDeletes)
	for _, id := range drop {
		group.Go(func() error { return rules.erase(ctx, p, id, 0) })
	}
	return group.Wait()
}

// DeleteSecurityGroup deletes a security group, and Neutron the rules that refer to it. An
// administrator could delete a project's default group, so the name is asked for before.
func (p *Provider) DeleteSecurityGroup(ctx context.Context, id sdn.ID) error {
	if id == "" {
		return nil
	}
	w, err := securityGroups.read(ctx, p, id)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if w.Name == defaultGroup {
		return &sdn.Error{
			Kind: sdn.KindConflict, Reason: sdn.InUse, Noun: "security group", ID: string(id),
			Detail: "it is its project's default one",
		}
	}
	return securityGroups.erase(ctx, p, id, 0)
}
