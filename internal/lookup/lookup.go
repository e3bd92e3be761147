// Package lookup finds an SDN's objects by what people write in a configuration: an id or a name.
//
// It owns how such a text is read, so that every front end reads it in one way. It must not make or change anything, nor remember what it found.
package lookup

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// Network gives the network of this id, where the text has the form of one, or else the one of this name. field is where the text stands, for errors: IsNotFound where there is none,
// IsConflict, Exists, where several have the name.
func Network(ctx context.Context, s sdn.Networks, field, text string) (sdn.Network, error) {
	return one(ctx, "network", field, text, s.Network, func(ctx context.Context) iter.Seq2[sdn.Network, error] {
		return s.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Names: []string{text}}})
	})
}

// SecurityGroup gives the security group of this id or name; all else is as in Network.
func SecurityGroup(ctx context.Context, s sdn.SecurityGroups, field, text string) (sdn.SecurityGroup, error) {
	return one(ctx, "security group", field, text, s.SecurityGroup, func(ctx context.Context) iter.Seq2[sdn.SecurityGroup, error] {
		return s.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: sdn.Match{Names: []string{text}}})
	})
}

func one[T any](ctx context.Context, noun, field, text string, byID func(context.Context, sdn.ID) (T, error), byName func(context.Context) iter.Seq2[T, error]) (T, error) {
	var none T
	if len(text) == 36 && strings.Count(text, "-") == 4 {
		if found, err := byID(ctx, sdn.ID(text)); !sdn.IsNotFound(err) {
			return found, err
		}
	}
	all, err := sdn.All(byName(ctx))
	switch {
	case err != nil:
		return none, err
	case len(all) == 0:
		return none, &sdn.Error{Kind: sdn.KindNotFound, Noun: noun, ID: text, Field: field, Detail: "the SDN has none of this name or id"}
	case len(all) > 1:
		return none, sdn.Conflict(sdn.Exists, fmt.Sprintf("%s %s", noun, text), field, "the SDN has %d of this name: give the id of one", len(all))
	}
	return all[0], nil
}
