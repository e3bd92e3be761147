package neutronapi

import (
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// filter reads the filters of a list's query, each an attribute with values of which any may match. What a noun takes from it the provider selects by;
// what is left is compared with the encoded objects. It remembers the first that is wrong.
type filter struct {
	values  url.Values
	after   sdn.ID   // for the provider that gives objects in the order of their ids
	named   bool     // ids or Keys are among what was taken, so that there is no order
	strange []string // filters that the caller may not use, for rest to refuse
	err     error
	metas   []func(sdn.Meta) bool // further conditions
	wants   []want                // further conditions, each on one attribute
}

func newFilter(values url.Values) *filter { return &filter{values: maps.Clone(values)} }

// hide takes filters by attributes that the caller is not shown. The objects that such a filter
// selects would tell their values. rest refuses these filters as it refuses unknown attributes.
func (f *filter) hide(names []string) {
	for _, name := range names {
		if _, asked := f.values[name]; asked {
			delete(f.values, name)
			f.strange = append(f.strange, name)
		}
	}
}

func (f *filter) texts(name string) []string {
	v := f.values[name]
	delete(f.values, name)
	return v
}

// project has the provider select what is a project's: of others nothing would be seen. What was asked for goes on to count.
func (f *filter) project(project string) {
	for _, name := range []string{"project_id", "tenant_id"} {
		if asked := f.texts(name); len(asked) > 0 {
			f.metas = append(f.metas, func(m sdn.Meta) bool { return slices.Contains(asked, m.Project) })
		}
	}
	f.values["project_id"] = []string{project}
}

// projects takes the projects that objects are to be of. The older name counts where the newer is not there; else it is compared as any attribute.
func (f *filter) projects() []string {
	if len(f.values["project_id"]) > 0 {
		return f.texts("project_id")
	}
	return f.texts("tenant_id")
}

func (f *filter) fail(name, value, what string) {
	if f.err == nil {
		f.err = badRequest("Invalid input for " + name + ". Reason: '" + value + "' is not a valid " + what + ".")
	}
}

// truth reads a truth value.
func (f *filter) truth(name string) []bool {
	var out []bool
	for _, v := range f.texts(name) {
		b, err := strconv.ParseBool(v)
		if err != nil && f.err == nil {
			f.err = refuse(http.StatusBadRequest, "InvalidInput", "Invalid input for %s. Reason: '%s' cannot be converted to boolean.", name, v)
		}
		out = append(out, b)
	}
	return out
}

func (f *filter) ids(name string) []sdn.ID {
	var out []sdn.ID
	for _, v := range f.texts(name) {
		out = append(out, sdn.ID(v))
	}
	return out
}

func (f *filter) addrs(name string) []netip.Addr {
	return parseAll(f, name, "IP address", netip.ParseAddr)
}

func (f *filter) prefixes(name string) []netip.Prefix {
	return parseAll(f, name, "IP subnet", netip.ParsePrefix)
}

func (f *filter) macs(name string) []net.HardwareAddr {
	return parseAll(f, name, "MAC address", net.ParseMAC)
}

// boolean takes a truth value where there is one; of several any may match, so that they are left.
func (f *filter) boolean(name string) *bool {
	if len(f.values[name]) != 1 {
		return nil
	}
	return &f.truth(name)[0]
}

func parseAll[T any](f *filter, name, what string, parse func(string) (T, error)) []T {
	var out []T
	for _, v := range f.texts(name) {
		parsed, err := parse(v)
		if err != nil {
			f.fail(name, v, what)
		}
		out = append(out, parsed)
	}
	return out
}

// match takes what every object can be selected by.
func (f *filter) match() sdn.Match {
	m := sdn.Match{After: f.after, IDs: f.ids("id"), Names: f.texts("name"), Projects: f.projects()}
	m.Keys = f.keys()
	f.named = len(m.IDs) > 0 || len(m.Keys) > 0
	m.Tags = f.tags("tags")
	f.otherTags()
	return m
}

// partTags takes the tags of what is below a load balancer, which no provider selects by.
func (f *filter) partTags() {
	if all := f.tags("tags"); len(all) > 0 {
		f.metas = append(f.metas, func(m sdn.Meta) bool { return hasAll(m.Tags, all) })
	}
	f.otherTags()
}

// otherTags takes tags-any, not-tags and not-tags-any.
func (f *filter) otherTags() {
	if anyOf := f.tags("tags-any"); len(anyOf) > 0 {
		f.metas = append(f.metas, func(m sdn.Meta) bool { return hasAny(m.Tags, anyOf) })
	}
	if all := f.tags("not-tags"); len(all) > 0 {
		f.metas = append(f.metas, func(m sdn.Meta) bool { return !hasAll(m.Tags, all) })
	}
	if anyOf := f.tags("not-tags-any"); len(anyOf) > 0 {
		f.metas = append(f.metas, func(m sdn.Meta) bool { return !hasAny(m.Tags, anyOf) })
	}
}

// keys takes the descriptions where all are Keys, which objects are found by at no cost.
func (f *filter) keys() []sdn.Key {
	var out []sdn.Key
	for _, v := range f.values["description"] {
		key, ok := sdn.ParseKey(v)
		if !ok {
			return nil
		}
		out = append(out, key)
	}
	delete(f.values, "description")
	return out
}

func (f *filter) tags(name string) []string {
	var out []string
	for _, v := range f.texts(name) {
		for tag := range strings.SplitSeq(v, ",") {
			if tag != "" {
				out = append(out, tag)
			}
		}
	}
	return out
}

func hasAny(tags, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(w string) bool { return slices.Contains(tags, w) })
}

func hasAll(tags, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(tags, w) })
}

// rest makes conditions of what was not taken. known is an object that shows which attributes there are.
func (f *filter) rest(known object) error {
	for _, name := range slices.Sorted(maps.Keys(f.values)) {
		sample, there := known[name]
		texts, isList := sample.([]any)
		if !there || !scalar(sample) && !isList {
			f.strange = append(f.strange, name)
			continue
		}
		f.wants = append(f.wants, want{name, f.condition(name, sample, texts != nil)})
	}
	if f.err == nil && len(f.strange) > 0 {
		slices.Sort(f.strange)
		f.err = badRequest("['" + strings.Join(f.strange, "', '") + "'] is invalid attribute for filtering")
	}
	return f.err
}

// condition compares an attribute, or the elements of one that is a list, with the values left in the filter.
func (f *filter) condition(name string, sample any, isList bool) func(any) bool {
	wanted := f.values[name]
	if _, truth := sample.(bool); truth {
		wanted = nil
		for _, b := range f.truth(name) {
			wanted = append(wanted, strconv.FormatBool(b))
		}
	}
	return func(value any) bool {
		if isList {
			items, _ := value.([]any)
			return slices.ContainsFunc(items, func(item any) bool { return slices.Contains(wanted, text(item)) })
		}
		return slices.Contains(wanted, text(value))
	}
}

// want is a condition on an attribute.
type want struct {
	name string
	ok   func(value any) bool
}

// keeps reports whether an object meets the conditions beyond the provider's query.
func (f *filter) keeps(m sdn.Meta, r *row) bool {
	for _, ok := range f.metas {
		if !ok(m) {
			return false
		}
	}
	for _, w := range f.wants {
		if !w.ok(r.value(w.name)) {
			return false
		}
	}
	return true
}
