package neutronapi

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// held has one load balancer, which no change changes: only what is read and judged counts.
type held struct {
	sdn.Provider
	balancer sdn.LoadBalancer
}

func (held) Capabilities() sdn.Capabilities {
	return sdn.Capabilities{MaxTagLen: 255, LoadBalancer: sdn.LoadBalancerCapabilities{Protocols: []sdn.Protocol{sdn.TCP}, FreePools: true}}
}

func (h held) LoadBalancer(_ context.Context, id sdn.ID) (sdn.LoadBalancer, error) {
	if id != h.balancer.ID {
		return sdn.LoadBalancer{}, sdn.NotFound("load balancer", id)
	}
	return h.balancer, nil
}

func (h held) FindLoadBalancers(_ context.Context, q sdn.LoadBalancerQuery) iter.Seq2[sdn.LoadBalancer, error] {
	return func(yield func(sdn.LoadBalancer, error) bool) {
		if q.Matches(h.balancer) {
			yield(h.balancer, nil)
		}
	}
}

func (h held) ApplyLoadBalancer(context.Context, sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	return h.balancer, nil
}
func (held) DeleteLoadBalancer(context.Context, sdn.ID) error { return nil }

// listening remembers what it was to apply.
type listening struct {
	held
	heard *sdn.LoadBalancerSpec
}

func (l listening) ApplyLoadBalancer(_ context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	*l.heard = spec
	out := sdn.LoadBalancer{Meta: sdn.Meta{ID: "new", Base: spec.Base}, VIPs: spec.VIPs, Listeners: spec.Listeners, Pools: spec.Pools, Groups: spec.Groups, Flavor: spec.Flavor, Zone: spec.Zone}
	out.Status.RetryAfter = time.Second
	return out, nil
}

// A whole tree is one value, and one call: also of what the embedded SDN has not.
func TestTreeIsOneValue(t *testing.T) {
	t.Parallel()
	p, err := local.Open(t.Context(), local.Options{Path: filepath.Join(t.TempDir(), "k.db"), Host: "h"})
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	network, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.1.0.0/24")}, {CIDR: netip.MustParsePrefix("fd00::/64")}}})
	must(t, err)
	group, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{Base: sdn.Base{Name: "g"}})
	must(t, err)
	var heard sdn.LoadBalancerSpec
	w := &world{handler: NewHandler(listening{held{p, sdn.LoadBalancer{}}, &heard}, Options{})}
	first, second := network.Subnets[0], network.Subnets[1]
	status, out := w.ask(t, Caller{Role: Admin, Project: "ops"}, "POST", "/v2.0/lbaas/loadbalancers", `{"loadbalancer": {"name": "n", "description": "kuryr/a/b/c", "tags": ["t"], "vip_network_id": "`+string(network.ID)+`",
		"additional_vips": [{"subnet_id": "`+string(second)+`", "ip_address": "fd00::9"}], "vip_sg_ids": ["`+string(group.ID)+`"], "provider": "other", "flavor_id": "f", "availability_zone": "z", "listeners": [
		{"protocol": "TCP", "protocol_port": 80, "name": "l", "description": "d", "connection_limit": 5, "allowed_cidrs": ["10.0.0.1/8"], "timeout_client_data": 1000, "timeout_member_data": 2000, "timeout_member_connect": 3000,
			"timeout_tcp_inspect": 4000, "default_pool": {"protocol": "PROXYV2", "lb_algorithm": "LEAST_CONNECTIONS", "session_persistence": {"type": "SOURCE_IP", "persistence_timeout": 60},
			"members": [{"address": "10.1.0.5", "protocol_port": 8080, "weight": 0, "name": "m", "subnet_id": "`+string(first)+`"}],
			"healthmonitor": {"type": "HTTP", "delay": 5, "timeout": 4, "max_retries": 3, "url_path": "/x", "name": "h"}}},
		{"protocol": "SCTP", "protocol_port": 81}]}}`)
	want := sdn.LoadBalancerSpec{
		Base: sdn.Base{Key: sdn.Key{Owner: "a", Kind: "b", Name: "c"}, Name: "n", Project: "ops", Tags: []string{"t"}}, VIPs: []sdn.VIP{{Subnet: first}, {Subnet: second, Addr: netip.MustParseAddr("fd00::9")}},
		Groups: []sdn.ID{group.ID}, Backend: "other", Flavor: "f", Zone: "z", Listeners: []sdn.Listener{
			{Name: "l", Description: "d", Protocol: sdn.TCP, Port: 80, Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, ConnectionLimit: 5, ClientTimeout: time.Second, MemberTimeout: 2 * time.Second,
				ConnectTimeout: 3 * time.Second, InspectTimeout: 4 * time.Second, ProxyProtocol: true, ProxyVersion: 2, Pool: sdn.Pool{Algorithm: sdn.LeastConns, Affinity: sdn.Affinity{ClientIP: true, Timeout: time.Minute},
					Members: []sdn.Member{{Name: "m", Addr: netip.MustParseAddrPort("10.1.0.5:8080"), Subnet: first, Drain: true}},
					Health:  &sdn.HealthMonitor{Name: "h", Type: "HTTP", Path: "/x", Interval: 5 * time.Second, Timeout: 4 * time.Second, Rise: 3, Fall: 3}}},
			{Protocol: sdn.SCTP, Port: 81, WithoutPool: true},
		},
	}
	if !reflect.DeepEqual(heard, want) {
		t.Errorf("%d %v\n got %+v\nwant %+v", status, out, heard, want)
	}
	if got := at(out, "loadbalancer.provisioning_status"); got != "PENDING_UPDATE" {
		t.Errorf("the status of what is not ready is %s", got)
	}
}

// FuzzBalancing: whatever is sent to a path of the API of load balancers, the answer is a success that can be read, or a refusal in Octavia's form that says why and is no
// failure of the server's.
func FuzzBalancing(f *testing.F) {
	p, err := local.Open(context.Background(), local.Options{Path: filepath.Join(f.TempDir(), "k.db"), Host: "h"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = p.Close() })
	network, err := p.EnsureNetwork(context.Background(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.1.0.0/24")}}})
	if err != nil {
		f.Fatal(err)
	}
	health := &sdn.HealthMonitor{ID: "h", Type: "HTTP", Path: "/"}
	member := sdn.Member{ID: "m", Addr: netip.MustParseAddrPort("10.1.0.5:80")}
	h := As(Caller{Role: Admin}, NewHandler(held{p, sdn.LoadBalancer{Meta: sdn.Meta{ID: "b"}, VIPs: []sdn.VIP{{Subnet: network.Subnets[0]}}, Listeners: []sdn.Listener{
		{ID: "l", Protocol: sdn.TCP, Port: 80, Pool: sdn.Pool{ID: "p", Members: []sdn.Member{member}, Health: health}}, {ID: "w", Protocol: sdn.UDP, Port: 80, WithoutPool: true},
	}, Pools: []sdn.Pool{{ID: "f", Protocol: sdn.UDP}}}}, Options{}))
	for _, seed := range [][3]string{
		{"POST", "loadbalancers", `{"loadbalancer":{"vip_subnet_id":"SUBNET","vip_address":"10.1.0.9","tags":["a"],"additional_vips":[{"subnet_id":"SUBNET"}],"listeners":[{"protocol":"TCP","protocol_port":"80","default_pool":{"protocol":"PROXY","lb_algorithm":"ROUND_ROBIN","members":[{"address":"10.1.0.5","protocol_port":80}],"healthmonitor":{"type":"TCP","delay":1,"timeout":1,"max_retries":1}}}],"pools":[{"name":"a","protocol":"UDP","lb_algorithm":"SOURCE_IP"}]}}`},
		{"POST", "loadbalancers", `{"loadbalancer":{"vip_network_id":"NETWORK","vip_sg_ids":null,"description":"kuryr/a/b/c"}}`},
		{"PUT", "loadbalancers/b", `{"loadbalancer":{"name":null,"tags":["a"],"vip_sg_ids":[]}}`},
		{"POST", "listeners", `{"listener":{"loadbalancer_id":"b","protocol":"SCTP","protocol_port":1,"default_pool_id":"f","timeout_client_data":50000,"allowed_cidrs":["10.0.0.0/8","::/0"]}}`},
		{"PUT", "listeners/l", `{"listener":{"default_pool_id":null,"connection_limit":"-1","insert_headers":{}}}`},
		{"PUT", "listeners/w", `{"listener":{"default_pool_id":"f"}}`},
		{"POST", "pools", `{"pool":{"listener_id":"w","protocol":"UDP","lb_algorithm":"SOURCE_IP_PORT","session_persistence":{"type":"SOURCE_IP","persistence_timeout":5}}}`},
		{"POST", "pools", `{"pool":{"loadbalancer_id":"b","protocol":"TCP","lb_algorithm":"SOURCE_IP","tls_enabled":false}}`},
		{"PUT", "pools/p", `{"pool":{"session_persistence":{},"lb_algorithm":"LEAST_CONNECTIONS"}}`},
		{"POST", "pools/p/members", `{"member":{"address":"fd00::1","protocol_port":80,"weight":0,"subnet_id":"SUBNET","backup":false}}`},
		{"PUT", "pools/p/members", `{"members":[{"address":"10.1.0.5","protocol_port":80,"weight":null},{"address":"10.1.0.6","protocol_port":80}]}`},
		{"PUT", "pools/p/members/m", `{"member":{"weight":256,"name":"x"}}`},
		{"POST", "healthmonitors", `{"healthmonitor":{"pool_id":"f","type":"HTTP","delay":5,"timeout":3,"max_retries":2,"url_path":"/x","http_method":"GET","expected_codes":"200"}}`},
		{"PUT", "healthmonitors/h", `{"healthmonitor":{"url_path":null,"max_retries_down":null}}`},
		{"PUT", "quotas/p", `{"quota":{"loadbalancer":null,"health_monitor":"5"}}`},
		{"DELETE", "loadbalancers/b?cascade=true", ``}, {"GET", "listeners?sort=name:desc,id&limit=1&marker=l", ``}, {"GET", "pools/p/members?weight=1&fields=id", ``},
	} {
		f.Add(seed[0], seed[1], strings.NewReplacer("SUBNET", string(network.Subnets[0]), "NETWORK", string(network.ID)).Replace(seed[2]))
	}
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if !slices.Contains([]string{"GET", "POST", "PUT", "DELETE"}, method) {
			return
		}
		if _, err := url.ParseRequestURI("http://x/v2.0/lbaas/" + path); err != nil {
			return
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "http://x/v2.0/lbaas/"+path, strings.NewReader(body))
		if err != nil {
			return
		}
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		said := fmt.Sprintf("%s %s %q: %d %s", method, path, body, answer.Code, answer.Body)
		if answer.Code/100 == 3 || answer.Body.Len() == 0 && (answer.Code == http.StatusNoContent || answer.Code == http.StatusAccepted) {
			return
		}
		var refused fault
		switch err := json.Unmarshal(answer.Body.Bytes(), &refused); {
		case err != nil:
			t.Error("cannot be read: " + said)
		case answer.Code >= 400 && !strings.HasPrefix(r.URL.Path, "/v2.0/lbaas/"): // a path that leads elsewhere
		case answer.Code >= 400 && (refused.String == "" || refused.Code == ""):
			t.Error("without a reason: " + said)
		case answer.Code >= 500 && answer.Code != http.StatusNotImplemented:
			t.Error(said)
		}
	})
}
