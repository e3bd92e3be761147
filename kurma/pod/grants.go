//go:build linux

package pod

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Grants say which users of the host may have a network. A network that is not listed is everybody's, and root may have all.
type Grants map[string]Users

// Users are some of the host's users, or all.
type Users struct {
	All bool
	IDs []uint32
}

// ParseGrants reads "network=1000,1001": one string for each network, with user ids or "*" for everybody; nothing after "=" is nobody but root.
func ParseGrants(texts []string) (Grants, error) {
	g := Grants{}
	for _, text := range texts {
		network, users, ok := strings.Cut(text, "=")
		if !ok || network == "" {
			return nil, fmt.Errorf("%q: want a network, =, and ids of users separated by plus signs, or *", text)
		}
		if _, twice := g[network]; twice {
			return nil, fmt.Errorf("%q: network %s is there twice", text, network)
		}
		u := Users{}
		for _, word := range strings.FieldsFunc(users, func(r rune) bool { return r == '+' || r == ' ' || r == ',' }) {
			if word == "*" {
				u.All = true
				continue
			}
			id, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%q: %q is not the id of a user", text, word)
			}
			u.IDs = append(u.IDs, uint32(id))
		}
		g[network] = u
	}
	return g, nil
}

// check tells whether the user may have the network; nil is root.
func (g Grants) check(user *uint32, network string) error {
	if user == nil || *user == 0 {
		return nil
	}
	if u, listed := g[network]; listed && !u.All && !slices.Contains(u.IDs, *user) {
		return denied("user %d may not have network %s: kurma.grants does not name them", *user, network)
	}
	return nil
}
