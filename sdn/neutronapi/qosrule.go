package neutronapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// The types of rules that a QoS policy can have here.
const (
	bandwidthLimit = "bandwidth_limit"
	dscpMarking    = "dscp_marking"
)

// dscpMarks are what Neutron takes. 0 it takes too; here that is no mark.
var dscpMarks = []int{8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 46, 48, 56}

// A limitRule is a rule of a QoS policy: one of the limits of the contract's value. A policy has one of each type and direction at most, so the id of a rule
// is made of these and its policy's.
type limitRule struct {
	kind        string
	direction   sdn.Direction // of a bandwidth limit
	swapped     bool          // it has the id of a limit of the other direction, see sdn.QoSPolicy
	kbps, burst int64
	dscp        uint8
	turned      bool // a request names the direction
}

// id is a UUID that is the same each time.
func (r limitRule) id(policy sdn.ID) string {
	named := r.direction
	if r.swapped {
		named = opposite(named)
	}
	sum := sha256.Sum256([]byte(string(policy) + "/" + r.kind + "/" + string(named)))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8: of a form of our own
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func opposite(d sdn.Direction) sdn.Direction {
	if d == sdn.Ingress {
		return sdn.Egress
	}
	return sdn.Ingress
}

// limitRules gives the rules that limits are.
func limitRules(l sdn.Limits, swapped bool) []limitRule {
	var out []limitRule
	bandwidth := func(direction sdn.Direction, kbps, burst int64) {
		if kbps != 0 {
			out = append(out, limitRule{kind: bandwidthLimit, direction: direction, swapped: swapped, kbps: kbps, burst: burst})
		}
	}
	bandwidth(sdn.Egress, l.EgressKbps, l.EgressBurst)
	bandwidth(sdn.Ingress, l.IngressKbps, l.IngressBurst)
	if l.DSCP != 0 {
		out = append(out, limitRule{kind: dscpMarking, dscp: l.DSCP})
	}
	return out
}

// put makes the rule a part of limits.
func (r limitRule) put(l *sdn.Limits) {
	switch {
	case r.kind == dscpMarking:
		l.DSCP = r.dscp
	case r.direction == sdn.Ingress:
		l.IngressKbps, l.IngressBurst = r.kbps, r.burst
	default:
		l.EgressKbps, l.EgressBurst = r.kbps, r.burst
	}
}

// take removes what the rule is from limits.
func (r limitRule) take(l *sdn.Limits) {
	r.kbps, r.burst, r.dscp = 0, 0, 0
	r.put(l)
}

// limitFields are the attributes of the rules of a type, as a path of the type's own shows them.
// A rule shows the id that it has in a policy.
func limitFields(policy sdn.ID, kind string) []field {
	type R = limitRule
	id := field{name: "id", show: via(func(r *R) any { return r.id(policy) })}
	if kind == dscpMarking {
		setMark := store(func(r *R, v any) { r.dscp = uint8(v.(int)) })
		return []field{
			id, {name: "dscp_mark", is: isMark, access: required, taken: "all but `0`", why: "0 is no mark here",
				show: via(func(r *R) any { return int(r.dscp) }), post: setMark, put: setMark},
		}
	}
	setDirection := store(func(r *R, v any) { r.direction, r.turned = sdn.Direction(v.(string)), true })
	setKbps, setBurst := set(func(r *R) *int64 { return &r.kbps }), set(func(r *R) *int64 { return &r.burst })
	return []field{
		id,
		// With Neutron 0 is a limit too, which lets nothing pass.
		{name: "max_kbps", is: isNumber(1, most32), access: required, taken: "1 and more", why: "0 is no limit here",
			show: via(func(r *R) any { return r.kbps }), post: setKbps, put: setKbps},
		{name: "max_burst_kbps", is: isNumber(0, most32), show: via(func(r *R) any { return r.burst }), post: setBurst, put: setBurst},
		{name: "direction", is: isWord(string(sdn.Ingress), string(sdn.Egress)),
			show: via(func(r *R) any { return string(r.direction) }), post: setDirection, put: setDirection},
	}
}

// isMark takes a DSCP mark.
var isMark = kindOf(func(b *body, name string) *int {
	mark := b.integer(name, 0, 63)
	if mark != nil && !slices.Contains(dscpMarks, *mark) {
		b.invalid(name, "'%d' is not in %v", *mark, dscpMarks)
	}
	return mark
})

// showLimits shows the rules of a policy, each with its policy and its type.
func showLimits(p *sdn.QoSPolicy) any {
	out := []json.RawMessage{}
	for _, r := range limitRules(p.Limits, p.Swapped) {
		fields := append(limitFields(p.ID, r.kind),
			field{name: "qos_policy_id", show: via(func(*limitRule) any { return string(p.ID) })},
			field{name: "type", show: via(func(r *limitRule) any { return r.kind })})
		out = append(out, appendObject(nil, fields, &r, view{admin: true}))
	}
	return out
}
