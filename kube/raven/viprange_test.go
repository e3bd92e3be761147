package raven

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/kube/raven/core"
	"pgregory.net/rapid"
)

func prefixesOf(words ...string) (all []netip.Prefix) {
	for _, w := range words {
		all = append(all, netip.MustParsePrefix(w))
	}
	return all
}

func TestSubnetsForServices(t *testing.T) {
	t.Parallel()
	pods := core.Claim{What: "the pods' range", Prefix: netip.MustParsePrefix("10.128.0.0/9")}
	for name, of := range map[string]struct {
		services, given, there []netip.Prefix
		want                   string // CIDR, gateway and free ranges of each
		refused                string // words of why a range is
	}{
		"the default":                   {services: prefixesOf("10.96.0.0/12"), want: "10.96.0.0/11 10.127.255.254 10.112.0.0-10.127.255.253"},
		"the upper half":                {services: prefixesOf("10.97.0.0/16"), want: "10.96.0.0/15 10.96.255.255 10.96.0.1-10.96.255.254"},
		"both families":                 {services: prefixesOf("10.96.0.0/16", "fd00:96::/112"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.255.253; fd00:96::/111 fd00:96::1:ffff fd00:96::1:0-fd00:96::1:fffe"},
		"a second range far away":       {services: prefixesOf("10.96.0.0/16", "10.120.0.0/24"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.255.253; 10.120.0.0/23 10.120.1.254 10.120.1.0-10.120.1.253"},
		"a second range in the subnet":  {services: prefixesOf("10.96.0.0/16", "10.97.128.0/24"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.127.255 10.97.129.0-10.97.255.253"},
		"a second range takes the rest": {services: prefixesOf("10.96.0.0/16", "10.97.0.0/16"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.255.253", refused: "the services' range 10.97.0.0/16: the ranges leave no address of their subnet 10.96.0.0/15: want another range, or"},
		"one that came later takes the rest": {
			services: prefixesOf("10.97.0.0/16", "10.96.0.0/16"), there: prefixesOf("10.96.0.0/15"), given: prefixesOf("10.96.0.0/14"), want: "10.96.0.0/15 10.96.255.255 10.96.0.1-10.96.255.254", refused: "want another range",
		},
		"what is there goes before what people chose": {services: prefixesOf("10.96.0.0/16", "10.96.0.0/17"), there: prefixesOf("10.96.0.0/15"), given: prefixesOf("10.96.0.0/14"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.255.253"},
		"one that would move what is there":           {services: prefixesOf("10.96.0.0/16", "10.96.0.0/12"), there: prefixesOf("10.96.0.0/15"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.255.253", refused: "in place of 10.96.0.0/15"},
		"the same of a new cluster":                   {services: prefixesOf("10.96.0.0/16", "10.96.0.0/12"), want: "10.96.0.0/11 10.127.255.254 10.112.0.0-10.127.255.253"},
		"one that collides between two":               {services: prefixesOf("10.96.0.0/16", "10.200.0.0/24", "10.120.0.0/24"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.255.253; 10.120.0.0/23 10.120.1.254 10.120.1.0-10.120.1.253", refused: "overlap: want another range, or another subnet"},

		"one that people chose":     {services: prefixesOf("10.96.0.0/16"), given: prefixesOf("10.96.0.0/12"), want: "10.96.0.0/12 10.111.255.254 10.97.0.0-10.111.255.253"},
		"one that is there stays":   {services: prefixesOf("10.96.0.0/16"), given: prefixesOf("10.96.0.0/12"), there: prefixesOf("10.96.0.0/14"), want: "10.96.0.0/14 10.99.255.254 10.97.0.0-10.99.255.253"},
		"one as large as the range": {services: prefixesOf("10.96.0.0/12"), there: prefixesOf("10.96.0.0/12"), want: "10.96.0.0/11 10.127.255.254 10.112.0.0-10.127.255.253"},
		"two overlap":               {services: prefixesOf("10.96.0.0/16", "10.98.0.0/15"), want: "10.96.0.0/15 10.97.255.254 10.97.0.0-10.97.255.253", refused: "the subnets 10.96.0.0/15 and 10.96.0.0/14 overlap"},
		"it would be the pods' too": {services: prefixesOf("10.0.0.0/9"), refused: "overlap: want another range"},
		"neighbours":                {services: prefixesOf("10.96.0.0/24", "10.96.1.0/24"), given: prefixesOf("10.96.0.0/22"), want: "10.96.0.0/22 10.96.3.254 10.96.2.0-10.96.3.253"},
		"none":                      {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := planVIPs(of.services, of.given, of.there, []core.Claim{pods})
			for p, err := range plan.refused {
				if of.refused == "" || !strings.Contains(err.Error(), of.refused) {
					t.Errorf("%s: %v, want %q", p, err, of.refused)
				}
			}
			if wanted := of.refused != ""; wanted != (len(plan.refused) > 0) {
				t.Errorf("refused %v, want %q", plan.refused, of.refused)
			}
			var shown []string
			for _, s := range plan.subnets {
				line := fmt.Sprint(s.cidr, " ", s.gateway)
				for _, r := range s.free {
					line += fmt.Sprintf(" %s-%s", r.First, r.Last)
				}
				shown = append(shown, line)
			}
			if got := strings.Join(shown, "; "); got != of.want {
				t.Errorf("got  %s\nwant %s", got, of.want)
			}
		})
	}
}

// Whatever the ranges, nothing that is given away or the gateway's is in one, and each range is in a subnet.
func TestNothingOfServicesIsGivenAway(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var services []netip.Prefix
		for range rapid.IntRange(1, 4).Draw(t, "ranges") {
			a := netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(90, 100).Draw(t, "b")), byte(rapid.IntRange(0, 255).Draw(t, "c")), 0})
			services = append(services, netip.PrefixFrom(a, rapid.IntRange(10, 28).Draw(t, "bits")).Masked())
		}
		plan := planVIPs(services, nil, nil, nil)
		all := plan.subnets
		for _, p := range services {
			if slices.Contains(plan.ranges, p) == (plan.refused[p] != nil) {
				t.Fatalf("%s is served and refused, or neither: %+v", p, plan)
			}
		}
		for _, p := range plan.ranges {
			in := 0
			for _, s := range all {
				if s.cidr.Contains(p.Addr()) && s.cidr.Bits() <= p.Bits() {
					in++
				}
				if p.Contains(s.gateway) {
					t.Fatalf("the gateway %s of %s is in %s", s.gateway, s.cidr, p)
				}
				if !s.cidr.Contains(s.gateway) {
					t.Fatalf("the gateway %s is not in %s", s.gateway, s.cidr)
				}
				for _, r := range s.free {
					if p.Contains(r.First) || p.Contains(r.Last) || r.Last.Less(r.First) || !r.First.Less(p.Addr()) == false && p.Addr().Less(r.Last) {
						t.Fatalf("%s-%s of %s is in %s", r.First, r.Last, s.cidr, p)
					}
				}
			}
			if in != 1 {
				t.Fatalf("%s is in %d of %v", p, in, all)
			}
		}
	})
}
