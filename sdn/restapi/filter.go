package restapi

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// filter reads the exact-match filters of a list's query. It remembers the first that is wrong, and those it was not asked for.
type filter struct {
	values url.Values
	err    error
}

func newFilter(values url.Values) *filter { return &filter{values: maps.Clone(values)} }

// done returns what was wrong, a filter that nobody asked for among it.
func (f *filter) done() error {
	if f.err == nil && len(f.values) > 0 {
		names := slices.Sorted(maps.Keys(f.values))
		f.err = sdn.Invalid("request", cmp.Or(names[0], "query"), "%q is not an attribute that can be filtered by here", names[0])
	}
	return f.err
}

func (f *filter) texts(name string) []string {
	v := f.values[name]
	delete(f.values, name)
	return v
}

func (f *filter) fail(name, detail string, args ...any) {
	if f.err == nil {
		f.err = sdn.Invalid("request", name, detail, args...)
	}
}

func (f *filter) ids(name string) []sdn.ID {
	var out []sdn.ID
	for _, v := range f.texts(name) {
		out = append(out, sdn.ID(v))
	}
	return out
}

func (f *filter) addrs(name string) []netip.Addr {
	return parseAll(f, name, "address", netip.ParseAddr)
}

func (f *filter) prefixes(name string) []netip.Prefix {
	return parseAll(f, name, "range", netip.ParsePrefix)
}

func (f *filter) macs(name string) []net.HardwareAddr { return parseAll(f, name, "MAC", net.ParseMAC) }

func (f *filter) boolean(name string) *bool {
	all := parseAll(f, name, "truth value", strconv.ParseBool)
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

func parseAll[T any](f *filter, name, what string, parse func(string) (T, error)) []T {
	var out []T
	for _, v := range f.texts(name) {
		parsed, err := parse(v)
		if err != nil {
			f.fail(name, "%q is not a %s", v, what)
			return nil
		}
		out = append(out, parsed)
	}
	return out
}

// fixedIPs reads fixed_ips=ip_address=A and fixed_ips=subnet_id=S.
func (f *filter) fixedIPs() (subnets []sdn.ID, addresses []netip.Addr) {
	for _, v := range f.texts("fixed_ips") {
		kind, value, _ := strings.Cut(v, "=")
		switch kind {
		case "subnet_id":
			subnets = append(subnets, sdn.ID(value))
		case "ip_address":
			addr, err := netip.ParseAddr(value)
			if err != nil {
				f.fail("fixed_ips", "%q is not an address", value)
				return nil, nil
			}
			addresses = append(addresses, addr)
		default:
			f.fail("fixed_ips", "want ip_address=… or subnet_id=…, not %q", v)
			return nil, nil
		}
	}
	return subnets, addresses
}

// match reads what every object can be filtered by. A description can be filtered by where it is a Key.
func (f *filter) match() sdn.Match {
	m := sdn.Match{IDs: f.ids("id"), Names: f.texts("name"), Projects: append(f.texts("project_id"), f.texts("tenant_id")...)}
	for _, v := range f.texts("tags") {
		m.Tags = append(m.Tags, strings.Split(v, ",")...)
	}
	for _, v := range f.texts("description") {
		key, ok := sdn.ParseKey(v)
		if !ok {
			f.fail("description", "%q is not a Key; only those can be filtered by", v)
			break
		}
		m.Keys = append(m.Keys, key)
	}
	return m
}
