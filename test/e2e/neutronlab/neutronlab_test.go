//go:build e2e

package neutronlab_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

func TestMain(m *testing.M) {
	privatehost.Init()
	os.Exit(m.Run())
}

// The lab itself, without Kuryr: two VMs on two hosts reach each other over Geneve, and the outside reaches one by a
// floating IP.
func TestLab(t *testing.T) {
	for _, c := range []struct {
		name string
		opts neutronlab.Options
	}{
		{"without_authentication", neutronlab.Options{Hosts: 2}},
		{"keystone", neutronlab.Options{Hosts: 2, Keystone: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now() // a boot of its own: booting is what is tested
			l := neutronlab.Start(t, c.opts)
			t.Logf("the lab was up after %s", time.Since(begin).Round(time.Millisecond))
			vms(t, l)
		})
	}
}

func vms(t *testing.T, l *neutronlab.Lab) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	api := l.API()
	create := func(nouns string, o neutronlab.Object) neutronlab.Object {
		t.Helper()
		o["project_id"] = l.Project()
		made, err := api.Create(ctx, nouns, o)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	network := create("networks", neutronlab.Object{"name": "lab"})
	subnet := create("subnets", neutronlab.Object{"network_id": network.ID(), "ip_version": 4, "cidr": "10.77.0.0/24"})
	group := create("security-groups", neutronlab.Object{"name": "lab"})
	create("security-group-rules", neutronlab.Object{
		"security_group_id": group.ID(), "direction": "ingress", "protocol": "icmp",
	})
	external, err := l.ExternalNetwork(ctx)
	if err != nil {
		t.Fatal(err)
	}
	router := create("routers", neutronlab.Object{
		"name": "lab", "external_gateway_info": neutronlab.Object{"network_id": external.ID()},
	})
	if err := api.Act(ctx, "routers/"+router.ID()+"/add_router_interface", neutronlab.Object{
		"subnet_id": subnet.ID(),
	}); err != nil {
		t.Fatal(err)
	}
	plug := func(host int, name string) *neutronlab.VM {
		t.Helper()
		vm, err := l.Hosts[host].NewVM(
			ctx, name, network.ID(),
			neutronlab.Object{"project_id": l.Project(), "security_groups": []string{group.ID()}},
		)
		if err != nil {
			t.Fatal(err)
		}
		return vm
	}
	a, b := plug(0, "a"), plug(1, "b")
	floating := create("floatingips", neutronlab.Object{"floating_network_id": external.ID(), "port_id": b.Port.ID()})
	for _, way := range []struct {
		from func(context.Context, ...string) privatehost.Result
		to   string
	}{
		{a.Exec, b.Addrs[0].Addr().String()},
		{b.Exec, a.Addrs[0].Addr().String()},
		{l.Central.Exec, floating.Text("floating_ip_address")},
		{a.Exec, neutronlab.External.Addr().String()},
	} {
		// The first packets of a way may be lost by design: somebody on it asks for an address first.
		err := neutronlab.Until(ctx, func(ctx context.Context) error {
			return way.from(ctx, "ping", "-c1", "-W2", way.to).Err()
		})
		if err == nil {
			err = way.from(ctx, "ping", "-c3", "-i0.2", "-W5", way.to).Err()
		}
		if err != nil {
			t.Error(err)
		}
	}
	// A cable more, as a host's that comes and goes, leaves the way out to those who have learnt it.
	for _, argv := range [][]string{
		{"ip", "link", "add", "more", "address", "02:00:00:00:00:01", "type", "veth"},
		{"ip", "link", "set", "more", "master", "external"},
	} {
		if err := l.Central.Exec(ctx, argv...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Exec(ctx, "ping", "-c3", "-i0.2", "-W5", neutronlab.External.Addr().String()).Err(); err != nil {
		t.Error(err)
	}
	for _, vm := range []*neutronlab.VM{a, b} {
		if err := vm.Remove(ctx); err != nil {
			t.Error(err)
		}
	}
}

// A connection whose addresses and ports are those of one that has just ended leaves the
// switch running (hideZeroSNAT), one that was started again, too.
func TestConnectionAgain(t *testing.T) {
	// A boot of its own: the switch is killed.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 1})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	create := func(nouns string, o neutronlab.Object) string {
		t.Helper()
		made, err := l.API().Create(ctx, nouns, o)
		if err != nil {
			t.Fatal(err)
		}
		return made.ID()
	}
	project := l.Project()
	network := create("networks", neutronlab.Object{"name": "again", "project_id": project})
	create("subnets", neutronlab.Object{
		"network_id": network, "ip_version": 4, "cidr": "10.78.0.0/24", "project_id": project,
	})
	group := create("security-groups", neutronlab.Object{"name": "again", "project_id": project})
	create("security-group-rules", neutronlab.Object{
		"security_group_id": group, "direction": "ingress", "protocol": "tcp",
		"project_id": project,
	})
	h := l.Hosts[0]
	vms := map[string]*neutronlab.VM{}
	for _, name := range []string{"asks", "answers"} {
		vm, err := h.NewVM(ctx, name, network, neutronlab.Object{"project_id": project, "security_groups": []string{group}})
		if err != nil {
			t.Fatal(err)
		}
		vms[name] = vm
	}
	const port = "7001"
	_, err := h.StartService(
		ctx, "answers", nil,
		[]string{
			"nsenter", "--net=/run/netns/answers", "--", "busybox", "nc", "-ll", "-p", port, "-e",
			"echo", "here",
		},
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	// Debian's python, which Neutron runs on; busybox cannot choose the port that a client sends from.
	const client = `import socket, sys
s = socket.socket()
s.settimeout(10)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", 40000))
s.connect((sys.argv[1], int(sys.argv[2])))
answer = b""
while part := s.recv(100): # to its end: who ends a connection first keeps its port
    answer += part
print(answer.decode())`
	ask := func(ctx context.Context) error {
		said := vms["asks"].Exec(ctx, "/usr/bin/python3", "-c", client, vms["answers"].Addrs[0].Addr().String(), port)
		if said.Out() != "here" {
			return fmt.Errorf("the answer is %s", said)
		}
		return nil
	}
	again := func() {
		t.Helper()
		if err := neutronlab.Until(ctx, ask); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := ask(ctx); err != nil {
				t.Errorf("once more from the same port: %v", err)
			}
		}
	}
	again()
	if err := h.StopSwitch(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := h.StartSwitch(ctx); err != nil {
		t.Fatal(err)
	}
	again()
}
