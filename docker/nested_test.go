package docker

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

var machineMAC = net.HardwareAddr{0xfa, 0x16, 0x3e, 0xaa, 0xaa, 1}

// machine is a box in a virtual machine. The machine's own port is on a network of its
// user, has a trunk, and may send as others.
type machine struct {
	*box
	sdn   *leaving
	trunk *neutrontest.Trunked
	own   sdn.ID
	net   sdn.ID
	mode  neutron.NestedMode
}

// others is what the machine's user lets it send as.
var others = sdn.AllowedPair{
	Prefix: netip.MustParsePrefix("10.60.0.200/32"), MAC: net.HardwareAddr{0, 0, 0x5e, 0, 1, 1},
}

func newMachine(t *testing.T, mode neutron.NestedMode, change ...func(*Config)) *machine {
	t.Helper()
	store := openStore(t, filepath.Join(t.TempDir(), "store"), true)
	n, err := store.EnsureNetwork(t.Context(), sdn.NetworkSpec{
		Base:    sdn.Base{Name: "vms"},
		Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.60.0.0/24")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	own, err := store.EnsurePorts(t.Context(), []sdn.PortSpec{{
		Base: sdn.Base{Name: "vm"}, Network: n.ID, MAC: machineMAC, DeviceOwner: "compute:nova",
		AllowedPairs: []sdn.AllowedPair{others},
	}})
	if err != nil {
		t.Fatal(err)
	}
	vm := &machine{trunk: neutrontest.WithTrunk(store, own[0].ID), own: own[0].ID, net: n.ID, mode: mode}
	vm.sdn = newLeaving(vm.trunk)
	vm.box = boxOn(
		t, vm.trunk,
		append(change, func(c *Config) {
			c.Provider, c.Routed = vm.nest(testHost, machineMAC), false
		})...,
	)
	vm.wantAttached(0)
	return vm
}

// nest is the SDN as the virtual machine with this name and MAC sees it.
func (vm *machine) nest(host string, mac net.HardwareAddr) sdn.Provider {
	p, err := neutron.NewNested(vm.sdn, neutron.NestedConfig{
		Mode: vm.mode, Host: host,
		MACs: func() ([]net.HardwareAddr, error) { return []net.HardwareAddr{mac}, nil },
	})
	if err != nil {
		panic(err)
	}
	return p
}

// restart is the plugin killed and started again, on an SDN that is there.
func (vm *machine) restart() {
	vm.t.Helper()
	vm.sdn.gone.Store(false)
	vm.sdn.after.Store(0)
	vm.config.Provider = vm.nest(testHost, machineMAC)
	vm.box.restart()
}

// network is the machine's own, as the engine's, or one more where it may be any.
func (vm *machine) network() *network {
	if vm.mode == neutron.NestedVLAN {
		return vm.create(&network{v4: []*pool{{cidr: "10.61.0.0/24"}}, v6: []*pool{{cidr: "fd00:61::/64"}}})
	}
	return vm.create(&network{v4: []*pool{{cidr: "10.60.0.0/24", gateway: "10.60.0.1"}}, options: m{
		"neutron.net.uuid": string(vm.net),
	}})
}

// wantAttached checks how many containers the machine's port carries, and that it sends as others had it.
func (vm *machine) wantAttached(want int) {
	vm.t.Helper()
	own, err := vm.trunk.Port(vm.t.Context(), vm.own)
	vm.must(err)
	trunk, err := vm.trunk.Trunk(vm.t.Context(), "trunk")
	vm.must(err)
	carried, other := len(own.AllowedPairs)-1, len(trunk.Subports)
	if vm.mode == neutron.NestedVLAN {
		carried, other = other, carried
	}
	if carried != want || other != 0 || !slices.ContainsFunc(
		own.AllowedPairs, func(a sdn.AllowedPair) bool { return a.Prefix == others.Prefix },
	) {
		vm.t.Errorf(
			"the machine's port may send as %v, its trunk has %v; want %d containers",
			own.AllowedPairs, trunk.Subports, want,
		)
	}
}

func inBothModes(t *testing.T, test func(t *testing.T, mode neutron.NestedMode)) {
	for _, mode := range []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			test(t, mode)
		})
	}
}

// TestPeerB03NestedEndpoints: a nested endpoint is made, plugged, found again by a new process, and leaves nothing.
func TestPeerB03NestedEndpoints(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode neutron.NestedMode) {
		vm := newMachine(t, mode)
		n := vm.network()
		a, b := vm.run(&endpoint{net: n}), vm.run(&endpoint{net: n})
		vm.wantAttached(2)
		vlans := map[string]bool{}
		for _, plugged := range vm.binder.plugged {
			vif := plugged.Port.VIF
			if vif.Type != string(mode) ||
				vif.Details[sdn.DetailParentMAC] != machineMAC.String() ||
				(vif.Details[sdn.DetailVLAN] != "") != (mode == neutron.NestedVLAN) {
				t.Errorf("plugged with %+v", vif)
			}
			vlans[vif.Details[sdn.DetailVLAN]] = true
			inner, err := vm.trunk.Port(t.Context(), plugged.Port.ID)
			if vm.must(err); inner.Host != "" {
				t.Errorf("port %s is bound to %s: that takes a right that a machine has not", inner.ID, inner.Host)
			}
		}
		if mode == neutron.NestedVLAN && len(vlans) != 2 {
			t.Errorf("the VLANs are %v", vlans)
		}
		vm.restart()
		vm.ok("NetworkDriver.Join", b.joinBody())
		for _, plugged := range vm.binder.plugged {
			if mode == neutron.NestedVLAN && !vlans[plugged.Port.VIF.Details[sdn.DetailVLAN]] {
				t.Errorf("after a restart the VLAN is another: %+v of %v", plugged.Port.VIF, vlans)
			}
		}
		vm.ok("NetworkDriver.CreateEndpoint", a.createBody())
		vm.wantAttached(2)
		vm.stop(a)
		vm.wantAttached(1)
		vm.stop(b)
		vm.stop(b)
		vm.wantAttached(0)
		vm.remove(n)
		vm.clean()
	})
}

// TestPeerB13NestedMode: the mode is what the configuration says, and macvlan refuses networks that it cannot serve.
func TestPeerB13NestedMode(t *testing.T) {
	t.Parallel()
	vm := newMachine(t, neutron.NestedMacvlan)
	n := vm.create(v4Network("10.61.0.0/24"))
	e := &endpoint{net: n}
	vm.take(e)
	vm.contains(vm.fails("NetworkDriver.CreateEndpoint", e.createBody()), "macvlan", string(vm.net), "bind.nested")
	vm.giveBack(e)
	vm.wantAttached(0)
	vm.remove(n)
	vm.clean()
	for _, mode := range []neutron.NestedMode{"", "veth"} {
		if _, err := neutron.NewNested(vm.trunk, neutron.NestedConfig{
			Mode: mode, Host: testHost,
			MACs: func() ([]net.HardwareAddr, error) { return nil, nil },
		}); err == nil {
			t.Errorf("there is a mode %q", mode)
		}
	}
}

// TestPeerB15NestedProcesses: several processes, of this machine and of others, change
// one port and one trunk, and none loses what another did.
func TestPeerB15NestedProcesses(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode neutron.NestedMode) {
		vm := newMachine(t, mode)
		const processes, ports = 4, 5
		made := make([][]sdn.Port, processes)
		var all sync.WaitGroup
		for i := range made {
			p := vm.nest(testHost, machineMAC)
			all.Go(func() {
				for j := range ports {
					got, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{
						{Network: vm.net, Host: testHost, DeviceID: fmt.Sprint(i, j)},
					})
					if err != nil {
						t.Error(err)
						return
					}
					made[i] = append(made[i], got...)
				}
			})
		}
		all.Wait()
		vm.wantAttached(processes * ports)
		vlans := map[string]bool{}
		for i := range made {
			for _, port := range made[i] {
				vlans[port.VIF.Details[sdn.DetailVLAN]] = true
			}
		}
		if mode == neutron.NestedVLAN && len(vlans) != processes*ports {
			t.Errorf("%d ports have %d VLANs", processes*ports, len(vlans))
		}
		for i := range made {
			p := vm.nest(testHost, machineMAC)
			all.Go(func() {
				for _, port := range made[i] {
					if err := p.DeletePorts(t.Context(), []sdn.ID{port.ID}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		vm.wantAttached(0)
	})
}

// TestNestedElsewhere: another machine's containers are seen as such, and are not touched.
func TestNestedElsewhere(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode neutron.NestedMode) {
		vm := newMachine(t, mode)
		n := vm.network()
		e := vm.run(&endpoint{net: n})
		port, _, err := vm.driver.endpoints.LookUp(t.Context(), e.id)
		vm.must(err)
		other := vm.nest("another", net.HardwareAddr{2, 0, 0, 0, 0, 9})
		seen, err := other.Port(t.Context(), port.ID)
		if vm.must(err); seen.Host != testHost || port.Host != testHost {
			t.Errorf("seen on %q and %q, want %q", port.Host, seen.Host, testHost)
		}
		for host, want := range map[string]int{testHost: 1, "another": 0} {
			p := map[string]sdn.Provider{testHost: vm.config.Provider, "another": other}[host]
			if found, err := sdn.All(
				p.FindPorts(t.Context(), sdn.PortQuery{Hosts: []string{host}}),
			); err != nil || len(found) != want {
				t.Errorf("%s has %d ports, %v, want %d", host, len(found), err, want)
			}
		}
		if _, err := other.EnsurePorts(
			t.Context(), []sdn.PortSpec{{Network: vm.net, Host: "another"}},
		); !sdn.IsNotFound(err) || !strings.Contains(err.Error(), "02:00:00:00:00:09") {
			t.Errorf("a machine without a port: %v", err)
		}
		vm.stop(e)
		vm.remove(n)
		vm.clean()
	})
}

// TestNestedCutAnywhere ends the process, or makes the SDN unavailable, after each call
// of a container's start and stop. The engine's next calls leave nothing.
func TestNestedCutAnywhere(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode neutron.NestedMode) {
		vm := newMachine(t, mode)
		n := vm.network()
		cut := func(method string, do func(e *endpoint) m, again bool) {
			for calls := int64(1); ; calls++ {
				e := &endpoint{net: n}
				vm.take(e)
				if method == "NetworkDriver.DeleteEndpoint" {
					vm.ok("NetworkDriver.CreateEndpoint", e.createBody())
					vm.ok("NetworkDriver.Join", e.joinBody())
					vm.ok("NetworkDriver.Leave", e.body())
				}
				vm.sdn.after.Store(calls)
				_, answer := vm.post(method, encode(do(e)))
				whole := !vm.sdn.gone.Load()
				vm.restart()
				if again {
					vm.ok(method, do(e))
					vm.stop(e)
				} else {
					vm.giveBack(e)
				}
				vm.reconcile()
				vm.wantAttached(0)
				if now := vm.dump(); t.Failed() || strings.Contains(now, e.ip4) {
					t.Fatalf("%s was cut at call %d (%v), which left\n%s", method, calls, answer, now)
				}
				if whole {
					if calls < 3 {
						t.Errorf("%s makes but %d calls", method, calls-1)
					}
					return
				}
			}
		}
		for _, again := range []bool{false, true} {
			cut("NetworkDriver.CreateEndpoint", (*endpoint).createBody, again)
			cut("NetworkDriver.DeleteEndpoint", (*endpoint).body, again)
		}
		vm.remove(n)
		vm.binder.unplugAll() // those of containers that ended with their process
		vm.clean()
	})
}

// TestNestedCleanup checks that a port is detached when the SDN answers if it was
// unavailable for the stop.
func TestNestedCleanup(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode neutron.NestedMode) {
		state, run := t.TempDir(), t.TempDir()
		vm := newMachine(t, mode, func(c *Config) { c.StateDir, c.RunDir = state, run })
		n := vm.network()
		e := vm.run(&endpoint{net: n})
		vm.sdn.gone.Store(true)
		vm.stop(e)
		vm.restart()
		vm.wantAttached(1)
		vm.idle()
		vm.wantAttached(0)
		vm.remove(n)
		vm.clean()
	})
}

// TestNestedExistingPort: a port of a user is attached while an endpoint has it, and
// unchanged after that.
func TestNestedExistingPort(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, mode neutron.NestedMode) {
		vm := newMachine(t, mode)
		n := vm.network()
		e := &endpoint{net: n, mac: "fa:16:3e:00:00:77", ip4: strings.TrimSuffix(n.v4[0].cidr, "0/24") + "77"}
		network := vm.networkOf(n)
		mac, _ := net.ParseMAC(e.mac)
		was, err := vm.trunk.EnsurePorts(t.Context(), []sdn.PortSpec{{
			Base: sdn.Base{Name: "theirs"}, Network: network.ID, MAC: mac,
			Addresses: []sdn.Address{{Addr: netip.MustParseAddr(e.ip4)}}}})
		vm.must(err)
		if len(n.v6) > 0 {
			n.v6 = nil
		}
		vm.run(e)
		vm.wantAttached(1)
		vm.stop(e)
		vm.wantAttached(0)
		is, err := vm.trunk.Port(t.Context(), was[0].ID)
		if vm.must(err); is.DeviceID != "" || is.DeviceOwner != "" || len(is.Tags) > 0 || is.Name != "theirs" {
			t.Errorf("the port is %+v, was %+v", is, was[0])
		}
		vm.must(vm.trunk.DeletePorts(t.Context(), []sdn.ID{is.ID}))
	})
}
