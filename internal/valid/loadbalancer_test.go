package valid

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

func TestLoadBalancerFields(t *testing.T) {
	t.Parallel()
	member := sdn.Member{Addr: netip.MustParseAddrPort("10.0.0.5:8080")}
	good := func() sdn.LoadBalancerSpec {
		return sdn.LoadBalancerSpec{
			VIPs: []sdn.VIP{{Subnet: "four"}, {Subnet: "six", Addr: netip.MustParseAddr("fd00::10")}},
			Listeners: []sdn.Listener{
				{Protocol: sdn.TCP, Port: 80, Pool: sdn.Pool{ID: "a", Members: []sdn.Member{member}}},
				{Protocol: sdn.UDP, Port: 80, WithoutPool: true},
			},
			Pools: []sdn.Pool{{Protocol: sdn.TCP}, {Protocol: sdn.TCP}},
		}
	}
	if err := LoadBalancer(good()); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	for field, change := range map[string]func(*sdn.LoadBalancerSpec){
		"name":                  func(s *sdn.LoadBalancerSpec) { s.Name = strings.Repeat("n", 256) },
		"vips":                  func(s *sdn.LoadBalancerSpec) { s.VIPs = []sdn.VIP{} },
		"vips[0].subnet":        func(s *sdn.LoadBalancerSpec) { s.VIPs[0].Subnet = "" },
		"vips[1].subnet":        func(s *sdn.LoadBalancerSpec) { s.VIPs[1].Subnet = "four" },
		"vips[1].addr":          func(s *sdn.LoadBalancerSpec) { s.VIPs[0].Addr = netip.MustParseAddr("fd00::11") },
		"vips[0].addr":          func(s *sdn.LoadBalancerSpec) { s.VIPs[0].Addr = netip.IPv4Unspecified() },
		"listeners[0].protocol": func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Protocol = 1 },
		"listeners[1].protocol": func(s *sdn.LoadBalancerSpec) { s.Listeners[1].Protocol = 0 },
		"listeners[1].port":     func(s *sdn.LoadBalancerSpec) { s.Listeners[1].Protocol = sdn.TCP },
		"listeners[0].port":     func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Port = 0 },
		"listeners[0].name":     func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Name = "a\x00" },
		"listeners[0].sources": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Sources = slices.Repeat([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, MaxSources+1)
		},
		"listeners[0].sources[1]": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), {}}
		},
		"listeners[0].connection_limit": func(s *sdn.LoadBalancerSpec) { s.Listeners[0].ConnectionLimit = -1 },
		"listeners[0].client_timeout":   func(s *sdn.LoadBalancerSpec) { s.Listeners[0].ClientTimeout = -time.Second },
		"listeners[1].pool":             func(s *sdn.LoadBalancerSpec) { s.Listeners[1].Pool.Name = "web" },
		"listeners[0].pool.protocol":    func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Protocol = sdn.UDP },
		"listeners[0].pool.algorithm":   func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Algorithm = "LUCK" },
		"listeners[0].pool.affinity.timeout": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Affinity.Timeout = time.Hour
		},
		"listeners[0].pool.members[1].addr": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Members = []sdn.Member{member, member}
		},
		"listeners[0].pool.members[0].addr": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Members = []sdn.Member{{Addr: netip.MustParseAddrPort("127.0.0.1:80")}}
		},
		"listeners[0].pool.members[0].weight": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Members = []sdn.Member{{Addr: member.Addr, Weight: 257}}
		},
		"listeners[0].pool.health.type": func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Health = &sdn.HealthMonitor{} },
		"pools[0].protocol":             func(s *sdn.LoadBalancerSpec) { s.Pools[0].Protocol = 0 },
		"pools[1].id":                   func(s *sdn.LoadBalancerSpec) { s.Pools[1].ID = "a" },
	} {
		spec := good()
		change(&spec)
		if err := LoadBalancer(spec); !sdn.IsInvalid(err) || sdn.FieldOf(err) != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	spec := good()
	spec.Listeners[0].Pool.Members = append(spec.Listeners[0].Pool.Members, sdn.Member{
		Addr: netip.MustParseAddrPort("[fd00::5]:8080"),
	})
	err := FamilyOfMembers(spec, []sdn.VIP{{Addr: netip.MustParseAddr("10.9.0.1")}})
	if !sdn.IsInvalid(err) || sdn.FieldOf(err) != "listeners[0].pool.members[1].addr" {
		t.Errorf("a member of no VIP's family: %v", err)
	}
}
