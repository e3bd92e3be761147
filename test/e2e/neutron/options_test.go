//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// peersFile is a kuryr.conf of the Python kuryr-libnetwork. Its last option is not served here.
var peersFile = `[DEFAULT]
capability_scope = local
debug = True
[neutron]
auth_type = none
endpoint_override = ` + neutronlab.Endpoint + `
project_id = %s
vif_plugging_is_fatal = True
vif_plugging_timeout = 30
default_subnetpool_v4 = kuryr
`

// Kuryr with nothing but the peer's kuryr.conf, which says by which options it is told of
// Neutron and that a start waits for the port to be ACTIVE; and the options of networks
// and containers that no other test uses.
func TestOptions(t *testing.T) {
	o := optional{rig: shared(t)}
	network, subnets := o.ownNetwork("far", "10.121.0.0/24", "fd79::/64")
	o.group = []string{"--driver-opt", "kuryr.security_groups=" + o.rig.group("options", everything...).ID()}
	o.router = o.create("routers", object{"name": "options"})
	for _, s := range subnets {
		o.attach(s)
	}
	o.h2.use("far", network, subnets)
	o.far = o.h2.run("far-c", "far", o.group...)
	_, since := o.h1.logged(0)
	o.asThePeer()
	o.never()
	o.asThePeer()
	if text, _ := o.h1.logged(since); !strings.Contains(
		text, "[neutron] default_subnetpool_v4 is not served",
	) || strings.Contains(text, "capability_scope is") {
		t.Errorf("the log does not tell which option of the peer's is passed over, or tells another:\n%s", text)
	}
	o.everyOption()
	o.byName(subnets)
}

// optional is a lab with a network of the operator's, on a router of his.
type optional struct {
	*rig
	group  []string // arguments of a container that all may reach
	router object
	far    box // on the operator's network
}

// attach puts a subnet on the router, until the end of the test.
func (o optional) attach(subnet object) {
	o.Helper()
	body := object{"subnet_id": subnet.ID()}
	if err := o.api.Act(o.ctx, "routers/"+o.router.ID()+"/add_router_interface", body); err != nil {
		o.Fatal(err)
	}
	o.fresh(func(ctx context.Context) error {
		return o.api.Act(ctx, "routers/"+o.router.ID()+"/remove_router_interface", body)
	})
}

// asThePeer starts the first host's Kuryr anew with the peer's file and what env has
// besides, until the end of the test.
func (o optional) asThePeer(env ...string) {
	o.Helper()
	file := o.h1.Path("/etc/kuryr/kuryr.conf")
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		o.fresh(func(ctx context.Context) error {
			return errors.Join(os.Remove(file), o.h1.KillKuryr(syscall.SIGTERM), o.h1.StartKuryr(ctx))
		})
		if err := os.WriteFile(file, fmt.Appendf(nil, peersFile, o.lab.Project()), 0o600); err != nil {
			o.Fatal(err)
		}
	}
	if err := errors.Join(
		o.h1.KillKuryr(syscall.SIGTERM), o.h1.Host.Host.StartKuryr(o.ctx, []string{"docker"}, env),
	); err != nil {
		o.Fatal(err)
	}
}

// never: a port that does not become ACTIVE, since nobody on its host carries it, is the
// end of its container's start, and goes.
func (o optional) never() {
	o.asThePeer("KURYR_DOCKER_WAIT_ACTIVE=2s")
	o.h1.network("never", "--subnet", "10.124.0.0/24", "--gateway", "10.124.0.1")
	if err := o.h1.StopController(syscall.SIGKILL); err != nil {
		o.Fatal(err)
	}
	o.h1.refused([]string{"was plugged and is not ACTIVE after 2s"}, "run", "--rm", "--network", "never", "box", "true")
	if err := o.h1.StartController(o.ctx); err != nil {
		o.Fatal(err)
	}
	o.h1.docker("network", "rm", "never")
}

// everyOption: a network that is on the operator's router and cut from his pool of IPv6,
// and a container with a QoS policy and addresses besides its own.
func (o optional) everyOption() {
	pool := o.create("subnetpools", object{"name": "options6", "prefixes": []string{"fd7a::/48"}, "default_prefixlen": 64})
	policy := o.create("qos/policies", object{"name": "options"})
	if _, err := o.api.Create(o.ctx, "qos/policies/"+policy.ID()+"/bandwidth_limit_rules", object{
		"max_kbps": 100000, "direction": "egress",
	}); err != nil {
		o.Fatal(err)
	}
	o.h1.network(
		"near", "--subnet", "10.122.0.0/24", "--gateway", "10.122.0.1", "--ipv6", "--subnet",
		"fd7a:0:0:7::/64", "--gateway", "fd7a:0:0:7::1",
		"-o", "neutron.pool.v6.name=options6", "--ipam-opt", "neutron.pool.v6.name=options6", "-o",
		"kuryr.router="+o.router.ID())
	a := o.h1.run(
		"near-a", "near",
		append(
			[]string{
				"--driver-opt", "kuryr.qos_policy=options", "--driver-opt",
				"kuryr.allowed_addresses=10.122.0.200 fd7a:0:0:7::200",
			},
			o.group...,
		)...,
	)
	b := o.h1.run("near-b", "near", o.group...)
	seat := a.port()
	for _, x := range []object{seat, b.port()} {
		if x.Text("status") != "ACTIVE" {
			o.Errorf("the container has started, and its port is %s", x.Text("status"))
		}
	}
	if seat.Text("qos_policy_id") != policy.ID() {
		o.Errorf("the port's QoS policy is %q, not %s", seat.Text("qos_policy_id"), policy.ID())
	}
	o.until("OVN is told of no limit for the port", func(ctx context.Context) error {
		res := o.lab.Central.Exec(ctx, "ovn-nbctl", "--timeout=20", "--bare", "--columns=match,bandwidth", "list", "QoS")
		if !strings.Contains(res.Out(), seat.ID()) || !strings.Contains(res.Out(), "rate=100000") {
			return fmt.Errorf("%s", res)
		}
		return nil
	})
	for _, s := range o.find("subnets", "ip_version=6&network_id="+seat.Text("network_id")) {
		if s.Text("subnetpool_id") != pool.ID() || s.Text("cidr") != "fd7a:0:0:7::/64" {
			o.Errorf("the subnet %s is of pool %q, not %s", s.Text("cidr"), s.Text("subnetpool_id"), pool.ID())
		}
	}
	for i, to := range o.far.addrs() {
		o.reaches(a.in, to, a.addrs()[i])
		o.reaches(o.far.in, a.addrs()[i], to)
	}
	o.mayAlso(a, b, seat)
	o.h1.docker("rm", "-f", "near-a", "near-b")
	o.h1.docker("network", "rm", "near")
	o.until("the router has an interface that is not the operator's", func(context.Context) error {
		for _, p := range o.find("ports", "device_id="+o.get("routers", o.router.ID()).ID()) {
			if p.Text("network_id") != o.far.port().Text("network_id") {
				return fmt.Errorf("%v", p)
			}
		}
		return nil
	})
}

// mayAlso checks that a sends from the addresses that were asked for, and from no others.
func (o optional) mayAlso(a, b box, seat object) {
	o.Helper()
	text := fmt.Sprint(seat["allowed_address_pairs"])
	for i := range b.addrs() {
		allowed := []string{"10.122.0.200", "fd7a:0:0:7::200"}[i]
		forbidden := netip.MustParseAddr(allowed).Next().String()
		if !strings.Contains(text, "ip_address:"+allowed) {
			o.Errorf("the port may not send from %s: %s", allowed, text)
		}
		for _, extra := range []string{allowed, forbidden} {
			argv := []string{"ip", "addr", "add", extra, "dev", "eth0"}
			if strings.Contains(extra, ":") {
				argv = append(argv, "nodad")
			}
			if res := a.in(argv...); !res.OK() {
				o.Fatal(res)
			}
		}
		// To a datagram the container would answer from its own address.
		o.until("no way to "+allowed, func(context.Context) error {
			return asks(b.in, "tcp", netip.MustParseAddr(allowed), port).Err()
		})
		if b.in("ping", "-n", "-c1", "-W1", forbidden).OK() {
			o.Errorf("the container answers from %s too", forbidden)
		}
	}
}

// byName: the operator's subnets of both families by their names, and ranges of his pools by their ids.
func (o optional) byName(subnets []object) {
	args := []string{"-o", "neutron.net.name=far", "--ipv6"}
	for _, s := range subnets {
		args = append(args, "--subnet", s.Text("cidr"), "--gateway", s.Text("gateway_ip"))
	}
	for _, option := range []string{"neutron.subnet.name=far-0", "neutron.subnet.v6.name=far-1"} {
		args = append(args, "-o", option, "--ipam-opt", option)
	}
	o.h1.network("named", args...)
	d := o.h1.run("named-d", "named", o.group...)
	for i, to := range o.far.addrs() {
		o.reaches(d.in, to, d.addrs()[i])
	}
	four := o.create("subnetpools", object{"name": "cut4", "prefixes": []string{"10.123.0.0/24"}})
	six := o.create("subnetpools", object{"name": "cut6", "prefixes": []string{"fd7b::/48"}})
	args = []string{"--ipv6", "--subnet", "fd7b:0:0:9::/64"} // of IPv4 it takes the pool's only range
	for _, option := range []string{"neutron.pool.uuid=" + four.ID(), "neutron.pool.v6.uuid=" + six.ID()} {
		args = append(args, "-o", option, "--ipam-opt", option)
	}
	o.h1.network("cut", args...)
	id := o.h1.docker("network", "inspect", "-f", "{{.Id}}", "cut")
	made := o.one("networks", "tags="+halves("kuryr.net.uuid", id)[0])
	for want, pool := range map[string]object{"10.123.0.0/24": four, "fd7b:0:0:9::/64": six} {
		if s := o.one("subnets", "network_id="+made.ID()+"&subnetpool_id="+pool.ID()); s.Text("cidr") != want {
			o.Errorf("the range is %s, not %s", s.Text("cidr"), want)
		}
	}
}
