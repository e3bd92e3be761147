//go:build linux

package firewall

import (
	"fmt"
	"maps"
	"slices"
)

// comment marks every iptables rule of ours, and no other.
const comment = "kuryr"

// Docker's chains that concern us.
const (
	// dockerUser is Docker's chain for the operator's rules; FORWARD hands it its packets
	// first.
	dockerUser = "DOCKER-USER"
	// dockerIsolation is where Docker, up to 28, drops what comes from one of its bridges
	// and goes to another. Its rules name only the bridge that a packet goes to, so it
	// serves all that jump to it. (moby: bridge driver, setINC)
	dockerIsolation = "DOCKER-ISOLATION-STAGE-2"
)

// plan is where one family's rules belong, and what has to be changed for that.
type plan struct {
	owner Owner
	// chain is the door's; empty where no door is needed.
	chain string
	// want has our rules of every chain that shall have some. There may be some without a
	// door, see guardRule.
	want map[string][]string
	// restore are the lines for iptables-restore, empty when all is as it shall be.
	restore []string
}

// doorRules returns the rules of a door: all that comes from a Kuryr link, all that goes to one.
//
// The second could be narrowed to answers and published ports (conntrack states
// ESTABLISHED and DNAT), but a packet to a floating address is neither: the address is
// translated in the router's namespace. And it need not be narrower: which packets may go
// to a Kuryr link is decided by Kuryr's own table in the same hook, where a drop is
// final. So two rules do for everything, and they never change with what is published.
func doorRules(link, verdict string) []string {
	return []string{
		fmt.Sprintf("-i %s -m comment --comment %s -j %s", link, comment, verdict),
		fmt.Sprintf("-o %s -m comment --comment %s -j %s", link, comment, verdict),
	}
}

// guardRule keeps our packets from unpublished ports of containers on Docker's own
// bridges, as Docker keeps apart two bridges of its own.
//
// Up to Docker 27 its rules accept what is published and leave the rest to FORWARD's
// policy, so our door would let it in. Where the policy is to accept (forwarding was on
// before Docker started), every routed neighbour is let in and that is the operator's
// affair; but Docker's networks are apart even then, and who makes a network with another
// driver expects no less of it. So the rule does not depend on the door. From 28 on
// Docker drops what is not published in its chain DOCKER, under any policy; there the
// rule is idle, or absent with the chain.
//
// Where it stands last (see newPlan), Docker has accepted answers and published ports of
// its bridges before. The condition on the connection's state is for tables in which
// something is out of its order: then too, the rule must not cut what Docker lets pass.
func guardRule(link string) string {
	return fmt.Sprintf(
		"-i %s -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -m comment --comment %s -j %s", link,
		comment, dockerIsolation,
	)
}

// newPlan compares a filter table with what it shall have. ufwChain is ufw's chain for
// the operator's own forward rules.
//
// A door is needed only where a packet that meets no condition is dropped or rejected in
// FORWARD (Docker sets that policy when it turned forwarding on itself; ufw does always).
// It is the last thing before that default: at the end of FORWARD, or of ufw's chain,
// where ufw keeps its order at each reload. So all that was forbidden on purpose before
// us stays forbidden, by the operator in DOCKER-USER or with ufw as well as by Docker,
// which puts its own rules at FORWARD's top: a bridge's unpublished ports, --internal
// networks. And nothing of this depends on the names that a Docker version gives its
// chains.
//
// An accept in DOCKER-USER, the place Docker recommends, would overrule all of Docker's
// verdicts. We use that chain only where the operator ends it with a drop of everything;
// and to return from it, not to accept.
//
// Docker's nftables backend (from 29 on) needs nothing: its table decides on packets of
// its own bridges, by their names, and accepts the rest.
func newPlan(rs *ruleset, link, ufwChain string) plan {
	rs.link = link
	p := plan{want: map[string][]string{}}
	docker := rs.reaches("FORWARD", dockerUser)
	if docker && rs.outcome(dockerUser) == dropped {
		p.owner, p.chain = OwnerDocker, dockerUser
		p.want[dockerUser] = doorRules(link, "RETURN")
		rs = rs.passing(dockerUser)
	}
	last := "FORWARD"
	if rs.reaches("FORWARD", ufwChain) {
		last = ufwChain
	}
	if rs.outcome("FORWARD") == dropped {
		p.chain = last
		switch {
		case last == ufwChain:
			p.owner = OwnerUFW
		case docker:
			p.owner = OwnerDocker
		default:
			p.owner = OwnerPolicy
		}
		p.want[last] = doorRules(link, "ACCEPT")
	}
	if rs.drops(dockerIsolation) {
		p.want[last] = append([]string{guardRule(link)}, p.want[last]...)
	}
	if rs.inPlace(p.want) {
		return p
	}
	for chain, rules := range rs.rules {
		for _, r := range rules {
			if r.ours(rs.link) {
				p.restore = append(p.restore, "-D "+chain+" "+r.spec)
			}
		}
	}
	for _, chain := range slices.Sorted(maps.Keys(p.want)) {
		at := rs.end(chain) + 1
		for i, spec := range p.want[chain] {
			p.restore = append(p.restore, fmt.Sprintf("-I %s %d %s", chain, at+i, spec))
		}
	}
	return p
}

// inPlace reports whether all rules of ours are where they shall be: in these chains, in
// this order, before the end.
func (rs *ruleset) inPlace(want map[string][]string) bool {
	for chain := range want {
		if len(rs.rules[chain]) == 0 {
			return false
		}
	}
	for chain, rules := range rs.rules {
		var have []string
		foreign, end := 0, rs.end(chain)
		for _, r := range rules {
			switch {
			case !r.ours(rs.link):
				foreign++
			case foreign > end:
				return false
			default:
				have = append(have, r.spec)
			}
		}
		if !slices.Equal(have, want[chain]) {
			return false
		}
	}
	return true
}
