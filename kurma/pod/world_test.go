//go:build linux

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	ns "github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/internal/reconcile"
)

// networks are plugins that make links in the pods' namespaces, and keep in a folder which pods
// they have, as real ones do.
type networks struct {
	dir   string
	crash string // the step at which the process kills itself

	mu       sync.Mutex
	list     []Network
	adds     map[string]error // by network
	dels     map[string]error
	block    chan struct{} // adds wait for it; nil: they do not
	entered  chan struct{} // adds that have come
	calls    []string
	released []Ref
}

func newNetworks(dir string, names ...string) *networks {
	n := &networks{dir: dir, adds: map[string]error{}, dels: map[string]error{}, entered: make(chan struct{}, 1000)}
	for i, name := range names {
		n.list = append(n.list, Network{Ref: Ref{name, "1"}, Default: i < 2, InterfaceName: func(v Vars) (string, error) {
			return free(fmt.Sprintf("eth%d", v.Num), v.Taken)
		}})
	}
	return n
}

func free(name string, taken []string) (string, error) {
	if slices.Contains(taken, name) {
		return "", fmt.Errorf("interface %s is there already", name)
	}
	return name, nil
}

func (n *networks) Networks() []Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

func (n *networks) reconfigure(generation string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = slices.Clone(n.list)
	for i := range n.list {
		n.list[i].Generation = generation
	}
}

func (n *networks) fail(add, del map[string]error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.adds, n.dels = add, del
}

func (n *networks) Release(on Ref) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.released = append(n.released, on)
}

func (n *networks) file(on Ref, c Call) string {
	return filepath.Join(n.dir, on.Name+"@"+on.Generation+"@"+c.Pod+"@"+c.Interface)
}

func (n *networks) note(verb string, on Ref) (block chan struct{}, failure error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, verb+" "+on.Name)
	if verb == "add" {
		return n.block, n.adds[on.Name]
	}
	return nil, n.dels[on.Name]
}

func (n *networks) called() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

func (n *networks) Add(ctx context.Context, on Ref, c Call) (*current.Result, error) {
	block, failure := n.note("add", on)
	n.entered <- struct{}{}
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, fmt.Errorf("network %s: %w", on.Name, ctx.Err())
		}
	}
	n.crashAt("add " + on.Name)
	if err := os.WriteFile(n.file(on, c), nil, 0o600); err != nil {
		return nil, err
	}
	err := inside(c.Namespace, func(k *netlink.Handle) error {
		link := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		link.Name = c.Interface
		if err := k.LinkAdd(link); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	})
	if err := errors.Join(err, failure); err != nil {
		return nil, err
	}
	n.crashAt("added " + on.Name)
	return &current.Result{CNIVersion: "1.1.0",
		Interfaces: []*current.Interface{{Name: c.Interface, Sandbox: c.Namespace}}, DNS: types.DNS{Nameservers: []string{"192.0.2.53"}}}, nil
}

func (n *networks) Del(_ context.Context, on Ref, c Call) error {
	if _, failure := n.note("del", on); failure != nil {
		return failure
	}
	n.crashAt("del " + on.Name)
	if err := os.Remove(n.file(on, c)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer n.crashAt("deleted " + on.Name)
	if _, err := os.Stat(c.Namespace); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return inside(c.Namespace, func(k *netlink.Handle) error {
		link, err := k.LinkByName(c.Interface)
		if err != nil {
			return nil
		}
		return k.LinkDel(link)
	})
}

func (n *networks) crashAt(step string) {
	if n.crash == step {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
}

// has are the pods that networks think they have: "network interface".
func (n *networks) has(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		words := strings.Split(e.Name(), "@")
		list = append(list, words[0]+" "+words[3])
	}
	return list
}

func inside(path string, f func(*netlink.Handle) error) error {
	h, err := find(Request{Path: path})
	if err != nil {
		return err
	}
	defer h.Close()
	k, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer k.Close()
	return f(k)
}

// world is a machine on which a daemon runs, and ends, and runs again.
type world struct {
	testing.TB
	dir      string
	networks *networks
	spaces   *ns.Store
	registry *prometheus.Registry
	store    *reconcile.Store
	*Manager
}

func newWorld(t testing.TB) *world {
	t.Helper()
	nstest.Require(t)
	w := &world{TB: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(w.dir, "plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.networks = newNetworks(filepath.Join(w.dir, "plugins"), "a", "b", "c")
	w.start()
	t.Cleanup(func() {
		w.stop()
		names, _ := w.spaces.List()
		for _, name := range names {
			_ = w.spaces.Delete(name)
		}
		_ = unix.Unmount(filepath.Join(w.dir, "netns"), unix.MNT_DETACH)
	})
	return w
}

func (w *world) path() string { return filepath.Join(w.dir, "kurma.db") }

func (w *world) start() {
	w.Helper()
	var err error
	if w.spaces, err = ns.Open(filepath.Join(w.dir, "netns")); err != nil {
		w.Fatal(err)
	}
	w.registry = prometheus.NewRegistry()
	if err := Upgrade(w.path()); err != nil {
		w.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if w.store, err = reconcile.Open(reconcile.Config{Path: w.path(), Logger: log}); err != nil {
		w.Fatal(err)
	}
	w.Manager = New(Config{
		Store: w.store, Namespaces: w.spaces, Plugins: w.networks, Registerer: w.registry, Logger: log,
	})
	if err := w.Import(w.Context(), w.path()); err != nil {
		w.Fatal(err)
	}
}

func (w *world) stop() {
	w.Helper()
	w.Close()
	if err := w.store.Close(); err != nil {
		w.Errorf("Close: %v", err)
	}
}

// restart ends the daemon and starts it, and returns when what it found is done.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
	w.recover(0)
}

// recover starts the store, and returns when so many pods could not be removed, and no other has
// something left to do.
func (w *world) recover(pending int) {
	w.Helper()
	if err := w.store.Start(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.Start(w.Context())
	defer w.run()()
	removing := 0
	until(w, func() bool {
		removing = 0
		for r := range w.pods.Rows() {
			if stateOf(r) != Ready {
				removing++
				if r.Tries == 0 {
					return false
				}
			}
		}
		return true
	})
	if removing != pending {
		w.Errorf("%d pods are not removed, want %d", removing, pending)
	}
}

// run runs the store's queue until stop is called.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var work sync.WaitGroup
	work.Go(func() { w.store.Run(ctx) })
	return func() { cancel(); work.Wait() }
}

// clean fails unless nothing is left of any pod.
func (w *world) clean() {
	w.Helper()
	pins, err := w.spaces.List()
	if err != nil {
		w.Fatal(err)
	}
	if len(pins) > 0 {
		w.Errorf("namespaces are left: %v", pins)
	}
	if has := w.networks.has(w); len(has) > 0 {
		w.Errorf("networks have still %v", has)
	}
	if pods := w.List(); len(pods) > 0 {
		w.Errorf("pods are left: %+v", pods)
	}
	for begun := time.Now(); ; time.Sleep(time.Millisecond) { // what watched a process ends later
		left := w.inMemory()
		if left == "" {
			return
		}
		if time.Since(begun) > time.Minute {
			w.Error("left in memory: ", left)
			return
		}
	}
}

// inMemory describes what the manager holds for pods; "" is nothing.
func (w *world) inMemory() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.held)+len(w.opened)+len(w.watched)+w.locks.Held() == 0 {
		return ""
	}
	return fmt.Sprintf("networks %v, namespaces %v, processes %v, %d locks",
		w.held, w.opened, w.watched, w.locks.Held())
}

func (w *world) add(r Request) Pod {
	w.Helper()
	p, err := w.Add(w.Context(), r)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (w *world) del(uuid string) {
	w.Helper()
	if err := w.Del(w.Context(), uuid, false); err != nil {
		w.Fatal(err)
	}
}

// links are the names in a pod's namespace, with a "+" if they are up.
func (w *world) links(p Pod) (list []string) {
	w.Helper()
	err := inside(p.Namespace, func(k *netlink.Handle) error {
		all, err := k.LinkList()
		for _, l := range all {
			name := l.Attrs().Name
			if l.Attrs().RawFlags&unix.IFF_UP != 0 {
				name += "+"
			}
			list = append(list, name)
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func same(t testing.TB, got, want any) {
	t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Errorf("got %s, want %s", g, w)
	}
}
