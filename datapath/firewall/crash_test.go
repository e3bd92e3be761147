//go:build linux

package firewall

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// crash does an operation in a process of its own that is killed at a failpoint.
func crash(t *testing.T, ns netns.NsHandle, dir, op, at string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childOp+"="+op, childDir+"="+dir, "KURYR_FAILPOINT="+at)
	in(t, ns, func() error {
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			return nil
		}
		return fmt.Errorf("%s was not killed at %s: %w: %s", op, at, err, out)
	})
}

func TestForwardingKilledAnywhere(t *testing.T) {
	if !failpoint.Enabled {
		t.Skip("needs the build tag failpoints")
	}
	for _, at := range []string{
		"firewall.enable4.recorded", "firewall.turn6.recorded", "firewall.turn6.raised", "firewall.turn6.switched",
		"firewall.turn6.flags", "firewall.turn6.lowered",
	} {
		t.Run("enable "+at, func(t *testing.T) {
			s, h := newSite(t), quietHost(t)
			learn(t, s, "2001:db8:a::")
			before := sysctls(t, s.host)
			crash(t, s.host, h.dir, "enable", at)
			sh(t, s.host, "ip link add late0 type veth peer name late1; ip link set late0 up; ip link set late1 up; sleep 0.1")
			in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
			for _, name := range []string{flag6("late0"), flag6(defaultLinks)} {
				if got := sysctls(t, s.host)[name]; got != "0" {
					t.Errorf("%s is %s, want 0", name, got)
				}
			}
			s.checkAfterCrash(t, h, before)
		})
	}
	for _, at := range []string{"firewall.restore4.switched", "firewall.restore4.links", "firewall.restore4.redirects",
		"firewall.turn6.recorded", "firewall.turn6.raised", "firewall.turn6.switched", "firewall.turn6.flags",
		"firewall.turn6.lowered"} {
		t.Run("restore "+at, func(t *testing.T) {
			s, h := newSite(t), quietHost(t)
			learn(t, s, "2001:db8:a::")
			before := sysctls(t, s.host)
			in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
			crash(t, s.host, h.dir, "restore", at)
			h = nextProcess(h)
			in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
			s.checkAfterCrash(t, h, before)

			in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
			crash(t, s.host, h.dir, "restore", at)
			h = nextProcess(h)
			in(t, s.host, func() error { return h.restored(t) })
			if d := differences(before, sysctls(t, s.host)); len(d) > 0 {
				t.Errorf("restoring twice left %v", d)
			}
		})
	}
}

// nextProcess is the Host of a process that starts after one that was killed: it knows only
// what was recorded.
func nextProcess(h *Host) *Host { return New(Config{Dir: h.dir, Logger: h.log}) }

// checkAfterCrash checks that forwarding is on, that the routes by advertisement outlived
// it, and that all can be put back.
func (s site) checkAfterCrash(t *testing.T, h *Host, before map[string]string) {
	t.Helper()
	if route, onLink, _ := learnt(t, s.host, "2001:db8:a::"); !route || !onLink {
		t.Errorf("default route %v, on-link route %v; both must stay", route, onLink)
	}
	learn(t, s, "2001:db8:b::")
	s.wantPaths(t, "finished", true)
	in(t, s.host, func() error { return h.restored(t) })
	sh(t, s.host, "ip link del late0 2>/dev/null || true")
	if d := differences(before, sysctls(t, s.host)); len(d) > 0 {
		t.Errorf("restoring left %v", d)
	}
	if _, err := os.Stat(h.recordPath()); !os.IsNotExist(err) {
		t.Errorf("the record is still there: %v", err)
	}
	if route, _, _ := learnt(t, s.host, "2001:db8:b::"); !route {
		t.Error("restoring lost the default route by advertisement")
	}
}

func TestDoorsKilledAnywhere(t *testing.T) {
	if !failpoint.Enabled {
		t.Skip("needs the build tag failpoints")
	}
	s, h := forwardingSite(t)
	likeDocker(t, s.host, "20.10")
	before := saved(t, s.host)
	crash(t, s.host, h.dir, "open", "firewall.doors.family")
	h.openIn(t, s.host)
	s.wantPaths(t, "opened", true)
	crash(t, s.host, h.dir, "close", "firewall.close.family")
	in(t, s.host, func() error { return h.CloseDoors(t.Context()) })
	if after := saved(t, s.host); after != before {
		t.Errorf("closing left\n%s\nwant\n%s", after, before)
	}
}

func TestZoneKilledAnywhere(t *testing.T) {
	if !failpoint.Enabled {
		t.Skip("needs the build tag failpoints")
	}
	s, h := firewalldSite(t)
	inZone := func() bool { return h.zoneIn(t, s.host) == trustedZone }
	crash(t, s.host, h.dir, "open", "firewall.zone.recorded")
	if inZone() {
		t.Error("added before it was to be")
	}
	h.openIn(t, s.host)
	if !inZone() {
		t.Error("not added")
	}
	crash(t, s.host, h.dir, "close", "firewall.closezone.removed")
	if inZone() {
		t.Error("not removed")
	}
	in(t, s.host, func() error { return h.CloseDoors(t.Context()) })
	in(t, s.host, func() error {
		r, err := h.load()
		if err == nil && r.Zone != "" {
			t.Errorf("the record still names zone %q", r.Zone)
		}
		return err
	})
}
