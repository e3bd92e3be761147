//go:build linux && failpoints

package plugin

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// killedAt has a daemon killed at a point of beginning with some networks, and changing to others.
func (h *host) killedAt(t *testing.T, point string, before, after []string) {
	t.Helper()
	text, err := json.Marshal(child{h.cfg, h.image, before, after})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "KURYR_KURMA_CHILD="+string(text), "KURYR_FAILPOINT="+point)
	cmd.Stderr = t.Output()
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("not killed at the failpoint: %v", err)
	}
}

// A daemon that is killed at any point of starting and stopping leaves nothing that the next one does not finish or remove.
func TestKilled(t *testing.T) {
	for _, point := range []string{
		"kurma.plugin.apply.noted", "kurma.plugin.start.bundled", "kurma.plugin.start.grouped", "kurma.plugin.start.ran", "kurma.plugin.start.recorded",
		"kurma.plugin.stop.ended", "kurma.plugin.clear.deleted", "kurma.plugin.clear.ungrouped", "kurma.plugin.discard.cleared", "kurma.plugin.erase.forgotten",
	} {
		t.Run(point, func(t *testing.T) {
			h := newHost(t, "")
			one, two := entry("one", "", "{}"), entry("two", "", "{}")
			h.killedAt(t, point, []string{two}, []string{one})
			p := h.open(t)
			h.apply(t, p, nobody, one)
			until(t, p, "one", running)
			if _, err := p.Add(t.Context(), Ref{Name: "one"}, h.callOf(t, "a")); err != nil {
				t.Error(err)
			}
			p.work.Wait()
			if all := p.Status(); len(all) != 1 {
				t.Errorf("%+v", all)
			}
			for dir, want := range map[string]int{p.cfg.State: 1, p.containers(): 1, p.runtime.root: 1} {
				if left, err := os.ReadDir(dir); err != nil || len(left) != want {
					t.Errorf("%s has %v, %v", dir, left, err)
				}
			}
			if err := p.Down(); err != nil {
				t.Error(err)
			}
			h.nothingLeft(t, p)
		})
	}
}

// A container that takes calls has been set up, also where the daemon was killed between its start and the end of that.
func TestKilledBeforeSetUp(t *testing.T) {
	for _, point := range []string{"kurma.plugin.start.ran", "kurma.plugin.start.recorded"} {
		t.Run(point, func(t *testing.T) {
			h := newHost(t, "")
			one := entry("one", "", "{}")
			h.killedAt(t, point, []string{one}, nil)
			p := h.open(t)
			h.apply(t, p, nobody, one)
			until(t, p, "one", running)
			if _, err := os.Stat(filepath.Join(p.bundle(p.Current()[0].Ref).dir, "upper", "set-up")); err != nil {
				t.Errorf("it was not set up: %v", err)
			}
		})
	}
}
