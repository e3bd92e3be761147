package valid

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// MaxSources is how many prefixes may say who connects to a listener: each is kept, told
// and compared at every change of the load balancer.
const MaxSources = 4096

// MaxWeight is the heaviest member's (Octavia's limit).
const MaxWeight = 256

const loadBalancer = "load balancer"

// LoadBalancer refuses a load balancer that makes no sense: what is there twice, in the
// order in which it is written.
func LoadBalancer(spec sdn.LoadBalancerSpec) error {
	if err := Base(loadBalancer, spec.Base); err != nil {
		return err
	}
	if spec.Shared && (spec.ID == "" || spec.Key.IsZero()) {
		return sdn.Invalid(loadBalancer, "shared", "needs the id of the load balancer and the key of the listeners")
	}
	if err := vips(spec.VIPs); err != nil {
		return err
	}
	type door struct {
		protocol sdn.Protocol
		port     uint16
	}
	doors, pools := map[door]bool{}, map[sdn.ID]bool{}
	for i, l := range spec.Listeners {
		field := fmt.Sprintf("listeners[%d]", i)
		if err := listener(field, l); err != nil {
			return err
		}
		at := door{l.Protocol, l.Port}
		if doors[at] {
			return sdn.Invalid(loadBalancer, field+".port", "%d is there twice for protocol %d", l.Port, l.Protocol)
		}
		doors[at] = true
		if l.Pool.ID != "" && pools[l.Pool.ID] {
			return sdn.Invalid(loadBalancer, field+".pool.id", "%s is there twice", l.Pool.ID)
		}
		pools[l.Pool.ID] = true
	}
	for i, p := range spec.Pools {
		field := fmt.Sprintf("pools[%d]", i)
		if err := protocol(field+".protocol", p.Protocol); err != nil {
			return err
		}
		if err := pool(field, p); err != nil {
			return err
		}
		if p.ID != "" && pools[p.ID] {
			return sdn.Invalid(loadBalancer, field+".id", "%s is there twice", p.ID)
		}
		pools[p.ID] = true
	}
	return nil
}

func vips(list []sdn.VIP) error {
	if list != nil && len(list) == 0 || len(list) > 2 {
		return sdn.Invalid(loadBalancer, "vips", "must be one, or one of each family, not %d", len(list))
	}
	for i, v := range list {
		field := fmt.Sprintf("vips[%d]", i)
		if v.Addr.IsValid() {
			if err := unicast(field+".addr", v.Addr); err != nil {
				return err
			}
		} else if v.Subnet == "" {
			return sdn.Invalid(loadBalancer, field+".subnet", "is missing")
		}
		for _, other := range list[:i] {
			switch {
			case v.Addr.IsValid() && other.Addr.IsValid() && v.Addr.BitLen() == other.Addr.BitLen():
				return sdn.Invalid(loadBalancer, field+".addr", "%v is of the family of %v", v.Addr, other.Addr)
			case v.Subnet != "" && v.Subnet == other.Subnet:
				return sdn.Invalid(loadBalancer, field+".subnet", "%s is there twice", v.Subnet)
			}
		}
	}
	return nil
}

func listener(field string, l sdn.Listener) error {
	if err := protocol(field+".protocol", l.Protocol); err != nil {
		return err
	}
	if l.Port == 0 {
		return sdn.Invalid(loadBalancer, field+".port", "must be from 1 to 65535")
	}
	if err := Text(loadBalancer, field+".name", l.Name); err != nil {
		return err
	}
	if err := Text(loadBalancer, field+".description", l.Description); err != nil {
		return err
	}
	if n := len(l.Sources); n > MaxSources {
		return sdn.Invalid(loadBalancer, field+".sources", "must be at most %d, not %d", MaxSources, n)
	}
	for i, p := range l.Sources {
		at := fmt.Sprintf("%s.sources[%d]", field, i)
		if !p.IsValid() {
			return sdn.Invalid(loadBalancer, at, "is no prefix")
		}
		if err := Addr(loadBalancer, at, p.Addr()); err != nil {
			return err
		}
	}
	if l.ConnectionLimit < 0 {
		return sdn.Invalid(loadBalancer, field+".connection_limit", "must not be less than 0, not %d", l.ConnectionLimit)
	}
	if err := notNegative(field+".client_timeout", l.ClientTimeout); err != nil {
		return err
	}
	if err := notNegative(field+".member_timeout", l.MemberTimeout); err != nil {
		return err
	}
	if l.Pool.Protocol != 0 && l.Pool.Protocol != l.Protocol {
		return sdn.Invalid(
			loadBalancer, field+".pool.protocol", "%d is not the listener's, which is %d", l.Pool.Protocol,
			l.Protocol,
		)
	}
	if p := l.Pool; l.WithoutPool &&
		(p.ID != "" || p.Name != "" || p.Description != "" || p.Algorithm != "" ||
			p.Affinity != (sdn.Affinity{}) ||
			len(p.Members) > 0 || p.Health != nil) {
		return sdn.Invalid(loadBalancer, field+".pool", "must be the zero one for a listener without a pool")
	}
	return pool(field+".pool", l.Pool)
}

func pool(field string, p sdn.Pool) error {
	if err := Text(loadBalancer, field+".name", p.Name); err != nil {
		return err
	}
	if err := Text(loadBalancer, field+".description", p.Description); err != nil {
		return err
	}
	switch p.Algorithm {
	case sdn.AnyAlgorithm, sdn.RoundRobin, sdn.LeastConns, sdn.SourceIP, sdn.SourceIPPort:
	default:
		return sdn.Invalid(loadBalancer, field+".algorithm", "%q is none", p.Algorithm)
	}
	if p.Affinity.Timeout != 0 && !p.Affinity.ClientIP {
		return sdn.Invalid(loadBalancer, field+".affinity.timeout", "needs an affinity")
	}
	if err := notNegative(field+".affinity.timeout", p.Affinity.Timeout); err != nil {
		return err
	}
	seen := make(map[netip.AddrPort]bool, len(p.Members))
	for i, m := range p.Members {
		at := fmt.Sprintf("%s.members[%d]", field, i)
		if err := member(at, m); err != nil {
			return err
		}
		if seen[m.Addr] {
			return sdn.Invalid(loadBalancer, at+".addr", "%v is there twice", m.Addr)
		}
		seen[m.Addr] = true
	}
	return health(field+".health", p.Health)
}

func member(field string, m sdn.Member) error {
	if err := unicast(field+".addr", m.Addr.Addr()); err != nil {
		return err
	}
	if m.Addr.Addr().IsLoopback() {
		return sdn.Invalid(loadBalancer, field+".addr", "%v is reached from this host alone", m.Addr.Addr())
	}
	if m.Addr.Port() == 0 {
		return sdn.Invalid(loadBalancer, field+".addr", "its port must be from 1 to 65535")
	}
	if m.Weight < 0 || m.Weight > MaxWeight {
		return sdn.Invalid(loadBalancer, field+".weight", "must be from 0 to %d, not %d", MaxWeight, m.Weight)
	}
	return Text(loadBalancer, field+".name", m.Name)
}

func health(field string, h *sdn.HealthMonitor) error {
	if h == nil {
		return nil
	}
	if err := Text(loadBalancer, field+".name", h.Name); err != nil {
		return err
	}
	switch {
	case h.Type == "":
		return sdn.Invalid(loadBalancer, field+".type", "is missing")
	case h.Interval <= 0:
		return sdn.Invalid(loadBalancer, field+".interval", "must be more than 0, not %v", h.Interval)
	case h.Timeout <= 0:
		return sdn.Invalid(loadBalancer, field+".timeout", "must be more than 0, not %v", h.Timeout)
	case h.Rise < 0:
		return sdn.Invalid(loadBalancer, field+".rise", "must not be less than 0, not %d", h.Rise)
	case h.Fall < 0:
		return sdn.Invalid(loadBalancer, field+".fall", "must not be less than 0, not %d", h.Fall)
	}
	return nil
}

func unicast(field string, a netip.Addr) error {
	if err := Addr(loadBalancer, field, a); err != nil {
		return err
	}
	if a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() && a.Is6() {
		return sdn.Invalid(loadBalancer, field, "%v is no address that can be reached", a)
	}
	return nil
}

func protocol(field string, p sdn.Protocol) error {
	switch p {
	case sdn.TCP, sdn.UDP, sdn.SCTP:
		return nil
	case 0:
		return sdn.Invalid(loadBalancer, field, "is missing")
	}
	return sdn.Invalid(loadBalancer, field, "%d has no ports", p)
}

func notNegative(field string, d time.Duration) error {
	if d < 0 {
		return sdn.Invalid(loadBalancer, field, "must not be less than 0, not %v", d)
	}
	return nil
}

// FamilyOfMembers wants each member to be of the family of a VIP: no client would ever
// reach another.
func FamilyOfMembers(spec sdn.LoadBalancerSpec, vips []sdn.VIP) error {
	check := func(field string, p sdn.Pool) error {
		for i, m := range p.Members {
			served := false
			for _, v := range vips {
				served = served || v.Addr.BitLen() == m.Addr.Addr().BitLen()
			}
			if !served {
				return sdn.Invalid(
					loadBalancer, fmt.Sprintf("%s.members[%d].addr", field, i), "%v is of the family of no VIP",
					m.Addr.Addr(),
				)
			}
		}
		return nil
	}
	for i, l := range spec.Listeners {
		if err := check(fmt.Sprintf("listeners[%d].pool", i), l.Pool); err != nil {
			return err
		}
	}
	for i, p := range spec.Pools {
		if err := check(fmt.Sprintf("pools[%d]", i), p); err != nil {
			return err
		}
	}
	return nil
}
