//go:build linux

package leg

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent/feed"
	"github.com/kuryr/kuryr/kube/agent/wiring"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// Interface is the name of the machine's interface on its own port.
const Interface = "kuryr-node0"

// here is the network namespace that the daemon runs in, the host's. /proc/self is that of the first
// thread, which may be visiting another.
const here = "/proc/thread-self/ns/net"

// kindNodePort names the kind of row that this package owns. It is part of the table's format.
const kindNodePort = "nodeport"

// oldRecord is the name of the record that earlier versions kept in a folder.
const oldRecord = "port"

// Bounds of one look, and of the pauses between looks that fail.
const (
	lookTimeout = time.Minute
	firstRetry  = 200 * time.Millisecond
	lastRetry   = 30 * time.Second
)

// Binder plugs ports: a *bind.Binder.
type Binder interface {
	Plug(ctx context.Context, i bind.Interface) (bind.Result, error)
	Unplug(ctx context.Context, port sdn.Port) error
}

// Config is what a Leg needs. All but Log is needed.
type Config struct {
	Client client.WithWatch // its scheme has package v1's types
	Node   string
	Binder Binder
	// Store has the port's row. It is not started yet; its user runs and closes it.
	Store *reconcile.Store
	Old   string // folder in which earlier versions kept their record; "" is none
	// Plugged is called with the port whenever another is plugged, and with nil when none is. What is
	// plugged first is [Leg.Has]. nil is not called.
	Plugged func(*v1.KuryrPortSpec)
	Log     *slog.Logger
}

// Leg keeps one node's own port plugged. See [Open].
type Leg struct {
	Config
	rows *reconcile.Kind[v1.KuryrPortSpec, struct{}]
	wake chan struct{} // holds one element if the wanted port may have changed
	lost chan struct{} // holds one element if something may have been removed

	mu    sync.Mutex
	ports map[string]*v1.KuryrPort // the node's own, by name: more than one while one replaces another
}

// Open makes a Leg, whose row becomes a kind of the store. A record of an earlier version becomes a
// row.
func Open(c Config) (*Leg, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	l := &Leg{
		Config: c, wake: make(chan struct{}, 1), lost: make(chan struct{}, 1), ports: map[string]*v1.KuryrPort{},
	}
	l.rows = reconcile.Register(c.Store, kindNodePort, target{c.Binder}, reconcile.Options[v1.KuryrPortSpec, struct{}]{
		Timeout: lookTimeout,
	})
	if err := l.importRecord(); err != nil {
		return nil, fmt.Errorf("record of the node's own port: %w", err)
	}
	return l, nil
}

// importRecord makes a row of an earlier version's record.
func (l *Leg) importRecord() error {
	if l.Old == "" {
		return nil
	}
	spec, ok, err := jsonstore.Get[v1.KuryrPortSpec](jsonstore.Shared(l.Old), oldRecord)
	if err != nil {
		return err
	}
	if ok {
		r := reconcile.Row[v1.KuryrPortSpec, struct{}]{Phase: reconcile.Wanted, Spec: spec, Done: true}
		r.Key = spec.ID
		if err := l.rows.Import(context.Background(), []reconcile.Row[v1.KuryrPortSpec, struct{}]{r}); err != nil {
			return err
		}
	}
	return os.RemoveAll(l.Old)
}

// target plugs the node's own port.
type target struct{ Binder }

// Ensure implements reconcile.Target.
func (t target) Ensure(
	ctx context.Context, _ reconcile.Object, spec v1.KuryrPortSpec, none struct{},
) (struct{}, error) {
	w, err := wiring.Of(&spec)
	if err != nil {
		return none, reconcile.Refused(err)
	}
	failpoint.Here("leg.set.recorded")
	// Another route to the pods would cut the node off from them.
	_, err = t.Plug(ctx, bind.Interface{
		Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Namespace: here, Name: Interface, ReplacesRoutes: true,
	})
	return none, err
}

// Delete implements reconcile.Target.
func (t target) Delete(ctx context.Context, _ reconcile.Object, spec v1.KuryrPortSpec, _ struct{}) error {
	w, err := wiring.Of(&spec)
	if err != nil {
		return err
	}
	if err := t.Unplug(ctx, w.Port); err != nil {
		return err
	}
	failpoint.Here("leg.remove.unplugged")
	return nil
}

// Has returns the port that is plugged; nil is none.
func (l *Leg) Has() *v1.KuryrPortSpec {
	for r := range l.rows.Rows() {
		if r.Phase == reconcile.Wanted {
			return &r.Spec
		}
	}
	return nil
}

// Run keeps the port plugged until ctx ends, and leaves it plugged then. It waits for an API server that
// is unavailable.
func (l *Leg) Run(ctx context.Context) {
	f := feed.New(feed.Config{
		Client: l.Client, List: &v1.KuryrPortList{}, Log: l.Log,
		Selector: client.MatchingLabels{v1.LabelNode: v1.NodeLabel(l.Node), v1.LabelForNode: "true"},
		Events:   feed.Events{Set: l.see, Drop: func(n types.NamespacedName) { l.drop(n.Name) }},
	})
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { f.Run(ctx) })
	working.Go(func() { watchKernel(ctx, Interface, func() { tell(l.lost) }, l.Log) })
	select {
	case <-f.Synced():
	case <-ctx.Done():
		return
	}
	l.work(ctx)
}

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *Leg) see(o client.Object) {
	p := o.(*v1.KuryrPort)
	if !p.DeletionTimestamp.IsZero() || p.Spec.Node != l.Node || !p.Spec.ForNode {
		l.drop(p.Name)
		return
	}
	l.mu.Lock()
	l.ports[p.Name] = p
	l.mu.Unlock()
	tell(l.wake)
}

func (l *Leg) drop(name string) {
	l.mu.Lock()
	delete(l.ports, name)
	l.mu.Unlock()
	tell(l.wake)
}

// work plugs the wanted port until ctx ends: first, whenever it is woken, and after a failure.
func (l *Leg) work(ctx context.Context) {
	wait := backoff.Backoff{Min: firstRetry, Max: lastRetry}
	for {
		var retry <-chan time.Time
		lost := l.lost
		err := l.set(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.Log.WarnContext(ctx, "node port not plugged", "interface", Interface, "err", err)
			retry = time.After(wait.Next())
			lost = nil // the kernel reports what a failed attempt takes back, too
		default:
			wait.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-lost:
		case <-retry:
		}
	}
}

// set plugs the wanted port and unplugs all others. It is idempotent.
func (l *Leg) set(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	want, fresh := l.wanted(), l.Has() == nil
	if err := l.unplugOthers(ctx, want); err != nil || want == nil {
		return err
	}
	_, again := l.rows.Get(want.ID)
	if _, err := l.rows.Set(ctx, reconcile.Request[v1.KuryrPortSpec]{Key: want.ID, Spec: *want}); err != nil {
		return err
	}
	// A stored port is plugged again: something may have been removed.
	if now, ok := l.rows.Get(want.ID); ok && again {
		if _, err := (target{l.Binder}).Ensure(ctx, now.Object, now.Spec, struct{}{}); err != nil {
			return err
		}
	}
	if fresh {
		l.Log.InfoContext(ctx, "node port plugged", "interface", Interface, "port", want.ID)
	}
	l.tell(want)
	return nil
}

// unplugOthers unplugs all but the wanted port, and that too if it loses something.
func (l *Leg) unplugOthers(ctx context.Context, want *v1.KuryrPortSpec) error {
	for r := range l.rows.Rows() {
		if r.Phase == reconcile.Wanted && want != nil && r.Key == want.ID && !loses(&r.Spec, want) {
			continue
		}
		if err := l.rows.Remove(ctx, r.Key); err != nil {
			return err
		}
		l.Log.InfoContext(ctx, "node port unplugged", "interface", Interface, "port", r.Key)
		l.tell(nil)
	}
	return nil
}

func (l *Leg) tell(port *v1.KuryrPortSpec) {
	if l.Plugged != nil {
		l.Plugged(port)
	}
}

// wanted returns the port to plug; nil is none. Of several, while one replaces another, it is the one
// that is plugged, otherwise the oldest.
func (l *Leg) wanted() *v1.KuryrPortSpec {
	has := l.Has()
	l.mu.Lock()
	defer l.mu.Unlock()
	var best *v1.KuryrPort
	for _, p := range l.ports {
		if has != nil && p.Spec.ID == has.ID {
			return p.Spec.DeepCopy()
		}
		if best == nil {
			best = p
		}
		byAge := p.CreationTimestamp.Compare(best.CreationTimestamp.Time)
		if cmp.Or(byAge, cmp.Compare(p.Name, best.Name)) < 0 {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	return best.Spec.DeepCopy()
}

// loses reports whether the port has an address or a route that is no longer wanted. Plug adds and
// removes nothing.
func loses(has, want *v1.KuryrPortSpec) bool {
	for _, h := range has.Network.Subnets {
		at := slices.IndexFunc(want.Network.Subnets, func(s v1.PortSubnet) bool { return s.ID == h.ID })
		if at < 0 {
			return true
		}
		w := want.Network.Subnets[at]
		if slices.ContainsFunc(h.IPs, func(ip string) bool { return !slices.Contains(w.IPs, ip) }) ||
			slices.ContainsFunc(h.Routes, func(r v1.PortRoute) bool { return !slices.Contains(w.Routes, r) }) {
			return true
		}
	}
	return false
}

// Remove unplugs the node's own port, for those who take Kuryr off the machine, and reports
// whether there was one. No Leg may run.
func Remove(ctx context.Context, c Config) (removed bool, err error) {
	l, err := Open(c)
	if err != nil {
		return false, err
	}
	removed = l.Has() != nil
	if err := l.unplugOthers(ctx, nil); err != nil {
		return false, fmt.Errorf("the node's own port: %w", err)
	}
	return removed, nil
}
