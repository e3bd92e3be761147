package raven

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/kuryr/kuryr/sdn"
)

// A Service may say of which of the external network's subnets its floating IP is to be, as with cloud-provider-openstack: of one by its id, or of those with some names and tags. Of these the
// first that has an address left gives it. A floating IP stays where it was made for the same names and tags, whatever subnets are called since, and one that is to be kept stays for any.

// madeOfOne has the SDN have Kuryr's own floating IP of one of the subnets that the Service names. One that is there stays where it is of any of them, was made for the same wish, or is to be kept.
func (w *balancing) madeOfOne(ctx context.Context, spec sdn.FloatingIPSpec, six bool) error {
	var there sdn.FloatingIP
	err := w.Call(ctx, func(ctx context.Context) (err error) {
		there, _, err = sdn.First(w.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}}))
		return err
	})
	if err != nil {
		return err
	}
	have, wish := w.lb.Status.FloatingIP, w.lb.Spec.FloatingIP
	same := have != nil && have.ID == string(there.ID) && have.SubnetName == wish.SubnetName && have.SubnetTags == wish.SubnetTags
	if there.Network == spec.Network && (same || wish.Keep) {
		return w.made(ctx, spec)
	}
	all, err := w.namedSubnets(ctx, spec.Network, six)
	if err != nil {
		return err
	}
	if there.Network == spec.Network && slices.ContainsFunc(all, func(s sdn.Subnet) bool { return s.CIDR.Contains(there.Address) }) {
		return w.made(ctx, spec)
	}
	for _, s := range all {
		spec.Subnet = s.ID
		// Another may have an address where this one is full, or is not for floating IPs.
		if err = w.made(ctx, spec); sdn.ReasonOf(err) != sdn.NoAddresses && (!sdn.IsInvalid(err) || sdn.FieldOf(err) != "subnet") {
			return err
		}
	}
	return err
}

// namedSubnets are the subnets of a network and a family whose names and tags are those that the Service says. Which they are may change at any time, so that none is no reason not to look again.
func (w *balancing) namedSubnets(ctx context.Context, network sdn.ID, six bool) ([]sdn.Subnet, error) {
	wish := w.lb.Spec.FloatingIP
	named, err := namePattern(wish.SubnetName)
	if err != nil {
		return nil, sdn.Invalid("floating IP", "annotation "+balancerPrefix+"floating-subnet", "%v", err)
	}
	tagged := tagPattern(wish.SubnetTags)
	var all []sdn.Subnet
	err = w.Call(ctx, func(ctx context.Context) (err error) {
		all, err = sdn.All(w.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network}}))
		return err
	})
	all = slices.DeleteFunc(all, func(s sdn.Subnet) bool { return s.CIDR.Addr().Is6() != six || !named(s.Name) || !tagged(s.Tags) })
	if err == nil && len(all) == 0 {
		err = &sdn.Error{Kind: sdn.KindNotFound, Noun: "subnet", Detail: fmt.Sprintf(
			"external network %s has none of the floating IP's family with the name %q and the tags %q that this SDN shows", network, wish.SubnetName, wish.SubnetTags)}
	}
	return all, err
}

// namePattern reads a pattern of whole names: a glob, or after "~" a regular expression; "!" before it negates it. "" is every name.
func namePattern(pattern string) (func(name string) bool, error) {
	if pattern == "" {
		return func(string) bool { return true }, nil
	}
	pattern, not := strings.CutPrefix(pattern, "!")
	expression, regular := strings.CutPrefix(pattern, "~")
	if !regular {
		expression = globExpression(pattern)
	}
	r, err := regexp.Compile("^(?:" + expression + ")$")
	if err != nil {
		return nil, fmt.Errorf("%q is no pattern of names: %w", pattern, err)
	}
	return func(name string) bool { return r.MatchString(name) != not }, nil
}

// globExpression is a glob as a regular expression. It has *, ?, [abc], [!abc] and {a,b}; as with files, * is anything without a slash.
func globExpression(glob string) string {
	var out strings.Builder
	braces := 0
	var before rune
	for _, c := range glob {
		switch {
		case before == '[' && (c == '!' || c == '^'):
			out.WriteRune('^')
		case c == '*':
			out.WriteString("[^/]*")
		case c == '?':
			out.WriteString(".")
		case c == '[', c == ']':
			out.WriteRune(c)
		case c == '{':
			out.WriteString("(?:")
			braces++
		case c == '}' && braces > 0:
			out.WriteString(")")
			braces--
		case c == ',' && braces > 0:
			out.WriteString("|")
		default:
			out.WriteString(regexp.QuoteMeta(string(c)))
		}
		before = c
	}
	return out.String()
}

// tagPattern reads tags with commas between them, of which an object must have one, or after "&" all; "!" before it negates it. "" is whatever tags.
func tagPattern(pattern string) func(tags []string) bool {
	if pattern == "" {
		return func([]string) bool { return true }
	}
	pattern, not := strings.CutPrefix(pattern, "!")
	pattern, every := strings.CutPrefix(pattern, "&")
	wanted := strings.FieldsFunc(pattern, func(c rune) bool { return c == ',' || unicode.IsSpace(c) })
	return func(tags []string) bool {
		has := slices.ContainsFunc(wanted, func(tag string) bool { return slices.Contains(tags, tag) })
		if every {
			has = !slices.ContainsFunc(wanted, func(tag string) bool { return !slices.Contains(tags, tag) })
		}
		return has != not
	}
}
