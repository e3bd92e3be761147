package neutron

import (
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Without an Octavia there are no load balancers, and it is said how to have some.
func TestNoOctavia(t *testing.T) {
	p, _ := onDouble(t, newDouble(), nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := p.ApplyLoadBalancer(t.Context(), balancerSpec("web"))
	if !sdn.IsUnsupported(err) || !strings.Contains(err.Error(), "load_balancer_endpoint") || len(p.Capabilities().LoadBalancer.Protocols) != 0 {
		t.Errorf("%v, with %+v", err, p.Capabilities().LoadBalancer)
	}
}

// An Octavia that is away takes nothing from Neutron.
func TestOctaviaAway(t *testing.T) {
	p, proxy, _ := onOctavia(t, newOctaviaDouble(amphora))
	proxy.Away(true)
	for range 2 * breakerFailures {
		if _, err := p.ApplyLoadBalancer(t.Context(), balancerSpec("web")); !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "Octavia") {
			t.Fatalf("%v", err)
		}
	}
	if err := p.Ping(t.Context()); err != nil {
		t.Errorf("Neutron answers, and Ping says: %v", err)
	}
}

func TestOctaviaCapabilities(t *testing.T) {
	for _, c := range []struct {
		providers []string
		minor     int
		check     func(sdn.LoadBalancerCapabilities) bool
	}{
		{[]string{ovn}, 26, func(c sdn.LoadBalancerCapabilities) bool {
			return c.ClientIPKept && !c.SourceRanges && c.HairpinSource == "vip" && !c.TwoFamilies
		}},
		{[]string{amphora, amphoraToo}, 26, func(c sdn.LoadBalancerCapabilities) bool {
			return !c.ClientIPKept && c.SourceRanges && c.TwoFamilies && !c.Groups
		}},
		{[]string{amphora, ovn}, 26, func(c sdn.LoadBalancerCapabilities) bool { return c.ProxyProtocol }},
		{nil, 4, func(c sdn.LoadBalancerCapabilities) bool {
			return len(c.Protocols) == 2 && !c.SourceRanges && !c.MixedProtocols
		}},
	} {
		o := newOctaviaDouble(c.providers...)
		o.versions = o.versions[:c.minor+1]
		p, _, _ := onOctavia(t, o)
		if err := p.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		can := p.Capabilities()
		if !c.check(can.LoadBalancer) {
			t.Errorf("%v with 2.%d: %+v", c.providers, c.minor, can.LoadBalancer)
		}
		if one, other := can.LoadBalancerOf(ovn), can.LoadBalancerOf(amphoraToo); one.SourceRanges || one.ProxyProtocol || !one.ClientIPKept || !other.ProxyProtocol || other.SourceRanges != (c.minor >= sinceSources) {
			t.Errorf("2.%d: the provider ovn %+v, octavia %+v", c.minor, one, other)
		}
	}
}

func TestOctaviaRoot(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "http://o:9876": "http://o:9876", "http://o/load-balancer/": "http://o/load-balancer", "http://o/load-balancer/v2.0": "http://o/load-balancer", "http://o/v2/lbaas/": "http://o",
	} {
		if got := octaviaRoot(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}
