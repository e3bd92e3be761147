package parity

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// free are objects whose names are data, not shape.
var free = []string{"binding:profile", "binding:vif_details"}

// shape writes the JSON type of all that is in v, by where it is.
func shape(v any, where string, into map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		note(into, where, "object")
		if name := where[strings.LastIndex(where, ".")+1:]; slices.Contains(free, name) {
			return
		}
		for name, inside := range v {
			shape(inside, strings.TrimPrefix(where+"."+name, "."), into)
		}
	case []any:
		note(into, where, "list")
		for _, inside := range v {
			shape(inside, where+"[]", into)
		}
	case string:
		note(into, where, "string")
	case float64:
		note(into, where, "number")
	case bool:
		note(into, where, "bool")
	default:
		note(into, where, "null")
	}
}

// note adds a type; the elements of a list may be of several.
func note(into map[string]string, where, kind string) {
	if where == "" {
		return
	}
	kinds := strings.Split(into[where], "|")
	if into[where] == "" {
		kinds = nil
	}
	if !slices.Contains(kinds, kind) {
		kinds = append(kinds, kind)
		slices.Sort(kinds)
		into[where] = strings.Join(kinds, "|")
	}
}

// at gives what is at a place: names and positions with dots between, "#" for the length of a list. nil: nothing.
func at(v any, where string) any {
	for part := range strings.SplitSeq(where, ".") {
		switch inside := v.(type) {
		case map[string]any:
			v = inside[part]
		case []any:
			if part == "#" {
				return len(inside)
			}
			if part == "*" {
				rest := where[strings.Index(where, "*.")+2:]
				var all []any
				for _, e := range inside {
					all = append(all, at(e, rest))
				}
				return all
			}
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(inside) {
				return nil
			}
			v = inside[i]
		default:
			return nil
		}
	}
	return v
}

// compare gives what differs of two answers, a line each: "where: what Neutron has, what Kuryr has".
func compare(neutron, kuryr Answer) []string {
	var out []string
	differ := func(where, a, b string) {
		if a != b {
			out = append(out, where+": "+present(a)+", "+present(b))
		}
	}
	differ("status", strconv.Itoa(neutron.Status), strconv.Itoa(kuryr.Status))
	differ("error", neutron.Error, kuryr.Error)
	if neutron.Status/100 == kuryr.Status/100 { // else all differs
		both := maps.Clone(neutron.Shape)
		if both == nil {
			both = map[string]string{}
		}
		maps.Copy(both, kuryr.Shape)
		for _, where := range slices.Sorted(maps.Keys(both)) {
			if inside(where, neutron.Shape) && inside(where, kuryr.Shape) {
				differ(where, neutron.Shape[where], kuryr.Shape[where])
			}
		}
		for _, where := range slices.Sorted(maps.Keys(neutron.Values)) {
			differ("value of "+where, neutron.Values[where], kuryr.Values[where])
		}
	}
	return out
}

// inside tells whether what is around a place is there, so that what is missing is told once, and what an empty list would have holds not at all.
func inside(where string, shape map[string]string) bool {
	if list := strings.LastIndex(where, "[]"); list >= 0 {
		around := where[:list]
		if strings.HasSuffix(where, "[]") {
			_, any := shape[where]
			return any // an empty list has no elements to compare
		}
		if _, any := shape[around+"[]"]; !any {
			return false
		}
	}
	if dot := strings.LastIndex(where, "."); dot >= 0 {
		kind, ok := shape[where[:dot]]
		return ok && strings.Contains(kind, "object")
	}
	return true
}

func present(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
