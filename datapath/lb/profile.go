//go:build linux

package lb

import (
	"fmt"
	"strings"
	"time"
)

// profile is how a frontend's connections are led, but not whither: what chain a packet
// takes. Frontends that are alike in it share a chain, so that there are as many chains
// as there are different profiles, and a frontend is elements of maps alone. It is the
// value of a frontend in the map of services.
type profile uint32

const (
	countBits   = 13
	timeoutBits = 17
	// restricted says that sources are looked up.
	restricted profile = 1 << (countBits + timeoutBits)
	// hidden is Masquerade, and, where there is no endpoint, Drop.
	hidden profile = 1 << (countBits + timeoutBits + 1)
)

func (f Frontend) profile() profile {
	p := profile(len(f.Endpoints))
	if len(f.Sources) > 0 {
		p |= restricted
	}
	if p.count() == 0 {
		if f.Empty == Drop {
			p |= hidden
		}
		return p
	}
	if f.Masquerade {
		p |= hidden
	}
	return p | profile(f.Affinity/time.Second)<<countBits
}

func (p profile) count() uint32 { return uint32(p & (1<<countBits - 1)) }
func (p profile) timeout() time.Duration {
	return time.Duration(p>>countBits&(1<<timeoutBits-1)) * time.Second
}
func (p profile) restricted() bool  { return p&restricted != 0 }
func (p profile) masquerades() bool { return p&hidden != 0 && p.count() > 0 }
func (p profile) drops() bool       { return p&hidden != 0 && p.count() == 0 }

// String is for the names of chains.
func (p profile) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "to%d", p.count())
	if t := p.timeout(); t > 0 {
		fmt.Fprintf(&b, "_keep%d", t/time.Second)
	}
	if p.restricted() {
		b.WriteString("_from")
	}
	if p.masquerades() {
		b.WriteString("_masq")
	}
	if p.drops() {
		b.WriteString("_drop")
	}
	return b.String()
}
