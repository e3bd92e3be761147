package neutron

import (
	"sync"
	"time"
)

// A pace is how long Neutron has lately taken to make a port. Bulks are as large as it makes in a part of a request's deadline: whatever stands in
// front of Neutron cuts long requests, and what was cut has to be looked for.
type pace struct {
	mu   sync.Mutex
	each time.Duration // 0: not known
}

const (
	bulkShare  = 3 // a bulk is to take a third of the deadline of one request
	portsATime = 5 // ports of a bulk that one deadline is for
)

// bulk returns how many ports one request may ask for.
func (p *pace) bulk(timeout time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each <= 0 {
		return bulkSize
	}
	return int(min(max(timeout/bulkShare/p.each, 1), time.Duration(bulkSize)))
}

// took tells how long a request for n ports took. A Neutron that is fast again is believed by and by.
func (p *pace) took(n int, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.each = max(d/time.Duration(n), p.each/2)
}

// lost tells that a request for n ports got no answer: the next are half as large.
func (p *pace) lost(n int, timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.each = max(p.each, timeout/bulkShare/time.Duration(max(n/2, 1)))
}

// patient returns the client with the deadline of a request for n ports. If Kuryr gave up earlier,
// Neutron would create ports that no caller gets.
func (c *client) patient(n int) *client {
	p := *c
	p.timeout = max(c.timeout, c.timeout*time.Duration(min(n, bulkSize))/portsATime)
	return &p
}
