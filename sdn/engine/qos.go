package engine

import (
	"context"
	"errors"
	"iter"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func (e *Engine) withLimits() error {
	if !e.realm.Supports().Limits {
		return errNoQoSPolicies
	}
	return nil
}

func (e *Engine) showQoSPolicy(_ Tx, r *QoSPolicyRow) (sdn.QoSPolicy, error) {
	e.fillMeta(&r.Meta)
	return r.QoSPolicy, nil
}

// ApplyQoSPolicy makes a QoS policy be this value.
func (e *Engine) ApplyQoSPolicy(ctx context.Context, spec sdn.QoSPolicySpec) (out sdn.QoSPolicy, err error) {
	if err := errors.Join(e.withLimits(), valid.Base("QoS policy", spec.Base)); err != nil {
		return out, err
	}
	if err := valid.Limits(spec.Limits); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := QoSPolicies.applied(t, spec.ID, spec.Base)
		if err != nil {
			return err
		}
		if r == nil {
			r = &QoSPolicyRow{sdn.QoSPolicy{
				Meta: newMeta(spec.Base), Shared: spec.Shared, Limits: spec.Limits, Swapped: spec.Swapped,
				Default: spec.Default,
			}}
			if err = t.checkDefaultPolicy(r); err == nil {
				err = QoSPolicies.put(t, r)
			}
		} else {
			err = t.changeQoSPolicy(r, spec)
		}
		if err != nil {
			return err
		}
		out, err = e.showQoSPolicy(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

func (t *tx) changeQoSPolicy(r *QoSPolicyRow, spec sdn.QoSPolicySpec) error {
	changed, err := QoSPolicies.rebase(t, &r.Meta, spec.Base, spec.ID, spec.IfRevision)
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
	return QoSPolicies.put(t, r)
}

// checkDefaultPolicy refuses a second default policy of a project.
func (t *tx) checkDefaultPolicy(r *QoSPolicyRow) error {
	if other := t.defaultPolicy(r.Project); r.Default && other != "" && other != r.ID {
		return sdn.Conflict(sdn.Exists, "QoS policy", "default", "%s is the project's default policy", other)
	}
	return nil
}

// checkOwnPorts refuses a policy that ports or networks of other projects name.
func (t *tx) checkOwnPorts(r *QoSPolicyRow) error {
	naming, err := Ports.All(t.Tx, "qos", string(r.ID))
	if err != nil {
		return err
	}
	for _, p := range naming {
		if p.Project != r.Project && !granted(t.Tx, r.ID, false, p.Project) {
			return inUse("QoS policy", r.ID, "ports of other projects name it")
		}
	}
	on, err := projectsOf(t.Tx, Networks, "qos", string(r.ID))
	for _, project := range on {
		if project != r.Project && !granted(t.Tx, r.ID, false, project) {
			return inUse("QoS policy", r.ID, "networks of other projects name it")
		}
	}
	return err
}

// QoSPolicy gets a QoS policy.
func (e *Engine) QoSPolicy(ctx context.Context, id sdn.ID) (out sdn.QoSPolicy, err error) {
	if err := e.withLimits(); err != nil {
		return out, err
	}
	return get(ctx, e, QoSPolicies, id, e.showQoSPolicy)
}

// FindQoSPolicies streams QoS policies.
func (e *Engine) FindQoSPolicies(ctx context.Context, q sdn.QoSPolicyQuery) iter.Seq2[sdn.QoSPolicy, error] {
	if err := e.withLimits(); err != nil {
		return broken[sdn.QoSPolicy](err)
	}
	scans, err := e.scansOf(ctx, QoSPolicies.Noun, q.Match)
	if err != nil {
		return broken[sdn.QoSPolicy](err)
	}
	return search(ctx, e, QoSPolicies, scans, e.showQoSPolicy, func(g sdn.QoSPolicy) bool { return q.Matches(g.Meta) })
}

// DeleteQoSPolicy deletes a QoS policy that no port names.
func (e *Engine) DeleteQoSPolicy(ctx context.Context, id sdn.ID) error {
	if err := e.withLimits(); err != nil {
		return err
	}
	return e.release(ctx, func(t *tx) error { return t.deleteQoSPolicy(id) })
}

func (t *tx) deleteQoSPolicy(id sdn.ID) error {
	if !QoSPolicies.has(t.Tx, id) {
		return nil
	}
	if Ports.any(t.Tx, "qos", string(id)) {
		return inUse("QoS policy", id, "ports name it")
	}
	if Networks.any(t.Tx, "qos", string(id)) {
		return inUse("QoS policy", id, "networks name it")
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return QoSPolicies.del(t, id)
}

// PolicyOf is the QoS policy that limits a port: its own, or its network's.
func PolicyOf(b Tx, r *PortRow) (sdn.ID, error) {
	if r.QoSPolicy != "" || Networks.ID(b, "limited", string(r.Network)) == "" {
		return r.QoSPolicy, nil
	}
	n, err := Networks.Need(b, r.Network)
	if err != nil {
		return "", err
	}
	return n.QoSPolicy, nil
}
