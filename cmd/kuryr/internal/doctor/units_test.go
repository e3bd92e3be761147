package doctor

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// units are the folder of Kuryr's systemd units.
const units = "../../../../deploy/systemd"

// hardening is what all units have, and daemons what those without containers of plugins have more.
var (
	hardening = map[string]string{
		"NoNewPrivileges": "yes", "RestrictRealtime": "yes", "SystemCallErrorNumber": "EPERM",
	}
	daemons = map[string]string{
		"CapabilityBoundingSet": "CAP_DAC_OVERRIDE CAP_NET_ADMIN CAP_NET_BIND_SERVICE CAP_NET_RAW " +
			"CAP_SYS_ADMIN CAP_SYS_CHROOT CAP_SYS_PTRACE",
		"SystemCallArchitectures": "native", "SystemCallFilter": "@system-service @mount",
		"RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET", "RestrictNamespaces": "mnt net",
		"RestrictSUIDSGID": "yes", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes",
		"DevicePolicy": "closed", "DeviceAllow": "/dev/net/tun rw",
	}
	// plugins are of the unit whose containers come from images.
	plugins = map[string]string{
		"CapabilityBoundingSet": "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD " +
			"CAP_NET_ADMIN CAP_NET_BIND_SERVICE CAP_NET_RAW CAP_SETFCAP CAP_SETGID " +
			"CAP_SETPCAP CAP_SETUID CAP_SYS_ADMIN CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_RESOURCE",
		"SystemCallFilter":        "~@clock @cpu-emulation @module @obsolete @raw-io @reboot @swap",
		"RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_KEY AF_XDP",
	}
)

// Every unit has the hardening that its daemon can bear, from one table, and nothing that gives
// it a mount namespace of its own.
func TestUnitsAreHardened(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join(units, "*.service"))
	if err != nil || len(paths) < 4 {
		t.Fatalf("%d units, %v", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := maps.Clone(hardening)
		if filepath.Base(path) == "kuryr-kurma.service" {
			maps.Copy(want, plugins)
		} else {
			maps.Copy(want, daemons)
		}
		for key, value := range want {
			if got := strings.Join(values(text, key), " "); got != value {
				t.Errorf("%s: %s=%s, want %s", path, key, got, value)
			}
		}
		for _, key := range mountNamespace {
			if got := values(text, key); got != nil {
				t.Errorf("%s: %s=%s gives it a mount namespace of its own", path, key, got)
			}
		}
		if filepath.Base(path) != "kuryr.service" {
			continue
		}
		facts := UnitFacts{Systemd: true, Docker: true, Path: path, Text: text}
		if all := Unit(facts); slices.ContainsFunc(all, func(f Finding) bool { return f.Verdict != OK }) {
			t.Errorf("%s: %+v", path, all)
		}
	}
}

// systemd reads the units without a warning, and finds them less exposed than plain ones.
func TestUnitsAreRead(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	paths, err := filepath.Glob(filepath.Join(units, "*.service"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// systemd wants the program to be there.
		own := filepath.Join(t.TempDir(), filepath.Base(path))
		placed := strings.ReplaceAll(string(text), "/usr/local/bin/kuryr", "/bin/true")
		if err := os.WriteFile(own, []byte(placed), 0o600); err != nil {
			t.Fatal(err)
		}
		analyze := func(args ...string) ([]byte, error) {
			return exec.CommandContext(t.Context(), program, append(args, "--no-pager", own)...).CombinedOutput()
		}
		if out, err := analyze("verify", "--man=no"); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", path, err, out)
		}
		threshold := "--threshold=60"
		if filepath.Base(path) == "kuryr-kurma.service" {
			threshold = "--threshold=80"
		}
		if out, err := analyze("security", "--offline=true", threshold); err != nil {
			t.Errorf("%s: %v: %s", path, err, out)
		}
	}
}
