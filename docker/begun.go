package docker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
)

// An engine knows a network, or a pool, when its call was answered; one whose plugin is killed before gives up and never speaks of it again. Some SDNs make a
// network and its subnets by several calls, so what is left then may tell nothing of whose it was. So what is about to be made is written down before the first
// change, by its Key, and struck out when the engine was told of it, or when it is gone again. What is still written down is something that nobody was told of, or
// just about: if the engine does not have it, it may go by the comparison, whoever else uses the SDN.
//
// A pool is told of before its network is: it stays written down until a network was made of it, it is released, or so much time has passed that the engine
// has it for another driver's network.

// beginning is something that the engine asked for and may not have been told of.
type beginning struct {
	Kind, Name string // of its Key
	At         time.Time
	Found      bool `json:",omitempty"` // it was made, and is about to go: once it is not there it never comes

	held bool // the call that makes it, or one that follows, goes on
}

// begun are the beginnings, by the names of their records. Without a folder they are forgotten with the process.
type begun struct {
	folder *jsonstore.Store
	log    *slog.Logger
	more   chan struct{} // full: something was let

	mu  sync.Mutex
	all map[string]beginning
}

// openBegun reads what an earlier process was killed in. What cannot be read is left to what the comparison knows without.
func openBegun(dir string, log *slog.Logger) *begun {
	folder, err := jsonstore.Open(dir)
	if err != nil {
		log.Error("what Docker's calls are about to make cannot be written down: what a kill leaves of it may stay", "err", err)
	}
	b := &begun{folder: folder, log: log, more: make(chan struct{}, 1)}
	if b.all, err = jsonstore.Load[beginning](folder); err != nil {
		log.Warn("what an earlier process was about to make cannot all be read", "err", err)
	}
	return b
}

// recordOf names the record of what has a Key of a kind with a name, "" where such is not written down: what a swarm's manager asks for has marks of its
// own, and it is the manager's to know.
func recordOf(kind, name string) string {
	switch kind {
	case identity.KindNetwork:
		if localID.MatchString(name) {
			return "network-" + name
		}
	case identity.KindPool:
		if n, ok := identity.ParsePoolName(name); ok && n.Space != api.GlobalSpace {
			return "pool-" + n.Nonce
		}
	}
	return ""
}

// begin writes down that something is about to be made, and holds it until let. Where that cannot be, it is made all the same: only a kill would leave it.
func (b *begun) begin(ctx context.Context, kind, name string) {
	record := recordOf(kind, name)
	if record == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	what := beginning{Kind: kind, Name: name, At: time.Now(), held: true}
	if err := b.folder.Put(record, what); err != nil {
		b.log.ErrorContext(ctx, "what is about to be made could not be written down: if Kuryr is killed meanwhile, it may stay", "kind", kind, "name", name, "err", err)
	}
	b.all[record] = what
	failpoint.Here("docker.begun.written")
}

// let ends begin's hold: whether the engine was told is not known.
func (b *begun) let(kind, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	record := recordOf(kind, name)
	if what, ok := b.all[record]; ok {
		what.held = false
		b.all[record] = what
		kick(b.more)
	}
}

// Unanswered gives a value after calls that made something, or may have, and that the engine was not told so of: Memory.Compare finds out what becomes of it.
func (d *Driver) Unanswered() <-chan struct{} { return d.begun.more }

// found writes down that something is there that is about to go.
func (b *begun) found(kind, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	record := recordOf(kind, name)
	what, ok := b.all[record]
	if !ok || what.Found {
		return
	}
	what.Found = true
	if err := b.folder.Put(record, what); err != nil {
		b.log.Warn("a record of what was to be made may stay for some minutes", "kind", kind, "name", name, "err", err)
	}
	b.all[record] = what
}

// strike strikes out what the engine was told of, or what is gone. A record that cannot be deleted is found to be of no use by the next process.
func (b *begun) strike(kind, name string) {
	b.strikeIf(kind, name, func(beginning) bool { return true })
}

// strikeIf is strike if what is written down is what is meant.
func (b *begun) strikeIf(kind, name string, meant func(beginning) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	record := recordOf(kind, name)
	if what, ok := b.all[record]; !ok || !meant(what) {
		return
	}
	delete(b.all, record)
	if err := b.folder.Delete(record); err != nil {
		b.log.Warn("a record of what was to be made stays", "kind", kind, "name", name, "err", err)
	}
}

// left are the beginnings that no call of this process has in hand.
func (b *begun) left() map[string]beginning {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := map[string]beginning{}
	for record, what := range b.all {
		if !what.held {
			left[record] = what
		}
	}
	return left
}

// isLeft tells whether something is among them.
func (b *begun) isLeft(kind, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	what, ok := b.all[recordOf(kind, name)]
	return ok && !what.held
}

// beginNetwork is begin of a network that a call makes, up to the call's answer.
func (d *Driver) beginNetwork(ctx context.Context, id string) {
	d.begun.begin(ctx, identity.KindNetwork, id)
	whenAnswered(ctx, func(told bool) {
		if told {
			d.begun.strike(identity.KindNetwork, id)
		} else {
			d.begun.let(identity.KindNetwork, id)
		}
	})
}

// beginPool is begin of a pool that a call makes, or gives: the engine is to make a network of it next.
func (d *Driver) beginPool(ctx context.Context, name identity.PoolName) {
	d.begun.begin(ctx, identity.KindPool, name.String())
	whenAnswered(ctx, func(told bool) {
		if !told {
			d.begun.let(identity.KindPool, name.String())
		} else if d.begun.has(identity.KindPool, name.String()) {
			time.AfterFunc(creation, func() { d.begun.strike(identity.KindPool, name.String()) })
		}
	})
}

// has tells whether something is written down.
func (b *begun) has(kind, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.all[recordOf(kind, name)]
	return ok
}

// answering is the key of the list, in a call's context, of what is to be done when it was answered.
type answering struct{}

// afterwards is what is to be done when a call was answered.
type afterwards struct{ list []func(told bool) }

// whenAnswered has something done when a call was answered; told tells that the engine was told that it is done. Outside a call it is done at once.
func whenAnswered(ctx context.Context, do func(told bool)) {
	if a, ok := ctx.Value(answering{}).(*afterwards); ok {
		a.list = append(a.list, do)
		return
	}
	do(true)
}

// answered does what is to be done.
func (a *afterwards) answered(told bool) {
	if len(a.list) > 0 && told {
		failpoint.Here("docker.begun.answered")
	}
	for _, do := range a.list {
		do(told)
	}
}

// settleBegun strikes out what the engine turned out to have, and what is not in the SDN and would be by now. It tells when to look again at the rest of the
// latter, zero for never: an SDN may yet make what it was asked for right before a kill.
func (d *Driver) settleBegun(c Comparison, now time.Time) (next time.Time) {
	strike := func(b beginning) { d.begun.strikeIf(b.Kind, b.Name, func(now beginning) bool { return now == b }) }
	for _, b := range c.told {
		strike(b)
	}
	for _, b := range c.absent {
		switch due := b.At.Add(landing); {
		case b.Found, !now.Before(due):
			strike(b)
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	return next
}
