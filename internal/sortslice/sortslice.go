// Package sortslice sorts slices of structs with one instance of the sort for all types.
// The generic sort of package slices adds 30 kB to a program for each type of struct. This
// package must not be used where the time of a sort matters.
package sortslice

import (
	"slices"
	"sort"
)

// Func is [slices.SortFunc].
func Func[E any](s []E, compare func(a, b E) int) {
	sort.Slice(s, func(i, j int) bool { return compare(s[i], s[j]) < 0 })
}

// Stable is [slices.SortStableFunc].
func Stable[E any](s []E, compare func(a, b E) int) {
	sort.SliceStable(s, func(i, j int) bool { return compare(s[i], s[j]) < 0 })
}

// Sorted returns a sorted copy.
func Sorted[E any](s []E, compare func(a, b E) int) []E {
	s = slices.Clone(s)
	Func(s, compare)
	return s
}
