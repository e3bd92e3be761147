//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// amphorae is a lab whose Octavia has its provider amphora make load balancers. There are
// no machines, so that they carry nothing; all else is Octavia's own: its worker, their
// states, the VIPs' ports and security groups.
type amphorae struct{ *balancing }

func (a amphorae) in(t *testing.T) amphorae { return amphorae{a.balancing.in(t)} }

// rich is a load balancer with all that amphora has and OVN's provider has not.
func (a amphorae) rich(name string) sdn.LoadBalancerSpec {
	spec := a.spec(name, a.members[:2]...)
	tcp := &spec.Listeners[0]
	tcp.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.80.0.0/24")}
	tcp.ConnectionLimit, tcp.ClientTimeout, tcp.MemberTimeout = 500, time.Minute, 2*time.Minute
	tcp.ConnectTimeout, tcp.InspectTimeout = 7*time.Second, time.Second
	tcp.Pool.Algorithm, tcp.Pool.Affinity.ClientIP = sdn.LeastConns, true
	tcp.Pool.Health = &sdn.HealthMonitor{
		Type: "TCP", Interval: 5 * time.Second, Timeout: 3 * time.Second, Rise: 2, Fall: 3,
	}
	tcp.Pool.Members[0].Weight, tcp.Pool.Members[1].Drain = 5, true
	udp := sdn.Listener{Protocol: sdn.UDP, Port: 80, Pool: a.spec("", a.members[2]).Listeners[0].Pool}
	udp.Pool.Affinity = sdn.Affinity{ClientIP: true, Timeout: 90 * time.Second}
	proxied := sdn.Listener{
		Protocol: sdn.TCP, Port: 81, ProxyProtocol: true, ProxyVersion: 2,
		Pool: a.spec("", a.members[0]).Listeners[0].Pool,
	}
	web := sdn.Listener{Protocol: sdn.TCP, Port: 82, ForwardedFor: true, Pool: a.spec("", a.members[0]).Listeners[0].Pool}
	web.Pool.Health = &sdn.HealthMonitor{
		Type: "HTTP", Path: "/healthz", Interval: 5 * time.Second, Timeout: 3 * time.Second,
	}
	spec.Listeners = append(spec.Listeners, udp, proxied, web)
	return spec
}

// changing are the requests of a call that is no reading.
func (a amphorae) changing(call func()) []string {
	a.Helper()
	return slices.DeleteFunc(a.counted(call), func(c string) bool { return strings.HasPrefix(c, "GET") })
}

// listener is what Octavia itself says of the listener of TCP's port of a load balancer.
func (a amphorae) listener(b sdn.LoadBalancer, port uint16) object {
	a.Helper()
	at := slices.IndexFunc(b.Listeners, func(l sdn.Listener) bool { return l.Protocol == sdn.TCP && l.Port == port })
	var answer struct{ Listener object }
	if err := a.lab.Octavia(a.ctx, http.MethodGet, "listeners/"+string(b.Listeners[at].ID), nil, &answer); err != nil {
		a.Fatal(err)
	}
	return answer.Listener
}

// life makes a load balancer with all there is, changes each part of it by one request, and deletes it.
func (a amphorae) life() {
	spec := a.rich("amphorae")
	var made sdn.LoadBalancer
	// One request makes it. This Octavia then leaves its parts in PENDING_CREATE, so that each is written once more.
	calls := a.changing(func() { made = a.ready(spec) })
	a.Logf("it was made by %v", calls)
	if slices.ContainsFunc(calls[1:], func(c string) bool { return !strings.HasPrefix(c, "PUT ") }) {
		a.Errorf("it was made by %v", calls)
	}
	for _, parts := range []string{"listeners", "pools", "healthmonitors"} {
		answer := map[string]any{}
		if err := a.lab.Octavia(
			a.ctx, http.MethodGet, parts+"?provisioning_status=PENDING_CREATE", nil, &answer,
		); err != nil {
			a.Fatal(err)
		}
		if left, _ := answer[parts].([]any); len(left) > 0 {
			a.Errorf("it is ready, and these are not: %v", left)
		}
	}
	if made.Backend != "amphora" || len(made.Listeners) != 4 {
		a.Errorf("it is %+v", made)
	}
	tcp := a.listener(made, 80)
	for field, want := range map[string]string{
		"allowed_cidrs": "[10.80.0.0/24 192.0.2.0/24]", "connection_limit": "500",
		"timeout_client_data": "60000", "timeout_member_data": "120000",
		"timeout_member_connect": "7000", "timeout_tcp_inspect": "1000", "protocol": "TCP",
	} {
		if got := fmt.Sprint(tcp[field]); got != want {
			a.Errorf("%s of the listener is %s, want %s", field, got, want)
		}
	}
	if got := fmt.Sprint(a.listener(made, 82)["insert_headers"]); got != "map[X-Forwarded-For:true]" {
		a.Errorf("the headers of the HTTP listener are %s", got)
	}
	// Who may connect is in the rules of the VIP's port.
	if from := a.sources(made, 80); !slices.Equal(from, []string{"10.80.0.0/24", "192.0.2.0/24"}) {
		a.Errorf("the VIP's security group lets %v in", from)
	}

	a.pause(3 * time.Second) // times of change are in seconds
	a.ready(spec)
	if calls := a.counted(func() { a.ready(spec) }); len(calls) != 1 {
		a.Errorf("nothing has changed, and Octavia was asked %v", calls)
	}
	for what, change := range map[string]func(*sdn.LoadBalancerSpec){
		"members": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Members = a.rich("").Listeners[0].Pool.Members[1:]
		},
		"a member's weight": func(s *sdn.LoadBalancerSpec) { s.Listeners[2].Pool.Members[0].Weight = 7 },
		"sources":           func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Sources = s.Listeners[0].Sources[:1] },
		"timeouts and limit": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].ClientTimeout, s.Listeners[0].ConnectionLimit = time.Hour, 0
		},
		"timeouts that are not asked for any more": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].MemberTimeout, s.Listeners[0].ConnectTimeout, s.Listeners[0].InspectTimeout = 0, 0, 0
		},
		"algorithm and affinity": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Algorithm, s.Listeners[0].Pool.Affinity = sdn.RoundRobin, sdn.Affinity{}
		},
		"health monitor":           func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Health.Fall = 5 },
		"no health monitor":        func(s *sdn.LoadBalancerSpec) { s.Listeners[3].Pool.Health = nil },
		"timeout of affinity":      func(s *sdn.LoadBalancerSpec) { s.Listeners[1].Pool.Affinity.Timeout = time.Minute },
		"the load balancer's name": func(s *sdn.LoadBalancerSpec) { s.Name = "renamed" },
	} {
		change(&spec)
		if calls := a.changing(func() { made = a.ready(spec) }); len(calls) != 1 {
			a.Errorf("%s changed, and there were %d changing requests: %v", what, len(calls), calls)
		}
	}
	tcp = a.listener(made, 80)
	for field, want := range map[string]string{
		"timeout_member_data": "50000", "timeout_member_connect": "5000",
		"timeout_tcp_inspect": "0",
	} {
		if got := fmt.Sprint(tcp[field]); got != want {
			a.Errorf("%s of the listener is %s, want %s", field, got, want)
		}
	}
	if from := a.sources(made, 80); !slices.Equal(from, []string{"192.0.2.0/24"}) {
		a.Errorf("the VIP's security group lets %v in", from)
	}
	a.gone(made.ID)
	if left := a.find("ports", "device_id=lb-"+string(made.ID)); len(left) > 0 {
		a.Errorf("the load balancer is gone, and its VIP's port is not: %v", left)
	}
}

// sources are the prefixes that the VIP's port takes a TCP port's packets from, sorted.
func (a amphorae) sources(b sdn.LoadBalancer, port int) (from []string) {
	a.Helper()
	for _, group := range a.find("security-groups", "name=lb-"+string(b.ID)) {
		for _, rule := range a.find("security-group-rules", "security_group_id="+group.ID()) {
			if rule.Text("protocol") == "tcp" && fmt.Sprint(rule["port_range_max"]) == fmt.Sprint(port) {
				from = append(from, rule.Text("remote_ip_prefix"))
			}
		}
	}
	slices.Sort(from)
	return from
}

// partInError has Octavia's worker fail at a listener, by a quota of Neutron's: that
// listener is made anew when the quota lets it, and holds nothing else up.
func (a amphorae) partInError() {
	spec := a.spec("failing", a.members[0])
	made := a.ready(spec)
	group := a.find("security-groups", "name=lb-"+string(made.ID))[0]
	quota := func(n int) {
		a.Helper()
		if _, err := a.api.Update(a.ctx, "quotas", group.Text("project_id"), object{"security_group_rule": n}); err != nil {
			a.Fatal(err)
		}
	}
	quota(0)
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 90, Pool: spec.Listeners[0].Pool})
	a.until("the listener is not in ERROR", func(ctx context.Context) error {
		if _, err := a.p.ApplyLoadBalancer(ctx, spec); err != nil {
			return err
		}
		var answer struct{ Listeners []object }
		if err := a.lab.Octavia(
			ctx, http.MethodGet,
			"listeners?provisioning_status=ERROR&loadbalancer_id="+string(made.ID), nil, &answer,
		); err != nil {
			return err
		}
		if len(answer.Listeners) == 0 {
			return errors.New("no listener is in ERROR")
		}
		return nil
	})
	spec.Listeners[0].Pool.Members = a.spec("", a.members[1]).Listeners[0].Pool.Members
	a.until("the other listener's members wait for it", func(ctx context.Context) error {
		now, err := a.p.ApplyLoadBalancer(ctx, spec)
		if err == nil && (len(now.Listeners) == 0 || len(now.Listeners[0].Pool.Members) != 1 ||
			now.Listeners[0].Pool.Members[0].Name != "m2") {
			err = fmt.Errorf("it is %+v", now)
		}
		return err
	})
	quota(-1)
	now := a.ready(spec)
	if now.ID != made.ID || now.Listeners[0].ID != made.Listeners[0].ID || len(now.Listeners) != 2 {
		a.Errorf("it is %+v", now)
	}
	a.gone(made.ID)
}

// flavorAndZone makes a load balancer of a flavor in an availability zone, which cannot be changed.
func (a amphorae) flavorAndZone() {
	operator := func(path, item string, body object) object {
		answer := map[string]object{}
		if err := a.lab.Octavia(a.ctx, http.MethodPost, path, object{item: body}, &answer); err != nil {
			a.Fatal(err)
		}
		return answer[item]
	}
	profile := operator("flavorprofiles", "flavorprofile", object{
		"name": "pair", "provider_name": "amphora",
		"flavor_data": `{"loadbalancer_topology": "ACTIVE_STANDBY"}`,
	})
	flavor := operator("flavors", "flavor", object{"name": "pair", "flavor_profile_id": profile.ID()})
	zones := operator("availabilityzoneprofiles", "availability_zone_profile", object{
		"name": "z", "provider_name": "amphora", "availability_zone_data": `{"compute_zone": "z"}`,
	})
	operator("availabilityzones", "availability_zone", object{"name": "z", "availability_zone_profile_id": zones.ID()})
	spec := a.spec("pair", a.members[0])
	spec.Flavor, spec.Zone = flavor.ID(), "z"
	made := a.ready(spec)
	if made.Flavor != flavor.ID() || made.Zone != "z" {
		a.Errorf("it is %+v", made)
	}
	spec.Zone = "other"
	if _, err := a.p.ApplyLoadBalancer(a.ctx, spec); sdn.ReasonOf(err) != sdn.Immutable || sdn.FieldOf(err) != "zone" {
		a.Errorf("another zone: %v", err)
	}
	a.gone(made.ID)
	for field, change := range map[string]func(*sdn.LoadBalancerSpec){
		"flavor": func(s *sdn.LoadBalancerSpec) { s.Flavor = "00000000-0000-4000-8000-000000000000" },
		"zone":   func(s *sdn.LoadBalancerSpec) { s.Zone = "nowhere" },
	} {
		spec := a.spec("unknown", a.members[0])
		change(&spec)
		if _, err := a.p.ApplyLoadBalancer(a.ctx, spec); !sdn.IsInvalid(err) || sdn.FieldOf(err) != field {
			a.Errorf("a %s that there is none of: %v (%s)", field, err, sdn.FieldOf(err))
		}
	}
}

// refusals are what amphora cannot, by the fields' names.
func (a amphorae) refusals() {
	for field, change := range map[string]func(*sdn.LoadBalancerSpec){
		"listeners[0].pool.algorithm": func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Algorithm = sdn.SourceIPPort },
		"listeners[0].pool.affinity.timeout": func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Affinity = sdn.Affinity{ClientIP: true, Timeout: time.Minute}
		},
		"groups": func(s *sdn.LoadBalancerSpec) { s.Groups = []sdn.ID{"00000000-0000-4000-8000-000000000000"} },
	} {
		spec := a.spec("lacking", a.members[0])
		change(&spec)
		if _, err := a.p.ApplyLoadBalancer(a.ctx, spec); !sdn.IsUnsupported(err) || sdn.FieldOf(err) != field {
			a.Errorf("%s: %v (%s)", field, err, sdn.FieldOf(err))
		}
	}
}
