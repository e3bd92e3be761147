package local

import (
	"context"
	"errors"
	"iter"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

func (p *Provider) withLimits() error {
	if !p.supports().Limits {
		return errNoQoSPolicies
	}
	return nil
}

func (p *Provider) showQoSPolicy(_ engine.Tx, r *qosPolicyRow) (sdn.QoSPolicy, error) {
	p.fillMeta(&r.Meta)
	return r.QoSPolicy, nil
}

// ApplyQoSPolicy makes a QoS policy be this value.
func (p *Provider) ApplyQoSPolicy(ctx context.Context, spec sdn.QoSPolicySpec) (out sdn.QoSPolicy, err error) {
	if err := errors.Join(p.withLimits(), valid.Base("QoS policy", spec.Base)); err != nil {
		return out, err
	}
	if err := valid.Limits(spec.Limits); err != nil {
		return out, err
	}
	err = p.update(ctx, func(t *tx) error {
		r, err := qosPolicies.applied(t, spec.ID, spec.Base)
		if err != nil {
			return err
		}
		if r == nil {
			r = &qosPolicyRow{sdn.QoSPolicy{
				Meta: newMeta(spec.Base), Shared: spec.Shared, Limits: spec.Limits, Swapped: spec.Swapped,
				Default: spec.Default,
			}}
			if err = t.checkDefaultPolicy(r); err == nil {
				err = qosPolicies.put(t, r)
			}
		} else {
			err = t.changeQoSPolicy(r, spec)
		}
		if err != nil {
			return err
		}
		out, err = p.showQoSPolicy(t.Tx, r)
		p.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

func (t *tx) changeQoSPolicy(r *qosPolicyRow, spec sdn.QoSPolicySpec) error {
	changed, err := qosPolicies.rebase(t, &r.Meta, spec.Base, spec.ID, spec.IfRevision)
	if err != nil {
		return err
	}
	if r.Shared && !spec.Shared {
		if err := t.checkOwnPorts(r); err != nil {
			return err
		}
	}
	if r.Limits == spec.Limits && r.Shared == spec.Shared && r.Swapped == spec.Swapped &&
		r.Default == spec.Default && !changed {
		return nil
	}
	r.Limits, r.Shared, r.Swapped, r.Default = spec.Limits, spec.Shared, spec.Swapped, spec.Default
	if err := t.checkDefaultPolicy(r); err != nil {
		return err
	}
	return qosPolicies.put(t, r)
}

// checkDefaultPolicy refuses a second default policy of a project.
func (t *tx) checkDefaultPolicy(r *qosPolicyRow) error {
	if other := t.defaultPolicy(r.Project); r.Default && other != "" && other != r.ID {
		return sdn.Conflict(sdn.Exists, "QoS policy", "default", "%s is the project's default policy", other)
	}
	return nil
}

// checkOwnPorts refuses a policy that ports or networks of other projects name.
func (t *tx) checkOwnPorts(r *qosPolicyRow) error {
	naming, err := ports.all(t.Tx, "qos", string(r.ID))
	if err != nil {
		return err
	}
	for _, p := range naming {
		if p.Project != r.Project && !granted(t.Tx, r.ID, false, p.Project) {
			return inUse("QoS policy", r.ID, "ports of other projects name it")
		}
	}
	on, err := projectsOf(t.Tx, networks, "qos", string(r.ID))
	for _, project := range on {
		if project != r.Project && !granted(t.Tx, r.ID, false, project) {
			return inUse("QoS policy", r.ID, "networks of other projects name it")
		}
	}
	return err
}

// QoSPolicy gets a QoS policy.
func (p *Provider) QoSPolicy(ctx context.Context, id sdn.ID) (out sdn.QoSPolicy, err error) {
	if err := p.withLimits(); err != nil {
		return out, err
	}
	return get(ctx, p, qosPolicies, id, p.showQoSPolicy)
}

// FindQoSPolicies streams QoS policies.
func (p *Provider) FindQoSPolicies(ctx context.Context, q sdn.QoSPolicyQuery) iter.Seq2[sdn.QoSPolicy, error] {
	if err := p.withLimits(); err != nil {
		return broken[sdn.QoSPolicy](err)
	}
	scans, err := p.scansOf(ctx, qosPolicies.noun, q.Match)
	if err != nil {
		return broken[sdn.QoSPolicy](err)
	}
	return search(ctx, p, qosPolicies, scans, p.showQoSPolicy, func(g sdn.QoSPolicy) bool { return q.Matches(g.Meta) })
}

// DeleteQoSPolicy deletes a QoS policy that no port names.
func (p *Provider) DeleteQoSPolicy(ctx context.Context, id sdn.ID) error {
	if err := p.withLimits(); err != nil {
		return err
	}
	return p.release(ctx, func(t *tx) error { return t.deleteQoSPolicy(id) })
}

func (t *tx) deleteQoSPolicy(id sdn.ID) error {
	if !qosPolicies.has(t.Tx, id) {
		return nil
	}
	if ports.any(t.Tx, "qos", string(id)) {
		return inUse("QoS policy", id, "ports name it")
	}
	if networks.any(t.Tx, "qos", string(id)) {
		return inUse("QoS policy", id, "networks name it")
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return qosPolicies.del(t, id)
}
