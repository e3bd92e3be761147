//go:build linux && failpoints

package claim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/reconcile"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// victimEnv holds what a child process does before it is killed.
const victimEnv = "KURYR_CLAIM_VICTIM"

// victim is a daemon's life: what the API has when it begins, its table, and what is asked of it.
type victim struct {
	Dir   string   // the table is in it, and the API that outlives the process
	Asks  []string // "add CONTAINER", "del CONTAINER"; "told ." waits until the API knows
	Ports []*v1.KuryrPort
	Pods  []*corev1.Pod
}

func (v victim) saved() string { return filepath.Join(v.Dir, "api.json") }

func TestMain(m *testing.M) {
	if order := os.Getenv(victimEnv); order != "" {
		if err := obey(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// save writes down what the API has, as soon as it has it.
func (v victim) save(a *api) error {
	ctx := context.Background()
	var ports v1.KuryrPortList
	var pods corev1.PodList
	if err := errors.Join(a.List(ctx, &ports), a.List(ctx, &pods)); err != nil {
		return err
	}
	v.Ports, v.Pods = nil, nil
	for i := range ports.Items {
		v.Ports = append(v.Ports, &ports.Items[i])
	}
	for i := range pods.Items {
		v.Pods = append(v.Pods, &pods.Items[i])
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(v.saved()+".next", text, 0o600); err != nil {
		return err
	}
	return os.Rename(v.saved()+".next", v.saved())
}

// objects are what the API has.
func (v victim) objects() []client.Object {
	all := []client.Object{aNamespace(), aNetwork(), aPool()}
	for _, p := range v.Ports {
		p.ResourceVersion = ""
		all = append(all, p)
	}
	for _, p := range v.Pods {
		p.ResourceVersion = ""
		all = append(all, p)
	}
	return all
}

// obey runs a daemon until all is asked and told.
func obey(order string) error {
	var v victim
	if err := json.Unmarshal([]byte(order), &v); err != nil {
		return err
	}
	a := newAPI(v.objects()...)
	var mu sync.Mutex
	a.after = func() {
		mu.Lock()
		defer mu.Unlock()
		if err := v.save(a); err != nil {
			panic(err)
		}
	}
	w := &world{api: a, dir: v.Dir, wait: time.Second, plugs: &plugs{there: map[sdn.ID]bind.Interface{}}}
	if err := w.assemble(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	go func() { _ = w.Run(ctx) }()
	go w.store.Run(ctx)
	var err error
	for _, text := range v.Asks {
		var verb, container string
		if _, err := fmt.Sscan(text, &verb, &container); err != nil {
			return err
		}
		switch verb {
		case "add":
			_, err = w.Claim(ctx, ask(container, "a", "ua"))
		case "del":
			err = w.Release(ctx, ask(container, "a", "ua"))
		case "told":
			err = told(ctx, w.Allocator)
		}
		if err != nil {
			return err
		}
	}
	<-ctx.Done() // the failpoint may be behind the answer
	return errors.New("nothing killed it")
}

// told waits until the API says of every port what it should.
func told(ctx context.Context, c *Allocator) error {
	for ctx.Err() == nil {
		done := true
		c.mu.Lock()
		for _, p := range c.index.ports {
			done = done && !c.index.differs(p)
		}
		c.mu.Unlock()
		if done {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// TestKilled kills the daemon at every failpoint, in another process. The next one finds the port with its container or free, and the runtime's next call ends as if nothing had been.
func TestKilled(t *testing.T) {
	bound := aPort(1) // by the pod's sandbox of before the reboot
	bound.Labels[v1.LabelPortStatus] = string(v1.PortBound)
	bound.Status = v1.KuryrPortStatus{PortStatus: v1.PortBound, Pod: &v1.PortPod{Namespace: namespace, Name: "a", UID: "ua", Container: "old", Interface: "eth0"}}
	for _, p := range []struct {
		at    string
		asks  []string
		bound bool
	}{
		{"claim.claim.chosen", []string{"add c"}, false},
		{"claim.claim.published", []string{"add c"}, false},
		{"claim.claim.written", []string{"add c"}, false},
		{"claim.write.labelled", []string{"add c"}, false},
		{"claim.write.told", []string{"add c"}, false},
		{"claim.annotate.written", []string{"add c"}, false},
		{"claim.release.written", []string{"add c", "del c"}, false},
		{"claim.write.told:2", []string{"add c", "told .", "del c", "add c2"}, false},
		{"claim.adopt.written", []string{"add c"}, true},
		{"claim.takeover.written", []string{"add c"}, true},
	} {
		for _, then := range []string{"add", "del", "del other"} {
			t.Run(p.at+"/"+then, func(t *testing.T) {
				t.Parallel()
				v := victim{Dir: t.TempDir(), Asks: p.asks, Ports: []*v1.KuryrPort{aPort(1), aPort(2)}, Pods: []*corev1.Pod{aPod("a", "ua")}}
				if p.bound {
					v.Ports[0] = bound.DeepCopy()
				}
				a := newAPI(v.objects()...)
				must(t, v.save(a))
				kill(t, p.at, v)
				text, err := os.ReadFile(v.saved())
				must(t, err)
				must(t, json.Unmarshal(text, &v))
				w := &world{
					t: t, api: newAPI(append(v.objects(), &corev1.Node{})...), dir: v.Dir, wait: time.Second,
					plugs: &plugs{there: map[sdn.ID]bind.Interface{}},
				}
				w.start()
				t.Cleanup(func() { w.kill() })
				w.begun()
				finish(w, then)
			})
		}
	}
}

// finish asks what a runtime asks after a daemon died, and looks at what there is in the end.
func finish(w *world, then string) {
	want := map[string]sdn.ID{}
	switch then {
	case "add":
		want["c"] = w.adds(ask("c", "a", "ua")).Port.ID
	case "del other":
		w.dels(ask("other", "a", "ua"))
		fallthrough
	case "del":
		for _, a := range w.attachments() {
			w.dels(a)
		}
	}
	for _, n := range []int{1, 2} {
		if c := holder(w, portName(n)); c != "" {
			w.says(portName(n), v1.PortBound, c)
			delete(want, c)
		} else {
			w.says(portName(n), v1.PortAvailable, "")
		}
	}
	if len(want) > 0 {
		w.t.Errorf("%v have no port", want)
	}
	eventually(w.t, "no pending deletion", func() bool {
		for r := range w.server.Rows() {
			if r.Phase == reconcile.Deleting {
				return false
			}
		}
		return true
	})
}

// kill has another process do what v says, which is killed at a failpoint.
func kill(t *testing.T, at string, v victim) {
	t.Helper()
	order, err := json.Marshal(v)
	must(t, err)
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), victimEnv+"="+string(order), "KURYR_FAILPOINT="+at)
	cmd.Stderr = &said
	err = cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("was not killed: %v: %s", err, said.String())
	}
}
