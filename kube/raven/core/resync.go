package core

import (
	"sync"
	"time"
)

// LastSync is the time of the last comparison of something as a whole with the SDN, which
// reports no changes that others make there.
type LastSync struct {
	mu sync.Mutex
	at time.Time
}

// Due reports whether the next comparison is due, or in what time it is; 0 is never.
// The first one is due.
func (l *LastSync) Due(now time.Time, every time.Duration) (due bool, in time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() {
		return true, every
	}
	if every == 0 {
		return false, 0
	}
	in = l.at.Add(every).Sub(now)
	return in <= 0, max(in, time.Second)
}

// Set notes the time of a comparison that succeeded. After the zero time the next one is
// due.
func (l *LastSync) Set(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = at
}
