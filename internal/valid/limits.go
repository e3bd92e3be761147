package valid

import "github.com/kuryr/kuryr/sdn"

// MaxDSCP is the last mark: there are six bits for it (RFC 2474).
const MaxDSCP = 63

// Limits refuses limits of a QoS policy that make no sense.
func Limits(l sdn.Limits) error {
	for _, f := range []struct {
		field       string
		kbps, burst int64
	}{{"ingress", l.IngressKbps, l.IngressBurst}, {"egress", l.EgressKbps, l.EgressBurst}} {
		switch {
		case f.kbps < 0:
			return sdn.Invalid("QoS policy", "limits."+f.field+"_kbps", "must not be less than 0, not %d", f.kbps)
		case f.burst < 0:
			return sdn.Invalid("QoS policy", "limits."+f.field+"_burst", "must not be less than 0, not %d", f.burst)
		case f.burst > 0 && f.kbps == 0:
			return sdn.Invalid("QoS policy", "limits."+f.field+"_burst", "needs a limit")
		}
	}
	if l.DSCP > MaxDSCP {
		return sdn.Invalid("QoS policy", "limits.dscp", "must be at most %d, not %d", MaxDSCP, l.DSCP)
	}
	return nil
}
