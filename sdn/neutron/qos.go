package neutron

import (
	"context"
	"iter"
	"net/url"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

var policies = collection[*policyWire]{title: "QoS policy", item: "policy", items: "policies", path: "/qos/policies"}

// policyWire is a policy. gophercloud's Policy has its rules as maps, and calls of their own for each kind
// of rule.
type policyWire struct {
	meta
	Shared bool         `json:"shared"`
	Rules  []policyRule `json:"rules"`
}

// policyRule is a rule of any type; those of other types than the contract has are left as they are.
type policyRule struct {
	ID        string        `json:"id"`
	Type      string        `json:"type"`
	Direction sdn.Direction `json:"direction"` // "" where Neutron knows but egress
	Kbps      int64         `json:"max_kbps"`
	Burst     int64         `json:"max_burst_kbps"`
	DSCP      uint8         `json:"dscp_mark"`
}

const (
	bandwidthLimit = "bandwidth_limit"
	dscpMarking    = "dscp_marking"
)

// dscpMarks are what Neutron takes, but for 0, which the contract has for none.
var dscpMarks = []uint8{8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 46, 48, 56}

func (r policyRule) isEgress() bool { return r.Direction != sdn.Ingress }

func (w *policyWire) decode(o *owner) sdn.QoSPolicy {
	out := sdn.QoSPolicy{Meta: w.meta.decode(o), Shared: w.Shared}
	l := &out.Limits
	for _, r := range w.Rules {
		switch {
		case r.Type == dscpMarking:
			l.DSCP = r.DSCP
		case r.Type == bandwidthLimit && r.isEgress():
			l.EgressKbps, l.EgressBurst = r.Kbps, r.Burst
		case r.Type == bandwidthLimit:
			l.IngressKbps, l.IngressBurst = r.Kbps, r.Burst
		}
	}
	return out
}

func (p *Provider) checkLimits(l sdn.Limits) error {
	if err := valid.Limits(l); err != nil {
		return err
	}
	if l.DSCP != 0 && !slices.Contains(dscpMarks, l.DSCP) {
		return sdn.Invalid("QoS policy", "limits.dscp", "%d is none of %v", l.DSCP, dscpMarks)
	}
	if l.IngressKbps != 0 && !p.extensions.has("qos-bw-limit-direction") {
		return sdn.Unsupported("QoS policy", "this Neutron limits what ports send only: it lacks the extension qos-bw-limit-direction")
	}
	return nil
}

// ApplyQoSPolicy makes a policy be this value. By Neutron's own policy only administrators may: IsDenied.
func (p *Provider) ApplyQoSPolicy(ctx context.Context, spec sdn.QoSPolicySpec) (sdn.QoSPolicy, error) {
	none := sdn.QoSPolicy{}
	p.owner.note(spec.Project)
	if err := valid.Base("QoS policy", spec.Base); err != nil {
		return none, err
	}
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return none, err
	}
	if err := p.checkLimits(spec.Limits); err != nil {
		return none, err
	}
	create := func(ctx context.Context) (*policyWire, error) {
		body := p.body(spec.Base)
		if spec.Shared {
			body["shared"] = true
		}
		return policies.create(ctx, p.client, body)
	}
	change := func(w *policyWire, body map[string]any) error {
		if spec.Shared != w.Shared {
			body["shared"] = spec.Shared
		}
		return nil
	}
	w, _, err := applied(ctx, p, policies, spec.ID, spec.Base, spec.IfRevision, create, change)
	if err != nil {
		return none, err
	}
	if w, err = p.applyLimits(ctx, w, spec.Limits); err != nil {
		return none, err
	}
	w, err = tagged(ctx, p, policies, w, spec.Tags)
	return decoded(p.owner, w, err)
}

// applyLimits makes a policy's rules what the limits say. Another that does the same at the same time is seen by a rule that is there already, or gone: then
// the policy is read again.
func (p *Provider) applyLimits(ctx context.Context, w *policyWire, want sdn.Limits) (*policyWire, error) {
	for n := 1; ; n++ {
		if w.decode(nil).Limits == want {
			return w, nil
		}
		err := p.changeLimits(ctx, w, want)
		if err != nil && !sdn.IsConflict(err) && !sdn.IsNotFound(err) {
			return w, err
		}
		if n >= maxRaces {
			return w, sdn.Conflict(sdn.Stale, "QoS policy", "limits", "others change them at the same time")
		}
		now, errRead := policies.read(ctx, p.client, sdn.ID(w.ID))
		if errRead != nil {
			return w, errRead
		}
		if w = now; err != nil && sdn.ReasonOf(err) != sdn.Exists && !sdn.IsNotFound(err) {
			return w, err
		}
	}
}

// changeLimits makes, changes or deletes the rule of each limit that is not as wanted.
func (p *Provider) changeLimits(ctx context.Context, w *policyWire, want sdn.Limits) error {
	var ingress, egress, mark *policyRule
	for i := range w.Rules {
		switch r := &w.Rules[i]; {
		case r.Type == dscpMarking:
			mark = r
		case r.Type == bandwidthLimit && r.isEgress():
			egress = r
		case r.Type == bandwidthLimit:
			ingress = r
		}
	}
	limit := func(r *policyRule, direction sdn.Direction, kbps, burst int64) error {
		body := map[string]any{"max_kbps": kbps, "max_burst_kbps": burst}
		if p.extensions.has("qos-bw-limit-direction") {
			body["direction"] = direction
		}
		same := r != nil && r.Kbps == kbps && r.Burst == burst
		return p.settleLimit(ctx, w, bandwidthLimit, r, same, kbps != 0, body)
	}
	if err := limit(ingress, sdn.Ingress, want.IngressKbps, want.IngressBurst); err != nil {
		return err
	}
	if err := limit(egress, sdn.Egress, want.EgressKbps, want.EgressBurst); err != nil {
		return err
	}
	return p.settleLimit(ctx, w, dscpMarking, mark, mark != nil && mark.DSCP == want.DSCP, want.DSCP != 0, map[string]any{"dscp_mark": want.DSCP})
}

// settleLimit makes one rule of a policy be what body says, or be no more.
func (p *Provider) settleLimit(ctx context.Context, w *policyWire, kind string, have *policyRule, same, wanted bool, body map[string]any) error {
	path := policies.at(sdn.ID(w.ID), kind+"_rules")
	switch {
	case have == nil && wanted:
		return p.client.post(ctx, path, map[string]any{kind + "_rule": body}, nil)
	case have == nil || wanted && same:
		return nil
	case wanted:
		return p.client.put(ctx, path+"/"+url.PathEscape(have.ID), 0, map[string]any{kind + "_rule": body}, nil)
	}
	if err := p.client.remove(ctx, path+"/"+url.PathEscape(have.ID), 0); !sdn.IsNotFound(err) {
		return err
	}
	return nil
}

// QoSPolicy gets a policy.
func (p *Provider) QoSPolicy(ctx context.Context, id sdn.ID) (sdn.QoSPolicy, error) {
	w, err := policies.read(ctx, p.client, id)
	return decoded(p.owner, w, err)
}

// FindQoSPolicies streams policies: the project's and those that an administrator shares with it.
func (p *Provider) FindQoSPolicies(
	ctx context.Context, q sdn.QoSPolicyQuery,
) iter.Seq2[sdn.QoSPolicy, error] {
	matches := func(policy sdn.QoSPolicy) bool { return q.Matches(policy.Meta) }
	return matching(ctx, p, policies, p.query(q.Match), matches, nil)
}

// DeleteQoSPolicy deletes a policy.
func (p *Provider) DeleteQoSPolicy(ctx context.Context, id sdn.ID) error {
	return policies.erase(ctx, p.client, id, 0)
}
