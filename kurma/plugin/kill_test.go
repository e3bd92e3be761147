//go:build linux

package plugin

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// killedAt has a daemon killed at a step of beginning with some networks, and changing to others.
// Steps that begin with "kurma." are failpoints.
func (h *host) killedAt(t *testing.T, step string, before, after []string) {
	t.Helper()
	if strings.HasPrefix(step, "kurma.") && !failpoint.Enabled {
		t.Skip("needs the build tag failpoints")
	}
	text, err := json.Marshal(child{h.cfg, h.image, before, after, step})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "KURYR_KURMA_CHILD="+string(text), "KURYR_FAILPOINT="+step)
	cmd.Stderr = t.Output()
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("not killed: %v", err)
	}
}

// A daemon that is killed at any point of starting and stopping leaves nothing that the next one
// does not finish or remove.
func TestKilled(t *testing.T) {
	for _, step := range []string{
		"kurma.plugin.start.bundled", "kurma.plugin.start.grouped", "kurma.plugin.start.ran", "ran",
		"kurma.plugin.stop.ended", "kurma.plugin.clear.deleted", "kurma.plugin.clear.ungrouped",
		"kurma.plugin.discard.cleared", "removed", "",
	} {
		t.Run(step, func(t *testing.T) {
			h := newHost(t, "")
			one, two := entry("one", "", "{}"), entry("two", "", "{}")
			h.killedAt(t, step, []string{two}, []string{one})
			p := h.open(t)
			h.apply(t, p, nobody, one)
			until(t, p, "one", running)
			if _, err := p.Add(t.Context(), Ref{Name: "one"}, h.callOf(t, "a")); err != nil {
				t.Error(err)
			}
			h.removed(t, p)
			if all := p.Status(); len(all) != 1 {
				t.Errorf("%+v", all)
			}
			for dir, want := range map[string]int{p.cfg.State: 1, p.containers(): 1, p.runtime.root: 1} {
				if left, err := os.ReadDir(dir); err != nil || len(left) > want {
					t.Errorf("%s has %v, %v", dir, left, err)
				}
			}
			if err := down(p); err != nil {
				t.Error(err)
			}
			h.nothingLeft(t, p)
		})
	}
}

// removed waits until one generation has a row.
func (h *host) removed(t *testing.T, p *Pod) {
	t.Helper()
	p.work.Wait()
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		rows := 0
		for range p.plugins.Rows() {
			rows++
		}
		if rows == 1 {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("%d rows", rows)
		}
	}
}

// A container that takes calls has been set up, also if the daemon was killed between its start
// and the end of that.
func TestKilledBeforeSetUp(t *testing.T) {
	for _, step := range []string{"kurma.plugin.start.ran", "ran"} {
		t.Run(step, func(t *testing.T) {
			h := newHost(t, "")
			h.withSetup(t)
			one := entry("one", "", "{}")
			h.killedAt(t, step, []string{one}, nil)
			p := h.open(t)
			h.apply(t, p, nobody, one)
			until(t, p, "one", running)
			folder := p.bundle(p.Current()[0].Ref).dir
			if _, err := os.Stat(filepath.Join(folder, "upper", "set-up")); err != nil {
				t.Errorf("it was not set up: %v", err)
			}
		})
	}
}

// After an upgrade running containers are adopted, and the files of the earlier version are gone.
func TestUpgrade(t *testing.T) {
	h := newHost(t, "")
	p, stop, err := open(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	one := entry("one", "", "{}")
	h.apply(t, p, nobody, one)
	s := until(t, p, "one", running)
	pid, ref, r := s.PID, s.Ref, stored(t, p, s)
	if err := stop(p.Close); err != nil {
		t.Fatal(err)
	}
	state, err := json.Marshal(map[string]any{
		"pid": pid, "start": r.Last.Start, "boot": r.Last.Boot, "image": r.Last.Image,
	})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(h.cfg.State, "one", "generations")
	err = errors.Join(os.Remove(h.cfg.State+".db"), os.MkdirAll(folder, 0o700),
		os.WriteFile(filepath.Join(folder, ref.Generation+".json"), []byte(one), 0o600),
		os.WriteFile(filepath.Join(p.bundle(ref).dir, "state.json"), state, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	p = h.open(t)
	h.apply(t, p, nobody, one)
	if s := until(t, p, "one", running); s.PID != pid || s.ImageID != "sha512-1" {
		t.Errorf("not adopted: %+v, want process %d", s, pid)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}
