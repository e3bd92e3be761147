//go:build e2e

package docker_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// patience is how long a way may take to be there: OVN tells the switches of a port and
// of a router's gateway some time after Neutron has answered.
const patience = 45 * time.Second

// outsideNetwork is the option by which a network has a way out with Neutron, as it has
// one unasked with the embedded SDN.
const outsideNetwork = "kuryr.external_network=external"

var lab *neutronlab.Lab

// startLab makes the lab that all tests share: a central host, behind whose external
// network is the outside, and a host that carries the routers' gateways. Each test adds a
// host of its own, whose Kuryr works in a project of its own.
var startLab = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	if lab, err = neutronlab.New(ctx, neutronlab.Options{Hosts: 1}); err != nil {
		return err
	}
	if _, err := lab.ExternalNetwork(ctx); err != nil {
		return err
	}
	// The outside has the address that it has for hosts with the embedded SDN: it is the central host's neighbour here.
	if r := lab.Central.Exec(ctx, "sysctl", "-qw", "net.ipv4.ip_forward=1"); !r.OK() {
		return r.Err()
	}
	if r := lab.Central.Outside(
		ctx, "ip", "route", "add", neutronlab.External.Masked().String(), "via", host4.String(),
	); !r.OK() {
		return r.Err()
	}
	_, err = lab.Central.StartOutside(context.Background(), probe, "serve", port)
	return err
})

// newLabHost is a host of the lab with Kuryr on Neutron, in a project that the test must leave empty.
func newLabHost(t *testing.T, opts privatehost.Options) rig {
	t.Helper()
	if err := startLab(); err != nil {
		t.Fatalf("start the lab: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	project := strings.ReplaceAll(t.Name(), "/", "-")
	api := lab.API()
	// A project gets its default security group with its first network.
	first, err := api.Create(ctx, "networks", neutronlab.Object{"name": "first", "project_id": project})
	if err == nil {
		err = api.Delete(ctx, "networks", first.ID())
	}
	if err != nil {
		t.Fatal(err)
	}
	opts.KuryrArgs = onThisSDN(opts.KuryrArgs)
	opts.Booted = func(_ context.Context, h *privatehost.Host) error {
		return os.WriteFile(h.Path("/etc/kuryr/kuryr.yaml"), fmt.Appendf(nil,
			"provider: neutron\nneutron:\n  auth_type: none\n  endpoint: %s\n  project: %s\n  "+
				"timeout: 25s\n", neutronlab.Endpoint, project), 0o600)
	}
	h, err := lab.AddHost(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", h.Logs(60))
			h.KeepLogs(os.Getenv("KURYR_E2E_LOGS"))
		}
		lab.RemoveHost(h)
	})
	r := rig{Host: h.Host, project: project}
	t.Cleanup(func() { r.leavesNothing(t) })
	return r
}

// onThisSDN are the arguments that start Kuryr, where the embedded SDN's are "up".
func onThisSDN(args []string) []string {
	if !onNeutron && !onShared {
		return args
	}
	if len(args) == 0 {
		args = []string{"up"}
	}
	return append([]string{strings.Replace(args[0], "up", "docker", 1)}, args[1:]...)
}

// StartKuryr starts Kuryr on the host's SDN, with the host's arguments where none are given.
func (r rig) StartKuryr(ctx context.Context, args, env []string) error {
	if len(args) > 0 {
		args = onThisSDN(args)
	}
	return r.Host.StartKuryr(ctx, args, env)
}

// leavesNothing checks that Neutron, OVN and the host's switch have nothing of the test
// any more. Clean-up that is owed to Neutron is done behind what Docker was told.
func (r rig) leavesNothing(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	err := neutronlab.Until(ctx, func(ctx context.Context) error {
		for _, nouns := range []string{
			"networks", "subnets", "subnetpools", "ports", "routers", "floatingips",
			"security-groups",
		} {
			all, err := lab.API().List(ctx, nouns, "project_id="+r.project)
			if err != nil {
				return err
			}
			for _, o := range all {
				if nouns != "security-groups" || o.Text("name") != "default" {
					return fmt.Errorf("Neutron has one of %s left: %v", nouns, o)
				}
			}
		}
		left := lab.Central.Exec(
			ctx, "ovn-nbctl", "--timeout=20", "--bare", "--columns=name", "find",
			"Logical_Switch_Port", "external_ids:\"neutron:project_id\"="+r.project,
		)
		if !left.OK() || left.Out() != "" {
			return fmt.Errorf("OVN has ports left: %s", left)
		}
		left = r.Exec(
			ctx, "ovs-vsctl", "--timeout=20", "--bare", "--columns=name", "find", "Interface",
			"external_ids:owner=kuryr",
		)
		if !left.OK() || left.Out() != "" {
			return fmt.Errorf("Open vSwitch has interfaces left: %s", left)
		}
		left = r.Exec(ctx, "ip", "-br", "link", "show", "group", "1802859129")
		if !left.OK() || left.Out() != "" {
			return fmt.Errorf("the kernel has links left: %s", left)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// carried waits until the host's switch carries what a container sends; not all starts of containers wait for that.
func (b box) carried(t *testing.T) {
	t.Helper()
	if !onNeutron {
		return
	}
	eventually(t, patience, func() string {
		res := b.sh(
			"ovs-vsctl", "--timeout=20", "--bare", "--columns=external_ids", "find", "Interface",
			`external_ids:attached-mac="`+b.mac+`"`,
		)
		// A network of another driver has none there.
		if !res.OK() || res.Out() != "" && !strings.Contains(res.Out(), "ovn-installed=") {
			return res.String()
		}
		return ""
	})
}

// gateways are the addresses as which the project's containers are seen outside.
func (r rig) gateways(t *testing.T) map[string]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	routers, err := lab.API().List(ctx, "routers", "project_id="+r.project)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, o := range routers {
		gate, _ := o["external_gateway_info"].(map[string]any)
		fixed, _ := gate["external_fixed_ips"].([]any)
		for _, f := range fixed {
			ip, _ := f.(map[string]any)
			seen[neutronlab.Object(ip).Text("ip_address")] = true
		}
	}
	return seen
}

// getsOut checks that a container reaches the outside, and as whom it is seen there: the
// host, or its router's gateway. Of its networks that looked at last counts.
func getsOut(t *testing.T, b box) {
	t.Helper()
	if !onNeutron {
		reaches(t, b.in, out4, host4)
		return
	}
	if !b.asksOut(t, b.network) {
		return
	}
	reaches(t, b.in, out4, netip.Addr{})
	if res := b.in(probe, "tcp", at(out4, 7000)); !b.gateways(t)[res.Out()] {
		t.Errorf("%s is seen outside as none of its routers' gateways %v: %s", b.name, b.gateways(t), res)
	}
}

// getsOut6 is getsOut by IPv6.
func getsOut6(t *testing.T, b box) {
	t.Helper()
	if has(outIPv6) {
		reaches(t, b.in, out6, host6)
	}
}

// reachedByHost checks that the host reaches a container's address.
func (r rig) reachedByHost(t *testing.T, to netip.Addr) {
	t.Helper()
	if has(hostRoutes) {
		reaches(t, r.sh, to, netip.Addr{})
	}
}

// consistent checks that Kuryr's store and the kernel are one, where they are Kuryr's.
func (r rig) consistent(t *testing.T) {
	t.Helper()
	if !has(ownKernel) {
		return
	}
	if res := r.sh(kuryr, "sdn", "check"); !res.OK() {
		t.Errorf("store and kernel differ: %s", res)
	}
}

// open are the options of a network whose containers everybody reaches, where that is not
// so by itself: Neutron's default security group lets in its members alone.
func (r rig) open(t *testing.T) []string {
	t.Helper()
	if !onNeutron {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	api := lab.API()
	group, err := api.Create(ctx, "security-groups", neutronlab.Object{"name": "open", "project_id": r.project})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := neutronlab.Until(ctx, func(ctx context.Context) error {
			return api.Delete(ctx, "security-groups", group.ID())
		}); err != nil {
			t.Error(err)
		}
	})
	for _, family := range []string{"IPv4", "IPv6"} {
		rule := neutronlab.Object{
			"security_group_id": group.ID(), "direction": "ingress", "ethertype": family,
			"project_id": r.project,
		}
		if _, err := api.Create(ctx, "security-group-rules", rule); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"-o", "kuryr.security_groups=" + group.ID()}
}

// wayOut, among the arguments of a network, says that its scenario is about the way out.
// A router is what takes Neutron longest, so no other network has one there, and getsOut
// checks nothing of theirs.
const wayOut = "way out"

// askingOut replaces wayOut by the option that it stands for with Neutron; with the
// embedded SDN each network has a way out.
func askingOut(args []string) (all []string) {
	for _, a := range args {
		switch {
		case a != wayOut:
			all = append(all, a)
		case onNeutron:
			all = append(all, "-o", outsideNetwork)
		}
	}
	return all
}

// created runs docker network create.
func (r rig) created(t *testing.T, args ...string) {
	t.Helper()
	res := askingAgain(func() privatehost.Result { return r.sh(append([]string{"docker"}, args...)...) })
	if !res.OK() {
		t.Fatal(res)
	}
}

// askingAgain does what makes networks. On a machine with much to do Neutron may not make
// a router within the time that a call of Docker's has: its user asks again.
func askingAgain(do func() privatehost.Result) (res privatehost.Result) {
	for range 4 {
		if res = do(); !strings.Contains(res.Stderr, "in the time there was") {
			break
		}
	}
	return res
}

// asksOut tells whether a network was made so.
func (r rig) asksOut(t *testing.T, network string) bool {
	t.Helper()
	option, _, _ := strings.Cut(outsideNetwork, "=")
	return r.docker(t, "network", "inspect", "-f", `{{index .Options "`+option+`"}}`, network) != ""
}

// settings adds settings to those that the host's Kuryr has.
func (r rig) settings(t *testing.T, text string) {
	t.Helper()
	path := "/etc/kuryr/kuryr.yaml"
	have, err := os.ReadFile(r.Path(path))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	r.write(t, path, string(have)+text)
}
