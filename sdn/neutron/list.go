package neutron

import (
	"context"
	"iter"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

const (
	pageSize = 500  // objects in one answer
	maxQuery = 3000 // bytes that the values of one filter may take in a URL; servers in front of Neutron take 8192 in all
)

// list streams what a GET of a collection finds. A filter with many values is asked in several requests, a long answer in pages; what is
// found by several values is given once. The loop may change Neutron: pages are read one ahead of those given, and where the object that a
// page was to follow is gone, the one before it serves.
//
// The name of the collection is the path's last part, with '_' for '-'. Where objects have no tags, nothing is found by tags, and Neutron is not asked: it
// refuses filters that it does not know.
func list[W wire](ctx context.Context, c *client, collection string, query url.Values) iter.Seq2[W, error] {
	return func(yield func(W, error) bool) {
		var none W
		if query.Has("tags") {
			if err := c.before(ctx); err != nil {
				yield(none, err)
				return
			}
			if !c.hasTags() {
				return
			}
		}
		seen := map[string]bool{}
		for part := range split(query) {
			items, next, err := page[W](ctx, c, collection, part, nil)
			for {
				if err != nil {
					yield(none, err)
					return
				}
				var following []W
				var more bool
				if next {
					following, more, err = page[W](ctx, c, collection, part, items)
				}
				for _, w := range items {
					if id := w.common().ID; id != "" && seen[id] {
						continue
					} else if id != "" {
						seen[id] = true
					}
					if !yield(w, nil) {
						return
					}
				}
				if !next {
					break
				}
				items, next = following, more
			}
		}
	}
}

// page reads the page after the last of before, or the first.
func page[W wire](ctx context.Context, c *client, collection string, query url.Values, before []W) (items []W, next bool, err error) {
	q := maps.Clone(query)
	if q == nil {
		q = url.Values{}
	}
	q.Set("limit", strconv.Itoa(pageSize))
	if len(before) == 0 {
		return readPage[W](ctx, c, collection, q)
	}
	for _, last := range slices.Backward(before) {
		q.Set("marker", last.common().ID)
		if items, next, err = readPage[W](ctx, c, collection, q); !sdn.IsNotFound(err) {
			return items, next, err
		}
	}
	return nil, false, err
}

func readPage[W wire](ctx context.Context, c *client, collection string, query url.Values) (items []W, next bool, err error) {
	name := strings.ReplaceAll(path.Base(collection), "-", "_")
	answer := envelope[[]W]{name: name}
	if err := c.get(ctx, collection, query, &answer); err != nil {
		return nil, false, err
	}
	return answer.value, answer.next && len(answer.value) > 0, nil
}

// split cuts a query into several whose filters have few enough values for a URL.
func split(query url.Values) iter.Seq[url.Values] {
	return func(yield func(url.Values) bool) { splitInto(query, yield) }
}

func splitInto(query url.Values, yield func(url.Values) bool) bool {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		values := query[name]
		n, size := 0, 0
		for n < len(values) && (n == 0 || size < maxQuery) {
			size += len(name) + len(url.QueryEscape(values[n])) + 2
			n++
		}
		if n >= len(values) {
			continue
		}
		for len(values) > 0 {
			n = min(n, len(values))
			part := maps.Clone(query)
			part[name] = values[:n]
			if values = values[n:]; !splitInto(part, yield) {
				return false
			}
		}
		return true
	}
	return yield(query)
}
