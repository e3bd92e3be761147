package neutron

import (
	"cmp"
	"slices"
)

// asSet returns the elements of a list once, in order.
func asSet[T cmp.Ordered](list []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// sameSet reports whether two lists have the same elements.
func sameSet[T cmp.Ordered](a, b []T) bool { return slices.Equal(asSet(a), asSet(b)) }

// without returns the elements of a list that another has not.
func without[T comparable](list, other []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return slices.Contains(other, v) })
}

// nonZero returns a pointer to v, nil for the zero value.
func nonZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// unless is want, or nil where have is it already.
func unless[T any](want *T, have T, same func(a, b T) bool) *T {
	if want == nil || same(*want, have) {
		return nil
	}
	return want
}

func is[T comparable](a, b T) bool { return a == b }

// text returns a string, "" for null.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// texts returns values as texts.
func texts[T interface{ String() string }](all []T) []string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = v.String()
	}
	return out
}
