package sdn

import "iter"

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
