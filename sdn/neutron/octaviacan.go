package neutron

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// The providers of Octavia that are known here.
const (
	amphora    = "amphora"
	amphoraToo = "octavia" // another name of it
	ovn        = "ovn"
)

// isAmphora tells whether a provider is amphora, of which Octavia has several by different names (amphora, amphorav2, octavia).
func isAmphora(provider string) bool {
	return strings.HasPrefix(provider, amphora) || provider == amphoraToo
}

// The minor versions of Octavia's API since which it has something.
const (
	sinceTags      = 5
	sinceProviders = 6
	sinceSources   = 12
	sinceMixed     = 13
	sinceSCTP      = 23
	sinceVIPs      = 26
	sinceGroups    = 29
)

// backends are what Octavia's providers can do with the newest API. What OVN takes and passes over (timeouts, limits, affinity before its release of
// 2024) it cannot.
var backends = map[string]sdn.LoadBalancerCapabilities{
	amphora: {
		Protocols: []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP}, Algorithms: []sdn.Algorithm{sdn.RoundRobin, sdn.LeastConns, sdn.SourceIP},
		Affinity: true, SourceRanges: true, HealthMonitors: true, MixedProtocols: true, TwoFamilies: true, Weights: true, Drain: true, Limits: true, Timeouts: true,
		ProxyProtocol: true, HTTP: true, Zones: true, Share: true, Groups: true, AnyMember: true, HairpinSource: "lb",
	},
	ovn: {
		Protocols: []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP}, Algorithms: []sdn.Algorithm{sdn.SourceIPPort},
		ClientIPKept: true, HealthMonitors: true, MixedProtocols: true, Share: true, HairpinSource: "vip",
	},
}

// capabilities are what the provider can do by this Octavia. One that is not known here is taken for as able as amphora: it answers itself what it cannot.
func (o *octavia) capabilities(backend string) sdn.LoadBalancerCapabilities {
	o.mu.Lock()
	defer o.mu.Unlock()
	can, ok := backends[backend]
	if !ok {
		can = backends[amphora]
	}
	has := func(since int) bool { return o.minor >= since }
	if !has(sinceSCTP) {
		can.Protocols = []sdn.Protocol{sdn.TCP, sdn.UDP}
	}
	can.SourceRanges = can.SourceRanges && has(sinceSources)
	can.MixedProtocols = can.MixedProtocols && has(sinceMixed)
	can.TwoFamilies = can.TwoFamilies && has(sinceVIPs)
	can.Groups = can.Groups && has(sinceGroups)
	return can
}

// balancerCapabilities are those of the provider that is used unless another is asked for; none before Octavia has answered once.
func (p *Provider) balancerCapabilities() sdn.LoadBalancerCapabilities {
	p.octavia.mu.Lock()
	asked := p.octavia.asked
	p.octavia.mu.Unlock()
	if !asked {
		return sdn.LoadBalancerCapabilities{}
	}
	backend, err := p.octavia.backend("")
	if err != nil {
		return sdn.LoadBalancerCapabilities{}
	}
	return p.octavia.capabilities(backend)
}

// backendCapabilities are those of each provider that is known here, where the default's are not none. Whether this Octavia has it, it says when it is asked for.
func (p *Provider) backendCapabilities(usual sdn.LoadBalancerCapabilities) map[string]sdn.LoadBalancerCapabilities {
	if len(usual.Protocols) == 0 {
		return nil
	}
	return map[string]sdn.LoadBalancerCapabilities{
		amphora: p.octavia.capabilities(amphora), amphoraToo: p.octavia.capabilities(amphora), ovn: p.octavia.capabilities(ovn),
	}
}

// lacking is the error of the first thing that a load balancer is to be and its provider cannot make, nil where it can all.
func lacking(backend string, can sdn.LoadBalancerCapabilities, spec sdn.LoadBalancerSpec) error {
	var err error
	need := func(can, wanted bool, field, what string, args ...any) {
		if err == nil && wanted && !can {
			err = &sdn.Error{Kind: sdn.KindUnsupported, Noun: "load balancer", Field: fmt.Sprintf(field, args...), Detail: what + ": Octavia's provider " + backend + ", by this Octavia's API, has no such thing"}
		}
	}
	need(can.TwoFamilies, len(spec.VIPs) > 1, "vips", "VIPs of both families in one load balancer")
	need(can.Groups, len(spec.Groups) > 0, "groups", "security groups of the VIP")
	need(can.Zones, spec.Flavor != "", "flavor", "a flavor")
	need(can.Zones, spec.Zone != "", "zone", "an availability zone")
	need(can.FreePools, len(spec.Pools) > 0, "pools", "a pool without a listener")
	ports := map[uint16]bool{}
	for i, l := range spec.Listeners {
		need(slices.Contains(can.Protocols, l.Protocol), true, "listeners[%d].protocol", protocolName(l.Protocol), i)
		need(can.MixedProtocols, ports[l.Port], "listeners[%d].protocol", "one port of two protocols", i)
		ports[l.Port] = true
		need(can.SourceRanges, len(l.Sources) > 0, "listeners[%d].sources", "who may connect", i)
		need(can.Limits, l.ConnectionLimit > 0, "listeners[%d].connection_limit", "a limit of connections", i)
		need(can.Timeouts, l.ClientTimeout > 0, "listeners[%d].client_timeout", "a timeout of clients", i)
		need(can.Timeouts, l.MemberTimeout > 0, "listeners[%d].member_timeout", "a timeout of members", i)
		need(can.Timeouts, l.ConnectTimeout > 0, "listeners[%d].connect_timeout", "a timeout of connecting", i)
		need(can.Timeouts, l.InspectTimeout > 0, "listeners[%d].inspect_timeout", "a timeout of inspection", i)
		need(can.ProxyProtocol, l.ProxyProtocol, "listeners[%d].proxy_protocol", "the PROXY protocol", i)
		need(can.HTTP, l.ForwardedFor, "listeners[%d].forwarded_for", "HTTP", i)
		need(can.HTTP, l.Certificate != "", "listeners[%d].certificate", "TLS", i)
		need(can.PartTags, len(l.Tags)+len(l.Pool.Tags) > 0, "listeners[%d].tags", "tags of listeners and pools", i)
		need(can.FreePools, l.WithoutPool, "listeners[%d].without_pool", "a listener without a pool", i)
		p := l.Pool
		need(slices.Contains(can.Algorithms, p.Algorithm), p.Algorithm != sdn.AnyAlgorithm, "listeners[%d].pool.algorithm", string(p.Algorithm), i)
		need(can.Affinity, p.Affinity.ClientIP, "listeners[%d].pool.affinity", "affinity", i)
		need(can.AffinityTCP, p.Affinity.Timeout > 0 && l.Protocol == sdn.TCP, "listeners[%d].pool.affinity.timeout", "a timeout of affinity with TCP", i)
		need(can.HealthMonitors, p.Health != nil, "listeners[%d].pool.health", "a health monitor", i)
		for j, m := range p.Members {
			need(can.PartTags, len(m.Tags) > 0, "listeners[%d].pool.members[%d].tags", "tags of a member", i, j)
			need(can.Drain, m.Drain, "listeners[%d].pool.members[%d].drain", "a member without new connections", i, j)
		}
	}
	return err
}
