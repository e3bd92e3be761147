package raven

import (
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/kube/raven/core"
)

// budget is the cap on the ports of all pools, which keeps Raven under the SDN's quota. It counts ports that are there, pending ones, and those that a pool is just about to ask for.
// Pools that want more than there is wait in order. As many are called as there is room for; who is called and takes nothing leaves it to the next, and whoever got a port is the last again.
type budget struct {
	mu      sync.Mutex
	most    int // 0 is no limit
	used    map[string]int
	total   int
	waiting []string        // pools that wanted more than there was, the one that waits longest first
	waits   map[string]bool // the same
	called  map[string]bool // pools that have been called, and whose look has not ended since
	asked   time.Time       // when the SDN was asked for its quota
}

func newBudget(most int) *budget {
	return &budget{most: most, used: map[string]int{}, waits: map[string]bool{}, called: map[string]bool{}}
}

// limit sets the cap, and calls pools that waited where there is room by it.
func (b *budget) limit(most int) (called []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = most
	return b.call()
}

// set says how many ports a pool has when its look ends, and calls pools that waited for what it has given back, or was called for and has not taken.
func (b *budget) set(pool string, n int) (called []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	offered := n < b.used[pool] || b.called[pool]
	delete(b.called, pool)
	b.total += n - b.used[pool]
	b.used[pool] = n
	if n == 0 {
		delete(b.used, pool)
	}
	if !offered {
		return nil
	}
	return b.call()
}

// late says that pools which were called come later, by their own pauses, and calls others in their place.
func (b *budget) late(pools []string) (called []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range pools {
		delete(b.called, p)
	}
	return b.call()
}

// call takes those that have waited longest from the line, as many as there is room for besides those that were called before.
func (b *budget) call() (pools []string) {
	n := len(b.waiting)
	if left := b.left(); left >= 0 {
		n = min(n, max(left-len(b.called), 0))
	}
	pools = slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	for _, p := range pools {
		delete(b.waits, p)
		b.called[p] = true
	}
	return pools
}

// join has a pool wait: at its old place where it was called and got nothing.
func (b *budget) join(pool string) {
	switch {
	case b.waits[pool]:
		return
	case b.called[pool]:
		b.waiting = slices.Insert(b.waiting, 0, pool)
	default:
		b.waiting = append(b.waiting, pool)
	}
	b.waits[pool] = true
}

// last has a pool that waits be the last of all.
func (b *budget) last(pool string) {
	if b.waits[pool] {
		b.waiting = append(slices.DeleteFunc(b.waiting, func(p string) bool { return p == pool }), pool)
	}
}

// left is how many more ports there may be; less than 0 is any number.
func (b *budget) left() int {
	if b.most == 0 {
		return -1
	}
	return max(b.most-b.total, 0)
}

// room is how many more ports there may be; less than 0 is any number.
func (b *budget) room() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left()
}

// take has the pool have up to n more, and tells how many. A pool that gets fewer is told of when some are given back.
func (b *budget) take(pool string, n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left := b.left(); left >= 0 && left < n {
		n = left
		b.join(pool)
	}
	b.total += n
	if n > 0 {
		b.used[pool] += n
		b.last(pool)
	}
	return n
}

// wait has a pool that has seen so much room told when there is more. If there is already it does not wait.
func (b *budget) wait(pool string, seen int) (waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left := b.left(); left < 0 || left > seen {
		return false
	}
	b.join(pool)
	return true
}

// due tells, once in a pause, that the SDN is to be asked for its quota.
func (b *budget) due(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.asked) < quotaPause {
		return false
	}
	b.asked = now
	return true
}

// askedAt is when the SDN was asked last.
func (b *budget) askedAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// wakeCalled has pools looked at that the budget has called. For those that come late others are.
func (r *Raven) wakeCalled(pools []string) {
	for len(pools) > 0 {
		pools = r.budget.late(slices.DeleteFunc(pools, r.wakePool))
	}
}

func (r *Raven) wakePool(name string) (soon bool) { return r.poolWakes.Enqueue(core.Request("", name)) }
