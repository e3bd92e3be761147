//go:build e2e

package openstack_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/apiversions"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/providers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/quotas"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// scriptLoadBalancers is everything of "openstack loadbalancer" that the embedded SDN
// has, and what it says of the rest.
func scriptLoadBalancers(s *session) {
	if strings.Contains(s.do("loadbalancer provider list"), "endpoint") {
		s.Skip("this cloud has no load balancers")
	}
	s.one("network create --external bout")
	s.one("subnet create --network bout --subnet-range 198.51.100.0/24 --no-dhcp bo1")
	s.one("network create bn1")
	subnet := s.one("subnet create --network bn1 --subnet-range 10.0.0.0/24 bs1")
	s.one("router create --external-gateway bout br1")
	s.quiet("router add subnet br1 bs1")

	made := s.one(
		"loadbalancer create --name lb1 --description words --vip-subnet-id bs1 --vip-address " +
			"10.0.0.50 --tag red --wait",
	)
	s.is(
		made, "name", "lb1", "description", "words", "vip_address", "10.0.0.50", "vip_subnet_id",
		subnet.id(), "provisioning_status", "ACTIVE", "operating_status", "ONLINE", "provider",
		"kuryr",
		"admin_state_up", true, "availability_zone", nil, "flavor_id", nil)
	s.is(s.one("loadbalancer show lb1"), "id", made.id())
	if all := s.list(
		"loadbalancer list --tags red --provisioning-status ACTIVE",
	); names(all, "name") != "lb1" || all[0].text("vip_address") != "10.0.0.50" {
		s.Errorf("load balancers %v", all)
	}
	if got := s.list("loadbalancer list --name lb9"); len(got) != 0 {
		s.Errorf("load balancers %v", got)
	}
	s.quiet("loadbalancer set --name lb2 --description other --tag blue lb1")
	s.is(s.one("loadbalancer show lb2"), "description", "other", "tags", "blue\nred")
	s.quiet("loadbalancer unset --description --tag red lb2")
	s.is(s.one("loadbalancer show lb2"), "description", "", "tags", "blue")

	listener := s.one(
		"loadbalancer listener create --name l1 --protocol TCP --protocol-port 80 --allowed-cidr " +
			"10.0.0.0/8 --wait lb2",
	)
	s.is(
		listener, "protocol", "TCP", "protocol_port", 80, "connection_limit", -1, "default_pool_id",
		nil, "timeout_client_data", 50000, "loadbalancers", made.id(), "allowed_cidrs",
		"10.0.0.0/8",
	)
	s.quiet("loadbalancer listener set --name l2 --description web l1")
	s.quiet("loadbalancer listener unset --allowed-cidrs l2")
	s.is(s.one("loadbalancer listener show l2"), "description", "web", "allowed_cidrs", "")
	s.one("loadbalancer listener create --name dns --protocol UDP --protocol-port 80 lb2")
	if got := names(s.list("loadbalancer listener list --loadbalancer lb2"), "name"); got != "l2 dns" && got != "dns l2" {
		s.Errorf("listeners %s", got)
	}
	pool := s.one(
		"loadbalancer pool create --name p1 --listener l2 --protocol TCP --lb-algorithm " +
			"ROUND_ROBIN --session-persistence type=SOURCE_IP",
	)
	s.is(
		pool, "lb_algorithm", "ROUND_ROBIN", "protocol", "TCP", "listeners", listener.id(),
		"session_persistence",
		"type=SOURCE_IP\ncookie_name=None\npersistence_timeout=None\npersistence_granularity=None",
	)
	s.quiet("loadbalancer pool set --name p2 --lb-algorithm SOURCE_IP p1")
	s.quiet("loadbalancer pool unset --session-persistence p2")
	s.is(s.one("loadbalancer pool show p2"), "lb_algorithm", "SOURCE_IP", "session_persistence", nil)
	member := s.one(
		"loadbalancer member create --name m1 --address 10.0.0.5 --protocol-port 8080 " +
			"--subnet-id bs1 --wait p2",
	)
	s.is(
		member, "address", "10.0.0.5", "protocol_port", 8080, "weight", 1, "subnet_id", subnet.id(),
		"operating_status", "NO_MONITOR",
	)
	s.quiet("loadbalancer member set --weight 0 --name m2 p2 m1")
	s.is(s.one("loadbalancer member show p2 m2"), "weight", 0, "name", "m2")
	s.quiet("loadbalancer member unset --weight p2 m2")
	s.is(s.one("loadbalancer member show p2 %s", member.id()), "weight", 1)
	s.one("loadbalancer member create --address 10.0.0.6 --protocol-port 8080 p2")
	if got := names(s.list("loadbalancer member list p2 --sort-column address"), "address"); got != "10.0.0.5 10.0.0.6" {
		s.Errorf("members %s", got)
	}
	s.refused("already using ip 10.0.0.6", "loadbalancer member create --address 10.0.0.6 --protocol-port 8080 p2")
	s.refused("already using protocol TCP", "loadbalancer listener create --protocol TCP --protocol-port 80 lb2")
	s.refused("is not balanced here", "loadbalancer listener create --protocol HTTP --protocol-port 81 lb2")
	s.refused("healthmonitor", "loadbalancer healthmonitor create --delay 5 --timeout 3 --max-retries 2 --type TCP p2")
	s.refused("not inside", "loadbalancer create --vip-subnet-id bs1 --vip-address 10.9.0.1")
	s.refused("already allocated", "loadbalancer create --vip-subnet-id bs1 --vip-address 10.0.0.50")
	s.refused("has children", "loadbalancer delete lb2")
	s.refused("not counted", "loadbalancer stats show lb2")
	if said := s.do("loadbalancer status show lb2"); !strings.Contains(said, member.id()) ||
		!strings.Contains(said, `"provisioning_status": "ACTIVE"`) {
		s.Errorf("status show: %s", said)
	}
	if got := s.list("loadbalancer provider list"); names(got, "name") != "kuryr" {
		s.Errorf("providers %v", got)
	}
	for _, none := range []string{
		"flavor", "flavorprofile", "availabilityzone", "l7policy", "healthmonitor", "amphora",
		"provider capability",
	} {
		command := "loadbalancer " + none + " list"
		if none == "provider capability" {
			command += " kuryr"
		}
		if got := s.list("%s", command); len(got) != 0 {
			s.Errorf("%s: %v", command, got)
		}
	}

	fip := s.one("floating ip create bout")
	s.quiet("floating ip set --port %s %s", made.text("vip_port_id"), fip.id())
	s.is(s.one("floating ip show %s", fip.id()), "port_id", made.text("vip_port_id"), "fixed_ip_address", "10.0.0.50")

	s.is(s.one("loadbalancer quota show demo"), "load_balancer", 100, "member", 5000)
	s.is(s.one("loadbalancer quota defaults show"), "load_balancer", 100)
	s.is(s.one("loadbalancer quota set --loadbalancer 1 --member 2 demo"), "load_balancer", 1, "member", 2)
	s.refused("Quota has been met", "loadbalancer create --vip-subnet-id bs1")
	s.refused("Quota has been met", "loadbalancer member create --address 10.0.0.7 --protocol-port 8080 p2")
	s.quiet("loadbalancer quota reset demo")

	s.quiet("loadbalancer member delete p2 m2")
	s.quiet("loadbalancer listener delete --wait l2")
	s.is(s.one("loadbalancer pool show p2"), "listeners", "")
	s.quiet("loadbalancer delete --cascade --wait lb2")
	s.refused("Unable to locate lb2", "loadbalancer show lb2")
	s.is(s.one("floating ip show %s", fip.id()), "port_id", nil)
	s.quiet("floating ip delete %s", fip.id())
	s.quiet("router remove subnet br1 bs1")
	s.quiet("router delete br1")
	s.quiet("network delete bn1 bout")
}

// Gophercloud makes a whole tree by one call, changes it by parts and all members at
// once, waits for nothing and takes all away.
func TestGophercloudLoadBalancers(t *testing.T) {
	s := start(t)
	if s.free {
		t.Skip("this API wants no credentials")
	}
	balancers := func(user, project string) *gophercloud.ServiceClient {
		provider := made(s.provider(t, byPassword(user, project)))(t)
		return made(openstack.NewLoadBalancerV2(provider, gophercloud.EndpointOpts{Region: "RegionOne"}))(t)
	}
	ctx := t.Context()
	n := made(s.client(t, byPassword(bob, "demo")))(t)
	network := made(networks.Create(ctx, n, networks.CreateOpts{Name: "blue"}).Extract())(t)
	subnet := made(
		subnets.Create(
			ctx, n, subnets.CreateOpts{NetworkID: network.ID, IPVersion: 4, CIDR: "10.0.0.0/24"},
		).Extract(),
	)(t)
	c := balancers(bob, "demo")

	versions := made(apiversions.ExtractAPIVersions(made(apiversions.List(c).AllPages(ctx))(t)))(t)
	if last := versions[len(versions)-1]; last.Status != "CURRENT" {
		t.Errorf("versions %v", versions)
	}
	weight, name := 3, "m"
	lb := made(loadbalancers.Create(ctx, c, loadbalancers.CreateOpts{
		Name: "lb", VipSubnetID: subnet.ID, Tags: []string{"a"}, Listeners: []listeners.CreateOpts{{
			Name: "web", Protocol: listeners.ProtocolTCP, ProtocolPort: 80, AllowedCIDRs: []string{"10.0.0.0/8"},
			DefaultPool: &pools.CreateOpts{
				Name: "webs", Protocol: pools.ProtocolTCP, LBMethod: pools.LBMethodRoundRobin,
				Members: []pools.CreateMemberOpts{
					{Address: "10.0.0.5", ProtocolPort: 80, Weight: &weight},
				},
			},
		}}}).Extract())(t)
	if lb.ProvisioningStatus != "ACTIVE" || lb.VipPortID == "" || lb.VipNetworkID != network.ID ||
		len(lb.Listeners) != 1 || len(lb.Pools) != 1 || lb.CreatedAt.IsZero() {
		t.Errorf("the load balancer is %+v", lb)
	}
	pool := made(pools.Get(ctx, c, lb.Pools[0].ID).Extract())(t)
	must(
		t,
		pools.BatchUpdateMembers(ctx, c, pool.ID, []pools.BatchUpdateMemberOpts{
			{Address: "10.0.0.5", ProtocolPort: 80, Name: &name},
			{Address: "10.0.0.6", ProtocolPort: 80},
		}).ExtractErr(),
	)
	members := made(pools.ExtractMembers(made(pools.ListMembers(c, pool.ID, nil).AllPages(ctx))(t)))(t)
	slices.SortFunc(members, func(a, b pools.Member) int { return strings.Compare(a.Address, b.Address) })
	if len(members) != 2 || members[0].Weight != 3 || members[0].Name != "m" || members[0].ID != pool.Members[0].ID {
		t.Errorf("the members are %+v", members)
	}
	udp := made(
		listeners.Create(ctx, c, listeners.CreateOpts{
			LoadbalancerID: lb.ID, Protocol: listeners.ProtocolUDP, ProtocolPort: 80,
		}).Extract(),
	)(t)
	made(
		pools.Create(ctx, c, pools.CreateOpts{
			ListenerID: udp.ID, Protocol: pools.ProtocolUDP, LBMethod: pools.LBMethodRoundRobin,
			Persistence: &pools.SessionPersistence{Type: "SOURCE_IP"},
		}).Extract(),
	)(t)
	cidrs := []string{"192.0.2.0/24"}
	if udp = made(
		listeners.Update(ctx, c, udp.ID, listeners.UpdateOpts{AllowedCIDRs: &cidrs}).Extract(),
	)(t); len(udp.AllowedCIDRs) != 1 || udp.DefaultPoolID == "" {
		t.Errorf("the listener is %+v", udp)
	}
	tags := []string{"b"}
	if lb = made(
		loadbalancers.Update(
			ctx, c, lb.ID, loadbalancers.UpdateOpts{Name: &name, Tags: &tags},
		).Extract(),
	)(t); lb.Name != "m" || lb.Tags[0] != "b" {
		t.Errorf("the load balancer is %+v", lb)
	}
	if found := made(loadbalancers.ExtractLoadBalancers(
		made(
			loadbalancers.List(
				c, loadbalancers.ListOpts{VipAddress: lb.VipAddress, Tags: tags},
			).AllPages(ctx),
		)(t),
	))(t); len(found) != 1 {
		t.Errorf("%d are found", len(found))
	}
	tree := made(loadbalancers.GetStatuses(ctx, c, lb.ID).Extract())(t)
	if len(tree.Loadbalancer.Listeners) != 2 || len(tree.Loadbalancer.Listeners[0].Pools[0].Members) == 0 {
		t.Errorf("the statuses are %+v", tree.Loadbalancer)
	}
	if got := made(
		providers.ExtractProviders(made(providers.List(c, nil).AllPages(ctx))(t)),
	)(t); len(got) != 1 || got[0].Name != "kuryr" {
		t.Errorf("the providers are %v", got)
	}
	if got := made(flavors.ExtractFlavors(made(flavors.List(c, nil).AllPages(ctx))(t)))(t); len(got) != 0 {
		t.Errorf("the flavors are %v", got)
	}
	one := 1
	operator := balancers(alice, "demo")
	if q := made(
		quotas.Update(ctx, operator, "demo", quotas.UpdateOpts{Loadbalancer: &one}).Extract(),
	)(t); q.Loadbalancer != 1 {
		t.Errorf("the quota is %+v", q)
	}
	if _, err := loadbalancers.Create(
		ctx, c, loadbalancers.CreateOpts{VipSubnetID: subnet.ID},
	).Extract(); !gophercloud.ResponseCodeIs(err, http.StatusForbidden) {
		t.Errorf("over quota: %v", err)
	}
	if _, err := loadbalancers.Get(
		ctx, balancers(carol, "other"), lb.ID,
	).Extract(); !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		t.Errorf("another project's load balancer: %v", err)
	}
	if err := loadbalancers.Delete(
		ctx, balancers(ruth, "demo"), lb.ID, loadbalancers.DeleteOpts{Cascade: true},
	).ExtractErr(); !gophercloud.ResponseCodeIs(err, http.StatusForbidden) {
		t.Errorf("a reader's change: %v", err)
	}
	if err := loadbalancers.Delete(ctx, c, lb.ID, nil).ExtractErr(); !gophercloud.ResponseCodeIs(
		err, http.StatusBadRequest,
	) {
		t.Errorf("one with children: %v", err)
	}
	must(t, loadbalancers.Delete(ctx, c, lb.ID, loadbalancers.DeleteOpts{Cascade: true}).ExtractErr())
}
