//go:build linux && failpoints

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	ns "github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
)

// victimEnv holds what a child process does before it is killed.
const victimEnv = "KURYR_KURMA_VICTIM"

// victim is a daemon's life.
type victim struct {
	Dir  string
	Verb string // add or del
	Ask  Request
}

func TestMain(m *testing.M) {
	if order := os.Getenv(victimEnv); order != "" {
		if err := obey(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1) // it should have been killed
	}
	os.Exit(nstest.Main(m))
}

func obey(order string) error {
	var v victim
	if err := json.Unmarshal([]byte(order), &v); err != nil {
		return err
	}
	spaces, err := ns.Open(filepath.Join(v.Dir, "netns"))
	if err != nil {
		return err
	}
	plugins := newNetworks(filepath.Join(v.Dir, "plugins"), "a", "b", "c")
	m, err := Open(Config{Path: filepath.Join(v.Dir, "kurma.db"), Namespaces: spaces, Plugins: plugins, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if v.Verb == "add" {
		_, err = m.Add(context.Background(), v.Ask)
		return err
	}
	return m.Del(context.Background(), v.Ask.UUID, false)
}

// TestKilled kills the daemon at each failpoint, in another process. The next start leaves nothing of a pod whose add was not answered, unless it is whole, and nothing of one
// that was being removed; and the same call again ends as if nothing had been.
func TestKilled(t *testing.T) {
	for _, c := range []struct {
		verb, point string
		pid         bool // in the namespace of a process
		whole       bool // the pod outlives it
	}{
		{"add", "netns.create.file", false, false},
		{"add", "netns.create.pinned", false, false},
		{"add", "netns.pin.file", true, false},
		{"add", "netns.pin.pinned", true, false},
		{"add", "kurma.add.pinned", false, false},
		{"add", "kurma.add.pinned", true, false},
		{"add", "kurma.add.loopback", false, false},
		{"add", "kurma.add.announced", false, false},
		{"add", "kurma.add.called", false, false},
		{"add", "kurma.add.announced:2", false, false},
		{"add", "kurma.add.called:2", true, false},
		{"add", "kurma.add.stored", false, true},
		{"del", "kurma.del.noted", false, false},
		{"del", "kurma.del.called", false, false},
		{"del", "kurma.del.called:2", true, false},
		{"del", "netns.delete.unmounted", false, false},
		{"del", "kurma.del.unpinned", false, false},
		{"del", "kurma.del.dropped", true, false},
	} {
		t.Run(fmt.Sprint(c.verb, " ", c.point, " ", c.pid), func(t *testing.T) {
			w := newWorld(t)
			ask := Request{UUID: someUUID}
			if c.pid {
				ask.PID = sleeper(t)
			}
			if c.verb == "del" {
				w.add(ask)
			}
			w.stop()
			w.kill(victim{Dir: w.dir, Verb: c.verb, Ask: ask}, c.point)
			w.start()
			w.recover()
			if c.whole {
				same(t, w.List()[0].State, Ready)
			} else {
				w.clean()
				if c.pid {
					if left := w.links(Pod{Namespace: fmt.Sprintf("/proc/%d/ns/net", ask.PID)}); len(left) != 1 {
						t.Errorf("links are left: %v", left)
					}
				}
			}
			p := w.add(ask)
			same(t, w.networks.has(t), []string{"a eth0", "b eth1"})
			same(t, w.links(p), []string{"eth0", "eth1", "lo+"})
			w.del(someUUID)
			w.clean()
		})
	}
}

// kill has another process do something until it is killed at the failpoint.
func (w *world) kill(v victim, point string) {
	w.Helper()
	order, err := json.Marshal(v)
	if err != nil {
		w.Fatal(err)
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), victimEnv+"="+string(order), "KURYR_FAILPOINT="+point)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		w.Fatalf("it was not killed at %s: %v\n%s", point, err, out)
	}
}
