//go:build linux

package host

import (
	"fmt"
	"strings"
)

// comment marks every iptables rule of ours, and nobody else's.
const comment = "kuryr"

// plan is where one family's rules belong, and what has to be changed for that.
type plan struct {
	owner Owner
	// chain is empty where nothing of ours is needed.
	chain string
	// restore are the lines for iptables-restore, empty when all is as it shall be.
	restore []string
}

// doorRules returns our rules: all that comes from a Kuryr link, all that goes to one.
//
// The second could be narrowed to answers and published ports (conntrack states ESTABLISHED and DNAT), but a packet to a floating
// address is neither: the address is translated in the router's namespace. And it need not be narrower: which packets may go to a Kuryr link
// is decided by Kuryr's own table in the same hook, where a drop is final. So two rules do for everything, they cost no
// connection tracking, and they never change with what is published.
func doorRules(link string) []string {
	return []string{
		fmt.Sprintf("-i %s -m comment --comment %s -j ACCEPT", link, comment),
		fmt.Sprintf("-o %s -m comment --comment %s -j ACCEPT", link, comment),
	}
}

// newPlan compares a filter table with what it shall have. ufwChain is ufw's chain for the operator's own forward rules.
//
// A door is needed only where a packet that meets no condition is dropped or rejected in FORWARD (Docker sets that policy when it turned
// forwarding on itself; ufw does always). It is made in the chain that the firewall's owner keeps for others, as the last thing before
// that chain decides or returns: so what the operator forbade there, before us, stays forbidden. A chain that FORWARD does not
// hand its packets to (Docker's, after `iptables -F`) is of no use, then FORWARD itself is taken.
//
// Docker's nftables backend (from 29 on) needs nothing: its table decides on packets of its own bridges, by their names, and accepts the rest.
func newPlan(rs *ruleset, link, ufwChain string) plan {
	var p plan
	if rs.outcome("FORWARD") == dropped {
		switch {
		case rs.reaches("FORWARD", "DOCKER-USER"):
			p.owner, p.chain = OwnerDocker, "DOCKER-USER"
		case rs.reaches("FORWARD", ufwChain):
			p.owner, p.chain = OwnerUFW, ufwChain
		default:
			p.owner, p.chain = OwnerPolicy, "FORWARD"
		}
	}
	want := doorRules(link)
	if p.chain != "" && rs.inPlace(p.chain, want) && rs.strays(p.chain) == 0 {
		return p
	}
	for chain, rules := range rs.rules {
		for _, r := range rules {
			if r.ours() {
				p.restore = append(p.restore, "-D "+chain+" "+r.spec)
			}
		}
	}
	if p.chain != "" {
		at := rs.end(p.chain) + 1
		for i, spec := range want {
			p.restore = append(p.restore, fmt.Sprintf("-I %s %d %s", p.chain, at+i, spec))
		}
	}
	return p
}

// inPlace tells whether a chain has exactly these rules of ours, all before its end.
func (rs *ruleset) inPlace(chain string, want []string) bool {
	var have []string
	foreign, end := 0, rs.end(chain)
	for _, r := range rs.rules[chain] {
		switch {
		case !r.ours():
			foreign++
		case foreign > end:
			return false
		default:
			have = append(have, r.spec)
		}
	}
	return strings.Join(have, "\n") == strings.Join(want, "\n")
}

// strays counts the rules of ours that are in another chain.
func (rs *ruleset) strays(home string) int {
	n := 0
	for chain, rules := range rs.rules {
		for _, r := range rules {
			if r.ours() && chain != home {
				n++
			}
		}
	}
	return n
}
