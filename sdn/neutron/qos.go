package neutron

import (
	"context"
	"iter"
	"net/url"
	"slices"

	gc "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/qos/rules"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

var policies = collection[*policyWire]{title: "QoS policy", item: "policy", items: "policies", path: "/qos/policies"}

// policyWire is a policy. gophercloud's Policy has its rules as maps.
type policyWire struct {
	meta
	Shared  bool         `json:"shared"`
	Default bool         `json:"is_default"`
	Rules   []policyRule `json:"rules"`
}

// policyRule is a rule of any type. Types that the contract does not have are left alone.
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

// isSame compares limits of bandwidth.
func (r policyRule) isSame(other policyRule) bool {
	return r.Kbps == other.Kbps && r.Burst == other.Burst
}

func (w *policyWire) decode(o *owner) sdn.QoSPolicy {
	out := sdn.QoSPolicy{Meta: w.meta.decode(o), Shared: w.Shared, Default: w.Default}
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

// QoSPolicy gets a policy.
func (p *Provider) QoSPolicy(ctx context.Context, id sdn.ID) (sdn.QoSPolicy, error) {
	w, err := policies.read(ctx, p, id)
	return decoded(p.owner, w, err)
}

// FindQoSPolicies streams policies: the project's and those that an administrator shares with it.
func (p *Provider) FindQoSPolicies(
	ctx context.Context, q sdn.QoSPolicyQuery,
) iter.Seq2[sdn.QoSPolicy, error] {
	matches := func(policy sdn.QoSPolicy) bool { return q.Matches(policy.Meta) }
	return matching(ctx, p, policies, p.query(q.Match), matches, nil)
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

// ApplyQoSPolicy makes a policy have this value. By Neutron's default policy only
// administrators may: IsDenied.
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
	if spec.Swapped {
		return none, &sdn.Error{Kind: sdn.KindUnsupported, Noun: "QoS policy", Field: "swapped",
			Detail: "the ids of rules are Neutron's"}
	}
	create := func(ctx context.Context) (*policyWire, error) {
		body := p.body(spec.Base)
		if spec.Shared {
			body["shared"] = true
		}
		if spec.Default {
			body["is_default"] = true
		}
		return policies.create(ctx, p, body)
	}
	change := func(w *policyWire, body map[string]any) error {
		if spec.Shared != w.Shared {
			body["shared"] = spec.Shared
		}
		if spec.Default != w.Default {
			body["is_default"] = spec.Default
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

// applyLimits makes a policy's rules those of the limits. If a rule exists already or is
// gone, another process does the same: then the policy is read again.
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
		now, errRead := policies.read(ctx, p, sdn.ID(w.ID))
		if errRead != nil {
			return w, errRead
		}
		if w = now; err != nil && sdn.ReasonOf(err) != sdn.Exists && !sdn.IsNotFound(err) {
			return w, err
		}
	}
}

// changeLimits makes, changes or deletes the rule of each limit that differs.
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
	for _, l := range []struct {
		have *policyRule
		want policyRule
	}{
		{ingress, policyRule{Direction: sdn.Ingress, Kbps: want.IngressKbps, Burst: want.IngressBurst}},
		{egress, policyRule{Direction: sdn.Egress, Kbps: want.EgressKbps, Burst: want.EgressBurst}},
	} {
		if err := p.settleBandwidth(ctx, w, l.have, l.want); err != nil {
			return err
		}
	}
	return p.settleMark(ctx, w, mark, int(want.DSCP))
}

// settleBandwidth creates, changes or deletes the rule of one direction; want.Kbps is 0 for none.
func (p *Provider) settleBandwidth(
	ctx context.Context, w *policyWire, have *policyRule, want policyRule,
) error {
	direction := string(want.Direction)
	if !p.extensions.has("qos-bw-limit-direction") {
		direction = ""
	}
	kbps, burst := int(want.Kbps), int(want.Burst)
	api, id := p.client.api(), url.PathEscape(w.ID)
	var err error
	switch {
	case have == nil && kbps == 0, have != nil && kbps != 0 && have.isSame(want):
	case have == nil:
		err = gc.CreateBandwidthLimitRule(ctx, api, id, gc.CreateBandwidthLimitRuleOpts{
			MaxKBps: kbps, MaxBurstKBps: burst, Direction: direction,
		}).Err
	case kbps != 0:
		rule := url.PathEscape(have.ID)
		err = gc.UpdateBandwidthLimitRule(ctx, api, id, rule, gc.UpdateBandwidthLimitRuleOpts{
			MaxKBps: &kbps, MaxBurstKBps: &burst, Direction: direction,
		}).Err
	default:
		err = gc.DeleteBandwidthLimitRule(ctx, api, id, url.PathEscape(have.ID)).Err
		return ignoreAbsent(p.client.typed(err))
	}
	return p.client.typed(err)
}

// settleMark creates, changes or deletes the rule of the DSCP mark; 0 is for none.
func (p *Provider) settleMark(
	ctx context.Context, w *policyWire, have *policyRule, mark int,
) error {
	api, id := p.client.api(), url.PathEscape(w.ID)
	var err error
	switch {
	case have == nil && mark == 0, have != nil && mark != 0 && int(have.DSCP) == mark:
	case have == nil:
		opts := gc.CreateDSCPMarkingRuleOpts{DSCPMark: mark}
		err = gc.CreateDSCPMarkingRule(ctx, api, id, opts).Err
	case mark != 0:
		opts := gc.UpdateDSCPMarkingRuleOpts{DSCPMark: &mark}
		err = gc.UpdateDSCPMarkingRule(ctx, api, id, url.PathEscape(have.ID), opts).Err
	default:
		err = gc.DeleteDSCPMarkingRule(ctx, api, id, url.PathEscape(have.ID)).Err
		return ignoreAbsent(p.client.typed(err))
	}
	return p.client.typed(err)
}

// DeleteQoSPolicy deletes a policy.
func (p *Provider) DeleteQoSPolicy(ctx context.Context, id sdn.ID) error {
	return policies.erase(ctx, p, id, 0)
}
