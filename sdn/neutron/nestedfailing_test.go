package neutron_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// failing is an SDN whose next answers to what attaches ports and takes them off are that
// it is away.
type failing struct {
	*neutrontest.Trunked
	times int
}

func (f *failing) away() error {
	if f.times == 0 {
		return nil
	}
	f.times--
	return sdn.Unavailable(nil, "Neutron", "away for a moment")
}

func (f *failing) UpdatePort(ctx context.Context, id sdn.ID, change sdn.PortPatch) (sdn.Port, error) {
	if change.AllowedPairs != nil {
		if err := f.away(); err != nil {
			return sdn.Port{}, err
		}
	}
	return f.Trunked.UpdatePort(ctx, id, change)
}

func (f *failing) AttachSubports(ctx context.Context, trunk sdn.ID, subports []sdn.Subport) ([]sdn.Subport, error) {
	if err := f.away(); err != nil {
		return nil, err
	}
	return f.Trunked.AttachSubports(ctx, trunk, subports)
}

func (f *failing) DetachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.ID) error {
	if err := f.away(); err != nil {
		return err
	}
	return f.Trunked.DetachSubports(ctx, trunk, ports)
}

// on is a Kuryr of the machine, on an SDN that fails.
func (v *vm) on(f *failing) *neutron.Nested {
	v.Helper()
	p, err := neutron.NewNested(f, neutron.NestedConfig{Mode: v.mode, Host: vmHost, MACs: macs(vmMAC)})
	must(v.T, err)
	return p
}

func (v *vm) spec(name string) sdn.PortSpec {
	return sdn.PortSpec{Base: sdn.Base{Key: sdn.Key{Owner: "test", Kind: "port", Name: name}}, Network: v.own.Network, Host: vmHost, DeviceID: "device-" + name, DeviceOwner: sdn.OwnerContainer}
}

// A repeat of EnsurePorts that cannot attach the port leaves one that was attached
// before, on which a container runs, and takes back what it made itself.
func TestNestedEnsureFailing(t *testing.T) {
	inBothModes(t, func(v *vm) {
		f := &failing{Trunked: v.sdn}
		p := v.on(f)
		ports, err := p.EnsurePorts(v.Context(), []sdn.PortSpec{v.spec("a")})
		must(v.T, err)
		if v.mode == neutron.NestedMacvlan { // so that there is something to write: another has taken the pair away
			_, err := v.sdn.UpdatePort(v.Context(), v.own.ID, sdn.PortPatch{AllowedPairs: &[]sdn.AllowedPair{others}})
			must(v.T, err)
		}
		f.times = 1
		if _, err := p.EnsurePorts(v.Context(), []sdn.PortSpec{v.spec("a")}); !sdn.IsUnavailable(err) {
			v.Errorf("the error is %v", err)
		}
		if _, err := v.sdn.Port(v.Context(), ports[0].ID); err != nil {
			v.Fatalf("the port of a container that runs: %v", err)
		}
		again, err := p.EnsurePorts(v.Context(), []sdn.PortSpec{v.spec("a")})
		if must(v.T, err); again[0].ID != ports[0].ID || again[0].Host != vmHost {
			v.Errorf("the next repeat gives %+v", again)
		}
		v.wantAttached(1)

		f.times = 1
		if _, err := p.EnsurePorts(v.Context(), []sdn.PortSpec{v.spec("b")}); !sdn.IsUnavailable(err) {
			v.Errorf("the error is %v", err)
		}
		if left, err := sdn.All(v.sdn.FindPorts(v.Context(), sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{v.spec("b").Key}}})); err != nil || len(left) > 0 {
			v.Errorf("left of a port that was never attached: %+v, %v", left, err)
		}
		v.wantAttached(1)
	})
}

// A port that another process of the machine attached, one that has ended, is left too.
func TestNestedEnsureFailingAfterRestart(t *testing.T) {
	v := newVM(t, t.TempDir(), neutron.NestedVLAN)
	ports, err := v.process().EnsurePorts(t.Context(), []sdn.PortSpec{v.spec("a")})
	must(t, err)
	if _, err := v.on(&failing{v.sdn, 1}).EnsurePorts(t.Context(), []sdn.PortSpec{v.spec("a")}); !sdn.IsUnavailable(err) {
		t.Errorf("the error is %v", err)
	}
	if _, err := v.sdn.Port(t.Context(), ports[0].ID); err != nil {
		t.Error(err)
	}
	v.wantAttached(1)
}

// One port that cannot be taken off the machine's does not keep the others: it stays,
// they go, and the error tells which.
func TestNestedDeletePortsFailing(t *testing.T) {
	inBothModes(t, func(v *vm) {
		for name, known := range map[string]bool{"known": true, "after a restart": false} {
			f := &failing{Trunked: v.sdn}
			p := v.on(f)
			made, err := p.EnsurePorts(v.Context(), []sdn.PortSpec{v.spec("a"), v.spec("b"), v.spec("c")})
			must(v.T, err)
			if !known {
				p = v.on(f)
			}
			f.times = 1
			ids := []sdn.ID{made[0].ID, made[1].ID, made[2].ID}
			err = p.DeletePorts(v.Context(), ids)
			var some *sdn.BulkError
			if !errors.As(err, &some) || len(some.Errs) != len(ids) || !sdn.IsUnavailable(err) {
				v.Fatalf("%s: the error is %#v", name, err)
			}
			stay := 0
			for i, id := range ids {
				_, err := v.sdn.Port(v.Context(), id)
				if (err == nil) != (some.Errs[i] != nil) {
					v.Errorf("%s: port %d is told to be %v, it is %v", name, i, some.Errs[i], err)
				}
				if err == nil {
					stay++
				}
			}
			if stay != 1 {
				v.Errorf("%s: %d ports are left, want the one that could not leave", name, stay)
			}
			v.wantAttached(1)
			must(v.T, p.DeletePorts(v.Context(), ids))
			v.wantAttached(0)
		}
	})
}
