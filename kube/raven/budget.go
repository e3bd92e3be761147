package raven

import (
	"sync"
	"time"
)

// budget is the cap on the ports of all pools, which keeps Raven under the SDN's quota. It counts ports that are there, pending ones, and those that a pool is just about to ask for.
type budget struct {
	mu      sync.Mutex
	most    int // 0 is no limit
	used    map[string]int
	total   int
	waiting map[string]bool // pools that wanted more than there was
	asked   time.Time       // when the SDN was asked for its quota
}

func newBudget(most int) *budget {
	return &budget{most: most, used: map[string]int{}, waiting: map[string]bool{}}
}

// limit sets the cap, and gives the pools that waited where there is room by it.
func (b *budget) limit(most int) (wake []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = most
	return b.woken()
}

// set says how many ports a pool has, and gives the pools that waited for some to be given back.
func (b *budget) set(pool string, n int) (wake []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	freed := n < b.used[pool]
	b.total += n - b.used[pool]
	b.used[pool] = n
	if n == 0 {
		delete(b.used, pool)
	}
	if !freed {
		return nil
	}
	return b.woken()
}

// woken are the pools that waited, if there is room: they wait no more, and those that get nothing wait anew.
func (b *budget) woken() (pools []string) {
	if b.left() == 0 {
		return nil
	}
	for name := range b.waiting {
		pools = append(pools, name)
	}
	clear(b.waiting)
	return pools
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
		b.waiting[pool] = true
	}
	b.total += n
	if n > 0 {
		b.used[pool] += n
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
	b.waiting[pool] = true
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
