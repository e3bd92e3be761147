package neutron

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// What is not asked for any more is what a new load balancer has: each part is changed by one request, and nothing where nothing has changed.
func TestBalancerSettingsGoBack(t *testing.T) {
	p, proxy, clock := onOctavia(t, newOctaviaDouble(amphora))
	plain := balancerSpec("web", "10.0.0.1:8080")
	plain.Listeners = append(plain.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 53, Pool: sdn.Pool{Affinity: sdn.Affinity{ClientIP: true}}})
	before, _ := readyBalancer(t, p, clock, plain)
	rich := plain
	rich.Listeners = slices.Clone(plain.Listeners)
	l := &rich.Listeners[0]
	l.Sources, l.ConnectionLimit = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, 100
	l.ClientTimeout, l.MemberTimeout, l.ConnectTimeout, l.InspectTimeout = time.Minute, 2*time.Minute, time.Second, 2*time.Second
	l.Pool.Algorithm, l.Pool.Affinity.ClientIP = sdn.LeastConns, true
	l.Pool.Health = &sdn.HealthMonitor{Type: "TCP", Interval: 5 * time.Second, Timeout: 2 * time.Second}
	rich.Listeners[1].Pool.Affinity.Timeout = time.Hour
	b, _ := readyBalancer(t, p, clock, rich)
	if udp, tcp := b.Listeners[0], b.Listeners[1]; tcp.InspectTimeout != 2*time.Second || tcp.Pool.Health == nil || udp.Pool.Affinity.Timeout != time.Hour {
		t.Fatalf("it is %+v", b)
	}
	proxy.Reset()
	after, _ := readyBalancer(t, p, clock, plain)
	if !reflect.DeepEqual(after.Listeners, before.Listeners) {
		t.Errorf("the listeners are %+v, and were %+v", after.Listeners, before.Listeners)
	}
	want := []string{"PUT listeners", "PUT pools", "DELETE healthmonitors", "PUT pools"}
	if did := changes(proxy); !slices.Equal(did, want) {
		t.Errorf("it was changed by %v, want %v", did, want)
	}
	*clock = clock.Add(sureAfter)
	proxy.Reset()
	for range 3 {
		readyBalancer(t, p, clock, plain)
	}
	if did := changes(proxy); len(did) != 0 {
		t.Errorf("nothing has changed, and there were %v", did)
	}
}

// The path of a monitor that is not said any more is Octavia's own.
func TestBalancerMonitorsPathGoesBack(t *testing.T) {
	p, proxy, clock := onOctavia(t, newOctaviaDouble(amphora))
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners[0].ForwardedFor = true
	spec.Listeners[0].Pool.Health = &sdn.HealthMonitor{Type: "HTTP", Path: "/healthz", Interval: 5 * time.Second, Timeout: 2 * time.Second}
	readyBalancer(t, p, clock, spec)
	proxy.Reset()
	spec.Listeners[0].Pool.Health.Path = ""
	if b, _ := readyBalancer(t, p, clock, spec); b.Listeners[0].Pool.Health.Path != "/" || fmt.Sprint(changes(proxy)) != "[PUT healthmonitors]" {
		t.Errorf("%v have made it %+v", changes(proxy), b.Listeners[0].Pool.Health)
	}
}

// The timeouts of listeners of which nothing is said are the operator's to choose, and are told by no request: they are what listeners show that were left to Octavia. Who has seen none
// yet asks for them once, and writes no listener that has them.
func TestBalancerTimeoutsOfTheOperator(t *testing.T) {
	o := newOctaviaDouble(amphora)
	o.timeouts["timeout_client_data"], o.timeouts["timeout_tcp_inspect"] = 30000, 100
	p, proxy, clock := onOctavia(t, o)
	spec, other := balancerSpec("web", "10.0.0.1:8080"), balancerSpec("other", "10.0.0.1:8080")
	readyBalancer(t, p, clock, spec)
	readyBalancer(t, p, clock, other)
	if did := fmt.Sprint(changes(proxy)); did != "[POST loadbalancers POST loadbalancers]" {
		t.Errorf("they were made by %s", did)
	}
	chosen := balancerSpec("web", "10.0.0.1:8080")
	chosen.Listeners[0].ClientTimeout = 50 * time.Second // which is Octavia's where the operator says nothing
	if b, _ := readyBalancer(t, p, clock, chosen); b.Listeners[0].ClientTimeout != 50*time.Second {
		t.Fatalf("it is %+v", b.Listeners[0])
	}
	proxy.Reset()
	if b, _ := readyBalancer(t, p, clock, spec); b.Listeners[0].ClientTimeout != 30*time.Second || b.Listeners[0].InspectTimeout != 100*time.Millisecond || fmt.Sprint(changes(proxy)) != "[PUT listeners]" {
		t.Errorf("%v have made it %+v", changes(proxy), b.Listeners[0])
	}
	next, proxy, clock := onOctavia(t, o) // another process
	for range 2 {
		readyBalancer(t, next, clock, spec)
		readyBalancer(t, next, clock, other)
	}
	if did := fmt.Sprint(changes(proxy)); did != "[PUT listeners]" {
		t.Errorf("who begins anew has done %s", did)
	}
}

// A listener that is added tells as well what Octavia's own timeouts are.
func TestBalancerTimeoutsOfAListener(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners[0].ClientTimeout = time.Minute
	readyBalancer(t, p, clock, spec)
	o.timeouts["timeout_client_data"] = 30000
	proxy.Reset()
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 81})
	if b, _ := readyBalancer(t, p, clock, spec); b.Listeners[1].ClientTimeout != 30*time.Second || fmt.Sprint(changes(proxy)) != "[POST listeners POST pools]" {
		t.Errorf("%v have made it %+v", changes(proxy), b.Listeners)
	}
}

// One that keeps what null does not take away is asked once, and the load balancer is ready.
func TestBalancerTimeoutsThatStay(t *testing.T) {
	o := newOctaviaDouble(amphora)
	o.keeps = true
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners[0].ClientTimeout = time.Minute
	readyBalancer(t, p, clock, spec)
	proxy.Reset()
	spec.Listeners[0].ClientTimeout = 0
	readyBalancer(t, p, clock, spec)
	if did := fmt.Sprint(changes(proxy)); did != "[PUT listeners]" {
		t.Errorf("it was asked by %s", did)
	}
}
