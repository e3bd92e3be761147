//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/idlegate"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
)

// Limits of the server. A DEL frees what ADDs may wait for, so maxAdds leaves room for DELs.
const (
	maxCalls     = 1024             // concurrently; others wait
	maxAdds      = 512              // of them; the runtime must ask again for more
	readLimit    = 10 * time.Second // for a whole request
	requestLimit = 60 * time.Second // for what it asks; kuryr-cni waits longer
	undoLimit    = 25 * time.Second // for the cleanup after a failure, also without a caller
	endLimit     = 10 * time.Second // for requests in progress when the daemon ends
)

// Binder is what is used of bind.Binder.
type Binder interface {
	Plug(ctx context.Context, i bind.Interface) (bind.Result, error)
	Unplug(ctx context.Context, port sdn.Port) error
	State(ctx context.Context, port sdn.Port) (bind.State, error)
}

// Config is what a Server needs.
type Config struct {
	Source Source
	Binder Binder
	// Store has the attachments' rows. It is not started yet; its user runs and closes it.
	Store *reconcile.Store
	// State is the folder of static bindings and of pending DELs; "" is cni.DefaultState.
	State      string
	Idle       *idlegate.Gate        // notes ADDs and DELs in progress; may be nil
	Logger     *slog.Logger          // nil: slog.Default
	Registerer prometheus.Registerer // nil: nothing is counted
}

// Server answers kuryr-cni.
type Server struct {
	source  Source
	binder  Binder
	static  *static.Bindings
	pending *jsonstore.Store // cni.PendingDELs
	rows    *reconcile.Kind[Intent, Made]
	idle    *idlegate.Gate
	log     *slog.Logger
	metrics *requests
	locks   keymutex.Mutex // by attachment
	adds    inflight
	slots   chan struct{} // of ADDs
	gone    gone
}

// New makes a Server, whose rows become a kind of the store, and tells its Source of them. It
// touches nothing else until Serve.
func New(c Config) (*Server, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.State == "" {
		c.State = cni.DefaultState
	}
	s := &Server{
		source: c.Source, binder: c.Binder, idle: c.Idle, log: c.Logger,
		static: static.In(c.State, c.Binder), pending: cni.PendingDELs(c.State),
		metrics: newRequests(c.Registerer), slots: make(chan struct{}, maxAdds),
	}
	s.rows = reconcile.Register(c.Store, kindAttachment, target{s}, reconcile.Options[Intent, Made]{
		Timeout: undoLimit,
		Removed: func(reconcile.Row[Intent, Made]) { s.gone.tell() },
	})
	if r, ok := c.Source.(Restorer); ok {
		return s, r.Restore(s)
	}
	return s, nil
}

// Serve answers the requests of the listener, which only root may use (package rootsock), until ctx ends.
// Its error is the listener's.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	// Requests in progress have a little longer than ctx.
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(endLimit, end) })()

	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { s.recover(ctx) })
	calls := make(chan struct{}, maxCalls)
	for {
		calls <- struct{}{}
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("socket of the CNI server: %w", err)
		}
		work.Go(func() {
			defer func() { <-calls }()
			defer conn.Close()
			s.answer(lasting, conn)
		})
	}
}

// answer reads one request and writes its reply.
func (s *Server) answer(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	start := time.Now()
	_ = conn.SetReadDeadline(start.Add(readLimit))
	r, reply, err := cni.ReadRequest(conn)
	if errors.Is(err, io.EOF) { // such as kuryr doctor, which looks whether the daemon answers
		return
	}
	if err != nil {
		s.log.WarnContext(ctx, "request of kuryr-cni cannot be read", "err", err)
		_ = reply(conn, nil, cni.Undecodable.Errorf("request: %v", err))
		return
	}
	if r.Verb == cni.Add || r.Verb == cni.Del {
		defer s.idle.Call()()
	}
	c, err := r.Call()
	var out []byte
	if err == nil {
		out, err = s.Do(ctx, c)
	}
	s.done(ctx, c, err, time.Since(start))
	_ = conn.SetWriteDeadline(time.Now().Add(readLimit))
	if err := reply(conn, out, err); err != nil {
		// It was killed. The runtime asks again, or for DEL.
		s.log.WarnContext(ctx, "answer to kuryr-cni not sent", "verb", c.Verb, "container", c.Container, "err", err)
	}
}

// done counts and logs a call.
func (s *Server) done(ctx context.Context, c cni.Call, err error, took time.Duration) {
	outcome := "ok"
	if err != nil {
		outcome = cni.KindOf(cni.AsError(err).Code).Name
	}
	s.metrics.done(c.Verb, outcome, took)
	attrs := []any{
		"verb", c.Verb, "container", c.Container, "interface", c.Interface, "took", took.Round(10 * time.Microsecond),
	}
	switch {
	case err != nil && c.Verb != cni.Status:
		s.log.WarnContext(ctx, "CNI call failed", append(attrs, "err", err)...)
	case c.Verb == cni.Add || c.Verb == cni.Del || c.Verb == cni.GC:
		s.log.InfoContext(ctx, "CNI call", attrs...)
	default: // frequent
		s.log.DebugContext(ctx, "CNI call", attrs...)
	}
}

// Do does one call and returns what kuryr-cni writes to standard output. Calls for one interface of one
// container follow one another; all others run concurrently.
func (s *Server) Do(ctx context.Context, c cni.Call) ([]byte, error) {
	conf, err := cni.ParseConfig(c.Verb, c.Config)
	if err != nil {
		return nil, err
	}
	switch c.Verb {
	case cni.Add:
		select {
		case s.slots <- struct{}{}:
		default:
			return nil, cni.TryAgain.Errorf("%d ADDs are under way, and no more are taken", maxAdds)
		}
		defer func() { <-s.slots }()
		return s.add(ctx, c, conf)
	case cni.Del:
		return nil, s.del(ctx, c, conf)
	case cni.Check:
		return nil, s.check(ctx, c, conf)
	case cni.GC:
		return nil, s.collect(ctx, conf)
	case cni.Status:
		return nil, s.status(ctx, conf)
	case cni.Version:
		return cni.EncodeVersions(conf.CNIVersion), nil
	}
	return nil, cni.BadEnvironment.Errorf("CNI_COMMAND: %q is unknown", c.Verb)
}

// lock locks an attachment.
func (s *Server) lock(ctx context.Context, a Attachment) (unlock func(), err error) {
	return s.locks.Lock(ctx, a.Key())
}

// status reports whether containers can be added.
func (s *Server) status(ctx context.Context, conf cni.Config) error {
	p, ok := s.source.(Prober)
	if !ok {
		return nil
	}
	if err := p.Ready(ctx, conf.Name, conf.Network); err != nil {
		return cni.NotReady.Errorf("%v", err)
	}
	return nil
}
