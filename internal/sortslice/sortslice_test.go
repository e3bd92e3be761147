package sortslice

import (
	"slices"
	"testing"
)

type pair struct{ key, value int }

func byKey(a, b pair) int { return a.key - b.key }

func TestSort(t *testing.T) {
	t.Parallel()
	var all []pair
	for i := range 100 {
		all = append(all, pair{i * 7 % 10, i})
	}
	want := slices.Clone(all)
	slices.SortStableFunc(want, byKey)
	copied := slices.Clone(all)
	if got := Sorted(all, byKey); !slices.IsSortedFunc(got, byKey) || len(got) != len(all) {
		t.Errorf("not sorted: %v", got)
	}
	if !slices.Equal(all, copied) {
		t.Error("Sorted changed its argument")
	}
	if Stable(all, byKey); !slices.Equal(all, want) {
		t.Errorf("not sorted stably: %v", all)
	}
}
