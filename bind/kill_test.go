//go:build linux && failpoints

package bind

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// victimEnv holds what a child process does before it is killed.
const victimEnv = "KURYR_BIND_VICTIM"

type victim struct {
	Op    string
	Ask   Interface
	OVSDB string
}

func init() {
	order := os.Getenv(victimEnv)
	if order == "" {
		return
	}
	if err := obey(order); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func obey(order string) error {
	var v victim
	if err := json.Unmarshal([]byte(order), &v); err != nil {
		return err
	}
	b, err := New(Config{OVSDB: v.OVSDB})
	if err != nil {
		return err
	}
	switch v.Op {
	case "plug":
		_, err = b.Plug(context.Background(), v.Ask)
		return err
	case "unplug":
		if err := b.Unplug(context.Background(), v.Ask.Port); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return b.Run(ctx)
	}
	return errors.New("unknown operation " + v.Op)
}

// kill has another process do what v says, which is killed at a failpoint.
func (w *world) kill(at string, v victim) {
	w.t.Helper()
	order, err := json.Marshal(v)
	must(w.t, err)
	var said bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimEnv+"="+string(order), "KURYR_FAILPOINT="+at)
	cmd.Stderr = &said
	nstest.Do(w.t, w.host, func() { err = cmd.Run() })
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		w.t.Fatalf("was not killed: %v: %s", err, said.String())
	}
}

// TestKilledOVS is TestKilled with Open vSwitch, whose database another process has changed or not.
func TestKilledOVS(t *testing.T) {
	t.Parallel()
	points := []struct {
		op, at string
		hybrid bool
	}{
		{"plug", "bind.plug.created", false},
		{"plug", "bind.plug.configured", false},
		{"plug", "bind.ovs.transacted", false},
		{"plug", "bind.plug.joined", false},
		{"plug", "bind.hybrid.bridged", true},
		{"plug", "bind.hybrid.paired", true},
		{"plug", "bind.ovs.transacted", true},
		{"unplug", "bind.ovs.removed", false},
		{"unplug", "bind.ovs.left", false},
		{"unplug", "bind.unplug.left", false},
		{"unplug", "bind.retire.down", false},
		{"unplug", "bind.ovs.removed", true},
		{"unplug", "bind.hybrid.retired", true},
		{"unplug", "bind.hybrid.retired:2", true},
		{"unplug", "bind.hybrid.retired:3", true},
	}
	w := newWorld(t)
	v := newSwitch(w, true)
	w.binder(v.db)
	peer := nstest.New(t)
	other := w.ovsPort()
	w.plug(w.in(other, peer))
	for _, p := range points {
		t.Run(fmt.Sprintf("%s/%v", p.at, p.hybrid), func(t *testing.T) {
			a := nstest.New(t)
			for _, then := range []string{"plug", "unplug"} {
				port := w.ovsPort()
				if p.hybrid {
					port = w.hybridPort()
				}
				i := w.in(port, a)
				if p.op == "unplug" {
					w.plug(i)
				}
				w.kill(p.at, victim{Op: p.op, Ask: i, OVSDB: v.db})
				if then == "plug" {
					w.plug(i)
					pings(t, a, other.Addresses[0].Addr)
					must(t, w.b.Collect(t.Context(), ""))
					wantNames(t, a, "eth0")
				}
				w.unplug(port)
				w.wantHost(HostName(other.ID))
				wantNames(t, a)
				v.wantPorts("br-int", HostName(other.ID))
			}
		})
	}
}

// TestKilled kills Plug and Unplug at every failpoint, then repeats the call, or takes
// the port, in another process.
func TestKilled(t *testing.T) {
	t.Parallel()
	points := []struct{ op, at string }{
		{"plug", "bind.plug.created"},
		{"plug", "bind.plug.hosted"},
		{"plug", "bind.container.sysctl"},
		{"plug", "bind.container.addrgen"},
		{"plug", "bind.plug.configured"},
		{"unplug", "bind.retire.down"},
		{"unplug", "bind.collect.deleted"},
	}
	for _, p := range points {
		t.Run(p.at, func(t *testing.T) {
			w := newWorld(t)
			a := nstest.New(t)
			for _, then := range []string{"plug", "unplug"} {
				i := w.in(w.port(), a)
				if p.op == "unplug" {
					w.plug(i)
				}
				w.kill(p.at, victim{Op: p.op, Ask: i})
				if then == "plug" {
					w.plug(i)
					ping(t, a, "10.1.0.1")
					ping(t, a, "fd00:1::1")
					w.collect()
					wantNames(t, w.router, HostName(i.Port.ID))
					wantNames(t, a, "eth0")
				}
				w.unplug(i.Port)
				w.collect()
				wantNames(t, w.router)
				wantNames(t, a)
			}
		})
	}
}

// TestKilledNested is TestKilled of a nested port, waiting for an engine or in its container.
func TestKilledNested(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"bind.nested.created", "bind.nested.marked"} {
		t.Run(at, func(t *testing.T) {
			w := newMachine(t)
			a := nstest.New(t)
			for _, then := range []string{"plug", "unplug"} {
				for _, i := range []Interface{w.in(w.nestedPort(sdn.VIFMacvlan), a), {
					Port: w.nestedPort(sdn.VIFMacvlan), MTU: testMTU,
				}} {
					if then == "unplug" && at == "bind.nested.created" && i.Namespace != "" {
						continue // without its alias it goes with the container
					}
					w.kill(at, victim{Op: "plug", Ask: i})
					if then == "plug" {
						w.plug(i)
						if i.Namespace != "" {
							ping(t, a, "10.1.0.1")
						}
					}
					w.unplug(i.Port)
					must(t, w.b.Collect(t.Context(), ""))
					wantNames(t, a)
					wantNames(t, w.host, "ens3")
				}
			}
		})
	}
}
