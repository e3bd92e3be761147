package claim

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/idlegate"
	"github.com/kuryr/kuryr/kube/agent"
)

// DefaultPodWait is how long the watch may be behind the kubelet, which knows of a pod earlier.
const DefaultPodWait = 5 * time.Second

// Config is what an Allocator needs.
type Config struct {
	// Client is of the API server. Its scheme has package v1 and the core types.
	Client client.WithWatch
	// Node is the own node's name.
	Node string
	// Network is the conflist's name, for attachments that only the API knows of.
	Network string
	// Journal is the folder in which earlier versions kept their records, of this boot of the
	// machine (Boot; "" asks the kernel). "" is none.
	Journal, Boot string
	// PodWait is how long Allocate waits for a pod that is not known or has another UID; 0 is
	// DefaultPodWait.
	PodWait time.Duration
	// Own is called with the own Node, first and whenever it has changed; nil is not called. It must
	// not wait or change the Node.
	Own func(*corev1.Node)
	// HostPorts leads ports of the node to pods; nil refuses pods that ask for it.
	HostPorts HostPorts
	// Idle delays writes to the API that follow an answer until no ADD or DEL is in progress.
	// nil writes immediately.
	Idle *idlegate.Gate
	Log  *slog.Logger

	backoff *wait.Backoff // of watches that fail; nil is the feed's own
}

// Allocator allocates a node's ports to its pods. It is an agent.Source; Allocate waits until Run has seen
// the API.
type Allocator struct {
	Config
	server *agent.Server
	queue  workqueue.TypedDelayingInterface[task]
	retry  backoff.Backoff
	gone   *departures
	ready  chan struct{} // closed when the index is whole and the API's claims have rows

	mu       sync.Mutex
	index    *index
	waiting  waiters
	failures map[task]int // in a row
}

var (
	_ agent.Source   = (*Allocator)(nil)
	_ agent.Restorer = (*Allocator)(nil)
	_ agent.Prober   = (*Allocator)(nil)
)

// Open makes an Allocator. It allocates nothing until a Server has restored it.
func Open(c Config) (*Allocator, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.PodWait == 0 {
		c.PodWait = DefaultPodWait
	}
	s := &Allocator{
		Config: c, index: newIndex(c.Node), waiting: waiters{}, failures: map[task]int{},
		queue: workqueue.NewTypedDelayingQueue[task](),
		retry: backoff.Backoff{Min: firstRetry, Max: lastRetry}, ready: make(chan struct{}),
	}
	var err error
	s.gone, err = newDepartures(s.queue)
	return s, err
}

// Run watches the API and writes to it until ctx ends; then it returns nil. It waits for an API server
// that is unavailable.
func (c *Allocator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	feeds := c.feeds()
	for _, f := range feeds {
		g.Go(func() error { f.Run(ctx); return nil })
	}
	g.Go(func() error { return c.gone.run(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		c.queue.ShutDown()
		return nil
	})
	g.Go(func() error {
		for _, f := range feeds {
			select {
			case <-f.Synced():
			case <-ctx.Done():
				return nil
			}
		}
		if err := c.begin(ctx); err != nil {
			return err
		}
		for range writers {
			g.Go(func() error { c.write(ctx); return nil })
		}
		return nil
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Started is closed when Allocate can answer, so that container runtimes may learn of the network.
func (c *Allocator) Started() <-chan struct{} { return c.ready }

// begin compares the rows with the API, once both are known, and opens Allocate.
func (c *Allocator) begin(ctx context.Context) error {
	c.mu.Lock()
	var unknown []string
	for name, p := range c.index.ports {
		if c.index.unknown(p) {
			unknown = append(unknown, name)
		}
		c.queue.Add(task{port: name})
	}
	for name := range c.index.released {
		c.queue.Add(task{port: name})
	}
	for uid, all := range c.index.ofPod {
		for _, a := range all {
			if c.index.uids[uid] == nil {
				c.queue.Add(task{gone: a.Key()})
			} else {
				c.queue.Add(task{pod: a.podName()})
			}
		}
	}
	c.mu.Unlock()
	for _, name := range unknown {
		if err := c.adoptPort(ctx, name); err != nil {
			return err
		}
	}
	close(c.ready)
	return nil
}
