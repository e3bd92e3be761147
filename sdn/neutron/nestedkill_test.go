//go:build failpoints

package neutron_test

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
)

// The environment of a child that does what it is told until it is killed: the folder of
// its SDN, its mode, and what it does.
const killFolder, killMode, killOp = "KURYR_TEST_FOLDER", "KURYR_TEST_MODE", "KURYR_TEST_OP"

// killed are the failpoints by what leads to them. Each operation begins with a parked
// port, "lock" and "bound" with one that is attached.
var killed = []struct {
	op, at string
	modes  []neutron.NestedMode
}{
	{"make", "nested.ensureports.made", []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN}},
	{"make", "nested.join.attached", []neutron.NestedMode{neutron.NestedVLAN}},
	{"bind", "nested.bind.tagged", []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN}},
	{"bind", "nested.join.attached", []neutron.NestedMode{neutron.NestedVLAN}},
	{"move", "nested.hush.left", []neutron.NestedMode{neutron.NestedMacvlan}},
	{"move", "nested.updateport.changed", []neutron.NestedMode{neutron.NestedMacvlan}},
	{"unbind", "nested.unbind.left", []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN}},
	{"delete", "nested.delete.left", []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN}},
	{"deleteports", "nested.delete.left", []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN}},
}

// begin brings a port to where an operation begins.
func (v *vm) begin(p sdn.Provider, op string) (port sdn.Port) {
	v.Helper()
	switch op {
	case "make":
		return sdn.Port{}
	case "bind":
		return v.parked(p, "a")
	}
	return v.bound(p, v.parked(p, "a"), "device-a")
}

// do is the operation.
func (v *vm) do(p sdn.Provider, op string, port sdn.Port) {
	v.Helper()
	ctx, here, none, device := v.Context(), vmHost, "", "device-a"
	var err error
	switch op {
	case "make":
		_, err = p.EnsurePorts(ctx, []sdn.PortSpec{{Base: sdn.Base{Key: sdn.Key{Owner: "test", Kind: "port", Name: "a"}},
			Network: v.own.Network, Host: here, DeviceID: device, DeviceOwner: sdn.OwnerContainer}})
	case "bind":
		_, err = p.UpdatePort(ctx, port.ID, sdn.PortPatch{Host: &here, DeviceID: &device})
	case "move":
		_, err = p.UpdatePort(ctx, port.ID, sdn.PortPatch{Addresses: &[]sdn.Address{{Addr: netip.MustParseAddr("10.60.0.99")}}})
	case "unbind":
		_, err = p.UpdatePort(ctx, port.ID, sdn.PortPatch{Host: &none, DeviceID: &none})
	case "delete":
		err = p.DeletePort(ctx, port.ID, port.Revision)
	case "deleteports":
		err = p.DeletePorts(ctx, []sdn.ID{port.ID})
	}
	must(v.T, err)
}

// TestKilledChild is not a test of its own: it is the process that TestNestedKilled
// kills.
func TestKilledChild(t *testing.T) {
	if os.Getenv(killOp) == "" {
		t.Skip("it is started by TestNestedKilled")
	}
	v := newVM(t, os.Getenv(killFolder), neutron.NestedMode(os.Getenv(killMode)))
	p := v.process()
	v.do(p, os.Getenv(killOp), v.begin(p, os.Getenv(killOp)))
}

// TestNestedKilled kills a process of the machine at every failpoint. The next one does
// the same to its end, or takes the port away; nothing stays attached.
func TestNestedKilled(t *testing.T) {
	for _, k := range killed {
		for _, mode := range k.modes {
			for _, again := range []bool{true, false} {
				name := strings.Join([]string{k.op, k.at, string(mode)}, " ")
				if again {
					name += " again"
				}
				t.Run(name, func(t *testing.T) {
					folder := t.TempDir()
					kill(t, k.at, k.op, mode, folder)
					newVM(t, folder, mode).recover(k.op, again)
				})
			}
		}
	}
}

// kill has another process do something, which is killed at a failpoint.
func kill(t *testing.T, at, op string, mode neutron.NestedMode, folder string) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), killFolder+"="+folder, killMode+"="+string(mode), killOp+"="+op, "KURYR_FAILPOINT="+at)
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("was not killed: %v: %s", err, said.String())
	}
}

// recover is what is done to the port that a killed process left. That one may be
// attached its host tells.
func (v *vm) recover(op string, again bool) {
	v.Helper()
	p := v.process()
	left, err := sdn.All(p.FindPorts(v.Context(), sdn.PortQuery{Match: sdn.Match{Owner: "test", Kind: "port"}}))
	if must(v.T, err); len(left) != 1 || left[0].Host != vmHost {
		v.Fatalf("it left %+v", left)
	}
	if again {
		v.do(p, op, left[0])
		want := map[string]int{"make": 1, "bind": 1, "move": 1}[op]
		v.wantAttached(want)
		port, ok := byDevice(v.T, p, "device-a")
		hasVLAN := port.VIF.Details[sdn.DetailVLAN] != ""
		if ok != (want == 1) || ok && (port.Host != vmHost || hasVLAN != (v.mode == neutron.NestedVLAN)) {
			v.Errorf("the port of the device is %+v", port)
		}
	}
	must(v.T, v.process().DeletePorts(v.Context(), []sdn.ID{left[0].ID}))
	v.wantAttached(0)
	if left, err := sdn.All(v.sdn.FindPorts(v.Context(), sdn.PortQuery{Match: sdn.Match{Owner: "test"}})); err != nil || len(left) > 0 {
		v.Errorf("left are %+v, %v", left, err)
	}
}
