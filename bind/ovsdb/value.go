package ovsdb

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// UUID is a row's. It is empty where there is no row.
type UUID string

// Named is the UUID of a row that the same transaction inserts under this name.
type Named string

// Row is a row's columns, as the database wrote them; ask by the methods for the kind of value.
type Row map[string]json.RawMessage

// MarshalJSON writes ["uuid", …].
func (u UUID) MarshalJSON() ([]byte, error) { return json.Marshal([2]string{"uuid", string(u)}) }

// UnmarshalJSON reads ["uuid", …].
func (u *UUID) UnmarshalJSON(b []byte) error {
	var pair [2]string
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if pair[0] != "uuid" {
		return fmt.Errorf("a %q where a UUID belongs", pair[0])
	}
	*u = UUID(pair[1])
	return nil
}

// MarshalJSON writes ["named-uuid", …].
func (n Named) MarshalJSON() ([]byte, error) { return json.Marshal([2]string{"named-uuid", string(n)}) }

// Set is the notation of a set.
func Set[T any](elements ...T) any {
	if elements == nil {
		elements = []T{}
	}
	return []any{"set", elements}
}

// Map is the notation of a map, in the order of its keys.
func Map(m map[string]string) any {
	pairs := [][2]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, [2]string{k, m[k]})
	}
	return []any{"map", pairs}
}

// UUID reads a column with one UUID; it is empty where the column has none.
func (r Row) UUID(column string) UUID {
	var u UUID
	if json.Unmarshal(r[column], &u) != nil {
		return ""
	}
	return u
}

// UUIDs reads a column with a set of UUIDs, of which one alone stands without the set's notation.
func (r Row) UUIDs(column string) []UUID {
	if u := r.UUID(column); u != "" {
		return []UUID{u}
	}
	var of []UUID
	if r.notation(column, "set", &of) {
		return of
	}
	return nil
}

// Text reads a column with a string; it is empty where the column has none.
func (r Row) Text(column string) string {
	var s string
	if json.Unmarshal(r[column], &s) != nil {
		return ""
	}
	return s
}

// Number reads a column with an integer; it is 0 where the column has none.
func (r Row) Number(column string) int64 {
	var n int64
	if json.Unmarshal(r[column], &n) != nil {
		return 0
	}
	return n
}

// Map reads a column with a map of strings; it is empty where the column has none.
func (r Row) Map(column string) map[string]string {
	m := make(map[string]string)
	var pairs [][2]string
	if r.notation(column, "map", &pairs) {
		for _, p := range pairs {
			m[p[0]] = p[1]
		}
	}
	return m
}

// notation reads ["set", …] or ["map", …].
func (r Row) notation(column, kind string, into any) bool {
	var parts []json.RawMessage
	var is string
	return json.Unmarshal(r[column], &parts) == nil && len(parts) == 2 &&
		json.Unmarshal(parts[0], &is) == nil && is == kind && json.Unmarshal(parts[1], into) == nil
}
