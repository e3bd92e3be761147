package neutronapi

import (
	"crypto/sha256"
	"fmt"

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
	kbps, burst int64
	dscp        uint8
}

// id is a UUID that is the same each time.
func (r limitRule) id(policy sdn.ID) string {
	sum := sha256.Sum256([]byte(string(policy) + "/" + r.kind + "/" + string(r.direction)))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8: of a form of our own
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// limitRules gives the rules that limits are.
func limitRules(l sdn.Limits) []limitRule {
	var out []limitRule
	if l.EgressKbps != 0 {
		out = append(out, limitRule{kind: bandwidthLimit, direction: sdn.Egress, kbps: l.EgressKbps, burst: l.EgressBurst})
	}
	if l.IngressKbps != 0 {
		out = append(out, limitRule{kind: bandwidthLimit, direction: sdn.Ingress, kbps: l.IngressKbps, burst: l.IngressBurst})
	}
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

// BandwidthLimitRule is a rule of a QoS policy in Neutron's JSON.
type BandwidthLimitRule struct {
	ID        string `json:"id"`
	PolicyID  string `json:"qos_policy_id,omitempty"`
	Type      string `json:"type,omitempty"`
	MaxKbps   int64  `json:"max_kbps"`
	MaxBurst  int64  `json:"max_burst_kbps"`
	Direction string `json:"direction"`
}

// DSCPMarkingRule is a rule of a QoS policy in Neutron's JSON.
type DSCPMarkingRule struct {
	ID       string `json:"id"`
	PolicyID string `json:"qos_policy_id,omitempty"`
	Type     string `json:"type,omitempty"`
	Mark     int    `json:"dscp_mark"`
}

// encode translates a rule; within its policy it names that and its own type.
func (r limitRule) encode(policy sdn.ID, within bool) any {
	id, owner, kind := r.id(policy), "", ""
	if within {
		owner, kind = string(policy), r.kind
	}
	if r.kind == dscpMarking {
		return DSCPMarkingRule{ID: id, PolicyID: owner, Type: kind, Mark: int(r.dscp)}
	}
	return BandwidthLimitRule{ID: id, PolicyID: owner, Type: kind, MaxKbps: r.kbps, MaxBurst: r.burst, Direction: string(r.direction)}
}
