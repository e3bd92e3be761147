package neutron_test

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

const vmHost = "vm.example"

var (
	vmMAC = net.HardwareAddr{0xfa, 0x16, 0x3e, 0xaa, 0xaa, 1}
	// others is what the machine's user lets it send as.
	others = sdn.AllowedPair{Prefix: netip.MustParsePrefix("10.60.0.200/32"), MAC: net.HardwareAddr{0, 0, 0x5e, 0, 1, 1}}
)

// vm is a virtual machine of an SDN: its own port has a trunk, and pairs of its user's.
type vm struct {
	*testing.T
	sdn  *neutrontest.Trunked
	own  sdn.Port
	mode neutron.NestedMode
}

// macs is NestedConfig.MACs of a machine with one interface.
func macs(mac net.HardwareAddr) func() ([]net.HardwareAddr, error) {
	return func() ([]net.HardwareAddr, error) { return []net.HardwareAddr{mac}, nil }
}

// newVM makes a virtual machine's port in the store of a folder, or finds it there.
func newVM(t *testing.T, folder string, mode neutron.NestedMode) *vm {
	t.Helper()
	store, err := local.Open(t.Context(), local.Options{Path: filepath.Join(folder, "store"), Host: vmHost, NoSync: true})
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	key := sdn.Base{Key: sdn.Key{Owner: "user", Kind: "net", Name: "vms"}}
	n, err := store.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: key, Subnets: []sdn.SubnetSpec{{Base: key, CIDR: netip.MustParsePrefix("10.60.0.0/24")}}})
	must(t, err)
	own, found, err := sdn.First(store.FindPorts(t.Context(), sdn.PortQuery{Networks: []sdn.ID{n.ID}, MACs: []net.HardwareAddr{vmMAC}}))
	if must(t, err); !found {
		made, err := store.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: n.ID, MAC: vmMAC, DeviceOwner: "compute:nova", AllowedPairs: []sdn.AllowedPair{others}}})
		must(t, err)
		own = made[0]
	}
	trunk, err := neutrontest.OpenTrunk(store, own.ID, filepath.Join(folder, "trunk"))
	must(t, err)
	return &vm{t, trunk, own, mode}
}

// process is a Kuryr of the machine that has just started.
func (v *vm) process() *neutron.Nested {
	v.Helper()
	p, err := neutron.NewNested(v.sdn, neutron.NestedConfig{Mode: v.mode, Host: vmHost, MACs: macs(vmMAC)})
	must(v.T, err)
	return p
}

// wantAttached checks how many containers the machine's port carries, and that it sends
// as its user had it.
func (v *vm) wantAttached(want int) {
	v.Helper()
	own, err := v.sdn.Port(v.Context(), v.own.ID)
	must(v.T, err)
	trunk, err := v.sdn.Trunk(v.Context(), "trunk")
	must(v.T, err)
	carried, other := len(own.AllowedPairs)-1, len(trunk.Subports)
	if v.mode == neutron.NestedVLAN {
		carried, other = other, carried
	}
	if carried != want || other != 0 || !slices.ContainsFunc(own.AllowedPairs, func(a sdn.AllowedPair) bool { return a.Prefix == others.Prefix }) {
		v.Errorf("the machine's port may send as %v, its trunk has %v; want %d containers", own.AllowedPairs, trunk.Subports, want)
	}
}

// parked makes a port that no endpoint has.
func (v *vm) parked(p sdn.Provider, name string) sdn.Port {
	v.Helper()
	ports, err := p.EnsurePorts(v.Context(), []sdn.PortSpec{{Base: sdn.Base{Key: sdn.Key{Owner: "test", Kind: "port", Name: name}, Tags: []string{"one"}},
		Network: v.own.Network, DeviceOwner: sdn.OwnerContainer}})
	must(v.T, err)
	return ports[0]
}

// bound binds a port to the machine and gives it a device.
func (v *vm) bound(p sdn.Provider, port sdn.Port, device string) sdn.Port {
	v.Helper()
	here := vmHost
	port, err := p.UpdatePort(v.Context(), port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}, Host: &here, DeviceID: &device})
	must(v.T, err)
	return port
}

// unbound is a container's end for its port: it is parked.
func (v *vm) unbound(p sdn.Provider, port sdn.Port) sdn.Port {
	v.Helper()
	none := ""
	port, err := p.UpdatePort(v.Context(), port.ID, sdn.PortPatch{Host: &none, DeviceID: &none})
	must(v.T, err)
	return port
}

func inBothModes(t *testing.T, test func(v *vm)) {
	for _, mode := range []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN} {
		t.Run(string(mode), func(t *testing.T) { test(newVM(t, t.TempDir(), mode)) })
	}
}
