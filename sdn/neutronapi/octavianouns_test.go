package neutronapi

import (
	"net/http/httptest"
	"net/netip"
	"reflect"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// The client's types have all attributes of load balancers and their parts.
func TestBalancerNouns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	member := sdn.Member{ID: "member", Addr: netip.MustParseAddrPort("10.1.0.5:80"), Subnet: w.subnet.ID, Tags: []string{"a"}}
	health := &sdn.HealthMonitor{ID: "monitor", Type: "HTTP", Path: "/"}
	affinity := sdn.Affinity{ClientIP: true, Timeout: 5e9}
	balancer := sdn.LoadBalancer{
		Meta: sdn.Meta{ID: "balancer"}, VIPs: []sdn.VIP{{Subnet: w.subnet.ID}, {Addr: netip.MustParseAddr("fd00::9")}},
		Listeners: []sdn.Listener{{
			ID: "listener", Protocol: sdn.TCP, Port: 80, ForwardedFor: true,
			Pool: sdn.Pool{ID: "pool", Affinity: affinity, Members: []sdn.Member{member}, Health: health},
		}},
	}
	w.handler = NewHandler(held{w.sdn, balancer}, Options{})
	server := httptest.NewServer(As(root, w.handler))
	t.Cleanup(server.Close)
	w.client = &Client{HTTP: server.Client(), Base: server.URL}
	roundTrip(t, w, LoadBalancers, "balancer")
	roundTrip(t, w, Listeners, "listener")
	roundTrip(t, w, Pools, "pool")
	roundTrip(t, w, HealthMonitors, "monitor")

	members, err := w.client.PoolMembers(t.Context(), "pool")
	must(t, err)
	_, answer := w.ask(t, root, "GET", pathOf(Pools.Collection)+"/pool/members/member", "")
	shown := answer.(map[string]any)[PoolMembers.Member]
	if len(members) != 1 || !reflect.DeepEqual(map[string]any(objectOf(members[0])), shown) {
		t.Errorf("members\n got %v\nwant %v", members, shown)
	}
}
