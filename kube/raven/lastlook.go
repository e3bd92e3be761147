package raven

import (
	"sync"
	"time"
)

// lastLook is when something was looked at as a whole in the SDN, which tells nobody of what is changed there: it is looked at again at each audit.
type lastLook struct {
	mu sync.Mutex
	at time.Time
}

// due tells whether it is time to look, and when it is else; 0 is never. What was never looked at is due.
func (l *lastLook) due(now time.Time, every time.Duration) (due bool, in time.Duration) {
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

// looked notes when all of it was found to be right; the zero time has it looked at again.
func (l *lastLook) looked(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = at
}
