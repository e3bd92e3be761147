//go:build linux

package securitygroup

import (
	"crypto/sha256"
	"strings"

	"github.com/kuryr/kuryr/datapath/nft"
)

// tableName is the name of the table, of family bridge, in each namespace with a filtered port.
const tableName = "kuryr_policy"

// tapPrefix begins the name of every port's link.
const tapPrefix = "tap"

// The fixed sets. A set of one family has its digit after the name, what is kept by
// the packet's direction that before it.
const (
	setPorts     = "ports"       // map: port's link -> number of its profile
	setWithPorts = "with_ports"  // transport protocols with ports
	setRevisions = "revisions"   // what is known of groups: hash of the id . hash of the revision. No rule reads it
	setPairs     = "pairs"       // port's link . hash of the group . prefix: allowed pairs of members. No rule reads it
	setLive      = "live"        // port . remote . protocol . first word . epoch: packets that pass immediately
	setFlows     = "flows"       // port . remote . protocol . port's side . remote's side, by who began
	setClosing   = "closing"     // the same key: connections that one side has ended
	setAnswered  = "answered"    // the same key: connections whose beginning the other side has answered
	setFragments = "fragments"   // port . remote . identification
	setSeats     = "flows_seats" // map: the key of flows -> the number of its seat: those that are remembered for long
	setYoung     = "flows_young" // the same key: flows of datagrams that have just begun
	setTaken     = "flows_taken" // port . number: seats that are taken
	setRates     = "flows_rates" // port: new flows
	setRatesFrom = "flows_from"  // port . remote: new flows that come in
	setOnLink    = "onlink6"     // port's link . first half of an address: prefixes of the link
	setOnLinkAny = "onlink6_any" // ports' links that have a wider prefix
)

// The verdict maps from a profile's number to the chain that judges: what begins by rules
// of its own direction, what answers by those of the other's.
func judges(d Direction, answer bool) string {
	if answer {
		return d.String() + "_answers"
	}
	return d.String()
}

// String is the direction as Neutron has it.
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// side says the direction of a packet, seen from the port.
func (d Direction) side() string {
	if d == Egress {
		return "out"
	}
	return "in"
}

var directions = []Direction{Egress, Ingress}

// The sets of a group's members: their addresses; their allowed pairs. And the sets of an
// address group: single addresses, which are removed from a hash set in no time, and wider
// prefixes.
func memberSet(group string, v nft.Version) string     { return "members" + v.String() + "-" + group }
func memberPairSet(group string, v nft.Version) string { return "pairs" + v.String() + "-" + group }
func hostSet(set string, v nft.Version) string         { return "hosts" + v.String() + "-" + set }
func rangeSet(set string, v nft.Version) string        { return "ranges" + v.String() + "-" + set }

func groupChain(group string, d Direction, answer bool) string {
	return judges(d, answer) + "-" + group
}

// hash8 is what stands for an id, or for a revision, in keys of fixed length.
func hash8(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return string(sum[:8])
}
