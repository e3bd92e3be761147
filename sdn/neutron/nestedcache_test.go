package neutron_test

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
)

// asked counts what a provider is asked of ports and trunks.
type asked struct {
	sdn.Provider
	calls []string
}

func (a *asked) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	a.calls = append(a.calls, "Port")
	return a.Provider.Port(ctx, id)
}

func (a *asked) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	a.calls = append(a.calls, "FindPorts")
	return a.Provider.FindPorts(ctx, q)
}

func (a *asked) Trunk(ctx context.Context, id sdn.ID) (sdn.Trunk, error) {
	a.calls = append(a.calls, "Trunk")
	return a.Provider.Trunk(ctx, id)
}

// byDevice finds the port of a device.
func byDevice(t *testing.T, p sdn.Provider, device string) (sdn.Port, bool) {
	t.Helper()
	port, found, err := sdn.First(p.FindPorts(t.Context(), sdn.PortQuery{Devices: []string{device}}))
	must(t, err)
	return port, found
}

// TestNestedStopAsksNothing: the process that attached a port needs not ask for anything
// to take it off and delete it.
func TestNestedStopAsksNothing(t *testing.T) {
	inBothModes(t, func(v *vm) {
		counted := &asked{Provider: v.sdn}
		p, err := neutron.NewNested(counted, neutron.NestedConfig{Mode: v.mode, Host: vmHost, MACs: macs(vmMAC)})
		must(v.T, err)
		a := v.bound(p, v.parked(p, "a"), "device-a")
		v.wantAttached(1)
		counted.calls = nil
		found, ok := byDevice(v.T, p, "device-a")
		if !ok || found.Host != vmHost || found.VIF.Details[sdn.DetailVLAN] != a.VIF.Details[sdn.DetailVLAN] {
			v.Errorf("the port is %+v, was %+v", found, a)
		}
		free := v.unbound(p, found)
		v.wantAttached(0)
		if free.Host != "" || free.DeviceID != "" || !slices.Equal(free.Tags, []string{"one"}) {
			v.Errorf("unbound it is %+v", free)
		}
		must(v.T, p.DeletePort(v.Context(), free.ID, free.Revision))
		if len(counted.calls) > 0 {
			v.Errorf("asked %v", counted.calls)
		}
	})
}

// TestNestedOthersPairsStay: what others change of the machine's port between two of this
// process's changes is not lost, and what they take away is there again.
func TestNestedOthersPairsStay(t *testing.T) {
	v := newVM(t, t.TempDir(), neutron.NestedMacvlan)
	p := v.process()
	a := v.bound(p, v.parked(p, "a"), "device-a")
	theirs := func(change func(has []sdn.AllowedPair) []sdn.AllowedPair) {
		t.Helper()
		now, err := v.sdn.Port(t.Context(), v.own.ID)
		must(t, err)
		want := change(slices.Clone(now.AllowedPairs))
		_, err = v.sdn.UpdatePort(t.Context(), v.own.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: now.Revision}, AllowedPairs: &want})
		must(t, err)
	}
	more := sdn.AllowedPair{Prefix: netip.MustParsePrefix("10.60.0.201/32")}
	theirs(func(has []sdn.AllowedPair) []sdn.AllowedPair { return append(has, more) })
	b := v.bound(p, v.parked(p, "b"), "device-b")
	v.wantAttached(3) // and theirs
	theirs(func([]sdn.AllowedPair) []sdn.AllowedPair { return []sdn.AllowedPair{others} })
	v.bound(p, a, "device-a")
	v.wantAttached(1)
	for _, port := range []sdn.Port{a, b} {
		must(t, p.DeletePorts(t.Context(), []sdn.ID{port.ID}))
	}
	v.wantAttached(0)
}

// TestNestedMaskedPairs checks that a pair with host bits is the one that an older Kuryr
// wrote masked: it is not added a second time, and is dropped with its port.
func TestNestedMaskedPairs(t *testing.T) {
	v := newVM(t, t.TempDir(), neutron.NestedMacvlan)
	p := v.process()
	a := v.parked(p, "a")
	sent := []sdn.AllowedPair{{Prefix: netip.MustParsePrefix("10.61.0.7/24")}}
	a, err := p.UpdatePort(t.Context(), a.ID, sdn.PortPatch{AllowedPairs: &sent})
	must(t, err)
	v.bound(p, a, "device-a")
	v.wantAttached(2) // its address and its pair
	own, err := v.sdn.Port(t.Context(), v.own.ID)
	must(t, err)
	for i := range own.AllowedPairs {
		own.AllowedPairs[i].Prefix = own.AllowedPairs[i].Prefix.Masked()
	}
	older := sdn.PortPatch{AllowedPairs: &own.AllowedPairs}
	_, err = v.sdn.UpdatePort(t.Context(), v.own.ID, older)
	must(t, err)
	p = v.process()
	a, err = p.Port(t.Context(), a.ID)
	must(t, err)
	a = v.bound(p, a, "device-a")
	v.wantAttached(2)
	v.unbound(p, a)
	v.wantAttached(0)
}

// TestNestedPortGoneBehind: a port that another deleted is found for as long as nobody
// has looked, and not after that.
func TestNestedPortGoneBehind(t *testing.T) {
	inBothModes(t, func(v *vm) {
		p := v.process()
		behind := func(device string) sdn.Port {
			port := v.bound(p, v.parked(p, device), device)
			if v.mode == neutron.NestedVLAN {
				must(v.T, v.sdn.DetachSubports(v.Context(), "trunk", []sdn.ID{port.ID}))
			}
			must(v.T, v.sdn.DeletePorts(v.Context(), []sdn.ID{port.ID}))
			return port
		}
		for what, look := range map[string]func(port sdn.Port) error{
			"change": func(port sdn.Port) error {
				none := ""
				_, err := p.UpdatePort(v.Context(), port.ID, sdn.PortPatch{Host: &none, DeviceID: &none})
				return err
			},
			"look": func(port sdn.Port) error {
				_, err := p.Port(v.Context(), port.ID)
				return err
			},
			"search": func(port sdn.Port) error {
				found, err := sdn.All(p.FindPorts(v.Context(), sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{port.ID}}}))
				if len(found) == 0 && err == nil {
					err = sdn.NotFound("port", port.ID)
				}
				return err
			},
		} {
			port := behind(what)
			if err := look(port); !sdn.IsNotFound(err) {
				v.Errorf("a %s: %v", what, err)
			}
			if left, ok := byDevice(v.T, p, what); ok {
				v.Errorf("after a %s there still is %+v", what, left)
			}
		}
	})
}

// TestNestedChangedBehind: what was read of a port meanwhile is what is known of it, and
// where others change ports it is always asked for.
func TestNestedChangedBehind(t *testing.T) {
	inBothModes(t, func(v *vm) {
		p := v.process()
		uncached, err := neutron.NewNested(v.sdn, neutron.NestedConfig{Mode: v.mode, Host: vmHost, Uncached: true, MACs: macs(vmMAC)})
		must(v.T, err)
		port := v.bound(p, v.parked(p, "a"), "device-a")
		port = v.bound(uncached, port, "device-a")
		name := "renamed"
		_, err = v.sdn.UpdatePort(v.Context(), port.ID, sdn.PortPatch{Patch: sdn.Patch{Name: &name}})
		must(v.T, err)
		if found, _ := byDevice(v.T, uncached, "device-a"); found.Name != name {
			v.Errorf("where nothing is kept its name is %q", found.Name)
		}
		if _, err := p.Port(v.Context(), port.ID); err != nil {
			v.Error(err)
		}
		if found, _ := byDevice(v.T, p, "device-a"); found.Name != name {
			v.Errorf("after it was read its name is %q", found.Name)
		}
		none := ""
		if _, err := p.UpdatePort(v.Context(), port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: 1}, Host: &none}); sdn.ReasonOf(err) != sdn.Stale {
			v.Errorf("unbound at an old revision: %v", err)
		}
		v.wantAttached(1)
		must(v.T, p.DeletePorts(v.Context(), []sdn.ID{port.ID}))
		v.wantAttached(0)
	})
}

// TestNestedUnboundInAnotherProcess: a port that was unbound and not deleted is bound
// again, or deleted, by whatever process of the machine.
func TestNestedUnboundInAnotherProcess(t *testing.T) {
	inBothModes(t, func(v *vm) {
		for _, p := range []*neutron.Nested{v.process(), nil} {
			first := v.process()
			if p == nil {
				p = first // the same
			}
			port := v.unbound(first, v.bound(first, v.parked(first, "a"), "device-a"))
			v.wantAttached(0)
			now, err := p.Port(v.Context(), port.ID)
			must(v.T, err)
			now = v.bound(p, now, "device-b")
			v.wantAttached(1)
			if now.DeviceID != "device-b" || now.Host != vmHost || now.DeviceOwner != sdn.OwnerContainer {
				v.Errorf("bound again it is %+v", now)
			}
			now = v.unbound(p, now)
			must(v.T, v.process().DeletePort(v.Context(), now.ID, now.Revision))
			v.wantAttached(0)
		}
	})
}
