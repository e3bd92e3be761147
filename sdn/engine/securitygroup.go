package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// defaultGroup is the name of the group that each project has.
const defaultGroup = "default"

var (
	errNoSecurityGroups = sdn.Unsupported("security group", "this machine's kernel cannot filter for them")
	errNoAddressGroups  = sdn.Unsupported("address group", "this machine's kernel cannot filter for them")
	errNoQoSPolicies    = sdn.Unsupported("QoS policy", "this machine's kernel cannot limit what ports send")
)

// withGroups is what every call begins with that is about security groups.
func (e *Engine) withGroups(unsupported error) error {
	if !e.realm.Supports().Groups {
		return unsupported
	}
	return nil
}

func (e *Engine) showSecurityGroup(b Tx, r *SecurityGroupRow) (sdn.SecurityGroup, error) {
	e.fillMeta(&r.Meta)
	out := r.SecurityGroup
	out.Shared = granted(b, r.ID, false, sdn.Everyone)
	return out, nil
}

// ApplySecurityGroup makes a security group be this value, in one transaction.
func (e *Engine) ApplySecurityGroup(ctx context.Context, spec sdn.SecurityGroupSpec) (out sdn.SecurityGroup, err error) {
	if err := errors.Join(e.withGroups(errNoSecurityGroups), valid.Base("security group", spec.Base)); err != nil {
		return out, err
	}
	if err := lacking("security group", "stateless", spec.Stateless, "has stateful security groups only"); err != nil {
		return out, err
	}
	for i, r := range spec.Rules {
		if err := valid.Rule(fmt.Sprintf("rules[%d]", i), r); err != nil {
			return out, err
		}
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := t.applySecurityGroup(spec)
		if err != nil {
			return err
		}
		out, err = e.showSecurityGroup(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

func (t *tx) applySecurityGroup(spec sdn.SecurityGroupSpec) (*SecurityGroupRow, error) {
	r, err := SecurityGroups.applied(t, spec.ID, spec.Base)
	if err != nil {
		return nil, err
	}
	changed := r == nil
	if r == nil {
		if err := t.checkGroupName(spec.Name); err != nil {
			return nil, err
		}
		if _, err := t.defaultGroup(spec.Project); err != nil {
			return nil, err
		}
		r = &SecurityGroupRow{SecurityGroup: sdn.SecurityGroup{Meta: newMeta(spec.Base)}}
	} else {
		name := r.Name
		if changed, err = SecurityGroups.rebase(t, &r.Meta, spec.Base, spec.ID, spec.IfRevision); err != nil {
			return nil, err
		}
		switch {
		case r.Name == name:
		case r.Default:
			return nil, inUse("security group", r.ID, "it is its project's default group, whose name stays")
		default:
			if err := t.checkGroupName(r.Name); err != nil {
				return nil, err
			}
		}
	}
	rules, other := mergeRules(r.Rules, spec.Rules)
	other = other || r.Defined == 0
	if !changed && !other {
		return r, nil
	}
	if err := t.checkRemotes(r, rules); err != nil {
		return nil, err
	}
	before := len(r.Rules)
	r.Rules = rules
	return r, t.putGroup(r, before, other)
}

// checkGroupName keeps the name of the default groups theirs.
func (t *tx) checkGroupName(name string) error {
	if name == defaultGroup {
		return sdn.Conflict(sdn.Exists, "security group", "name", "each project has one of the name %s, which this SDN makes", defaultGroup)
	}
	return nil
}

// checkRemotes wants what rules refer to be there.
func (t *tx) checkRemotes(r *SecurityGroupRow, rules []sdn.Rule) error {
	for _, rule := range rules {
		if rule.RemoteGroup != "" && rule.RemoteGroup != r.ID && !SecurityGroups.has(t.Tx, rule.RemoteGroup) {
			return sdn.NotFound("security group", rule.RemoteGroup)
		}
		if rule.RemoteSet != "" && !AddressGroups.has(t.Tx, rule.RemoteSet) {
			return sdn.NotFound("address group", rule.RemoteSet)
		}
	}
	return nil
}

// putGroup writes a security group that had so many rules before, and notes what that means to the
// kernel where they are others.
func (t *tx) putGroup(r *SecurityGroupRow, before int, rules bool) error {
	if err := t.count(sdn.NounRule, r.Project, int64(len(r.Rules)-before)); err != nil {
		return err
	}
	if err := t.tally(sdn.NounRule, int64(len(r.Rules)-before)); err != nil {
		return err
	}
	if rules {
		r.Defined = r.Revision + 1
	}
	return SecurityGroups.put(t, r)
}

// defaultGroup is the id of the project's default group, which is made if it is not there yet. The project "" has none.
func (t *tx) defaultGroup(project string) (sdn.ID, error) {
	if project == "" {
		return "", nil
	}
	if id := SecurityGroups.ID(t.Tx, "default", project); id != "" {
		return id, nil
	}
	r := &SecurityGroupRow{Default: true, SecurityGroup: sdn.SecurityGroup{Meta: newMeta(sdn.Base{Name: defaultGroup, Project: project})}}
	r.Description = "Default security group"
	for _, ipv6 := range []bool{false, true} {
		r.Rules = append(r.Rules, sdn.Rule{ID: newID(), Direction: sdn.Egress, IPv6: ipv6},
			sdn.Rule{ID: newID(), Direction: sdn.Ingress, IPv6: ipv6, RemoteGroup: r.ID})
	}
	// It is not the project's doing, so its quota cannot be in the way.
	t.beyond = true
	defer func() { t.beyond = false }()
	return r.ID, t.putGroup(r, 0, true)
}

// SecurityGroup gets a security group.
func (e *Engine) SecurityGroup(ctx context.Context, id sdn.ID) (out sdn.SecurityGroup, err error) {
	if err := e.withGroups(errNoSecurityGroups); err != nil {
		return out, err
	}
	return get(ctx, e, SecurityGroups, id, e.showSecurityGroup)
}

// FindSecurityGroups streams security groups. A project that is asked for has its default group from then on.
func (e *Engine) FindSecurityGroups(ctx context.Context, q sdn.SecurityGroupQuery) iter.Seq2[sdn.SecurityGroup, error] {
	if err := e.withGroups(errNoSecurityGroups); err != nil {
		return broken[sdn.SecurityGroup](err)
	}
	if err := e.makeDefaults(ctx, q.Projects); err != nil {
		return broken[sdn.SecurityGroup](err)
	}
	var byRule []scan
	for _, r := range q.Rules {
		byRule = append(byRule, scan{index: "rule", unique: true, prefix: string(r)})
	}
	scans, err := e.scansOf(ctx, SecurityGroups.Noun, q.Match, byRule, byProject(q.Match))
	if err != nil {
		return broken[sdn.SecurityGroup](err)
	}
	return search(ctx, e, SecurityGroups, scans, e.showSecurityGroup, func(g sdn.SecurityGroup) bool {
		return q.Matches(g.Meta) && (len(q.Rules) == 0 || slices.ContainsFunc(g.Rules, func(r sdn.Rule) bool { return contains(q.Rules, r.ID) }))
	})
}

// makeDefaults makes the default groups of projects that have none yet.
func (e *Engine) makeDefaults(ctx context.Context, projects []string) error {
	var missing []string
	err := e.view(func(b Tx) error {
		for _, project := range projects {
			if err := valid.Text("security group", "project", project); err != nil {
				return err
			}
			if project != "" && SecurityGroups.ID(b, "default", project) == "" {
				missing = append(missing, project)
			}
		}
		return nil
	})
	if err != nil || missing == nil {
		return err
	}
	return e.update(ctx, func(t *tx) error {
		for _, project := range missing {
			if _, err := t.defaultGroup(project); err != nil {
				return err
			}
		}
		return nil
	})
}

// DeleteSecurityGroup deletes a security group that no port has, and the rules of other groups that refer to it.
func (e *Engine) DeleteSecurityGroup(ctx context.Context, id sdn.ID) error {
	if err := e.withGroups(errNoSecurityGroups); err != nil {
		return err
	}
	return e.release(ctx, func(t *tx) error { return t.deleteSecurityGroup(id) })
}

func (t *tx) deleteSecurityGroup(id sdn.ID) error {
	r, err := SecurityGroups.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	switch {
	case r.Default:
		return inUse("security group", id, "it is its project's default group")
	case Ports.any(t.Tx, "group", string(id)):
		return inUse("security group", id, "ports have it")
	}
	others, err := SecurityGroups.All(t.Tx, "remote", string(id))
	if err != nil {
		return err
	}
	for _, other := range others {
		before := len(other.Rules)
		other.Rules = slices.DeleteFunc(other.Rules, func(rule sdn.Rule) bool { return rule.RemoteGroup == id })
		if err := t.putGroup(other, before, true); err != nil {
			return err
		}
	}
	if err := errors.Join(t.count(sdn.NounRule, r.Project, -int64(len(r.Rules))), t.tally(sdn.NounRule, -int64(len(r.Rules)))); err != nil {
		return err
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return SecurityGroups.del(t, id)
}
