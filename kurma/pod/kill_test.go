//go:build linux

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
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/internal/failpoint"
	ns "github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/internal/reconcile"
)

// victimEnv holds what a child process does before it is killed.
const victimEnv = "KURYR_KURMA_VICTIM"

// victim is a daemon's life.
type victim struct {
	Dir  string
	Verb string // add or del
	Step string // at which it dies: of networks, or "answer"
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
	log := slog.New(slog.DiscardHandler)
	store, err := reconcile.Open(reconcile.Config{Path: filepath.Join(v.Dir, "kurma.db"), Logger: log})
	if err != nil {
		return err
	}
	plugins := newNetworks(filepath.Join(v.Dir, "plugins"), "a", "b", "c")
	plugins.crash = v.Step
	m := New(Config{Store: store, Namespaces: spaces, Plugins: plugins, Logger: log})
	if v.Verb == "add" {
		_, err = m.Add(context.Background(), v.Ask)
	} else {
		err = m.Del(context.Background(), v.Ask.UUID, false)
	}
	if err == nil {
		plugins.crashAt("answer")
	}
	return err
}

// TestKilled kills the daemon between any two steps, in another process. The next start leaves
// nothing of a pod whose add was not answered, unless it is whole, and nothing of one that was
// being removed. The same call again ends as if nothing had been. The steps inside of pins are
// failpoints, which only a build with the tag "failpoints" has.
func TestKilled(t *testing.T) {
	for _, c := range []struct {
		verb, step string
		pid        bool // in the namespace of a process
		whole      bool // the pod outlives it
	}{
		{"add", "netns.pin.file", false, false},
		{"add", "netns.pin.file", true, false},
		{"add", "netns.pin.pinned", false, false},
		{"add", "netns.pin.pinned", true, false},
		{"add", "add a", false, false},
		{"add", "add a", true, false},
		{"add", "added a", false, false},
		{"add", "add b", false, false},
		{"add", "added b", true, false},
		{"add", "answer", false, true},
		{"del", "del b", false, false},
		{"del", "deleted b", false, false},
		{"del", "deleted a", true, false},
		{"del", "netns.delete.unmounted", false, false},
		{"del", "answer", true, false},
	} {
		t.Run(fmt.Sprint(c.verb, " ", c.step, " ", c.pid), func(t *testing.T) {
			if strings.HasPrefix(c.step, "netns.") && !failpoint.Enabled {
				t.Skip("needs the build tag failpoints")
			}
			w := newWorld(t)
			ask := Request{UUID: someUUID}
			if c.pid {
				ask.PID = sleeper(t)
			}
			if c.verb == "del" {
				w.add(ask)
			}
			w.stop()
			w.kill(victim{Dir: w.dir, Verb: c.verb, Step: c.step, Ask: ask})
			w.start()
			w.recover(0)
			if c.whole {
				same(t, w.List()[0].State, Ready)
			} else {
				w.clean()
				if c.pid {
					process := Pod{Namespace: fmt.Sprintf("/proc/%d/ns/net", ask.PID)}
					if left := w.links(process); len(left) != 1 {
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

// kill has another process do something until it is killed.
func (w *world) kill(v victim) {
	w.Helper()
	order, err := json.Marshal(v)
	if err != nil {
		w.Fatal(err)
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), victimEnv+"="+string(order), "KURYR_FAILPOINT="+v.Step)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		w.Fatalf("it was not killed at %s: %v\n%s", v.Step, err, out)
	}
}
