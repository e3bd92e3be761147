//go:build linux

package bind

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind/vifexec"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
)

// An executable is called when the host end is there, and before it goes.
func TestExecutablePlugs(t *testing.T) {
	t.Parallel()
	nstest.RootsFiles(t)
	w := newWorld(t)
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	script := "#!/bin/sh\n" +
		`echo "$1 $3 $(cat /sys/class/net/$3/operstate 2>/dev/null || ip -br link show dev $3)" >>` +
		said + "\n"
	nstest.WriteProgram(t, filepath.Join(dir, "vendor"), []byte(script))
	w.use(Config{Executables: dir})
	i := Interface{Port: w.port(), MTU: testMTU}
	i.Port.VIF = sdn.VIF{Type: "vendor"}
	ctx := context.Background()
	for range 2 {
		if _, err := w.b.Plug(ctx, i); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Do(t, w.host, func() {
		l, err := netlink.LinkByName(HostName(i.Port.ID))
		must(t, err)
		if l.Attrs().MTU != i.MTU {
			t.Errorf("the host end's MTU is %d, want %d", l.Attrs().MTU, i.MTU)
		}
	})
	must(t, w.b.Unplug(ctx, i.Port))
	must(t, w.b.Collect(ctx, ""))
	text, err := os.ReadFile(said)
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) < 3 || !strings.HasPrefix(lines[0], "bind "+HostName(i.Port.ID)) ||
		!strings.HasPrefix(lines[len(lines)-1], "unbind "+HostName(i.Port.ID)) {
		t.Errorf("called as %q", lines)
	}
	nstest.Do(t, w.host, func() {
		if _, err := netlink.LinkByName(HostName(i.Port.ID)); err == nil {
			t.Error("the host end is still there")
		}
	})
}

// TestExecutableFails lets unbind fail. The first Unplug says so and removes the
// interface. The second calls the executable again, logs its failure, and succeeds.
func TestExecutableFails(t *testing.T) {
	t.Parallel()
	nstest.RootsFiles(t)
	w := newWorld(t)
	var log bytes.Buffer
	dir := t.TempDir()
	script := "#!/bin/sh\n[ $1 = bind ] || { echo wrong rack >&2; exit 1; }\n"
	nstest.WriteProgram(t, filepath.Join(dir, "vendor"), []byte(script))
	w.use(Config{Executables: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	i := Interface{Port: w.port(), MTU: testMTU}
	i.Port.VIF = sdn.VIF{Type: "vendor"}
	_, err := w.b.Plug(t.Context(), i)
	must(t, err)
	err = w.b.Unplug(t.Context(), i.Port)
	if !errors.As(err, new(*vifexec.Error)) || !strings.Contains(err.Error(), "wrong rack") {
		t.Errorf("first Unplug: error %v", err)
	}
	if log.Len() != 0 {
		t.Errorf("first Unplug logged: %s", &log)
	}
	must(t, w.b.Unplug(t.Context(), i.Port))
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, string(i.Port.ID)) ||
		!strings.Contains(text, "wrong rack") {
		t.Errorf("second Unplug logged: %s", text)
	}
	must(t, w.b.Collect(t.Context(), ""))
	wantNames(t, w.host)
}

// What the executable refuses leaves nothing.
func TestExecutableRefuses(t *testing.T) {
	t.Parallel()
	nstest.RootsFiles(t)
	w := newWorld(t)
	dir := t.TempDir()
	script := "#!/bin/sh\n[ $1 = unbind ] || { echo wrong rack >&2; exit 1; }\n"
	nstest.WriteProgram(t, filepath.Join(dir, "vendor"), []byte(script))
	w.use(Config{Executables: dir})
	i := Interface{Port: w.port(), MTU: testMTU}
	for vif, want := range map[string]string{"vendor": "wrong rack", "unheard-of": "no executable"} {
		i.Port.VIF = sdn.VIF{Type: vif}
		if _, err := w.b.Plug(context.Background(), i); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", vif, err, want)
		}
		must(t, w.b.Unplug(context.Background(), i.Port))
	}
	must(t, w.b.Collect(context.Background(), ""))
	nstest.Do(t, w.host, func() {
		if l, err := netlink.LinkByName(HostName(i.Port.ID)); err == nil {
			t.Errorf("left behind: %+v", l.Attrs())
		}
	})
}
