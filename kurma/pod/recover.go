//go:build linux

package pod

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// How soon what is owed is tried again: the first wait, doubled at each failure up to the last.
const (
	firstWait = time.Second
	lastWait  = 2 * time.Minute
	atOnce    = 16 // pods that are removed at once
)

// Run undoes what an earlier process had begun to add, finishes what it had begun to remove, and removes pods that ended while no daemon ran: those whose
// namespace is gone (after a reboot all are), and those of containers whose first process is. Then it tries again what failed to be removed, less
// and less often, until ctx ends. It is called once, when networks can be called.
func (m *Manager) Run(ctx context.Context) {
	m.sweep(ctx)
	wait := firstWait
	for owed := m.settle(ctx, (*record).over); ; owed = m.settle(ctx, (*record).unfinished) {
		if owed == 0 {
			wait = firstWait
			select {
			case <-ctx.Done():
				return
			case <-m.owes:
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(wait/2)):
			wait = min(2*wait, lastWait)
		case <-m.wake:
			wait = firstWait
		}
	}
}

// Wake has what is owed tried again at once, as when a network has come to run.
func (m *Manager) Wake() { signal(m.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sweep lets go of namespaces without a record, which an add had pinned when it was cut off.
func (m *Manager) sweep(ctx context.Context) {
	pinned, err := m.spaces.List()
	if err != nil {
		m.log.ErrorContext(ctx, "the pinned namespaces cannot be listed", "error", err)
	}
	for _, name := range pinned {
		if id, err := ParseUUID(name); err != nil || id != name {
			continue // not of a pod
		}
		unlock, err := m.locks.Lock(ctx, name)
		if err != nil {
			return
		}
		if m.record(name) == nil {
			m.log.InfoContext(ctx, "a namespace that an unfinished add has left is let go", "pod", name)
			if err := m.spaces.Delete(name); err != nil {
				m.log.ErrorContext(ctx, "it stays", "pod", name, "error", err)
			}
		}
		unlock()
	}
}

// settle removes the pods for which is says why, and tells how many are not removed.
func (m *Manager) settle(ctx context.Context, is func(*record, Namespaces) string) (owed int) {
	var all []*record
	m.mu.Lock()
	for _, r := range m.pods {
		all = append(all, r)
	}
	m.mu.Unlock()
	var left atomic.Int64
	var work errgroup.Group
	work.SetLimit(atOnce)
	for _, r := range all {
		if is(r, m.spaces) == "" {
			continue
		}
		work.Go(func() error {
			if !m.settleOne(ctx, r.UUID, is) {
				left.Add(1)
			}
			return nil
		})
	}
	_ = work.Wait()
	return int(left.Load())
}

func (m *Manager) settleOne(ctx context.Context, uuid string, is func(*record, Namespaces) string) bool {
	end, err := m.begin()
	if err != nil {
		return true // of the next start
	}
	defer end()
	unlock, err := m.locks.Lock(ctx, uuid)
	if err != nil {
		return false
	}
	defer unlock()
	r := m.record(uuid) // it may have changed while its call ended
	if r == nil {
		return true
	}
	why := is(r, m.spaces)
	if why == "" {
		return true
	}
	m.log.InfoContext(ctx, "a pod is removed", "pod", uuid, "container", r.Container, "why", why)
	if err := m.remove(ctx, r, false); err != nil {
		m.log.WarnContext(ctx, "a pod is not removed yet", "pod", uuid, "error", err)
		return false
	}
	return true
}

// unfinished says why a pod is to be removed that no call works at.
func (r *record) unfinished(Namespaces) string {
	switch r.State {
	case Adding:
		return "its add was cut off"
	case Removing:
		return "its removal has not ended"
	}
	return ""
}

// over is unfinished, or says how a pod ended while no daemon ran.
func (r *record) over(spaces Namespaces) string {
	if why := r.unfinished(spaces); why != "" {
		return why
	}
	if r.Process != nil && r.Process.gone() {
		return "its container has ended"
	}
	h, err := spaces.Handle(r.UUID)
	if errors.Is(err, os.ErrNotExist) {
		return "its namespace is gone"
	}
	_ = h.Close()
	return ""
}
