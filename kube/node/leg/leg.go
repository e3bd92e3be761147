//go:build linux

package leg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node/feed"
	"github.com/kuryr/kuryr/kube/node/wiring"
	"github.com/kuryr/kuryr/sdn"
)

// Interface is the name of the machine's interface on its own port.
const Interface = "kuryr-node0"

// here is the network namespace that the daemon runs in, the host's. Not /proc/self, which is the first thread's, and that may be visiting another.
const here = "/proc/thread-self/ns/net"

// recordName is that of the one record.
const recordName = "port"

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
	Dir    string // of the record; it outlives the machine's boot, as a switch's database does
	// Plugged is told of the port whenever another is plugged, and with nil when none is any more; what the record has at first is [Leg.Has]. nil: nobody is.
	Plugged func(*v1.KuryrPortSpec)
	Log     *slog.Logger
}

// Leg keeps one node's own port plugged. See [Open].
type Leg struct {
	Config
	folder *jsonstore.Store
	wake   chan struct{} // holds one element where what is wanted may have changed
	lost   chan struct{} // holds one element where something may have been taken away

	mu    sync.Mutex
	ports map[string]*v1.KuryrPort // the node's own that are wanted, by name: one, but for a moment

	has *v1.KuryrPortSpec // what is plugged, as the record says; of the working goroutine alone
}

// Open reads the record. The error is the folder's.
func Open(c Config) (*Leg, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	folder, err := jsonstore.Open(c.Dir)
	if err != nil {
		return nil, err
	}
	all, err := jsonstore.Load[v1.KuryrPortSpec](folder)
	if err != nil {
		return nil, fmt.Errorf("record of the node's own port: %w", err)
	}
	l := &Leg{Config: c, folder: folder, wake: make(chan struct{}, 1), lost: make(chan struct{}, 1), ports: map[string]*v1.KuryrPort{}}
	if spec, ok := all[recordName]; ok {
		l.has = &spec
	}
	return l, nil
}

// Has is the port that is plugged as Open begins; nil is none. It is to be called before Run.
func (l *Leg) Has() *v1.KuryrPortSpec { return l.has }

// Run keeps the port plugged until ctx ends, which leaves it so. An API server that is away is waited for.
func (l *Leg) Run(ctx context.Context) {
	f := feed.New(feed.Config{
		Client: l.Client, List: &v1.KuryrPortList{}, Selector: client.MatchingLabels{v1.LabelNode: v1.NodeLabel(l.Node), v1.LabelForNode: "true"}, Log: l.Log,
		Events: feed.Events{Set: l.see, Drop: func(n types.NamespacedName) { l.drop(n.Name) }},
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

// work looks until ctx ends: at once, whenever it is woken, and again after a failure.
func (l *Leg) work(ctx context.Context) {
	pause := firstRetry
	for {
		var retry <-chan time.Time
		lost := l.lost
		err := l.set(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.Log.WarnContext(ctx, "the node's own port is not as it should be; it is tried again", "interface", Interface, "err", err)
			retry = time.After(pause/2 + rand.N(pause))
			pause = min(2*pause, lastRetry)
			lost = nil // what a failure takes back is told of too
		default:
			pause = firstRetry
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

// set has the machine have the port that is wanted and no other. What is as it should be stays so.
func (l *Leg) set(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	want := l.wanted()
	if l.has != nil && (want == nil || want.ID != l.has.ID || loses(l.has, want)) {
		if err := l.remove(ctx); err != nil {
			return err
		}
	}
	if want == nil {
		return nil
	}
	w, err := wiring.Of(want)
	if err != nil {
		return err
	}
	// First the record: what is plugged must be known of, whenever the process ends.
	if fresh := l.has == nil; !equality.Semantic.DeepEqual(l.has, want) {
		if err := l.folder.Put(recordName, want); err != nil {
			return err
		}
		l.has = want
		failpoint.Here("leg.set.recorded")
		if fresh {
			l.Log.InfoContext(ctx, "the node gets its own port", "interface", Interface, "port", want.ID, "addresses", w.Port.Addresses)
		}
	}
	// Another route to the pods would cut the node off from them.
	_, err = l.Binder.Plug(ctx, bind.Interface{
		Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Namespace: here, Name: Interface, ReplacesRoutes: true,
	})
	if err != nil {
		return err
	}
	l.tell(want)
	return nil
}

func (l *Leg) tell(port *v1.KuryrPortSpec) {
	if l.Plugged != nil {
		l.Plugged(port)
	}
}

// wanted is the port to be plugged; nil is none. Of several, which there are while one replaces another, it is the one that is plugged, else the oldest.
func (l *Leg) wanted() *v1.KuryrPortSpec {
	l.mu.Lock()
	defer l.mu.Unlock()
	var best *v1.KuryrPort
	for _, p := range l.ports {
		if l.has != nil && p.Spec.ID == l.has.ID {
			return p.Spec.DeepCopy()
		}
		if best == nil || cmp.Or(p.CreationTimestamp.Compare(best.CreationTimestamp.Time), cmp.Compare(p.Name, best.Name)) < 0 {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	return best.Spec.DeepCopy()
}

// loses tells whether the port has had an address or a route that it is to have no more. To plug adds, and takes nothing away.
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

// remove unplugs what the record tells of, and then the record goes.
func (l *Leg) remove(ctx context.Context) error {
	w, err := wiring.Of(l.has)
	if err != nil {
		return fmt.Errorf("record of the node's own port: %w", err)
	}
	if err := l.Binder.Unplug(ctx, w.Port); err != nil {
		return err
	}
	failpoint.Here("leg.remove.unplugged")
	if err := l.folder.Delete(recordName); err != nil {
		return err
	}
	l.Log.InfoContext(ctx, "the node has its own port no more", "interface", Interface, "port", l.has.ID)
	l.has = nil
	l.tell(nil)
	return nil
}

// Remove takes the interface of the port that the record in dir tells of out of the machine, for who takes Kuryr off it; no Leg may run. None is no error.
// removed tells whether there was one.
func Remove(ctx context.Context, dir string, b Binder) (removed bool, err error) {
	all, err := jsonstore.Load[v1.KuryrPortSpec](jsonstore.Shared(dir))
	spec, ok := all[recordName]
	if err != nil || !ok {
		return false, err
	}
	folder, err := jsonstore.Open(dir)
	if err != nil {
		return false, err
	}
	l := &Leg{Config: Config{Binder: b, Log: slog.New(slog.DiscardHandler)}, folder: folder, has: &spec}
	if err := l.remove(ctx); err != nil {
		return false, errors.Join(errors.New("the node's own port"), err)
	}
	return true, nil
}
