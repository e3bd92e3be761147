//go:build linux

package pod

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Grants are the networks that only some may have, with who may have them. A network that
// is not listed may be used by all, unless anyNetwork is listed. Root may have all. The entry
// chosenUUID names the containers that may choose their pods' UUIDs.
type Grants map[string]Grantees

// Grantees are those who may have a network.
type Grantees struct {
	All     bool
	Users   []uint32 // ids of the host
	Cgroups []string // whole paths in the cgroup2 hierarchy; what is below them counts too
}

const (
	anyNetwork   = "*"
	chosenUUID   = "kurma.io/pod-uuid" // no network can have this name
	cgroupPrefix = "cgroup:"
)

// ParseGrants reads one text for each network: "network=1000+cgroup:/a.slice", "network=*"
// for all, "network=" for root alone. The network "*" stands for those not listed.
func ParseGrants(texts []string) (Grants, error) {
	g := Grants{}
	for _, text := range texts {
		network, list, ok := strings.Cut(text, "=")
		if !ok || network == "" {
			return nil, fmt.Errorf("%q: want NETWORK=UID+cgroup:/PATH, NETWORK=* or NETWORK=", text)
		}
		if _, twice := g[network]; twice {
			return nil, fmt.Errorf("%q: network %s is there twice", text, network)
		}
		to := Grantees{}
		separator := func(r rune) bool { return r == '+' || r == ' ' || r == ',' }
		for _, word := range strings.FieldsFunc(list, separator) {
			if err := to.add(word); err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
		}
		g[network] = to
	}
	return g, nil
}

func (to *Grantees) add(word string) error {
	if word == "*" {
		to.All = true
		return nil
	}
	if cgroup, ok := strings.CutPrefix(word, cgroupPrefix); ok {
		if !path.IsAbs(cgroup) || path.Clean(cgroup) != cgroup || cgroup == "/" {
			return fmt.Errorf("cgroup %q: want a clean path such as /machine.slice/blue.slice", cgroup)
		}
		to.Cgroups = append(to.Cgroups, cgroup)
		return nil
	}
	id, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is neither the id of a user nor cgroup:/PATH", word)
	}
	to.Users = append(to.Users, uint32(id))
	return nil
}

// check returns nil if the network is granted to the requester.
func (g Grants) check(r requester, network string) error {
	to, listed := g[network]
	if !listed {
		to, listed = g[anyNetwork]
	}
	if !listed || to.include(r) {
		return nil
	}
	return denied("network %s: kurma.grants does not name %s", network, r.describe(network))
}

// checkUUID returns nil if the container may choose the UUID of its pod. Without an entry none
// may: an image could set the annotation to another container's UUID.
func (g Grants) checkUUID(r requester, uuid string) error {
	if g[chosenUUID].include(r) {
		return nil
	}
	return denied("pod %s: %s: kurma.grants does not name %s", uuid, chosenUUID, r.describe(chosenUUID))
}

func (to Grantees) include(r requester) bool {
	return to.All || r.root || r.user != nil && slices.Contains(to.Users, *r.user) ||
		slices.ContainsFunc(to.Cgroups, r.below)
}
