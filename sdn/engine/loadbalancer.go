package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

const loadBalancer = "load balancer"

// retryAfter is when a caller asks again for a load balancer that the kernel does not have yet.
const retryAfter = time.Second

// balancing is what the embedded SDN's load balancers can do.
var balancing = sdn.LoadBalancerCapabilities{
	Protocols:      []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP},
	Algorithms:     []sdn.Algorithm{sdn.RoundRobin, sdn.SourceIP},
	Affinity:       true,
	AffinityTCP:    true,
	SourceRanges:   true,
	ClientIPKept:   true,
	MixedProtocols: true,
	TwoFamilies:    true,
	ChangeFamilies: true,
	FreePools:      true,
	Weights:        true,
	Drain:          true,
	AnyMember:      true,
	Share:          true,
	PartTags:       true,
	HairpinSource:  "lb",
}

// balancing is what this machine's load balancers can do.
func (e *Engine) balancing() sdn.LoadBalancerCapabilities {
	can, realm := balancing, e.realm.Supports()
	can.Members = realm.Members
	if !realm.SCTP {
		can.Protocols = []sdn.Protocol{sdn.TCP, sdn.UDP}
	}
	return can
}

// showLoadBalancer is Ready when the kernel has what the store says.
func (e *Engine) showLoadBalancer(b Tx, r *LoadBalancerRow) (sdn.LoadBalancer, error) {
	e.fillMeta(&r.Meta)
	r.Status = sdn.LoadBalancerStatus{Ready: true}
	for _, v := range r.VIPs {
		router := Routers.ID(b, "subnet", string(v.Subnet))
		if router == "" {
			r.Status.Message = fmt.Sprintf("no router is on the subnet of %v: nobody reaches it", v.Addr)
			continue
		}
		settled, err := e.vipSettled(b, router, r.ID, v)
		if err != nil {
			return r.LoadBalancer, err
		}
		if !settled {
			r.Status = sdn.LoadBalancerStatus{RetryAfter: retryAfter, Message: "the kernel does not follow the store yet"}
			return r.LoadBalancer, nil
		}
	}
	return r.LoadBalancer, nil
}

// vipSettled reports whether the kernel has what the store says of a VIP and of the floating IPs that lead to it.
func (e *Engine) vipSettled(b Tx, router, balancer sdn.ID, v sdn.VIP) (bool, error) {
	if !e.realm.HasBalancer(router, balancer, v.Addr) {
		return false, nil
	}
	fips, err := FloatingIPs.All(b, "port", string(v.Port))
	for _, f := range fips {
		if !e.realm.HasBalancer(router, balancer, f.Address) {
			return false, err
		}
	}
	return true, err
}

// ApplyLoadBalancer makes a load balancer be this value, in one transaction.
func (e *Engine) ApplyLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (out sdn.LoadBalancer, err error) {
	if err := errors.Join(valid.LoadBalancer(spec), e.checkBalancing(spec)); err != nil {
		return out, err
	}
	var id sdn.ID
	err = e.update(ctx, func(t *tx) error {
		r, err := LoadBalancers.applied(t, spec.ID, spec.Base)
		if err != nil {
			return err
		}
		if r, err = t.applyLoadBalancer(r, spec); err == nil {
			id = r.ID
		}
		return err
	})
	if err != nil {
		return out, err
	}
	return e.LoadBalancer(ctx, id) // read again, so that the status is that after the kernel's work
}

// checkBalancing refuses what other SDNs' load balancers can.
func (e *Engine) checkBalancing(spec sdn.LoadBalancerSpec) error {
	can, protocols := e.realm.Supports(), e.balancing().Protocols
	errs := []error{
		lacking(loadBalancer, "groups", len(spec.Groups) > 0, "does not filter what comes to a VIP; a listener's sources say who may connect"),
		lacking(loadBalancer, "backend", spec.Backend != "", "has one kind of load balancer, the kernel's"),
		lacking(loadBalancer, "flavor", spec.Flavor != "", "has one kind of load balancer, the kernel's"),
		lacking(loadBalancer, "zone", spec.Zone != "", "is on one machine, without availability zones"),
	}
	for i, l := range spec.Listeners {
		field := fmt.Sprintf("listeners[%d]", i)
		errs = append(errs, lacking(loadBalancer, field+".protocol", !contains(protocols, l.Protocol), "has no SCTP on this machine: its kernel does not track such connections"),
			lacking(loadBalancer, field+".connection_limit", l.ConnectionLimit > 0, "does not count connections"),
			lacking(loadBalancer, field+".client_timeout", l.ClientTimeout > 0, "leaves idle connections to those who have them"),
			lacking(loadBalancer, field+".member_timeout", l.MemberTimeout > 0, "leaves idle connections to those who have them"),
			lacking(loadBalancer, field+".connect_timeout", l.ConnectTimeout != 0, "leaves it to clients how long they wait"),
			lacking(loadBalancer, field+".inspect_timeout", l.InspectTimeout != 0, "does not look into connections"),
			lacking(loadBalancer, field+".forwarded_for", l.ForwardedFor, "does not speak HTTP, and lets members see the client's address as it is"),
			lacking(loadBalancer, field+".certificate", l.Certificate != "", "does not end TLS"),
			lacking(loadBalancer, field+".proxy_protocol", l.ProxyProtocol || l.ProxyVersion != 0, "lets members see the client's address as it is"),
			can.checkPool(field+".pool", l.Pool))
	}
	for i, pool := range spec.Pools {
		errs = append(errs, can.checkPool(fmt.Sprintf("pools[%d]", i), pool))
	}
	return errors.Join(errs...)
}

func (s Support) checkPool(field string, pool sdn.Pool) error {
	if a := pool.Affinity.Timeout; a > s.Affinity || a%time.Second != 0 {
		return sdn.Invalid(loadBalancer, field+".affinity.timeout", "must be whole seconds up to %v, not %v", s.Affinity, a)
	}
	if len(pool.Members) > s.Members {
		return sdn.Invalid(loadBalancer, field+".members", "are %d; at most %d fit", len(pool.Members), s.Members)
	}
	return errors.Join(
		lacking(loadBalancer, field+".health", pool.Health != nil, "does not ask members whether they are well"),
		lacking(loadBalancer, field+".algorithm", pool.Algorithm != sdn.AnyAlgorithm && !contains(balancing.Algorithms, pool.Algorithm), "has no "+string(pool.Algorithm)),
	)
}

func (t *tx) applyLoadBalancer(r *LoadBalancerRow, spec sdn.LoadBalancerSpec) (*LoadBalancerRow, error) {
	changed := r == nil
	if r == nil {
		if len(spec.VIPs) == 0 {
			return nil, sdn.Invalid(loadBalancer, "vips", "are missing")
		}
		r = &LoadBalancerRow{LoadBalancer: sdn.LoadBalancer{Meta: newMeta(spec.Base)}}
	} else {
		base := spec.Base
		if spec.Shared { // itself it is another's
			base, spec.VIPs = sdn.Base{}, nil
		}
		var err error
		if changed, err = LoadBalancers.rebase(t, &r.Meta, base, spec.ID, spec.IfRevision); err != nil {
			return nil, err
		}
	}
	spec, err := withOthers(r, spec)
	if err != nil {
		return nil, err
	}
	before := parts(r)
	moved, err := t.setVIPs(r, spec.VIPs)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(valid.FamilyOfMembers(spec, r.VIPs), t.checkMembers(spec, r.VIPs)); err != nil {
		return nil, err
	}
	other := setParts(r, spec)
	if !changed && !moved && !other {
		return r, nil
	}
	if err := t.countParts(r.Project, before, parts(r)); err != nil {
		return nil, err
	}
	return r, LoadBalancers.put(t, r)
}

// checkMembers wants members to be where they are said to be, and to be none of the VIPs: what is
// sent there would go round for ever.
func (t *tx) checkMembers(spec sdn.LoadBalancerSpec, vips []sdn.VIP) error {
	known := map[sdn.ID]*subnetRow{}
	check := func(field string, members []sdn.Member) error {
		for i, m := range members {
			at := fmt.Sprintf("%s.members[%d]", field, i)
			if slices.ContainsFunc(vips, func(v sdn.VIP) bool { return v.Addr == m.Addr.Addr() }) {
				return sdn.Invalid(loadBalancer, at+".addr", "%v is the VIP", m.Addr.Addr())
			}
			if m.Subnet == "" {
				continue
			}
			if known[m.Subnet] == nil {
				s, err := Subnets.Need(t.Tx, m.Subnet)
				if err != nil {
					return err
				}
				known[m.Subnet] = s
			}
			if s := known[m.Subnet]; !s.CIDR.Contains(m.Addr.Addr()) {
				return sdn.Invalid(loadBalancer, at+".addr", "%v is not inside %v", m.Addr.Addr(), s.CIDR)
			}
		}
		return nil
	}
	for i, l := range spec.Listeners {
		if err := check(fmt.Sprintf("listeners[%d].pool", i), l.Pool.Members); err != nil {
			return err
		}
	}
	for i, p := range spec.Pools {
		if err := check(fmt.Sprintf("pools[%d]", i), p.Members); err != nil {
			return err
		}
	}
	return nil
}

// LoadBalancer gets a load balancer.
func (e *Engine) LoadBalancer(ctx context.Context, id sdn.ID) (sdn.LoadBalancer, error) {
	return get(ctx, e, LoadBalancers, id, e.showLoadBalancer)
}

// FindLoadBalancers streams load balancers.
func (e *Engine) FindLoadBalancers(ctx context.Context, q sdn.LoadBalancerQuery) iter.Seq2[sdn.LoadBalancer, error] {
	var byPart, byAddress []scan
	for _, id := range q.Parts {
		byPart = append(byPart, scan{index: "part", unique: true, prefix: string(id)})
	}
	for _, a := range q.Addresses {
		byAddress = append(byAddress, scan{index: "address", prefix: a.String() + "\x00"})
	}
	scans, err := e.scansOf(ctx, LoadBalancers.Noun, q.Match, byPart, byEach("port", q.Ports), byAddress,
		byEach("subnet", q.Subnets), byProject(q.Match))
	if err != nil {
		return broken[sdn.LoadBalancer](err)
	}
	return search(ctx, e, LoadBalancers, scans, e.showLoadBalancer, q.Matches)
}

// DeleteLoadBalancer deletes a load balancer with its VIPs. Floating IPs of these lead nowhere afterwards.
func (e *Engine) DeleteLoadBalancer(ctx context.Context, id sdn.ID) error {
	return e.release(ctx, func(t *tx) error { return t.deleteLoadBalancer(id) })
}

func (t *tx) deleteLoadBalancer(id sdn.ID) error {
	r, err := LoadBalancers.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	for _, v := range r.VIPs {
		if err := t.dropVIP(v); err != nil {
			return err
		}
	}
	if err := t.countParts(r.Project, parts(r), map[sdn.Noun]int64{}); err != nil {
		return err
	}
	return LoadBalancers.del(t, id)
}
