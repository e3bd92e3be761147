package neutron_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// onNeutron opens the Neutron that the environment names, by way of a proxy that counts,
// and makes a network with the port of a virtual machine, which has a trunk.
func onNeutron(t *testing.T) (p *neutron.Provider, proxy *neutrontest.Proxy, own sdn.Port, trunk sdn.ID) {
	t.Helper()
	if os.Getenv("KURYR_NEUTRON_URL") == "" {
		t.Skip("KURYR_NEUTRON_URL does not say where a Neutron is")
	}
	proxy = neutrontest.New(t, os.Getenv("KURYR_NEUTRON_URL"))
	p = openNeutron(t, proxy, "nested-"+uuid.NewString()[:8])
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{
		Base: sdn.Base{Name: p.Installation()}, Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.77.0.0/24")}, {CIDR: netip.MustParsePrefix("fd00:77::/64")}},
	})
	must(t, err)
	id := uuid.New()
	ports, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{
		Base: sdn.Base{Name: "vm"}, Network: n.ID, MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, id[0], id[1], id[2]}, DeviceOwner: "compute:nova", DeviceID: "vm",
		AllowedPairs: []sdn.AllowedPair{{Prefix: netip.MustParsePrefix("10.77.0.200/32")}},
	}})
	must(t, err)
	tr, err := p.EnsureTrunk(t.Context(), sdn.TrunkSpec{Base: sdn.Base{Name: "vm"}, Parent: ports[0].ID})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, p.DeleteTrunk(ctx, tr.ID))
		left, err := sdn.All(p.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{n.ID}}))
		must(t, err)
		for _, port := range left {
			if port.ID != ports[0].ID && (port.DeviceOwner == "" || port.DeviceOwner == sdn.OwnerContainer) {
				t.Errorf("port %s is left, with tags %v", port.ID, port.Tags)
				must(t, p.DeletePorts(ctx, []sdn.ID{port.ID}))
			}
		}
		must(t, p.DeletePorts(ctx, []sdn.ID{ports[0].ID}))
		must(t, p.DeleteNetwork(ctx, n.ID))
	})
	return p, proxy, ports[0], tr.ID
}

// openNeutron opens the Neutron behind the proxy for an installation, in a project of the
// same name.
func openNeutron(t *testing.T, proxy *neutrontest.Proxy, installation string) *neutron.Provider {
	t.Helper()
	p, err := neutron.Open(neutron.Config{Timeout: 5 * time.Minute, Installation: installation, Project: installation, Host: "vm.example", Endpoint: proxy.URL,
		Auth: neutron.Auth{Type: "none"}}, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNestedOnNeutron: what a container's start and stop ask of a Neutron, in both modes.
func TestNestedOnNeutron(t *testing.T) {
	inner, _, own, trunk := onNeutron(t)
	for _, mode := range []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN} {
		t.Run(string(mode), func(t *testing.T) {
			const host = "vm.example"
			p, err := neutron.NewNested(inner, neutron.NestedConfig{Mode: mode, Host: host, MACs: macs(own.MAC)})
			must(t, err)
			ctx := t.Context()
			attached := func() int {
				now, err := inner.Port(ctx, own.ID)
				must(t, err)
				on, err := inner.Trunk(ctx, trunk)
				must(t, err)
				if !slices.ContainsFunc(now.AllowedPairs, func(a sdn.AllowedPair) bool { return a.Prefix.String() == "10.77.0.200/32" }) {
					t.Errorf("what its user let the machine send as is lost: %v", now.AllowedPairs)
				}
				if mode == neutron.NestedVLAN {
					return len(on.Subports)
				}
				for _, a := range now.AllowedPairs {
					if theirs := a.MAC == nil; a.Length == theirs {
						t.Errorf("of the pairs %v one is another's, and the others have their length", now.AllowedPairs)
					}
				}
				return (len(now.AllowedPairs) - 1) / 2 // of each family
			}
			whole := func(what string, port sdn.Port, device string) {
				t.Helper()
				if port.Host != host || port.VIF.Type != string(mode) || port.DeviceID != device || port.DeviceOwner != sdn.OwnerContainer ||
					(port.VIF.Details[sdn.DetailVLAN] != "") != (mode == neutron.NestedVLAN) {
					t.Errorf("%s: the port is %+v", what, port)
				}
			}

			// A port that is made for an endpoint.
			spec := sdn.PortSpec{Base: sdn.Base{Key: sdn.Key{Owner: inner.Installation(), Kind: "test", Name: string(mode)}, Tags: []string{"one"}},
				Network: own.Network, Host: host, DeviceID: "endpoint-a", DeviceOwner: sdn.OwnerContainer}
			var made sdn.Port
			for range 2 {
				ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{spec})
				must(t, err)
				whole("made", ports[0], "endpoint-a")
				if bare := ports[0].VNICType == sdn.VNICBaremetal; bare != (mode == neutron.NestedMacvlan) {
					t.Errorf("the VNIC type is %q", ports[0].VNICType)
				}
				if made.ID != "" && (ports[0].ID != made.ID || ports[0].VIF.Details[sdn.DetailVLAN] != made.VIF.Details[sdn.DetailVLAN]) {
					t.Errorf("made again it is %+v, was %+v", ports[0], made)
				}
				made = ports[0]
			}
			for name, q := range map[string]sdn.PortQuery{
				"device": {Devices: []string{"endpoint-a"}}, "host": {Hosts: []string{host}}, "owner": {Networks: []sdn.ID{own.Network}, DeviceOwners: []string{sdn.OwnerContainer}},
			} {
				found, err := sdn.All(p.FindPorts(ctx, q))
				if must(t, err); len(found) != 1 || found[0].ID != made.ID {
					t.Errorf("by its %s found %d ports", name, len(found))
					continue
				}
				whole("found by its "+name, found[0], "endpoint-a")
			}
			if n := attached(); n != 1 {
				t.Errorf("%d containers are attached", n)
			}

			// A port that is there already, bound and parked at its revision.
			spec.Key.Name, spec.Host, spec.DeviceID = string(mode)+"-parked", "", ""
			parked, err := p.EnsurePorts(ctx, []sdn.PortSpec{spec})
			must(t, err)
			here, device, owner, none, tags := host, "endpoint-b", sdn.OwnerContainer, "", []string{"two"}
			patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: parked[0].Revision, Tags: &tags}, Host: &here, DeviceID: &device, DeviceOwner: &owner}
			bound, err := p.UpdatePort(ctx, parked[0].ID, patch)
			must(t, err)
			whole("bound", bound, "endpoint-b")
			if _, err := p.UpdatePort(ctx, parked[0].ID, patch); sdn.ReasonOf(err) != sdn.Stale {
				t.Errorf("bound at an old revision: %v", err)
			}
			if n := attached(); n != 2 {
				t.Errorf("%d containers are attached", n)
			}
			now, err := p.Port(ctx, bound.ID)
			must(t, err)
			free, err := p.UpdatePort(ctx, bound.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: now.Revision, Tags: &tags}, Host: &none, DeviceID: &none})
			must(t, err)
			if free.Host != "" || free.DeviceID != "" || !slices.Equal(free.Tags, tags) {
				t.Errorf("unbound it is %+v", free)
			}
			if n := attached(); n != 1 {
				t.Errorf("%d containers are attached", n)
			}
			must(t, p.DeletePort(ctx, free.ID, free.Revision))
			must(t, p.DeletePorts(ctx, []sdn.ID{made.ID}))
			must(t, p.DeletePorts(ctx, []sdn.ID{made.ID}))
			if n := attached(); n != 0 {
				t.Errorf("%d containers are attached", n)
			}
		})
	}
}

// TestNestedProcessesOnNeutron: two processes that know the machine's port and trunk
// change them, and neither loses what the other did. Subports they change at the same
// time, pairs one after the other: Neutron checks a port's revision before it reads its
// pairs, so of two changes at the same moment one may be lost.
func TestNestedProcessesOnNeutron(t *testing.T) {
	inner, proxy, own, trunk := onNeutron(t)
	const processes, ports = 2, 2
	for _, mode := range []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN} {
		t.Run(string(mode), func(t *testing.T) {
			ctx := t.Context()
			var made [processes][]sdn.Port
			var all sync.WaitGroup
			each := all.Go
			if mode == neutron.NestedMacvlan {
				each = func(f func()) { f() }
			}
			var by [processes]*neutron.Nested
			for i := range by {
				p, err := neutron.NewNested(openNeutron(t, proxy, inner.Installation()), neutron.NestedConfig{Mode: mode, Host: "vm.example", MACs: macs(own.MAC)})
				must(t, err)
				by[i] = p
			}
			attached := func() int {
				now, err := inner.Port(ctx, own.ID)
				must(t, err)
				on, err := inner.Trunk(ctx, trunk)
				must(t, err)
				if mode == neutron.NestedVLAN {
					return len(on.Subports)
				}
				return (len(now.AllowedPairs) - 1) / 2 // of each family
			}
			for i, p := range by {
				each(func() {
					for j := range ports {
						got, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: own.Network, Host: "vm.example", DeviceID: fmt.Sprint(i, j), DeviceOwner: sdn.OwnerContainer}})
						if err != nil {
							t.Error(err)
							return
						}
						made[i] = append(made[i], got...)
					}
				})
			}
			all.Wait()
			if n := attached(); n != processes*ports {
				t.Errorf("%d containers are attached, want %d", n, processes*ports)
			}
			for i, p := range by {
				each(func() {
					for _, port := range made[i] {
						if err := p.DeletePorts(ctx, []sdn.ID{port.ID}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			if n := attached(); n != 0 {
				t.Errorf("%d containers are attached still", n)
			}
		})
	}
}

// aged is a Neutron whose provider is another one by and by, which has nothing in its
// caches: those last for half a minute, and containers live longer.
type aged struct{ sdn.Provider }

// TestNestedCallsOnNeutron: what Docker's calls for a container's start and stop ask of
// this package costs few requests of Neutron. docs/neutron.md tells what each is for.
func TestNestedCallsOnNeutron(t *testing.T) {
	inner, proxy, own, _ := onNeutron(t)
	for _, c := range []struct {
		mode        neutron.NestedMode
		start, stop int
	}{{neutron.NestedMacvlan, 4, 3}, {neutron.NestedVLAN, 5, 3}} {
		t.Run(string(c.mode), func(t *testing.T) {
			const host = "vm.example"
			now := &aged{inner}
			p, err := neutron.NewNested(now, neutron.NestedConfig{Mode: c.mode, Host: host, MACs: macs(own.MAC)})
			must(t, err)
			ctx := t.Context()
			for round := range 2 { // the first finds the machine's own port, and its trunk
				proxy.Reset()
				id := uuid.New()
				mac := net.HardwareAddr{2, 0, id[0], id[1], id[2], id[3]}
				ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{
					Base:    sdn.Base{Key: sdn.Key{Owner: inner.Installation(), Kind: "test", Name: mac.String()}, Name: "unbound"},
					Network: own.Network, MAC: mac, DeviceOwner: sdn.OwnerContainer,
				}})
				must(t, err)
				address := ports[0].Addresses[0]
				at := sdn.PortQuery{Subnets: []sdn.ID{address.Subnet}, Addresses: []netip.Addr{address.Addr}}
				port, _, err := sdn.First(p.FindPorts(ctx, at))
				must(t, err)
				here, device, owner, name, none, tags := host, "endpoint-"+id.String(), sdn.OwnerContainer, "endpoint", "", []string{"one"}
				_, err = p.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Name: &name, Tags: &tags}, Host: &here, DeviceID: &device, DeviceOwner: &owner})
				must(t, err)
				started := proxy.Calls()
				if round > 0 { // so that the trunk is known to the one that starts
					now.Provider = openNeutron(t, proxy, inner.Installation())
					must(t, now.Ping(ctx))
				}
				proxy.Reset()
				port, found, err := sdn.First(p.FindPorts(ctx, sdn.PortQuery{Devices: []string{device}}))
				must(t, err)
				hasVLAN := port.VIF.Details[sdn.DetailVLAN] != ""
				if !found || port.Host != host || hasVLAN != (c.mode == neutron.NestedVLAN) {
					t.Fatalf("the port of the device is %+v", port)
				}
				free, err := p.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{Name: &name}, Host: &none, DeviceID: &none})
				if must(t, err); free.Host != "" || free.DeviceID != "" || free.DeviceOwner != owner || !slices.Equal(free.Tags, tags) {
					t.Errorf("unbound it is %+v", free)
				}
				port, _, err = sdn.First(p.FindPorts(ctx, at))
				must(t, err)
				must(t, p.DeletePort(ctx, port.ID, port.Revision))
				stopped := proxy.Calls()
				t.Logf("start %v\nstop %v", started, stopped)
				if round > 0 && (len(started) > c.start || len(stopped) > c.stop) {
					t.Errorf("%d requests for a start and %d for a stop, at most %d and %d are allowed:\nstart %v\nstop %v",
						len(started), len(stopped), c.start, c.stop, started, stopped)
				}
			}
		})
	}
}
