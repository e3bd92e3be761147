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
	"github.com/kuryr/kuryr/kube/node"
)

// DefaultPodWait is how long the watch may be behind the kubelet, which knows of a pod before.
const DefaultPodWait = 5 * time.Second

// Config says whose ports a Claimant gives.
type Config struct {
	// Client is of the API server. Its scheme has package v1 and the core types.
	Client client.WithWatch
	// Node is the own node's name.
	Node string
	// Network is the conflist's name, for attachments of which the API alone knows.
	Network string
	// Journal is the folder in which earlier versions kept their records, of this boot of the
	// machine (Boot; "" asks the kernel). "" is none.
	Journal, Boot string
	// PodWait is how long Claim waits for a pod that is not there or has another UID; 0 is DefaultPodWait.
	PodWait time.Duration
	// Own is told of the own Node, at first and whenever it has changed; nil is nobody. It must not wait, nor change what it is given.
	Own func(*corev1.Node)
	// HostPorts leads ports of the node to pods; nil has pods refused that wish it.
	HostPorts HostPorts
	// Idle delays writes to the API that follow an answer until no ADD or DEL is in progress.
	// nil writes immediately.
	Idle *idlegate.Gate
	Log  *slog.Logger

	backoff *wait.Backoff // of watches that fail; nil is the feed's own
}

// Claimant gives the pods of a node their ports. It is a node.Source; Allocate waits until Run has seen the API.
type Claimant struct {
	Config
	server *node.Server
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
	_ node.Source   = (*Claimant)(nil)
	_ node.Restorer = (*Claimant)(nil)
	_ node.Prober   = (*Claimant)(nil)
)

// Open makes a Claimant, which is the Source of a Server and gives nothing before that has
// restored it.
func Open(c Config) (*Claimant, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.PodWait == 0 {
		c.PodWait = DefaultPodWait
	}
	s := &Claimant{
		Config: c, index: newIndex(c.Node), waiting: waiters{}, failures: map[task]int{},
		queue: workqueue.NewTypedDelayingQueue[task](),
		retry: backoff.Backoff{Min: firstRetry, Max: lastRetry}, ready: make(chan struct{}),
	}
	var err error
	s.gone, err = newDepartures(s.queue)
	return s, err
}

// Run watches the API and writes to it until ctx ends; then it returns nil. An API server that is away is waited for.
func (c *Claimant) Run(ctx context.Context) error {
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

// Started is closed when Claims are let through, which is when container runtimes may be told of the network.
func (c *Claimant) Started() <-chan struct{} { return c.ready }

// begin compares the rows with the API, once both are known, and lets Claims through.
func (c *Claimant) begin(ctx context.Context) error {
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
