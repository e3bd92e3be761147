package engine

import (
	"bytes"
	"context"
	"iter"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// pageSize is how many rows a search reads in one transaction, and keysSize how many keys. Between
// pages none is open, so the loop that takes the results may change the store.
const (
	pageSize = 128
	keysSize = 4096
)

// scan is a way through a table: named ids, all that an index has under a prefix, or (with neither) everything.
type scan struct {
	ids    []sdn.ID
	index  string
	unique bool // the index maps keys to ids
	inner  bool // there is more between the prefix and the id
	prefix string
	after  sdn.ID // what is not behind it is left out
}

// ordered tells whether the scan finds ids in their order.
func (s scan) ordered() bool { return s.ids == nil && !s.unique && !s.inner }

// search streams the rows that the scans find and keep accepts, each once and in the order of their
// ids. One scan in that order is followed as far as the results are taken; else the ids are
// gathered first.
func search[T any, R row[T], V any](
	ctx context.Context, e *Engine, t table[T, R], scans []scan, show func(Tx, R) (V, error), keep func(V) bool,
) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		var zero V
		way := scans[0]
		if len(scans) > 1 || !way.ordered() {
			var err error
			if way, err = gather(ctx, e, t.Noun, scans); err != nil {
				yield(zero, err)
				return
			}
		}
		var at []byte // the last key read
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				yield(zero, err)
				return
			}
			var page []V
			err := e.view(func(b Tx) error {
				var ids []sdn.ID
				if way.ids != nil {
					n := min(pageSize, len(way.ids))
					ids, way.ids = way.ids[:n], way.ids[n:]
					more = len(way.ids) > 0
				} else {
					ids, at, more = way.page(b, t.Noun, at, pageSize)
				}
				for _, id := range ids {
					r, err := t.Get(b, id)
					if err != nil {
						return err
					}
					if r == nil {
						continue
					}
					e.disown(ctx, r.meta())
					v, err := show(b, r)
					if err != nil {
						return err
					}
					if keep(v) {
						page = append(page, v)
					}
				}
				return nil
			})
			for _, v := range page {
				if !yield(v, nil) {
					return
				}
			}
			if err != nil {
				yield(zero, err)
				return
			}
		}
	}
}

// gather makes of several ways one by the ids that they find, in order and each once. It reads keys alone.
func gather(ctx context.Context, e *Engine, noun sdn.Noun, scans []scan) (scan, error) {
	all := []sdn.ID{}
	for _, s := range scans {
		all = append(all, s.ids...)
		var at []byte
		for more := s.ids == nil; more; {
			if err := ctx.Err(); err != nil {
				return scan{}, err
			}
			err := e.view(func(b Tx) error {
				var ids []sdn.ID
				ids, at, more = s.page(b, noun, at, keysSize)
				all = append(all, ids...)
				return nil
			})
			if err != nil {
				return scan{}, err
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	from, found := slices.BinarySearch(all, scans[0].after)
	if found {
		from++
	}
	return scan{ids: all[from:]}, nil
}

// page reads at most so many ids behind the key at, and tells the last key read and whether there is more.
func (s scan) page(b Tx, noun sdn.Noun, at []byte, size int) (ids []sdn.ID, last []byte, more bool) {
	name := string(noun)
	if s.index != "" {
		name += "." + s.index
	}
	if at == nil && s.after != "" && s.ordered() {
		at = []byte(s.prefix + string(s.after))
	}
	prefix := []byte(s.prefix)
	from := prefix
	if at != nil {
		from = at
	}
	for k, v := range b.Seek(name, from) {
		if !bytes.HasPrefix(k, prefix) {
			break
		}
		if at != nil && bytes.Equal(k, at) {
			continue
		}
		if len(ids) == size {
			return ids, last, true
		}
		last = bytes.Clone(k)
		switch {
		case s.index == "":
			ids = append(ids, sdn.ID(k))
		case s.unique:
			ids = append(ids, sdn.ID(v))
		default:
			ids = append(ids, sdn.ID(k[bytes.LastIndexByte(k, 0)+1:]))
		}
	}
	return ids, last, false
}

// scansOf chooses the cheapest way: by id or Key if the query names any, else by what the caller offers, else by the
// Keys' owner and kind, else everything.
func (e *Engine) scansOf(ctx context.Context, noun sdn.Noun, m sdn.Match, offers ...[]scan) ([]scan, error) {
	e.projects.note(ctx, m.Projects...)
	scans, err := e.waysOf(noun, m, offers)
	for i := range scans {
		scans[i].after = m.After
	}
	return scans, err
}

func (e *Engine) waysOf(noun sdn.Noun, m sdn.Match, offers [][]scan) ([]scan, error) {
	if len(m.IDs) > 0 {
		return []scan{{ids: m.IDs}}, nil
	}
	if len(m.Keys) > 0 {
		ids := []sdn.ID{}
		err := e.view(func(b Tx) error {
			for _, k := range m.Keys {
				if k.IsZero() {
					ids = nil // those without a Key are in no index
					return nil
				}
				for _, id := range with(b, string(noun)+".key", key(k.String(), "")) {
					ids = append(ids, sdn.ID(id))
				}
			}
			return nil
		})
		if err != nil || ids != nil {
			return []scan{{ids: ids}}, err
		}
	}
	for _, offer := range offers {
		if len(offer) > 0 {
			return offer, nil
		}
	}
	if m.Owner != "" && m.Kind != "" {
		return []scan{{index: "key", unique: true, prefix: sdn.Key{Owner: m.Owner, Kind: m.Kind}.String()}}, nil
	}
	return []scan{{}}, nil
}

// byEach offers to look up each value in an index that is not unique.
func byEach[T ~string](index string, values []T) []scan {
	var out []scan
	for _, v := range values {
		out = append(out, scan{index: index, prefix: string(v) + "\x00"})
	}
	return out
}

// byPlace is byEach for an index in which networks come before ids.
func byPlace(index string, values []sdn.ID) []scan {
	out := byEach(index, values)
	for i := range out {
		out[i].inner = true
	}
	return out
}

// byProject offers to look up the objects of the projects that a Match names; those of the project "" are in no index.
func byProject(m sdn.Match) []scan {
	if contains(m.Projects, "") {
		return nil
	}
	return byEach("project", m.Projects)
}

// sharedOnly offers to look up what is shared, where only that is asked for.
func sharedOnly(asked *bool) []scan {
	if asked == nil || !*asked {
		return nil
	}
	return byEach("shared", someIf(true))
}

// broken is a search that could not begin.
func broken[V any](err error) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		var zero V
		yield(zero, err)
	}
}

// fillMeta completes what is not stored.
func (e *Engine) fillMeta(m *sdn.Meta) { m.Foreign = m.Key.Owner != e.installation }
