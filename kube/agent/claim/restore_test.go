//go:build linux

package claim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/agent/wiring"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// nothing is a target that makes nothing.
type nothing struct{}

func (nothing) Ensure(context.Context, reconcile.Object, agent.Intent, agent.Made) (made agent.Made, err error) {
	return made, err
}

func (nothing) Delete(context.Context, reconcile.Object, agent.Intent, agent.Made) error { return nil }

// Of two rows of one port the newer counts, whatever order they are read in, and one of a container of this boot counts before what was adopted.
func TestTwoRowsOfOnePort(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	port, err := wiring.Of(&aPort(1).Spec)
	must(t, err)
	for name, c := range map[string]struct{ older, newer agent.Allocation }{
		"by time":             {agent.Allocation{Since: noon}, agent.Allocation{Since: noon.Add(time.Second)}},
		"by time, both so":    {agent.Allocation{Since: noon, Adopted: true}, agent.Allocation{Since: noon.Add(time.Second), Adopted: true}},
		"adopted at the same": {agent.Allocation{Since: noon, Adopted: true}, agent.Allocation{Since: noon}},
		"adopted later":       {agent.Allocation{Since: noon.Add(time.Second), Adopted: true}, agent.Allocation{Since: noon}},
	} {
		for range 12 { // a map's order
			w := aWorld(t)
			s, err := reconcile.Open(reconcile.Config{Path: filepath.Join(w.dir, "agent.db"), Volatile: true})
			must(t, err)
			kind := reconcile.Register(s, "attachment", nothing{}, reconcile.Options[agent.Intent, agent.Made]{})
			for container, a := range map[string]agent.Allocation{"older": c.older, "newer": c.newer} {
				a.Wiring, a.UID = port, "u-"+container
				i := agent.Intent{Attachment: ask(container, container, "u-"+container), Port: &a}
				_, err := kind.Set(t.Context(), reconcile.Request[agent.Intent]{Key: i.Key(), Spec: i})
				must(t, err)
			}
			must(t, s.Close())
			w.open()
			must(t, w.gone.watcher.Close()) // it does not run
			if has := holder(w, portName(1)); has != "newer" {
				t.Fatalf("%s: %s has the port", name, has)
			}
			if _, err := w.Find(t.Context(), ask("older", "older", "u-older")); !sdn.IsNotFound(err) {
				t.Fatalf("%s: the older one has it too: %v", name, err)
			}
			must(t, w.store.Close())
		}
	}
}

// TestDelAfterRestart has a DEL fail, and asks for it again after a restart: it is answered when the
// interface is gone.
func TestDelAfterRestart(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	w.adds(ask("c", "a", "ua"))
	stuck := func(err error) {
		w.plugs.mu.Lock()
		defer w.plugs.mu.Unlock()
		w.plugs.stuck = err
	}
	stuck(errors.New("the link is busy"))
	if err := w.Release(t.Context(), ask("c", "a", "ua")); err == nil {
		t.Fatal("a DEL succeeds with the interface in place")
	}
	w.restart()
	w.begun()
	eventually(t, "a long pause before the next attempt", func() bool {
		r := slices.Collect(w.server.Rows())
		return len(r) == 1 && r[0].Tries >= 8
	})
	stuck(nil)
	w.dels(ask("c", "a", "ua"))
	w.plugs.mu.Lock()
	defer w.plugs.mu.Unlock()
	if len(w.plugs.there) != 0 {
		t.Error("the interface is still there")
	}
}

// What an earlier version has written on this boot is read once: running pods keep their ports
// and interfaces, and what was given back is nobody's.
func TestUpgrade(t *testing.T) {
	bound := func(n int, pod, container string) *v1.KuryrPort {
		p := aPort(n)
		p.Labels[v1.LabelPortStatus] = string(v1.PortBound)
		p.Status = v1.KuryrPortStatus{PortStatus: v1.PortBound, Pod: &v1.PortPod{
			Namespace: namespace, Name: pod, UID: types.UID("u" + pod), Container: container, Interface: "eth0",
		}}
		return p
	}
	w := aWorld(t, bound(1, "a", "ca"), bound(2, "b", "cb"), bound(3, "c", "cc"), aPort(4), aPod("a", "ua"), aPod("b", "ub"), aPod("c", "uc"), aPod("d", "ud"))
	w.old = filepath.Join(t.TempDir(), "claims")
	text, err := os.ReadFile("testdata/journal.json")
	must(t, err)
	for boot, names := range map[string][]string{thisBoot: {"a", "b", "c"}, "of-another-boot": {"d"}} {
		must(t, os.MkdirAll(filepath.Join(w.old, boot), 0o700))
		for _, name := range names {
			must(t, os.WriteFile(filepath.Join(w.old, boot, name+".json"), upgraded(text, name), 0o600))
		}
	}
	for n, container := range map[int]string{1: "ca", 3: "cc"} {
		port, err := wiring.Of(&aPort(n).Spec)
		must(t, err)
		w.plugs.there[port.Port.ID] = bind.Interface{Port: port.Port, Namespace: "/run/netns/" + container}
	}
	w.start()
	t.Cleanup(func() { w.kill() })
	w.begun()
	for range 2 {
		for n, c := range map[int]string{1: "ca", 3: "cc"} {
			pod := c[1:]
			has, err := w.Find(t.Context(), ask(c, pod, "u"+pod))
			if err != nil || string(has.Port.ID) != portName(n) || has.MTU != 1450 || has.Port.MAC.String() != aPort(n).Spec.Address {
				t.Errorf("%s has %+v, error %v", c, has, err)
			}
			w.says(portName(n), v1.PortBound, c)
		}
		w.says(portName(2), v1.PortAvailable, "")
		if _, err := w.Find(t.Context(), ask("cd", "d", "ud")); !sdn.IsNotFound(err) {
			t.Errorf("a container of another boot has a port: %v", err)
		}
		if _, err := os.Stat(w.old); !os.IsNotExist(err) {
			t.Errorf("the journal is still there: %v", err)
		}
		if n := len(w.plugs.there); n != 2 {
			t.Errorf("%d interfaces, want 2", n)
		}
		w.restart()
		w.begun()
	}
	if again := w.adds(ask("ca", "a", "ua")); string(again.Port.ID) != portName(1) {
		t.Errorf("asked again it has %s", again.Port.ID)
	}
	w.dels(ask("ca", "a", "ua"))
	w.dels(ask("cc", "c", "uc"))
	w.says(portName(1), v1.PortAvailable, "")
	w.says(portName(3), v1.PortAvailable, "")
	w.settled(0)
}

// A record whose port cannot be read keeps no daemon from its start, and its port from no other pod's: the pod has it until its DEL. What the API tells of the port counts.
func TestUnreadableRecord(t *testing.T) {
	for name, known := range map[string]bool{"the API knows the port": true, "the API has none": false} {
		t.Run(name, func(t *testing.T) {
			w := aWorld(t, aPod("a", "ua"))
			if known {
				must(t, w.api.Create(t.Context(), aPort(1)))
			}
			w.old = t.TempDir()
			text, err := os.ReadFile("testdata/journal.json")
			must(t, err)
			must(t, os.MkdirAll(filepath.Join(w.old, thisBoot), 0o700))
			must(t, os.WriteFile(filepath.Join(w.old, thisBoot, "a.json"), upgraded(text, "a", `"fa:16:3e:00:00:01"`, `"by hand"`), 0o600))
			w.start()
			t.Cleanup(func() { w.kill() })
			w.begun()
			has, err := w.Find(t.Context(), ask("ca", "a", "ua"))
			if err != nil || string(has.Port.ID) != portName(1) || has.Port.VIF.Type != sdn.VIFBridge || known != (has.Port.MAC.String() == aPort(1).Spec.Address) {
				t.Errorf("it has %+v, error %v", has.Port, err)
			}
			w.dels(ask("ca", "a", "ua"))
			w.settled(0)
		})
	}
}

// A journal that is not there is no error.
func TestNoJournal(t *testing.T) {
	w := aWorld(t)
	w.old = filepath.Join(t.TempDir(), "absent")
	w.open()
	must(t, w.gone.watcher.Close())
	must(t, w.store.Close())
	if _, err := os.Stat(w.old); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// upgraded is the record of another pod and port, which has given the port back if it is b, with
// pairs of texts replaced.
func upgraded(text []byte, name string, pairs ...string) []byte {
	n := string(rune('1' + name[0] - 'a'))
	pairs = append(pairs,
		`"ca"`, `"c`+name+`"`, `/ca"`, `/c`+name+`"`, `"a"`, `"`+name+`"`, `"ua"`, `"u`+name+`"`,
		`000000000001`, `00000000000`+n, `3e:00:00:01"`, `3e:00:00:0`+n+`"`, `"10.1.0.1"`+"\n          ]", `"10.1.0.`+n+`"`+"\n          ]")
	if name == "b" {
		pairs = append(pairs, `"Since"`, `"Released": true, "Since"`)
	}
	return []byte(strings.NewReplacer(pairs...).Replace(string(text)))
}
