//go:build linux

package identity

import "sync"

// turns bound what each name has in progress. A name that has nothing costs nothing.
type turns struct {
	most int

	mu       sync.Mutex
	underway map[string]int
}

// enter reports whether the name may have one more, which it then has until leave.
func (t *turns) enter(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.underway[name] >= t.most {
		return false
	}
	if t.underway == nil {
		t.underway = map[string]int{}
	}
	t.underway[name]++
	return true
}

// leave ends what enter began.
func (t *turns) leave(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.underway[name]--; t.underway[name] == 0 {
		delete(t.underway, name)
	}
}
