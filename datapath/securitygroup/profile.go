//go:build linux

package securitygroup

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/binaryutil"

	"github.com/kuryr/kuryr/datapath/nft"
)

// profile stands for a set of groups, which any number of ports have. A packet's mark,
// which has 32 bits, holds its number while it is judged. A user that may choose among groups
// finds two sets of them whose hashes begin with the same 32 bits in a moment, so that
// number is where a profile begins to look for one that is free. How far it went is in
// its chains' names: a profile whose chains have none of that, as nearly all, has the
// number that its hash says.
type profile struct {
	groups []string // sorted
	hash   string
	number uint32
	steps  int // from the number that the hash says
}

// Numbers that are no profile's. firstNumber is the first that may be one's.
const (
	unknownProfile = 1 // of ports of which it is known only that they are filtered: no chain is found by it
	firstNumber    = 2 // 0 is the mark of packets of ports that are not filtered
)

func profileOf(groups []string) profile {
	p := profile{groups: slices.Compact(slices.Sorted(slices.Values(groups)))}
	sum := sha256.Sum256([]byte(strings.Join(p.groups, ",")))
	p.hash = hex.EncodeToString(sum[:16])
	p.number = max(firstNumber, binaryutil.NativeEndian.Uint32(sum[:4]))
	return p
}

// after is the profile with the number that is this many steps from the one that its hash says.
func (p profile) after(steps int) profile {
	for ; p.steps < steps; p.steps++ {
		p.number = max(firstNumber, p.number+1)
	}
	return p
}

func (p profile) mark() string { return string(nft.Word(p.number)) }

const ofProfile = "_of_"

func (p profile) chain(d Direction, answer bool) string {
	name := judges(d, answer) + ofProfile + p.hash
	if p.steps > 0 {
		name += "_" + strconv.Itoa(p.steps)
	}
	return name
}

// profileIn reads a chain's name.
func profileIn(chain string) (hash string, steps int) {
	_, name, _ := strings.Cut(chain, ofProfile)
	hash, after, _ := strings.Cut(name, "_")
	steps, _ = strconv.Atoi(after) // none are 0
	return hash, steps
}

// profiles are those of the ports, each once.
func profiles(ports []Port, known numbering) []profile {
	var list []profile
	seen := map[string]bool{}
	for _, p := range ports {
		if own := known.profileOf(p.Groups); len(own.groups) > 0 && !seen[own.hash] {
			seen[own.hash] = true
			list = append(list, own)
		}
	}
	return list
}

// numbering has profiles as they are in one table, by hash. One that is not in it has the
// number that its hash says.
type numbering map[string]profile

func (n numbering) profileOf(groups []string) profile {
	p := profileOf(groups)
	if known, ok := n[p.hash]; ok {
		return known
	}
	return p
}

// numbered is the numbering of a table for these ports, by the verdict map that says what
// numbers are taken: profiles keep theirs, and others get the next that is free.
func numbered(ports []Port, taken []nft.Element) numbering {
	chains, steps := map[string]string{}, map[string]int{}
	for _, e := range taken {
		chains[e.Key] = e.GoTo
		hash, n := profileIn(e.GoTo)
		if least, seen := steps[hash]; !seen || n < least {
			steps[hash] = n
		}
	}
	known := numbering{}
	list := profiles(ports, nil)
	for _, p := range list {
		if p = p.after(steps[p.hash]); chains[p.mark()] == p.chain(Egress, false) {
			known[p.hash] = p
		}
	}
	for _, p := range list {
		if _, has := known[p.hash]; has {
			continue
		}
		for chains[p.mark()] != "" {
			p = p.after(p.steps + 1)
		}
		chains[p.mark()] = p.chain(Egress, false)
		known[p.hash] = p
	}
	return known
}

// numbering reads that of the table, for these ports.
func (f *Filter) numbering(ports []Port) (numbering, error) {
	taken, err := f.readElements(judges(Egress, false))
	return numbered(ports, taken), err
}

// chains are those of a profile: each leads through the groups', and what none of them
// lets pass is dropped.
func (p profile) chains() []nft.Chain {
	var list []nft.Chain
	for _, d := range directions {
		for _, answer := range []bool{false, true} {
			c := nft.Chain{Name: p.chain(d, answer)}
			for _, g := range p.groups {
				c.Add("group "+g, nft.Jump(groupChain(g, d, answer)))
			}
			c.Add("no rule lets it pass", nft.CountedDrop)
			list = append(list, c)
		}
	}
	return list
}

func (p profile) elements() []nft.Element {
	var list []nft.Element
	for _, d := range directions {
		for _, answer := range []bool{false, true} {
			list = append(list, nft.Element{Set: judges(d, answer), Key: p.mark(), GoTo: p.chain(d, answer)})
		}
	}
	return list
}
