//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

// capabilityBits are the capabilities of the units as the kernel counts them.
var capabilityBits = map[string]uintptr{
	"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT, "CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE,
}

// boundsOf are the capabilities that a unit leaves its daemon.
func boundsOf(t *testing.T, unit string) (bits []uintptr) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/systemd/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		names, is := strings.CutPrefix(lines.Text(), "CapabilityBoundingSet=")
		for _, name := range strings.Fields(names) {
			bit, known := capabilityBits[name]
			if !is || !known {
				continue
			}
			bits = append(bits, bit)
		}
	}
	if len(bits) != len(capabilityBits) {
		t.Fatalf("%s has %d of the %d capabilities", unit, len(bits), len(capabilityBits))
	}
	return bits
}

// within starts a process with these capabilities at most, and without a way to more, as systemd does.
func within(bits []uintptr, cmd *exec.Cmd) error {
	return netns.OnOwnThread(func() error {
		for c := range uintptr(unix.CAP_LAST_CAP + 1) {
			if slices.Contains(bits, c) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
		return cmd.Start()
	})
}

// With the capabilities that its unit leaves it, the daemon does all that it does: it makes
// networks and endpoints, restarts over them, and takes them down.
func TestWithinTheUnitsLimits(t *testing.T) {
	nstest.Require(t)
	bits := boundsOf(t, "kuryr.service")
	m := newMachine(t)
	up := func() (kill func()) {
		return m.killableBy(t, func(c *exec.Cmd) error { return within(bits, c) }, "up")
	}
	kill := up()
	m.plug(t)
	m.checkClean(t)
	kill()
	up()
	m.checkClean(t)
	m.must(t, "down", "--force", "--purge")
	if got := uplinks(t); got != 0 {
		t.Errorf("%d links in the host after down", got)
	}
	for _, dir := range []string{"state", "run"} {
		if _, err := os.Stat(m.path(dir)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}
