//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// The role and the policy.yaml that the manual gives to a host: all of Docker works with
// them, every rule is needed, what a member can do without them is what the manual says,
// and the further rules that it lists do what it says.
func TestPolicyOfTheManual(t *testing.T) {
	t.Parallel()
	// A boot of its own: Neutron asks Keystone, and its policy changes.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Docker: true, Kuryr: kuryr, Keystone: true})
	r := freeRig(t, l)
	if err := prepare(r.ctx, l); err != nil {
		t.Fatal(err)
	}
	rules, err := neutronlab.ManualPolicy()
	if err != nil {
		t.Fatal(err)
	}
	// The first router of a Neutron takes long on a machine that has much to do; Docker would not wait for it.
	external, err := l.ExternalNetwork(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	first, err := l.API().Create(r.ctx, "routers", object{
		"name": "first", "project_id": l.Project(),
		"external_gateway_info": object{"network_id": external.ID()},
	})
	if err == nil {
		err = l.API().Delete(r.ctx, "routers", first.ID())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Run("suffices", func(t *testing.T) { newRig(t, l).everythingOfDocker() })
	t.Run("each_rule", func(t *testing.T) { newRig(t, l).without(rules) })
	t.Run("further_rules", func(t *testing.T) { newRig(t, l).with(rules) })
	t.Run("member", func(t *testing.T) { newRig(t, l).asMember() })
}

// everythingOfDocker is what a host does in its life, with a network that Kuryr makes and one that is there.
func (r *rig) everythingOfDocker() {
	group := r.group("policy", everything...)
	grouped := []string{"--driver-opt", "kuryr.security_groups=" + group.ID()}
	r.h1.network("policy", "--subnet", "10.91.0.0/24", "--gateway", "10.91.0.1", "-o", "kuryr.external_network=external")
	a := r.h1.run("policy-a", "policy", append(slices.Clone(grouped), "--driver-opt", "kuryr.floating_ip=auto")...)
	b := r.h1.run(
		"policy-b", "policy",
		append(slices.Clone(grouped), "--driver-opt", "kuryr.publish=floatingip", "-p", fmt.Sprintf(
			"8080:%d/tcp", port,
		))...,
	)
	r.reaches(a.in, b.ip4, a.ip4)
	floating := func(forwards bool) netip.Addr {
		for _, f := range r.find("floatingips", "project_id="+r.lab.Project()) {
			if (f.Text("port_id") == "") == forwards {
				return netip.MustParseAddr(f.Text("floating_ip_address"))
			}
		}
		r.Fatalf("there is no floating IP that forwards (%t)", forwards)
		return netip.Addr{}
	}
	r.reaches(r.outside, floating(false), outsideAddr)
	r.until("the forwarded port is not reached", func(context.Context) error {
		return asks(r.outside, "tcp", floating(true), 8080).Err()
	})

	network, subnets := r.ownNetwork("theirs", "10.92.0.0/24", "fd92::/64")
	r.h1.use("theirs", network, subnets)
	r.h2.use("theirs", network, subnets)
	there := r.create("ports", object{"name": "there", "network_id": network.ID()})
	c := r.h1.run(
		"policy-c", "theirs",
		append(slices.Clone(grouped), "--expose", fmt.Sprintf("%d/tcp", port), "-p", fmt.Sprintf(
			"8081:%d/tcp", port,
		))...,
	)
	d := r.h2.run(
		"policy-d", "theirs", "--driver-opt", "kuryr.port="+there.ID(), "--mac-address",
		there.Text("mac_address"),
	)
	if id := d.port().ID(); id != there.ID() {
		r.Errorf("the container is on port %s, not %s", id, there.ID())
	}
	for _, to := range c.addrs() {
		r.until("the exposed port is not reached", func(context.Context) error { return asks(d.in, "tcp", to, port).Err() })
	}
	r.until("the published port is not reached", func(context.Context) error {
		return asks(r.h1.sh, "tcp", netip.MustParseAddr("127.0.0.1"), 8081).Err()
	})
	r.h1.docker("restart", "-t", "1", "policy-c")
	c = r.h1.look("policy-c", "theirs")
	r.until("a container is not reached after its restart", func(context.Context) error {
		return asks(d.in, "tcp", c.ip4, port).Err()
	})

	r.h2.docker("network", "create", "-d", "kuryr", "--subnet", "10.93.0.0/24", "addressed")
	r.fresh(func(ctx context.Context) error { return r.h2.gone(ctx, "network", "rm", "addressed") })
	e, f := r.h2.run("policy-e", "addressed", grouped...), r.h2.run("policy-f", "addressed", grouped...)
	r.reaches(e.in, f.ip4, e.ip4)
	r.h2.docker("rm", "-f", "policy-e", "policy-f")
}

// grant is a line of a policy.yaml that gives the host's role a right.
func grant(rule string) string { return fmt.Sprintf(`"%s": "rule:admin_only or role:kuryr"`, rule) }

// policy gives Neutron a policy until the end of the test.
func (r *rig) policy(rules ...string) {
	r.Helper()
	if err := r.lab.SetPolicy(rules...); err != nil {
		r.Fatal(err)
	}
}

// without takes one rule after the other away: containers are refused with the right that
// is missing, and nothing is left.
func (r *rig) without(rules []string) {
	r.fresh(func(context.Context) error { return r.lab.SetPolicy(rules...) })
	r.h1.network("less", "--subnet", "10.94.0.0/24", "--gateway", "10.94.0.1")
	r.h1.docker("network", "create", "-d", "kuryr", "--subnet", "10.95.0.0/24", "addressed")
	r.fresh(func(ctx context.Context) error { return r.h1.gone(ctx, "network", "rm", "addressed") })
	for i, rule := range rules {
		name := strings.Split(rule, `"`)[1]
		verb, attribute, _ := strings.Cut(name, ":")
		network := "less"
		if verb == "create_port" { // the port is made with its host where Docker's own IPAM driver chose the address
			network = "addressed"
		}
		r.policy(slices.Delete(slices.Clone(rules), i, i+1)...)
		r.h1.refused([]string{attribute}, "run", "--rm", "--network", network, "box", "true")
		r.policy(rules...)
		r.h1.docker("run", "--rm", "--network", network, "box", "true")
	}
}

// with gives the further rights that the manual's table lists: what is refused without them works with them.
func (r *rig) with(rules []string) {
	r.fresh(func(context.Context) error { return r.lab.SetPolicy(rules...) })
	section, err := neutronlab.ManualSection("LEAST ROLE AND POLICY")
	if err != nil {
		r.Fatal(err)
	}
	shared := r.create("networks", object{"name": "shared", "project_id": "operator", "shared": true})
	subnet := r.create("subnets", object{
		"network_id": shared.ID(), "project_id": "operator", "ip_version": 4,
		"cidr": "10.96.0.0/24",
	})
	r.h1.use("shared", shared, []object{subnet}, "-o", "neutron.net.shared=true", "--ipam-opt", "neutron.net.shared=true")
	network, subnets := r.ownNetwork("more", "10.97.0.0/24")
	r.h1.use("more", network, subnets)
	r.create("ports", object{"name": "mac", "network_id": network.ID(), "fixed_ips": []object{
		{"subnet_id": subnets[0].ID(), "ip_address": "10.97.0.9"},
	}})
	r.h1.network("out", "--subnet", "10.98.0.0/24", "--gateway", "10.98.0.1", "-o", "kuryr.external_network=external")
	r.fresh(func(ctx context.Context) error { return r.h1.gone(ctx, "network", "rm", "made") })
	for _, c := range []struct {
		row     string // begins so
		refusal []string
		args    []string
	}{
		{"containers on a network of another project", []string{"--mac-address"}, []string{
			"run", "--rm", "--network", "shared", "box", "true",
		}},
		{"a container's MAC changed", []string{"--mac-address"}, []string{
			"run", "--rm", "--network", "more", "--ip", "10.97.0.9", "box", "true",
		}},
		{"the address of a floating IP", []string{"floating"}, append(append([]string{"run", "--rm"},
			on("out", "--driver-opt", "kuryr.floating_ip=203.0.113.150")...), "box", "true")},
		{"networks made shared", []string{"shared"}, []string{
			"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet",
			"10.99.0.0/24", "--gateway", "10.99.0.1",
			"-o", "neutron.net.shared=true", "--ipam-opt", "neutron.net.shared=true", "made"}},
	} {
		_, row, ok := strings.Cut(section, "\n| "+c.row)
		if !ok {
			r.Errorf("the manual has no row %q", c.row)
			continue
		}
		row, _, _ = strings.Cut(row, "\n")
		more := slices.Clone(rules)
		for _, name := range regexp.MustCompile("`[a-z_]+:[a-z_:]+`").FindAllString(row, -1) {
			more = append(more, grant(strings.Trim(name, "`")))
		}
		if len(more) == len(rules) {
			r.Errorf("the row %q has no rules", c.row)
		}
		r.h1.refused(c.refusal, c.args...)
		r.policy(more...)
		r.h1.docker(c.args...)
		r.policy(rules...)
	}
}

// asMember is a host whose credentials have the role member and no other: it makes
// networks and addresses, and plugs nothing.
func (r *rig) asMember() {
	r.restarted(r.h1, "KURYR_NEUTRON_CLOUD="+neutronlab.CloudMember)
	r.h1.network("member", "--subnet", "10.91.0.0/24", "--gateway", "10.91.0.1", "-o", "kuryr.external_network=external")
	network, subnets := r.ownNetwork("members", "10.92.0.0/24")
	r.h1.use("members", network, subnets)
	for _, name := range []string{"member", "members"} {
		r.h1.refused([]string{"binding:host_id"}, "run", "--rm", "--network", name, "box", "true")
	}
	ready := r.create("ports", object{
		"name": "ready", "network_id": network.ID(), "binding:host_id": "h1",
		"device_owner": "compute:kuryr",
		"fixed_ips":    []object{{"subnet_id": subnets[0].ID(), "ip_address": "10.92.0.9"}}})
	r.h1.refused(
		[]string{"binding:vif_type"}, "run", "--rm", "--network", "members", "--ip", "10.92.0.9",
		"--mac-address", ready.Text("mac_address"), "box", "true",
	)
	if now := r.get("ports", ready.ID()); fmt.Sprint(now["tags"]) != "[]" || now.Text("binding:host_id") != "h1" {
		r.Errorf("the port is not as it was: %v", now)
	}
	// Kuryr's IPAM driver with another network driver.
	r.h1.docker("network", "create", "-d", "bridge", "--ipam-driver", "kuryr", "--subnet", "10.93.0.0/24", "bridged")
	r.fresh(func(ctx context.Context) error { return r.h1.gone(ctx, "network", "rm", "bridged") })
	r.h1.docker("run", "--rm", "--network", "bridged", "box", "true")
}
