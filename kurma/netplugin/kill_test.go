//go:build linux && failpoints

package netplugin

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/sdn"
)

// victimEnv is the store of a child process that is killed.
const victimEnv = "KURYR_NETPLUGIN_VICTIM"

// Killed at any point, a repeated add finishes, and a del leaves nothing.
func TestKilled(t *testing.T) {
	for _, at := range []string{"kurma.netplugin.port", "kurma.netplugin.plugged", "kurma.netplugin.unplugged"} {
		t.Run(at, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kuryr.db")
			before := open(t, path)
			fill(t, before)
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKilledChild$")
			cmd.Env = append(os.Environ(), victimEnv+"="+path, "KURYR_FAILPOINT="+at)
			cmd.Stdout, cmd.Stderr = &said, &said
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("was not killed: %v: %s", err, said.String())
			}
			p := open(t, path)
			defer p.Close()
			left := ports(t, p)
			if len(left) != 1 {
				t.Fatalf("the kill left %v", left)
			}
			plugin := New(Config{Provider: p, Binder: &binder{plugged: map[sdn.ID]bind.Interface{}}, Host: "here", Logger: slog.New(slog.DiscardHandler)})
			if _, err := plugin.Add(t.Context(), Entry{Network: "blue"}, example); err != nil {
				t.Fatal(err)
			}
			if again := ports(t, p); len(again) != 1 || again[0].ID != left[0].ID {
				t.Errorf("port %v became %v", left[0].ID, again)
			}
			if err := plugin.Del(t.Context(), example); err != nil {
				t.Fatal(err)
			}
			if left := ports(t, p); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

var example = Attachment{Namespace: "/n", Pod: pod, Interface: "eth0"}

// TestKilledChild adds a pod, and takes it away.
func TestKilledChild(t *testing.T) {
	path := os.Getenv(victimEnv)
	if path == "" {
		t.Skip("a part of TestKilled")
	}
	p := open(t, path)
	plugin := New(Config{Provider: p, Binder: &binder{plugged: map[sdn.ID]bind.Interface{}}, Host: "here"})
	_, err := plugin.Add(t.Context(), Entry{Network: "blue"}, example)
	t.Fatal("it lives", err, plugin.Del(context.Background(), example))
}
