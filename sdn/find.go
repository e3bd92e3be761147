package sdn

import (
	"context"
	"iter"
	"strings"
)

// All collects what a Find method streams. An error ends it; what came before is returned with it.
func All[T any](found iter.Seq2[T, error]) ([]T, error) {
	var all []T
	for v, err := range found {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

// First gives the first object that a Find method streams and whether there was one.
func First[T any](found iter.Seq2[T, error]) (T, bool, error) {
	for v, err := range found {
		return v, err == nil, err
	}
	var zero T
	return zero, false, nil
}

// NetworkByName returns the network with this ID, if the text has the form of one, otherwise
// the network with this name. field is where the text stands, for errors. The error is
// IsNotFound if there is no such network, and IsConflict (Exists) if several have the name.
func NetworkByName(ctx context.Context, s Networks, field, text string) (Network, error) {
	named := s.FindNetworks(ctx, NetworkQuery{Match: Match{Names: []string{text}}})
	return byName(ctx, "network", field, text, s.Network, named)
}

// SecurityGroupByName returns a security group as NetworkByName returns a network.
func SecurityGroupByName(
	ctx context.Context, s SecurityGroups, field, text string,
) (SecurityGroup, error) {
	named := s.FindSecurityGroups(ctx, SecurityGroupQuery{Match: Match{Names: []string{text}}})
	return byName(ctx, "security group", field, text, s.SecurityGroup, named)
}

func byName[T any](
	ctx context.Context, noun, field, text string,
	byID func(context.Context, ID) (T, error), named iter.Seq2[T, error],
) (T, error) {
	var none T
	if len(text) == 36 && strings.Count(text, "-") == 4 {
		if found, err := byID(ctx, ID(text)); !IsNotFound(err) {
			return found, err
		}
	}
	all, err := All(named)
	switch {
	case err != nil:
		return none, err
	case len(all) == 0:
		detail := "the SDN has none of this name or id"
		return none, &Error{Kind: KindNotFound, Noun: noun, ID: text, Field: field, Detail: detail}
	case len(all) > 1:
		const detail = "the SDN has %d of this name: give the id of one"
		return none, Conflict(Exists, noun+" "+text, field, detail, len(all))
	}
	return all[0], nil
}
