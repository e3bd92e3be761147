//go:build linux

package uplink

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/records"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node/claim"
	"github.com/kuryr/kuryr/kube/node/feed"
	"github.com/kuryr/kuryr/sdn"
)

// Name is the link's in the host.
const Name = "kuryr0"

// hostNamespace is the network namespace of this process, which is the host's.
const hostNamespace = "/proc/self/ns/net"

// Bounds of an attempt and of the pause after one that failed.
const (
	limit      = time.Minute
	firstRetry = 200 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Binder plugs ports: a bind.Binder.
type Binder interface {
	Plug(ctx context.Context, i bind.Interface) (bind.Result, error)
	Unplug(ctx context.Context, port sdn.Port) error
}

// Config is what an Uplink needs.
type Config struct {
	Client    client.WithWatch // its scheme has Kuryr's types
	Node      string           // the node's name
	Binder    Binder
	Dir       string // folder of the records, which a reboot must void
	Namespace string // path of the host's network namespace; "" is this process's
	Log       *slog.Logger
}

// Uplink keeps the node's own port plugged.
type Uplink struct {
	Config
	records *records.Folder
	wake    chan struct{} // holds one element where something may differ

	mu       sync.Mutex
	ports    map[string]*v1.KuryrPort // the node's own, by name
	networks map[string]*v1.KuryrNetwork

	plugged map[string]v1.KuryrPortSpec // by port's id; of the goroutine of Run alone
	current *v1.KuryrPortSpec           // what this process has plugged, as it was then
}

// Open reads what was plugged before. Nothing is changed until Run.
func Open(c Config) (*Uplink, error) {
	if c.Namespace == "" {
		c.Namespace = hostNamespace
	}
	folder, err := records.OpenVolatile(c.Dir)
	if err != nil {
		return nil, err
	}
	plugged, err := records.Load[v1.KuryrPortSpec](folder)
	if err != nil {
		return nil, err
	}
	return &Uplink{Config: c, records: folder, plugged: plugged, wake: make(chan struct{}, 1), ports: map[string]*v1.KuryrPort{}, networks: map[string]*v1.KuryrNetwork{}}, nil
}

// Run follows what the API tells until ctx ends. An API server that is away changes nothing.
func (u *Uplink) Run(ctx context.Context) {
	ports := feed.New(feed.Config{
		Client: u.Client, List: &v1.KuryrPortList{}, Log: u.Log,
		Selector: client.MatchingLabels{v1.LabelNode: v1.NodeLabel(u.Node), v1.LabelUplink: "true"},
		Events:   feed.Events{Set: func(o client.Object) { u.setPort(o.(*v1.KuryrPort)) }, Drop: func(n types.NamespacedName) { drop(u, u.ports, n.Name) }},
	})
	networks := feed.New(feed.Config{
		Client: u.Client, List: &v1.KuryrNetworkList{}, Log: u.Log,
		Events: feed.Events{Set: func(o client.Object) { set(u, u.networks, o.(*v1.KuryrNetwork)) }, Drop: func(n types.NamespacedName) { drop(u, u.networks, n.Name) }},
	})
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, f := range []*feed.Feed{ports, networks} {
		watching.Go(func() { f.Run(ctx) })
	}
	for _, f := range []*feed.Feed{ports, networks} {
		select {
		case <-f.Synced():
		case <-ctx.Done():
			return
		}
	}
	u.follow(ctx)
}

func (u *Uplink) setPort(p *v1.KuryrPort) {
	if p.Spec.Node == u.Node && p.Labels[v1.LabelUplink] == "true" {
		set(u, u.ports, p)
	}
}

func set[T client.Object](u *Uplink, all map[string]T, o T) {
	u.mu.Lock()
	all[o.GetName()] = o
	u.mu.Unlock()
	u.look()
}

func drop[T client.Object](u *Uplink, all map[string]T, name string) {
	u.mu.Lock()
	delete(all, name)
	u.mu.Unlock()
	u.look()
}

func (u *Uplink) look() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// follow brings the host in order whenever something has changed, and what fails again after a pause.
func (u *Uplink) follow(ctx context.Context) {
	pause := firstRetry
	for {
		var retry <-chan time.Time
		one, cancel := context.WithTimeout(ctx, limit)
		err := u.sync(one)
		cancel()
		timer := time.NewTimer(pause/2 + rand.N(pause))
		if err != nil && ctx.Err() == nil {
			u.Log.WarnContext(ctx, "the node's own port is not as it is to be; it is tried again", "error", err)
			retry, pause = timer.C, min(2*pause, lastRetry)
		} else {
			pause = firstRetry
		}
		select {
		case <-ctx.Done():
		case <-u.wake:
		case <-retry:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// sync takes away what is no more to be plugged, plugs what is, and has its routes be those to the pods' subnets.
func (u *Uplink) sync(ctx context.Context) error {
	want, routes := u.wanted()
	for id, spec := range u.plugged {
		if want == nil || id != want.ID {
			if err := u.unplug(ctx, spec); err != nil {
				return err
			}
		}
	}
	if want == nil {
		return nil
	}
	if err := u.plug(ctx, *want); err != nil {
		return err
	}
	return setRoutes(u.Namespace, Name, routes)
}

func (u *Uplink) unplug(ctx context.Context, spec v1.KuryrPortSpec) error {
	w, err := claim.WiringOf(&spec)
	if err != nil {
		return err
	}
	if err := u.Binder.Unplug(ctx, w.Port); err != nil {
		return err
	}
	if err := u.records.Delete(spec.ID); err != nil {
		return err
	}
	delete(u.plugged, spec.ID)
	u.current = nil
	u.Log.InfoContext(ctx, "the node's own port is unplugged", "port", spec.ID)
	return nil
}

func (u *Uplink) plug(ctx context.Context, spec v1.KuryrPortSpec) error {
	if u.current != nil && equality.Semantic.DeepEqual(*u.current, spec) {
		return nil
	}
	w, err := claim.WiringOf(&spec)
	if err != nil {
		return err
	}
	// The host has its own way out. Where the pods are, setRoutes says.
	for i := range w.Subnets {
		w.Subnets[i].Gateway, w.Subnets[i].HostRoutes = noAddress, nil
	}
	if err := u.records.Put(spec.ID, spec); err != nil {
		return err
	}
	u.plugged[spec.ID] = spec
	if _, err := u.Binder.Plug(ctx, bind.Interface{Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Namespace: u.Namespace, Name: Name}); err != nil {
		return fmt.Errorf("the node's own port: %w", err)
	}
	u.current = &spec
	u.Log.InfoContext(ctx, "the node's own port is plugged", "port", spec.ID, "link", Name, "addresses", fmt.Sprint(w.Port.Addresses))
	return nil
}
