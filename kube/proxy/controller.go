package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/kube/agent/feed"
)

// Bounds of one change of the kernel, and of the pauses between those that fail.
const (
	applyTimeout = time.Minute
	firstRetry   = 200 * time.Millisecond
	lastRetry    = 30 * time.Second
)

// Table is the kernel: a *lb.Table.
type Table interface {
	Restore(ctx context.Context, all []lb.Frontend) error
	Apply(ctx context.Context, set []lb.Frontend, remove []lb.Key) error
}

// Config is what a Controller needs. Client, Node and Table are needed.
type Config struct {
	Client client.WithWatch // its scheme has core and discovery
	Node   string
	Table  Table
	Rules  Rules
	// NodePorts are the ranges of the node's addresses at which NodePorts and health checks answer; none is all. The Table is to be told too.
	NodePorts []netip.Prefix
	// HealthListen is host:port where load balancers ask whether the node as a whole is to have connections; "" is nowhere.
	HealthListen string

	Registerer prometheus.Registerer
	Log        *slog.Logger

	backoff *wait.Backoff // of feeds; for tests
	listen  listenFunc
	retry   time.Duration // before the first repetition of what failed
}

// Controller brings Services into the node's kernel. See [New].
type Controller struct {
	Config
	metrics *counts
	health  *health
	wake    chan struct{} // holds one element where something is dirty
	seen    chan struct{} // closed when the Node has been seen
	once    sync.Once

	restored chan struct{} // closed when the kernel has had all

	mu    sync.Mutex
	index *index
	wrong string                          // why the kernel is not as it should be; "" is that it is
	bad   bool                            // that is not of single Services alone
	ready bool                            // the kernel has been restored
	torn  bool                            // Mend was called after the last Restore began
	said  map[types.NamespacedName]string // what the log has of a Service
	node  nodeHealth
}

// New makes a Controller, which does nothing until Run.
func New(c Config) *Controller {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.retry == 0 {
		c.retry = firstRetry
	}
	s := &Controller{Config: c, metrics: newCounts(c.Registerer), wake: make(chan struct{}, 1), seen: make(chan struct{}), restored: make(chan struct{}), index: newIndex(c.Rules, Node{Name: c.Node}), said: map[types.NamespacedName]string{}}
	s.health = newHealth(c.NodePorts, s.healthy, c.listen, c.Log)
	return s
}

// SeeNode takes in the Node as the API server tells it. Whoever watches it calls this, at first and whenever it has changed; nothing is in the kernel before.
func (c *Controller) SeeNode(o *corev1.Node) {
	if o.Name != c.Node {
		return
	}
	c.change(func(x *index) {
		c.node.eligible = eligible(o)
		n := x.node
		n.Zone, n.Addrs = o.Labels[corev1.LabelTopologyZone], nil
		for _, a := range o.Status.Addresses {
			if addr, ok := address(a.Address); ok && !slices.Contains(n.Addrs, addr) {
				n.Addrs = append(n.Addrs, addr)
			}
		}
		x.setNode(n)
	})
	c.once.Do(func() { close(c.seen) })
}

// SeeLeg says whether the node reaches pods by a port of its own in the SDN.
func (c *Controller) SeeLeg(has bool) {
	c.change(func(x *index) {
		n := x.node
		n.Leg = has
		x.setNode(n)
	})
}

// change changes what is known.
func (c *Controller) change(f func(*index)) {
	c.mu.Lock()
	f(c.index)
	dirty := len(c.index.dirty) > 0
	c.mu.Unlock()
	if dirty {
		c.look()
	}
}

func (c *Controller) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run keeps the kernel as the cluster's Services want it until ctx ends, which leaves it so. An API server that is away is waited for; until all is known what the last process left in the kernel stays.
func (c *Controller) Run(ctx context.Context) {
	services, endpoints := c.feeds()
	var working sync.WaitGroup
	defer working.Wait()
	defer c.health.close()
	working.Go(func() { c.serveNode(ctx) })
	working.Go(func() { services.Run(ctx) })
	working.Go(func() { endpoints.Run(ctx) })
	for _, known := range []<-chan struct{}{c.seen, services.Synced(), endpoints.Synced()} {
		select {
		case <-known:
		case <-ctx.Done():
			return
		}
	}
	c.work(ctx)
}

// Restored is closed when the kernel has had all of the cluster's Services for the first time.
func (c *Controller) Restored() <-chan struct{} { return c.restored }

// feeds watch all Services, as another proxy's have ClusterIPs too, and the EndpointSlices
// that are neither another proxy's nor headless.
func (c *Controller) feeds() (services, endpoints *feed.Feed) {
	unlabelled := func(label string) labels.Requirement {
		r, err := labels.NewRequirement(label, selection.DoesNotExist, nil)
		if err != nil {
			panic(err) // the label is a constant
		}
		return *r
	}
	of := func(list client.ObjectList, e feed.Events, not ...labels.Requirement) *feed.Feed {
		selector := client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(not...)}
		return feed.New(feed.Config{Client: c.Client, List: list, Selector: selector, Events: e, Log: c.Log, Backoff: c.backoff})
	}
	services = of(&corev1.ServiceList{}, feed.Events{
		Set:  func(o client.Object) { c.change(func(x *index) { x.setService(o.(*corev1.Service)) }) },
		Drop: func(n types.NamespacedName) { c.change(func(x *index) { x.dropService(n) }) },
	})
	endpoints = of(&discoveryv1.EndpointSliceList{}, feed.Events{
		Set:  func(o client.Object) { c.change(func(x *index) { x.setSlice(o.(*discoveryv1.EndpointSlice)) }) },
		Drop: func(n types.NamespacedName) { c.change(func(x *index) { x.dropSlice(n) }) },
	}, unlabelled(labelProxyName), unlabelled(labelHeadless))
	return services, endpoints
}

// work brings what is known into the kernel, all at first, then what changes, until ctx ends.
func (c *Controller) work(ctx context.Context) {
	began, wait := time.Now(), backoff.Backoff{Min: c.retry, Max: lastRetry}
	for {
		var retry <-chan time.Time
		err := c.step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.Log.WarnContext(ctx, "the kernel does not have the cluster's Services as they should be; it is tried again", "err", err)
			retry = time.After(wait.Next())
		default:
			if wait.Reset(); !began.IsZero() {
				c.Log.InfoContext(ctx, "the kernel has the cluster's Services", "services", c.count(), "took", time.Since(began).Round(time.Millisecond))
				began = time.Time{}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-retry:
		}
	}
}

// step brings all that is dirty into the kernel. What could not be brought there is dirty again.
func (c *Controller) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	c.mu.Lock()
	first := !c.ready || c.torn
	if first {
		c.index.touchAll() // after a Restore that failed too
	}
	c.torn = false
	began, plan := time.Now(), c.index.plan()
	c.mu.Unlock()
	if len(plan.looked) == 0 && !first {
		return nil
	}
	failed, err := c.bring(ctx, plan, first)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%d of %d Services: %w", len(failed), len(plan.looked), errors.Join(slices.Collect(maps.Values(failed))...))
	}
	c.metrics.done(err, time.Since(began))
	c.mu.Lock()
	defer c.mu.Unlock()
	whole := first && err != nil && len(failed) == 0 // a Restore that failed
	c.torn = c.torn || whole && c.ready
	if !c.ready && !whole {
		c.ready = true
		close(c.restored)
	}
	c.wrong, c.bad = "", err != nil && len(failed) == 0
	c.node.brought(!c.bad, time.Now())
	if err != nil {
		c.wrong = err.Error()
	}
	if c.ready {
		c.index.done(plan, failed, err)
		c.metrics.frontends.Set(float64(len(c.index.owner)))
		c.told(ctx, plan.looked)
	}
	return err
}

// bring is the one place that changes the kernel and the health checks. Where not all can be brought there it tells what failed: single Services, or, with err, all of it.
func (c *Controller) bring(ctx context.Context, p change, first bool) (failed map[types.NamespacedName]error, err error) {
	if first {
		if err := c.Table.Restore(ctx, slices.Collect(p.frontends())); err != nil {
			return nil, err
		}
	} else if failed, err = c.apply(ctx, p); err != nil {
		return nil, err
	}
	for name, r := range p.looked {
		if err := c.health.set(name, r.health, r.locals); err != nil {
			if failed == nil {
				failed = map[types.NamespacedName]error{}
			}
			failed[name] = errors.Join(failed[name], fmt.Errorf("service %s: %w", name, err))
		}
	}
	return failed, nil
}

// apply changes the kernel at once; if it does not take that, Service by Service, so that one that is wrong keeps no other out.
func (c *Controller) apply(ctx context.Context, p change) (failed map[types.NamespacedName]error, err error) {
	set := slices.Collect(p.frontends())
	if len(set)+len(p.remove) == 0 {
		return nil, nil
	}
	err = c.Table.Apply(ctx, set, p.remove)
	if err == nil || ctx.Err() != nil || len(p.set) == 0 {
		return nil, err
	}
	failed = map[types.NamespacedName]error{}
	if len(p.set) == 1 && len(p.remove) == 0 {
		for name := range p.set {
			failed[name] = fmt.Errorf("service %s: %w", name, err)
		}
		return failed, nil
	}
	if err := c.Table.Apply(ctx, nil, p.remove); err != nil {
		return nil, err
	}
	for name, list := range p.set {
		if err := c.Table.Apply(ctx, list, nil); err != nil {
			failed[name] = fmt.Errorf("service %s: %w", name, err)
		}
	}
	return failed, nil
}

// told logs what an administrator should know of these Services, once. The lock is held.
func (c *Controller) told(ctx context.Context, of map[types.NamespacedName]realised) {
	for name := range of {
		why := strings.Join(c.index.complaints(name), "; ")
		if why != "" && why != c.said[name] {
			c.Log.WarnContext(ctx, "a Service does not have all that it asks for on this node", "service", name.String(), "why", why)
		}
		if c.said[name] = why; why == "" {
			delete(c.said, name)
		}
	}
}

// Problems are what is not as it should be, for who asks after it: a line each, sorted.
func (c *Controller) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for name := range c.index.services {
		for _, why := range c.index.complaints(name) {
			out = append(out, "Service "+name.String()+": "+why)
		}
	}
	slices.Sort(out)
	if c.wrong != "" {
		out = append([]string{"the kernel does not have the cluster's Services: " + strings.TrimSpace(c.wrong)}, out...)
	}
	return out
}

// Mend has the kernel compared with all that is known, and put right. It is for who sees that the table was torn down.
func (c *Controller) Mend() {
	c.mu.Lock()
	c.torn = true
	c.mu.Unlock()
	c.look()
}

// healthy tells whether the kernel has what it should have of a Service. What is wrong with another is not this one's.
func (c *Controller) healthy(of types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready && !c.bad && c.index.failed[of] == nil
}

func (c *Controller) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.index.has)
}
