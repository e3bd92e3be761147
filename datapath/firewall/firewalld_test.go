//go:build linux

package firewall

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
)

const busConfig = `<busconfig><type>system</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default">
<allow user="*"/><allow own="*"/><allow send_destination="*"/>
<allow receive_sender="*"/><allow send_type="method_call"/></policy></busconfig>`

// startBus starts a private message bus in the namespace and makes it the system bus of
// this process and its children.
func startBus(t *testing.T, ns netns.NsHandle) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "bus")
	if err := os.WriteFile(filepath.Join(dir, "conf"), fmt.Appendf(nil, busConfig, socket), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, ns, "dbus-daemon", "--nofork", "--config-file="+filepath.Join(dir, "conf"))
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	eventually(t, "the bus has a socket", func() bool { _, err := os.Stat(socket); return err == nil })
}

// start runs a daemon in the namespace until stopped, at the latest when the test ends.
func start(t *testing.T, ns netns.NsHandle, program string, args ...string) (stop func()) {
	t.Helper()
	path, _ := findProgram(program)
	cmd := exec.Command(path, args...)
	in(t, ns, cmd.Start)
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	return stop
}

func startFirewalld(t *testing.T, ns netns.NsHandle) (stop func()) {
	t.Helper()
	stop = start(t, ns, "firewalld", "--nofork", "--nopid")
	eventually(t, "firewalld runs", func() bool {
		return exec.Command("firewall-cmd", "--state").Run() == nil
	})
	return stop
}

// firewalldSite is a forwarding site with a running firewalld, the real one, on a private
// message bus and a copy of its configuration.
func firewalldSite(t *testing.T) (site, *Host) {
	t.Helper()
	s, h := busSite(t)
	startFirewalld(t, s.host)
	return s, h
}

// busSite is firewalldSite before firewalld is started.
func busSite(t *testing.T) (site, *Host) {
	t.Helper()
	needs(t, "firewalld", "firewall-cmd", "dbus-daemon", "nft")
	if _, err := os.ReadDir("/etc/firewalld/zones"); err != nil {
		t.Skipf("needs to read firewalld's configuration: %v", err)
	}
	s, h := forwardingSite(t)
	private(t, "/etc/firewalld")
	private(t, "/var/log")
	startBus(t, s.host)
	return s, h
}

// zoneIn returns the zone that firewalld has our links in.
func (h *Host) zoneIn(t *testing.T, ns netns.NsHandle) (zone string) {
	t.Helper()
	in(t, ns, func() error {
		f, err := connectFirewalld(t.Context())
		if f == nil {
			return fmt.Errorf("no firewalld: %w", err)
		}
		defer f.close()
		zone, err = f.zoneOf(t.Context(), h.link)
		return err
	})
	return zone
}

func TestDoorsBesideFirewalld(t *testing.T) {
	s, h := busSite(t)
	if got := h.openIn(t, s.host); got != "" {
		t.Fatalf("a bus without firewalld: doors %q", got)
	}
	stop := startFirewalld(t, s.host)
	s.wantPaths(t, "firewalld alone", false)
	if got := h.findingsIn(t, s.host); len(got) != 1 || !strings.Contains(got[0], "in no zone") {
		t.Errorf("findings %q", got)
	}

	for _, want := range []string{"firewalld trusted opened", "firewalld trusted open"} {
		if got := h.openIn(t, s.host); got != want {
			t.Fatalf("doors %q, want %q", got, want)
		}
	}
	checkOut := func(when string) {
		t.Helper()
		if !connects(t, s.inside, s.outside, outside4, true) || !connects(t, s.inside, s.outside, outside6, true) {
			t.Errorf("%s: packets to the outside are rejected", when)
		}
	}
	checkOut("door open")
	// A published port passes; an address of ours that is reached untranslated does not, and
	// Check says what helps.
	sh(t, s.host, `nft -f - <<'EOF'
table ip publish { chain pre { type nat hook prerouting priority dstnat; ip daddr 192.0.2.77 dnat to 10.9.0.2; }; }
EOF
ip addr add 192.0.2.77/32 dev up0`)
	if !connectsVia(t, s.outside, s.inside, inside4, netip.MustParseAddr("192.0.2.77"), true) {
		t.Error("a published port is rejected")
	}
	if got := h.findingsIn(t, s.host); len(got) != 1 || !strings.Contains(got[0], "floating") {
		t.Errorf("findings %q, want that about floating addresses", got)
	}
	in(t, s.host, func() error { return h.CloseDoors(t.Context()) })
	// firewalld itself keeps the chains of a zone that was in use once.
	if after := sh(t, s.host, "nft list table inet firewalld"); strings.Contains(after, "kr*") {
		t.Errorf("closing left our links in\n%s", after)
	}

	h.watchIn(t, s.host)
	inZone := func() bool {
		return strings.Contains(sh(t, s.host, "firewall-cmd --zone=trusted --list-interfaces"), "kr+")
	}
	eventually(t, "our links in the zone", inZone)
	// The fix for floating addresses is a permanent change and a reload, in which our
	// runtime change is lost.
	if connects(t, s.outside, s.inside, inside4, false) {
		t.Error("firewalld lets packets in that Check says it rejects")
	}
	var mend []string
	in(t, s.host, func() error {
		list, err := h.Check(t.Context(), true, true)
		if err == nil && len(list) == 1 {
			mend = strings.Split(list[0].Mend, "`")
		}
		return err
	})
	if len(mend) < 3 {
		t.Fatalf("mend %q has no commands", mend)
	}
	for i := 1; i < len(mend); i += 2 {
		sh(t, s.host, mend[i])
	}
	eventually(t, "our links in the zone after a reload", inZone)
	s.wantPaths(t, "mended and reloaded", true)
	if got := h.findingsIn(t, s.host); len(got) > 0 {
		t.Errorf("findings %q, want none", got)
	}
	// A stopped firewalld takes its rules along; a new one knows nothing of us.
	stop()
	s.wantPaths(t, "firewalld stopped", true)
	startFirewalld(t, s.host)
	eventually(t, "our links in the zone after a restart", inZone)
	s.wantPaths(t, "firewalld restarted", true)

	// A zone that the operator gave our links is respected.
	sh(t, s.host, "firewall-cmd --permanent --zone=dmz --add-interface=kr+; firewall-cmd --reload")
	if got := h.openIn(t, s.host); got != "firewalld dmz conflict" {
		t.Errorf("doors %q, want the operator's", got)
	}
}
