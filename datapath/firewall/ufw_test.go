//go:build linux

package firewall

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// private replaces a file or folder of the machine by a copy, as far as this temporary host sees.
func private(t *testing.T, path string) {
	t.Helper()
	dir := t.TempDir()
	host := newSite(t).host
	sh(t, host, fmt.Sprintf("cp -a %s %s/", path, dir))
	if err := unix.Mount(filepath.Join(dir, filepath.Base(path)), path, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("mount a copy over %s: %v", path, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// The real ufw, on copies of its configuration.
func TestDoorsBesideUFW(t *testing.T) {
	t.Parallel()
	needs(t, "ufw")
	if _, err := os.ReadFile("/etc/ufw/user.rules"); err != nil {
		t.Skipf("needs to read ufw's configuration: %v", err)
	}
	s, h := forwardingSite(t)
	private(t, "/etc/ufw")
	private(t, "/etc/default/ufw")
	sh(t, s.host, "ufw --force enable")
	before := saved(t, s.host)
	s.wantPaths(t, "ufw alone", false)
	if got, want := h.openIn(t, s.host), "ufw ufw-before-forward opened ipv4\nufw "+
		"ufw6-before-forward opened ipv6"; got != want {
		t.Fatalf("doors\n%s\nwant\n%s", got, want)
	}
	s.wantPaths(t, "doors open", true)
	open := saved(t, s.host)
	h.openIn(t, s.host)
	if again := saved(t, s.host); again != open {
		t.Errorf("second time: rules changed from\n%s\nto\n%s", open, again)
	}
	in(t, s.host, func() error { return h.CloseDoors(t.Context()) })
	if after := saved(t, s.host); after != before {
		t.Errorf("closing left\n%s\nwant\n%s", after, before)
	}

	h.watchIn(t, s.host)
	back := func() bool {
		return strings.Count(
			sh(t, s.host, "iptables -S ufw-before-forward; ip6tables -S ufw6-before-forward"), comment,
		) == 4 &&
			strings.Count(saved(t, s.host), comment) == 4
	}
	eventually(t, "rules in ufw's chains", back)
	sh(t, s.host, "ufw reload")
	eventually(t, "rules in ufw's chains after a reload", back)
	s.wantPaths(t, "reloaded", true)

	// What the operator forbids with ufw stays forbidden.
	sh(t, s.host, "ufw route deny in on kr0 to "+outside4.String())
	eventually(t, "rules in ufw's chains after a new rule", func() bool {
		return strings.Count(saved(t, s.host), comment) == 4
	})
	if connects(t, s.inside, s.outside, outside4, false) {
		t.Error("ufw's own deny has no effect on Kuryr's links")
	}
	if !connects(t, s.inside, s.outside, outside6, true) {
		t.Error("ufw's deny for one address took the others with it")
	}
	sh(t, s.host, "ufw disable")
	eventually(t, "no rules of ours", func() bool { return !strings.Contains(saved(t, s.host), comment) })
	s.wantPaths(t, "ufw is off", true)
}
