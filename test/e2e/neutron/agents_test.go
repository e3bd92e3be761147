//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// agentsLab is the lab of the tests of Neutron's layer 2 agents, which is not the shared one: that
// has OVN.
var agentsLab *neutronlab.Lab

var startAgents = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var err error
	agentsLab, err = neutronlab.New(ctx, neutronlab.Options{Docker: true, Kuryr: kuryr, Agents: []neutronlab.Agent{
		neutronlab.OpenVSwitch, neutronlab.OpenVSwitchHybrid, neutronlab.LinuxBridge, neutronlab.LinuxBridge,
	}})
	if err != nil {
		return err
	}
	return prepare(ctx, agentsLab)
})

// TestOpenVSwitchAgent runs containers on two hosts with Neutron's Open vSwitch agent. The agent of
// the second has its firewall in iptables, which asks for hybrid plugging.
func TestOpenVSwitchAgent(t *testing.T) {
	r := withAgents(t, 0)
	a, b := r.agentFlow()
	for _, x := range []struct {
		box
		hybrid bool
	}{{a, false}, {b, true}} {
		port := x.port()
		details, _ := port["binding:vif_details"].(map[string]any)
		if port.Text("binding:vif_type") != "ovs" || details["ovs_hybrid_plug"] != x.hybrid {
			t.Errorf("the port on %s has the VIF type %s, details %v", x.Name, port.Text("binding:vif_type"), details)
		}
		if is := x.sh("ip", "link", "show", "qbr"+port.ID()[:11]).OK(); is != x.hybrid {
			t.Errorf("a bridge of the port on %s: %v, want %v", x.Name, is, x.hybrid)
		}
	}
}

// TestLinuxBridgeAgent runs containers on two hosts with Neutron's Linux bridge agent.
func TestLinuxBridgeAgent(t *testing.T) {
	r := withAgents(t, 2)
	a, b := r.agentFlow()
	for _, x := range []box{a, b} {
		port := x.port()
		res := x.sh("ip", "-o", "link", "show", "tap"+port.ID()[:11])
		bridge := " master brq" + port.Text("network_id")[:11] + " "
		if port.Text("binding:vif_type") != "bridge" || !strings.Contains(res.Out(), bridge) {
			t.Errorf("the port on %s has the VIF type %s: %s", x.Name, port.Text("binding:vif_type"), res)
		}
	}
}

// withAgents returns the lab with agents for one test, which uses two of its hosts.
func withAgents(t *testing.T, first int) *rig {
	t.Helper()
	begin := time.Now()
	if err := startAgents(); err != nil {
		t.Fatalf("start the lab: %v", err)
	}
	t.Logf("own lab (it has agents in place of OVN): up after %s", time.Since(begin).Round(time.Second))
	r := freeRig(t, agentsLab)
	r.h1, r.h2 = host{agentsLab.Hosts[first], r}, host{agentsLab.Hosts[first+1], r}
	before, err := r.lookAtAgents(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error {
		return neutronlab.Until(ctx, func(ctx context.Context) error {
			after, err := r.lookAtAgents(ctx)
			if err != nil {
				return err
			}
			if diff := before.diff(after); len(diff) > 0 {
				return errors.New("the test leaves:\n" + strings.Join(diff, "\n"))
			}
			return nil
		})
	})
	return r
}

// lookAtAgents takes the inventory of Neutron and of what is plugged on the two hosts.
func (r *rig) lookAtAgents(ctx context.Context) (inventory, error) {
	seen := inventory{}
	if err := seen.neutron(ctx, r.lab, func(neutronlab.Object) bool { return true }); err != nil {
		return nil, err
	}
	for _, h := range []host{r.h1, r.h2} {
		s, err := h.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		seen[h.Name+" links"] = s[privatehost.Links]
		seen[h.Name+" namespaces"] = s[privatehost.Namespaces]
		ports := h.VSwitch(ctx, "--timeout=20", "--bare", "--columns=name", "find", "Interface", "external_ids:owner=kuryr")
		if ports.OK() { // a host with the Linux bridge agent has no Open vSwitch
			seen[h.Name+" Open vSwitch"] = lines(ports)
		}
	}
	return seen, nil
}

// agentFlow runs containers on both hosts, which reach each other as their security groups allow,
// and replaces one. It returns one container of each host.
func (r *rig) agentFlow() (a, b box) {
	r.Helper()
	network, subnets := r.ownNetwork("agents", "10.60.0.0/24", "fd60::/64")
	r.h1.use("agents", network, subnets)
	r.h2.use("agents", network, subnets)
	open, closed := r.group("open", everything...), r.group("closed")
	in := func(h host, name string, group object) box {
		return h.run(name, "agents", "--driver-opt", "kuryr.security_groups="+group.ID())
	}
	a, b = in(r.h1, "agents-a", open), in(r.h2, "agents-b", open)
	shut := []box{in(r.h1, "agents-c", closed), in(r.h2, "agents-d", closed)}
	for _, way := range [][2]box{{a, b}, {b, a}, {shut[0], b}, {shut[1], a}, {shut[0], a}, {shut[1], b}} {
		for i, to := range way[1].addrs() {
			r.reaches(way[0].in, to, way[0].addrs()[i])
		}
	}
	for _, way := range [][2]box{{a, shut[1]}, {b, shut[0]}} {
		for _, to := range way[1].addrs() {
			r.cut(way[0].in, to)
		}
	}
	for _, x := range append(slices.Clone(shut), a, b) {
		r.until(fmt.Sprintf("the port of %s is not as it should be", x.name), func(context.Context) error {
			p := x.port()
			if p.Text("status") != "ACTIVE" || p.Text("binding:host_id") != x.Name || p.Text("device_owner") != "compute:kuryr" {
				return fmt.Errorf("%v", p)
			}
			return nil
		})
	}
	mtu := int(network["mtu"].(float64))
	if res := a.in("ping", "-n", "-c3", "-i0.2", "-W5", "-M", "do", "-s", fmt.Sprint(mtu-28), b.ip4.String()); !res.OK() {
		r.Errorf("a packet as large as the network's MTU: %s", res)
	}
	gone := b.port()
	b.docker("rm", "-f", b.name)
	r.until("the port of a removed container stays", func(ctx context.Context) error {
		if left := r.find("ports", "id="+gone.ID()); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	b = in(r.h2, "agents-b", open)
	for _, to := range []netip.Addr{b.ip4, b.ip6} {
		r.reaches(a.in, to, sameFamily(a.addrs(), to))
	}
	return a, b
}
