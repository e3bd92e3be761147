//go:build linux

package bind

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// vswitch is an Open vSwitch of a test's own: its database, and its daemon that forwards
// in user space where asked for.
type vswitch struct {
	t   testing.TB
	dir string
	db  string // the database's socket
}

// programs skips the test where one of Open vSwitch's programs is missing.
func programs(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			t.Skipf("needs %s (Debian's package openvswitch-switch)", n)
		}
	}
}

// newSwitch starts a database in w's host, and with forward also the daemon, with the
// bridge br-int. Without the daemon only the database is changed.
func newSwitch(w *world, forward bool) *vswitch {
	t := w.t
	t.Helper()
	programs(t, "ovsdb-server", "ovsdb-tool", "ovs-vswitchd", "ovs-vsctl")
	dir, err := os.MkdirTemp("/run", "ovs") // a Unix socket's path must be short
	must(t, err)
	v := &vswitch{t: t, dir: dir, db: filepath.Join(dir, "db.sock")}
	must(t, exec.Command("ovsdb-tool", "create", filepath.Join(dir, "conf.db")).Run())
	v.database(w)
	v.ctl("--no-wait", "init")
	if !forward {
		v.ctl("--no-wait", "add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev")
		return v
	}
	v.forwarder(w)
	v.ctl("add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev")
	return v
}

func (v *vswitch) database(w *world) {
	v.daemon(w, "ovsdb-server", "--remote=punix:"+v.db, filepath.Join(v.dir, "conf.db"))
}

func (v *vswitch) forwarder(w *world) { v.daemon(w, "ovs-vswitchd", "unix:"+v.db) }

// daemon starts a program that returns when it serves, and ends it with the test.
func (v *vswitch) daemon(w *world, name string, args ...string) {
	v.t.Helper()
	pid := filepath.Join(v.dir, name+".pid")
	args = append(
		[]string{
			"--detach", "--no-chdir", "--pidfile=" + pid, "--log-file=" + filepath.Join(v.dir, name+".log"),
			"-vconsole:off", "--unixctl=" + filepath.Join(v.dir, name+".ctl"),
		},
		args...,
	)
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+v.dir)
	var err error
	nstest.Do(v.t, w.host, func() { err = cmd.Run() })
	if err != nil {
		v.t.Fatalf("start %s: %v", name, err)
	}
	v.t.Cleanup(func() { v.kill(name) })
}

// kill ends a daemon without notice, if it runs.
func (v *vswitch) kill(name string) {
	file := filepath.Join(v.dir, name+".pid")
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return
	}
	must(v.t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(v.t, err)
	process, err := unix.PidfdOpen(n, 0)
	must(v.t, err)
	defer unix.Close(process)
	must(v.t, unix.Kill(n, unix.SIGKILL))
	// The next one cannot lock the database before this one has ended.
	ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
	for events := 0; events == 0 || errors.Is(err, unix.EINTR); {
		events, err = unix.Poll(ended, -1)
	}
	must(v.t, err)
	must(v.t, os.Remove(file))
}

// ctl runs ovs-vsctl.
func (v *vswitch) ctl(args ...string) string {
	v.t.Helper()
	out, err := exec.Command(
		"ovs-vsctl", append([]string{"--db=unix:" + v.db, "--timeout=30"}, args...)...,
	).CombinedOutput()
	if err != nil {
		v.t.Fatalf("ovs-vsctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (v *vswitch) wantPorts(bridge string, want ...string) {
	v.t.Helper()
	if got := strings.Fields(v.ctl("list-ports", bridge)); fmt.Sprint(got) != fmt.Sprint(want) {
		v.t.Errorf("ports of %s are %v, want %v", bridge, got, want)
	}
}

func (v *vswitch) wantIDs(iface, want string) {
	v.t.Helper()
	if got := v.ctl("get", "Interface", iface, "external_ids"); got != want {
		v.t.Errorf("external ids of %s are %s, want %s", iface, got, want)
	}
}

// binder gives w a binder that knows the switch on this socket.
func (w *world) binder(socket string) {
	w.t.Helper()
	w.use(Config{Logger: slog.New(slog.DiscardHandler), OVSDB: socket})
}

// ovsPort is a port of VIF type ovs; no router is on its network.
func (w *world) ovsPort() sdn.Port {
	p := w.port()
	p.DeviceID = "endpoint" + string(p.ID[:4])
	p.VIF = sdn.VIF{Type: sdn.VIFOVS, Details: map[string]string{}}
	return p
}

func (w *world) hybridPort() sdn.Port {
	p := w.ovsPort()
	p.VIF.Details[sdn.DetailHybrid] = "true"
	return p
}

// wantHost lists the links of the host but Open vSwitch's own.
func (w *world) wantHost(want ...string) {
	w.t.Helper()
	must(w.t, w.b.Collect(context.Background(), ""))
	var got []string
	for _, n := range names(w.t, w.host) {
		if n != "br-int" && n != "ovs-netdev" {
			got = append(got, n)
		}
	}
	if !sameWords(strings.Join(got, " "), strings.Join(want, " ")) {
		w.t.Errorf("links of the host are %v, want %v", got, want)
	}
}

func TestOVS(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]func(*world) sdn.Port{"native": (*world).ovsPort, "hybrid": (*world).hybridPort} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := newSwitch(w, true)
			w.binder(v.db)
			a, b := nstest.New(t), nstest.New(t)
			pa, pb := kind(w), kind(w)
			w.plug(w.in(pa, a))
			w.plug(w.in(pb, b))
			pings(t, a, pb.Addresses[0].Addr)
			pings(t, b, pa.Addresses[1].Addr)
			talk(t, a, b, pb.Addresses[0].Addr)

			wantMTU(t, w.host, HostName(pa.ID), testMTU)
			wantMTU(t, a, "eth0", testMTU)
			device := `vm-uuid="` + pa.DeviceID + `"`
			if hybrid(pa) {
				device = `vm-id="` + pa.DeviceID + `"`
				wantMTU(t, w.host, uplink(pa), testMTU)
				wantHybrid(t, w, pa)
			}
			v.wantIDs(uplink(pa), fmt.Sprintf(
				`{attached-mac=%q, iface-id=%q, iface-status=active, owner=kuryr, %s}`, pa.MAC, pa.ID,
				unquoted(device),
			))
			if got, err := w.b.State(context.Background(), pa); err != nil || got != Whole {
				t.Errorf("state is %s, %v", got, err)
			}
			w.wantConnected("plugged", pa, true)

			before := indexOf(t, w.host, HostName(pa.ID))
			rows := v.ctl("list", "Interface", uplink(pa))
			w.plug(w.in(pa, a)) // again
			if now := indexOf(t, w.host, HostName(pa.ID)); now != before {
				t.Errorf("plugged twice: the host end was made anew")
			}
			if now := v.ctl("--columns=_uuid", "list", "Interface", uplink(pa)); !strings.Contains(rows, now) {
				t.Errorf("plugged twice: the switch's interface was made anew")
			}
			pings(t, a, pb.Addresses[0].Addr)

			// Elsewhere, and back on the spot: the switch must take the new link of the old name.
			c := nstest.New(t)
			w.plug(w.in(pa, c))
			pings(t, c, pb.Addresses[0].Addr)
			w.unplug(pa)
			w.plug(w.in(pa, a))
			pings(t, a, pb.Addresses[0].Addr)
			// The pair went with its container, or with the host's restart, and the switch's
			// database kept the interface.
			nstest.Do(t, a, func() {
				l, err := netlink.LinkByName("eth0")
				must(t, err)
				must(t, netlink.LinkDel(l))
			})
			if got, err := w.b.State(t.Context(), pa); err != nil || got != Absent {
				t.Errorf("state of a pair that is gone is %s, %v", got, err)
			}
			w.plug(w.in(pa, a))
			pings(t, a, pb.Addresses[0].Addr)

			w.unplug(pa)
			w.unplug(pb)
			w.unplug(pb)
			w.wantHost()
			wantNames(t, a)
			wantNames(t, b)
			v.wantPorts("br-int")
		})
	}
}

// unquoted is how ovs-vsctl writes a string that needs no quotes.
func unquoted(s string) string { return strings.ReplaceAll(s, `"`, "") }

func wantMTU(t testing.TB, ns netns.NsHandle, name string, want int) {
	t.Helper()
	nstest.Do(t, ns, func() {
		l, err := netlink.LinkByName(name)
		if err != nil || l.Attrs().MTU != want {
			t.Errorf("%s: %v, %v; want MTU %d", name, l, err, want)
		}
	})
}

// wantHybrid checks the links between the host end and the switch.
func wantHybrid(t testing.TB, w *world, p sdn.Port) {
	t.Helper()
	wantForwardsAtOnce(t, w.host, "qbr"+p.ID.Short(), 0)
	nstest.Do(t, w.host, func() {
		br, err := netlink.LinkByName("qbr" + p.ID.Short())
		must(t, err)
		for _, name := range []string{"tap", "qvb"} {
			l, err := netlink.LinkByName(name + p.ID.Short())
			if err != nil || l.Attrs().MasterIndex != br.Attrs().Index || l.Attrs().OperState != netlink.OperUp {
				t.Errorf("%s is not on the bridge: %+v, %v", name, l, err)
			}
		}
	})
}

// pings asks until the other answers: a switch in user space learns of its ports a moment
// after the database.
func pings(t testing.TB, ns netns.NsHandle, to netip.Addr) {
	t.Helper()
	nstest.Do(t, ns, func() {
		var err error
		if !nstest.Repeat(nstest.Limit, func() {}, func(time.Time) bool {
			err = echoWithin(to, 500_000)
			return err == nil
		}) {
			t.Errorf("ping %s: %v", to, err)
		}
	})
}

// talk sends a datagram until it comes, whose checksum the receiver's kernel verifies.
func talk(t testing.TB, from, to netns.NsHandle, addr netip.Addr) {
	t.Helper()
	var in net.PacketConn
	nstest.Do(t, to, func() {
		var err error
		in, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, 4242).String())
		must(t, err)
	})
	defer in.Close()
	var out net.Conn
	nstest.Do(t, from, func() {
		var err error
		out, err = net.Dial("udp", netip.AddrPortFrom(addr, 4242).String())
		must(t, err)
	})
	defer out.Close()
	buf, n := make([]byte, 16), 0
	if !nstest.Repeat(nstest.Limit, func() { _, _ = out.Write([]byte("whole")) }, func(until time.Time) bool {
		must(t, in.SetReadDeadline(until))
		var err error
		n, _, err = in.ReadFrom(buf)
		return err == nil
	}) || string(buf[:n]) != "whole" {
		t.Errorf("datagram: %q", buf[:n])
	}
}

// TestOVSKilled: the switch's daemons are killed and come back. A plugged port stays so,
// and the next port is plugged as ever.
func TestOVSKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := newSwitch(w, true)
	w.binder(v.db)
	a, b := nstest.New(t), nstest.New(t)
	pa, pb := w.ovsPort(), w.hybridPort()
	w.plug(w.in(pa, a))
	v.kill("ovsdb-server")
	if _, err := w.b.Plug(t.Context(), w.in(pb, b)); !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), v.db) {
		t.Errorf("without the database: %v", err)
	}
	w.wantHost(HostName(pa.ID))
	wantNames(t, b)
	v.database(w)
	v.kill("ovs-vswitchd")
	w.plug(w.in(pb, b)) // written, and followed when the daemon is back
	v.forwarder(w)
	pings(t, a, pb.Addresses[0].Addr)
	talk(t, b, a, pa.Addresses[0].Addr)
	w.plug(w.in(pa, a))
	w.unplug(pa)
	w.unplug(pb)
	w.wantHost()
	v.wantPorts("br-int")
}

// TestOVSParallel plugs and unplugs thirty ports concurrently, two calls at each.
func TestOVSParallel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := newSwitch(w, true)
	w.binder(v.db)
	box := nstest.New(t)
	var ports []sdn.Port
	for n := range 30 {
		p := w.ovsPort()
		if n%3 == 0 {
			p = w.hybridPort()
		}
		ports = append(ports, p)
	}
	each := func(do func(n int, p sdn.Port) error) {
		t.Helper()
		var all sync.WaitGroup
		for n, p := range ports {
			for range 2 {
				all.Go(func() {
					if err := do(n, p); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
	}
	for range 2 {
		each(func(n int, p sdn.Port) error {
			i := w.in(p, box)
			i.Name = "eth" + strconv.Itoa(n)
			_, err := w.b.Plug(context.Background(), i)
			return err
		})
		if got := strings.Fields(v.ctl("list-ports", "br-int")); len(got) != len(ports) {
			t.Errorf("%d ports in the switch, want %d: %v", len(got), len(ports), got)
		}
		each(func(_ int, p sdn.Port) error { return w.b.Unplug(context.Background(), p) })
		v.wantPorts("br-int")
		w.wantHost()
		wantNames(t, box)
	}
	if got := v.ctl("--columns=name", "list", "Interface"); strings.Contains(got, "tap") || strings.Contains(got, "qvo") {
		t.Errorf("interfaces left: %s", got)
	}
}

// TestOVSOthers: what is another's in the switch stays, and a port that is on the wrong
// bridge, or has lost its ids, is put right.
func TestOVSOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := newSwitch(w, false)
	w.binder(v.db)
	a := nstest.New(t)
	ctx := context.Background()

	for name, ids := range map[string]string{
		"nobody's": "", "Nova's": "iface-id=%s", "another port's": "iface-id=other owner=kuryr",
	} {
		p := w.ovsPort()
		args := []string{"--no-wait", "add-port", "br-int", HostName(p.ID), "--", "set", "Interface", HostName(p.ID)}
		for _, id := range strings.Fields(strings.ReplaceAll(ids, "%s", string(p.ID))) {
			args = append(args, "external_ids:"+id)
		}
		v.ctl(append(args, "type=\"\"")...)
		if _, err := w.b.Plug(ctx, w.in(p, a)); !sdn.IsConflict(err) || sdn.ReasonOf(err) != sdn.Exists ||
			!strings.Contains(err.Error(), HostName(p.ID)) {
			t.Errorf("%s: error is %v", name, err)
		}
		w.unplug(p)
		v.wantPorts("br-int", HostName(p.ID))
		v.ctl("--no-wait", "del-port", HostName(p.ID))
		w.wantHost()
	}

	v.ctl("--no-wait", "add-br", "br-alt")
	p := w.ovsPort()
	v.ctl(
		"--no-wait", "add-port", "br-alt", HostName(p.ID), "--", "set", "Interface", HostName(p.ID),
		"external_ids:owner=kuryr", "external_ids:iface-id="+string(p.ID),
		"external_ids:attached-mac=old",
	)
	w.plug(w.in(p, a))
	v.wantPorts("br-alt")
	v.wantPorts("br-int", HostName(p.ID))
	v.wantIDs(HostName(p.ID), fmt.Sprintf(
		`{attached-mac=%q, iface-id=%q, iface-status=active, owner=kuryr, vm-uuid=%s}`, p.MAC, p.ID,
		p.DeviceID,
	))

	for name, loosen := range map[string]func(){
		"on another bridge": func() {
			row := v.ctl("get", "Port", HostName(p.ID), "_uuid")
			v.ctl("--no-wait", "remove", "Bridge", "br-int", "ports", row, "--", "add", "Bridge", "br-alt", "ports", row)
		},
		"off its bridge": func() { v.ctl("--no-wait", "del-port", HostName(p.ID)) },
		"without its id": func() { v.ctl("--no-wait", "set", "Interface", HostName(p.ID), "external_ids:attached-mac=x") },
		"down": func() {
			nstest.Do(t, w.host, func() {
				l, err := netlink.LinkByName(HostName(p.ID))
				must(t, err)
				must(t, netlink.LinkSetDown(l))
			})
		},
	} {
		loosen()
		if got, err := w.b.State(ctx, p); err != nil || got != Loose {
			t.Errorf("%s: state is %s, %v", name, got, err)
		}
		must(t, w.b.Attach(ctx, p))
		if got, err := w.b.State(ctx, p); err != nil || got != Whole {
			t.Errorf("attached after being %s: state is %s, %v", name, got, err)
		}
		v.wantPorts("br-alt")
		v.wantPorts("br-int", HostName(p.ID))
	}
	w.unplug(p)
	v.wantPorts("br-int")

	p.VIF.Details[sdn.DetailBridge] = "br-alt" // the VIF's own wins
	w.plug(w.in(p, a))
	v.wantPorts("br-alt", HostName(p.ID))
	w.unplug(p)
	v.wantPorts("br-alt")
	w.wantHost()

	p.VIF.Details[sdn.DetailBridge] = "br-none"
	for _, is := range []string{"false", "true"} {
		p.VIF.Details[sdn.DetailHybrid] = is
		if _, err := w.b.Plug(ctx, w.in(p, a)); !sdn.IsNotFound(err) || !strings.Contains(err.Error(), "br-none") {
			t.Errorf("no bridge: %v", err)
		}
		w.wantHost()
	}
	w.binder("/run/no/db.sock")
	if _, err := w.b.Plug(ctx, w.in(w.ovsPort(), a)); !sdn.IsUnavailable(err) ||
		!strings.Contains(err.Error(), "/run/no/db.sock") {
		t.Errorf("no Open vSwitch: %v", err)
	}
	w.wantHost()
}

// TestOVSChecksums: only who plugs into a switch in user space loses the offload, which
// does not come back in the container.
func TestOVSChecksums(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := newSwitch(w, false)
	w.binder(v.db)
	v.ctl("--no-wait", "add-br", "br-kernel")
	for bridge, want := range map[string]uint32{"br-int": 0, "br-kernel": 1} {
		for _, p := range []sdn.Port{w.ovsPort(), w.hybridPort()} {
			p.VIF.Details[sdn.DetailBridge] = bridge
			box := nstest.New(t)
			r := w.plug(Interface{Port: p, MTU: testMTU})
			nstest.Do(t, w.host, func() {
				l, err := netlink.LinkByName(r.Name)
				must(t, err)
				must(t, netlink.LinkSetNsFd(l, int(box)))
			})
			must(t, visit(func() error {
				s, err := namespace{fd: int(box)}.socket()
				if err != nil {
					return err
				}
				defer s.close()
				got, err := ethtool(s, r.Name, unix.ETHTOOL_GTXCSUM, 0)
				if got != want {
					t.Errorf("%s: checksum offload is %d, want %d", bridge, got, want)
				}
				return err
			}))
			if err := w.b.Unplug(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
	}
	w.wantHost()
}

// TestOVSWait: OVN's controller is played by who sets its external id.
func TestOVSWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := newSwitch(w, false)
	w.binder(v.db)
	ctx := context.Background()
	p := w.ovsPort()
	if err := w.b.Wait(ctx, p); !sdn.IsUnsupported(err) {
		t.Errorf("without OVN: %v", err)
	}
	early := w.in(w.ovsPort(), nstest.New(t))
	_, err := Waiting{w.b, time.Hour}.Plug(ctx, early)
	must(t, err) // no wait
	v.ctl("--no-wait", "set", "Open_vSwitch", ".", "external_ids:ovn-remote=unix:/none")
	if _, err := (Waiting{w.b, time.Millisecond}).Plug(ctx, early); !errors.Is(
		err, context.DeadlineExceeded,
	) || sdn.IsUnavailable(err) {
		t.Errorf("a controller that does not wire: %v", err)
	}
	v.ctl("--no-wait", "set", "Interface", HostName(early.Port.ID), "external_ids:ovn-installed=true")
	_, err = Waiting{w.b, time.Hour}.Plug(ctx, early)
	must(t, err)
	if err := w.b.Wait(ctx, p); !sdn.IsNotFound(err) {
		t.Errorf("not plugged: %v", err)
	}
	w.plug(w.in(p, nstest.New(t)))
	waits := make(chan error)
	go func() { waits <- w.b.Wait(ctx, p) }()
	v.ctl("--no-wait", "set", "Interface", HostName(p.ID), "external_ids:other=1")
	v.ctl("--no-wait", "set", "Interface", HostName(p.ID), "external_ids:ovn-installed=true")
	must(t, <-waits)
	must(t, w.b.Wait(ctx, p))

	v.ctl("--no-wait", "remove", "Interface", HostName(p.ID), "external_ids", "ovn-installed")
	ctx, cancel := context.WithCancel(ctx)
	go func() { waits <- w.b.Wait(ctx, p) }()
	cancel()
	if err := <-waits; err == nil {
		t.Error("a wait that was cancelled succeeded")
	}
	v.ctl("--no-wait", "set", "Interface", HostName(p.ID), `error="no such device"`)
	if err := w.b.Wait(context.Background(), p); !sdn.IsUnavailable(err) ||
		!strings.Contains(err.Error(), "no such device") {
		t.Errorf("the switch cannot use it: %v", err)
	}
}
