package privatehost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// leaseTime is how long a test may wait for a host: others may have all of them.
const leaseTime = 10 * time.Minute

// ErrPoolClosed is the error of a lease after Close.
var ErrPoolClosed = errors.New("the pool of private hosts is closed")

// Pool leases hosts of one kind to tests, which share their boots. A lease is exclusive.
// A host returns to the pool only if its State is what it was after its boot.
type Pool struct {
	// CleanTimeout is how long the State of a returned host may differ from that after its
	// boot: engine and kernel finish some removals in the background. 0 is a minute.
	CleanTimeout time.Duration

	start func(context.Context) (*Host, error)
	slots chan struct{} // an element for each leased host

	mu     sync.Mutex
	idle   []*Host
	clean  map[*Host]Snapshot // the state after the boot
	closed bool
}

// NewPool returns a pool of at most size hosts. start boots one.
func NewPool(size int, start func(context.Context) (*Host, error)) *Pool {
	return &Pool{start: start, slots: make(chan struct{}, size), clean: map[*Host]Snapshot{}}
}

// Lease returns a host to one caller, which must Return or Discard it. It boots a host
// when none is idle, and waits while all are leased. The host's logs begin with its
// lease.
func (p *Pool) Lease(ctx context.Context) (*Host, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("all %d hosts are leased: %w", cap(p.slots), ctx.Err())
	}
	h, err := p.take(ctx)
	if err != nil {
		<-p.slots
		return nil, err
	}
	return h, nil
}

func (p *Pool) take(ctx context.Context) (*Host, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrPoolClosed
	}
	if n := len(p.idle); n > 0 {
		h := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return h, nil
	}
	p.mu.Unlock()
	h, err := p.start(ctx)
	if err != nil {
		return nil, err
	}
	clean, err := h.stableState(ctx)
	if err != nil {
		h.Close()
		return nil, err
	}
	p.mu.Lock()
	p.clean[h] = clean
	p.mu.Unlock()
	return h, nil
}

// stableState returns the State of a new host when it is the same twice in a row.
func (h *Host) stableState(ctx context.Context) (Snapshot, error) {
	last, err := h.State(ctx)
	for err == nil {
		var now Snapshot
		if now, err = h.State(ctx); err != nil {
			break
		}
		if len(last.Diff(now, sections(last, now)...)) == 0 {
			return now, nil
		}
		last = now
	}
	return nil, fmt.Errorf("read the state of a new host: %w", err)
}

// Return gives a leased host back. It fails, and the host stays leased, if its State does
// not become what it was after the boot within CleanTimeout. The error lists the
// differences.
func (p *Pool) Return(ctx context.Context, h *Host) error {
	p.mu.Lock()
	clean := p.clean[h]
	p.mu.Unlock()
	var differs error
	for end := time.Now().Add(cmp.Or(p.CleanTimeout, time.Minute)); ; time.Sleep(200 * time.Millisecond) {
		now, err := h.State(ctx)
		if err == nil {
			diff := clean.Diff(now, sections(clean, now)...)
			if len(diff) == 0 {
				break
			}
			err = fmt.Errorf("the host is not as it was before the lease:\n%s", strings.Join(diff, "\n"))
			differs = err
		}
		if ctx.Err() != nil {
			return cmp.Or(differs, err)
		}
		if time.Now().After(end) {
			return err
		}
	}
	if err := h.emptyLogs(); err != nil {
		return err
	}
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.idle = append(p.idle, h)
	}
	p.mu.Unlock()
	if closed {
		p.Discard(h)
		return nil
	}
	<-p.slots
	return nil
}

// Discard closes a leased host.
func (p *Pool) Discard(h *Host) {
	p.mu.Lock()
	delete(p.clean, h)
	p.mu.Unlock()
	h.Close()
	<-p.slots
}

// Close closes the idle hosts. Leases are refused from now on.
func (p *Pool) Close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, h := range idle {
		h.Close()
	}
}

// For leases a host until the end of a test. The test fails if it leaves anything on the
// host; a failed test's host is closed. What the test cleans up after this call is done
// before the check.
func (p *Pool) For(t TB) *Host {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), leaseTime)
	defer cancel()
	h, err := p.Lease(ctx)
	if err != nil {
		t.Fatalf("lease a private host: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		defer cancel()
		if !t.Failed() {
			err := p.Return(ctx, h)
			if err == nil {
				return
			}
			t.Errorf("%v", err)
		}
		h.report(t)
		p.Discard(h)
	})
	return h
}

// sections returns those that either state has.
func sections(a, b Snapshot) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}
