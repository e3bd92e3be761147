//go:build linux

package agent

import (
	"context"
	"errors"
	"sync"
)

// errSuperseded is why an ADD ends before its time.
var errSuperseded = errors.New("a DEL for the interface came after it")

// inflight has the ADDs in progress by attachment. A DEL ends those that came before it, for which
// it would wait: the caller no longer wants what they wait for, such as an empty pool's next port.
type inflight struct {
	mu   sync.Mutex
	adds map[string]map[*context.CancelCauseFunc]struct{}
}

// begin bounds the context of an ADD, which calls done at its end.
func (f *inflight) begin(ctx context.Context, attachment string) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.adds == nil {
		f.adds = map[string]map[*context.CancelCauseFunc]struct{}{}
	}
	if f.adds[attachment] == nil {
		f.adds[attachment] = map[*context.CancelCauseFunc]struct{}{}
	}
	f.adds[attachment][&cancel] = struct{}{}
	return ctx, func() {
		cancel(nil)
		f.mu.Lock()
		defer f.mu.Unlock()
		if delete(f.adds[attachment], &cancel); len(f.adds[attachment]) == 0 {
			delete(f.adds, attachment)
		}
	}
}

// supersede ends the ADDs of an attachment for a DEL.
func (f *inflight) supersede(attachment string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for cancel := range f.adds[attachment] {
		(*cancel)(errSuperseded)
	}
}
