package local

import (
	"context"
	"sync"
)

// A first load of many load balancers is many changes of one domain, each of which costs the kernel a transaction of its own and waits for those before it. So those that were written to the disk
// together are one to the kernel too. What is of anything but balancing stays alone: who plugs a port is not to wait for others' load balancers, nor to be told of their failures.

// shared is the work of a ticket that several have.
type shared struct {
	once sync.Once
	done chan struct{} // closed when err is there
	err  error
}

// settle has the work done once, and tells each how it went. No one's context ends it for the others.
func (s *shared) settle(ctx context.Context, work func(context.Context) error) error {
	s.once.Do(func() {
		go func() {
			defer close(s.done)
			s.err = work(context.WithoutCancel(ctx))
		}()
	})
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return following(ctx.Err())
	}
}

// join has a ticket that nobody has been given yet do another's change too, which comes behind its own.
func (tk *ticket) join(c *change) {
	if tk.shared == nil {
		tk.shared = &shared{done: make(chan struct{})}
	}
	tk.changes[c.domain] = tk.changes[c.domain].then(c)
}

// onlyBalances is the change of a transaction that is of one domain's load balancers and of nothing else; nil where it is not.
func (t *tx) onlyBalances() *change {
	if len(t.changes) != 1 {
		return nil
	}
	for _, c := range t.changes {
		if !c.reshapes() && len(c.vips)+len(c.balanced) > 0 && len(c.left)+len(c.ports)+len(c.forwards)+len(c.groups)+len(c.sets)+len(c.freed) == 0 {
			return c
		}
	}
	return nil
}
