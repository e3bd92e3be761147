//go:build linux

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const someUUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"

var errNo = errors.New("network b: no")

func TestAddAndDel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(Request{UUID: strings.ToUpper(someUUID)})
	same(t, p.UUID, someUUID)
	same(t, p.State, Ready)
	same(t, w.links(p), []string{"eth0", "eth1", "lo+"})
	first := p.Attachments[0]
	same(t, []any{first.Network, first.Interface, first.Result.DNS.Nameservers}, []any{Ref{"a", "1"}, "eth0", []string{"192.0.2.53"}})
	got, err := w.Get(someUUID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, p)
	same(t, w.List(), []Pod{p})
	same(t, w.add(Request{UUID: someUUID}), p)
	same(t, w.networks.called(), []string{"add a", "add b"})
	w.del(someUUID)
	w.del(someUUID)
	same(t, w.networks.called(), []string{"add a", "add b", "del b", "del a"})
	if _, err := w.Get(someUUID); ReasonOf(err) != NotFound {
		t.Errorf("Get: %v", err)
	}
	w.clean()
}

func TestNetworksInTheOrderAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(Request{Networks: []string{"c", "a"}})
	same(t, w.networks.has(t), []string{"a eth1", "c eth0"})
	none := w.add(Request{Networks: []string{}})
	same(t, w.links(none), []string{"lo+"})
	w.del(p.UUID)
	w.del(none.UUID)
	w.clean()
}

func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.SetGrants(Grants{"a": {Users: []uint32{1000}}})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	user := uint32(1001)
	kept := w.add(Request{UUID: someUUID, Networks: []string{"a"}})
	for _, c := range []struct {
		name   string
		ask    Request
		reason Reason
		text   string
	}{
		{"unknown network", Request{Networks: []string{"a", "nowhere"}}, NotFound, `"nowhere"`},
		{"a network twice", Request{Networks: []string{"a", "b", "a"}}, Invalid, `"a" is there twice`},
		{"bad UUID", Request{UUID: "x"}, Invalid, `"x"`},
		{"UUID in braces", Request{UUID: "{" + someUUID + "}"}, Invalid, "UUID"},
		{"no such namespace", Request{Path: file + "x"}, Invalid, file + "x"},
		{"no namespace", Request{Path: file}, Invalid, "not a network namespace"},
		{"another kind of namespace", Request{Path: "/proc/self/ns/mnt"}, Invalid, "not a network namespace"},
		{"the host's namespace", Request{PID: os.Getpid()}, Invalid, "host's own"},
		{"no such process", Request{PID: 1 << 30}, Invalid, "/proc/1073741824/ns/net"},
		{"both", Request{PID: 1, Path: file}, Invalid, "not both"},
		{"another pod's namespace", Request{Path: kept.Namespace}, Conflict, someUUID},
		{"another namespace", Request{UUID: someUUID, Networks: []string{"a"}, PID: sleeper(t)},
			Conflict, "another network namespace"},
		{"other networks", Request{UUID: someUUID}, Conflict, "[a]"},
		{"not granted", Request{User: &user}, Denied, "network a: kurma.grants does not name user 1001"},
	} {
		_, err := w.Add(t.Context(), c.ask)
		if ReasonOf(err) != c.reason || err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (%s), want %s with %s", c.name, err, ReasonOf(err), c.reason, c.text)
		}
	}
	same(t, w.networks.called(), []string{"add a"})
	w.del(someUUID)
	w.clean()
}

// sleeper is a process in a network namespace of its own.
func sleeper(t testing.TB) int {
	t.Helper()
	c := exec.Command("sleep", "600")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(c) })
	return c.Process.Pid
}

func end(c *exec.Cmd) { _ = c.Process.Kill(); _ = c.Wait() }

func TestRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.networks.fail(map[string]error{"b": errNo}, nil)
	_, err := w.Add(t.Context(), Request{Networks: []string{"a", "b", "c"}})
	if ReasonOf(err) != Failed || err.Error() != errNo.Error() {
		t.Errorf("%v (%s)", err, ReasonOf(err))
	}
	same(t, w.networks.called(), []string{"add a", "add b", "del b", "del a"})
	w.clean()
}

// A network that does not run has done nothing, and could not undo it.
func TestRollbackOfWhatWasNotCalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.networks.fail(map[string]error{"b": idle{}}, map[string]error{"b": idle{}})
	_, err := w.Add(t.Context(), Request{Networks: []string{"a", "b"}})
	if ReasonOf(err) != Failed || !strings.Contains(err.Error(), "network b: is not running") {
		t.Errorf("%v (%s)", err, ReasonOf(err))
	}
	same(t, w.networks.called(), []string{"add a", "add b", "del a"})
	if left := w.List(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

type idle struct{}

func (idle) Error() string   { return "network b: is not running" }
func (idle) NotCalled() bool { return true }

// A rollback that fails is told, kept, and done before the pod is added again.
func TestRollbackFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.networks.fail(map[string]error{"b": errNo}, map[string]error{"a": errors.New("network a: stuck")})
	_, err := w.Add(t.Context(), Request{UUID: someUUID})
	if text := fmt.Sprint(err); !strings.Contains(text, "network b: no") || !strings.Contains(text, "network a: stuck") {
		t.Errorf("%v", err)
	}
	p, err := w.Get(someUUID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, []any{p.State, len(p.Attachments), p.Attachments[0].Error}, []any{Removing, 1, "network a: stuck"})
	_, err = w.Add(t.Context(), Request{UUID: someUUID})
	if ReasonOf(err) != Conflict {
		t.Errorf("%v (%s)", err, ReasonOf(err))
	}
	w.networks.fail(nil, nil)
	w.add(Request{UUID: someUUID})
	w.del(someUUID)
	w.clean()
}

func TestDelReportsEveryFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(Request{Networks: []string{"a", "b", "c"}})
	w.networks.fail(nil, map[string]error{"a": errors.New("network a: stuck"), "c": errors.New("network c: unavailable")})
	err := w.Del(t.Context(), p.UUID, false)
	if err == nil || err.Error() != "network c: unavailable\nnetwork a: stuck" || ReasonOf(err) != Failed {
		t.Errorf("%v", err)
	}
	got, err := w.Get(p.UUID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, []string{got.Attachments[0].Network.Name, got.Attachments[1].Network.Name}, []string{"a", "c"})
	same(t, w.links(got), []string{"eth0", "eth2", "lo+"})
	w.networks.fail(nil, map[string]error{"c": errors.New("network c: unavailable")})
	if err := w.Del(t.Context(), p.UUID, false); err == nil || err.Error() != "network c: unavailable" {
		t.Errorf("%v", err)
	}
	w.stop()
	w.start()
	w.recover(1)
	if err := w.Del(t.Context(), p.UUID, true); err != nil {
		t.Errorf("with force: %v", err)
	}
	same(t, w.networks.has(t), []string{"c eth2"})
	if _, err := w.Get(p.UUID); ReasonOf(err) != NotFound {
		t.Errorf("Get: %v", err)
	}
}

// The store repeats what a del has left, immediately when a network is available again.
func TestRunRepeats(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(Request{})
	defer w.run()()
	w.networks.fail(nil, map[string]error{"b": errNo})
	if err := w.Del(t.Context(), p.UUID, false); err == nil {
		t.Fatal("it did not fail")
	}
	w.networks.fail(nil, nil)
	until(t, func() bool { w.Retry(); return len(w.List()) == 0 })
	w.clean()
}

func until(t testing.TB, f func() bool) {
	t.Helper()
	for begun := time.Now(); !f(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("it does not come")
		}
	}
}

func TestOnePodAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			if _, err := w.Add(t.Context(), Request{UUID: someUUID}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	same(t, w.networks.called(), []string{"add a", "add b"})
	for range 8 {
		work.Go(func() {
			if err := w.Del(t.Context(), someUUID, false); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	same(t, w.networks.called(), []string{"add a", "add b", "del b", "del a"})
	w.clean()
}

// Forty pods are in their first network concurrently: none waits for another.
func TestFortyPodsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.networks.block = make(chan struct{})
	var work sync.WaitGroup
	for i := range 40 {
		work.Go(func() {
			if _, err := w.Add(t.Context(), Request{UUID: numbered(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	for range 40 {
		select {
		case <-w.networks.entered:
		case <-time.After(time.Minute):
			t.Fatal("they wait for one another")
		}
	}
	close(w.networks.block)
	work.Wait()
	if has := w.networks.has(t); len(has) != 80 {
		t.Errorf("networks have %d, want 80", len(has))
	}
	for i := range 40 {
		work.Go(func() {
			if err := w.Del(t.Context(), numbered(i), false); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	w.clean()
}

func numbered(i int) string { return fmt.Sprintf("146d7cef-fbf6-41da-a2f8-%012d", i+1) }

// The caller disconnects: what was done is undone, and the plugin is not left running.
func TestCallerGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.networks.block = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-w.networks.entered; cancel() }()
	if _, err := w.Add(ctx, Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	w.clean()
}

func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(Request{UUID: someUUID})
	w.restart()
	got, err := w.Get(someUUID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, p)
	same(t, w.add(Request{UUID: someUUID}), p)
	w.del(someUUID)
	w.restart()
	w.clean()
}

// After a reboot there are records, and no namespaces but files that held them.
func TestNamespaceGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, other := w.add(Request{}), w.add(Request{})
	w.stop()
	for _, uuid := range []string{p.UUID, other.UUID} {
		if err := w.spaces.Delete(uuid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(p.Namespace, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.recover(0)
	w.clean()
}

func TestContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pid := sleeper(t)
	ask := Request{Container: "c1", PID: pid, Networks: []string{"a"}}
	p := w.add(ask)
	same(t, []string{p.UUID, p.Container}, []string{UUIDOf("c1"), "c1"})
	same(t, w.add(ask), p)
	w.restart()
	same(t, len(w.List()), 1)
	// Its process lives: another container of this name is not let in its place.
	ask.PID = sleeper(t)
	if _, err := w.Add(t.Context(), ask); ReasonOf(err) != Conflict {
		t.Errorf("%v", err)
	}
	if err := w.DelContainer(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	if err := w.DelContainer(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	w.clean()
	// A UUID of its own is found by the container's id, too.
	w.SetGrants(Grants{chosenUUID: {All: true}})
	w.add(Request{UUID: someUUID, Container: "c2", PID: pid})
	if err := w.DelContainer(t.Context(), "c2"); err != nil {
		t.Fatal(err)
	}
	w.clean()
}

// container starts what stands for the first process of a container.
func container(t testing.TB) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "600")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(c) })
	return c
}

// A container ends while no daemon runs, or before the daemon has seen it.
func TestContainerEnded(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(*world){
		"the daemon starts": func(w *world) { w.restart() },
		"it is recreated": func(w *world) {
			w.add(Request{Container: "c", PID: sleeper(t)})
			same(t, len(w.List()), 1)
			w.del(UUIDOf("c"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := container(t)
			w.add(Request{Container: "c", PID: c.Process.Pid})
			w.unwatch(UUIDOf("c"))
			end(c)
			again(w)
			w.clean()
		})
	}
}

// A container ends, and no poststop hook runs, or at the same time or later. The pod is removed,
// also by a daemon that did not add it.
func TestContainerEnds(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"of this daemon": false, "of an earlier one": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first, second := container(t), container(t)
			w.add(Request{Container: "first", PID: first.Process.Pid})
			w.add(Request{Container: "second", PID: second.Process.Pid})
			kept := w.add(Request{PID: sleeper(t)})
			if restart {
				w.restart()
			}
			end(first)
			until(t, func() bool { return len(w.List()) == 2 })
			end(second)
			for _, name := range []string{"second", "first"} {
				if err := w.DelContainer(t.Context(), name); err != nil {
					t.Errorf("hook of %s: %v", name, err)
				}
			}
			same(t, w.List(), []Pod{kept})
			w.del(kept.UUID)
			w.clean()
		})
	}
}

// A container ends while it is added.
func TestContainerEndsEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.networks.block = make(chan struct{})
	c := container(t)
	go func() {
		<-w.networks.entered
		end(c)
		close(w.networks.block)
	}()
	_, err := w.Add(t.Context(), Request{Container: "c", PID: c.Process.Pid})
	if ReasonOf(err) != Failed || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("%v (%s)", err, ReasonOf(err))
	}
	w.clean()
}

// A pod stays on the generation of a network that it was attached to, and that is let go after it.
func TestGenerations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.add(Request{Networks: []string{"a"}})
	w.networks.reconfigure("2")
	fresh := w.add(Request{Networks: []string{"a"}})
	if !w.InUse(Ref{"a", "1"}) || w.Attached(Ref{"a", "2"}) != 1 || w.InUse(Ref{"b", "1"}) {
		t.Error("who is on what is not known")
	}
	w.restart()
	if !w.InUse(Ref{"a", "1"}) || w.Attached(Ref{"a", "2"}) != 1 {
		t.Error("who is on what is forgotten by a restart")
	}
	w.del(old.UUID)
	if w.InUse(Ref{"a", "1"}) || !slices.Contains(w.networks.released, Ref{"a", "1"}) ||
		slices.Contains(w.networks.released, Ref{"a", "2"}) {
		t.Errorf("released: %v", w.networks.released)
	}
	w.del(fresh.UUID)
	w.clean()
}

func TestNamesOfInterfaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.networks.list[0].InterfaceName = func(v Vars) (string, error) {
		if _, err := uuid.Parse(v.Pod); err != nil {
			return "", err
		}
		same(t, []any{v.Num, v.Taken}, []any{1, []string{"eth0", "lo"}})
		return "", nil
	}
	w.networks.list[1].InterfaceName = func(v Vars) (string, error) {
		if v.Num == 0 {
			return "eth0", nil
		}
		return free("eth0", v.Taken)
	}
	p := w.add(Request{Networks: []string{"b"}})
	w.del(p.UUID)
	ns := "/proc/" + strconv.Itoa(sleeper(t)) + "/ns/net"
	p = w.add(Request{Path: ns, Networks: []string{"b"}})
	w.del(p.UUID)
	w.networks.list[2].InterfaceName = w.networks.list[1].InterfaceName
	_, err := w.Add(t.Context(), Request{Path: ns, Networks: []string{"b", "c"}})
	if err == nil || err.Error() != "network c: interface eth0 is there already" {
		t.Errorf("%v", err)
	}
	w.clean()
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(Request{})
	w.networks.fail(nil, map[string]error{"b": timedOut{}})
	_ = w.Del(t.Context(), p.UUID, false)
	err := testutil.GatherAndCompare(w.registry, strings.NewReader(`
# HELP kuryr_kurma_calls_total Calls of Kurma's network plugins, by network, verb and outcome.
# TYPE kuryr_kurma_calls_total counter
kuryr_kurma_calls_total{network="a",outcome="ok",verb="add"} 1
kuryr_kurma_calls_total{network="a",outcome="ok",verb="del"} 1
kuryr_kurma_calls_total{network="b",outcome="ok",verb="add"} 1
kuryr_kurma_calls_total{network="b",outcome="timeout",verb="del"} 1
# HELP kuryr_kurma_pods Pods that Kurma has.
# TYPE kuryr_kurma_pods gauge
kuryr_kurma_pods{state="adding"} 0
kuryr_kurma_pods{state="ready"} 0
kuryr_kurma_pods{state="removing"} 1
`), "kuryr_kurma_calls_total", "kuryr_kurma_pods")
	if err != nil {
		t.Error(err)
	}
	w.networks.fail(nil, nil)
	w.del(p.UUID)
}

type timedOut struct{}

func (timedOut) Error() string   { return "network b: too late" }
func (timedOut) Outcome() string { return "timeout" }
