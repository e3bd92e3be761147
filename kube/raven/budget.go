package raven

import "sync"

// budget is the cap on the ports of all pools, which keeps Raven under the SDN's quota. It counts ports that are there, pending ones, and those that a pool is just about to ask for.
type budget struct {
	mu      sync.Mutex
	most    int // 0 is no limit
	used    map[string]int
	total   int
	waiting map[string]bool // pools that wanted more than there was
}

func newBudget(most int) *budget {
	return &budget{most: most, used: map[string]int{}, waiting: map[string]bool{}}
}

// limit sets the cap.
func (b *budget) limit(most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = most
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
	if !freed || b.most > 0 && b.total >= b.most {
		return nil
	}
	for name := range b.waiting {
		if name != pool {
			wake = append(wake, name)
		}
	}
	clear(b.waiting)
	return wake
}

// room is how many more ports there may be; less than 0 is any number.
func (b *budget) room() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.most == 0 {
		return -1
	}
	return max(b.most-b.total, 0)
}

// take has the pool have up to n more, and tells how many. A pool that gets fewer is told of when some are given back.
func (b *budget) take(pool string, n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.most > 0 {
		if left := max(b.most-b.total, 0); left < n {
			n = left
			b.waiting[pool] = true
		}
	}
	b.total += n
	if n > 0 {
		b.used[pool] += n
	}
	return n
}

// wait has the pool told when some are given back.
func (b *budget) wait(pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[pool] = true
}
