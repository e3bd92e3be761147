package neutron

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// A collection is a noun as Neutron's API has it: what all nouns have in common, for those whose objects are of wire struct W.
type collection[W wire] struct {
	title string // of one object in errors: "subnet pool"
	item  string // of one object in JSON: "subnetpool"
	items string // of several in JSON: "subnetpools"
	path  string // "/subnetpools"
	// readFirst: Neutron does not keep to If-Match for this noun, so the revision is compared by reading before the change.
	readFirst bool
	octavia   bool // it is Octavia's
	// oneUser: what is another's is used by one at a time, unlike a network, which many hosts mark at once.
	oneUser bool
}

// client returns the client of the collection's service.
func (k collection[W]) client(p *Provider) *client {
	if k.octavia {
		return p.octavia.client
	}
	return p.client
}

// at is the path of one object, or of a part of it.
func (k collection[W]) at(id sdn.ID, parts ...string) string {
	path := k.path + "/" + url.PathEscape(string(id))
	for _, p := range parts {
		path += "/" + p
	}
	return path
}

// read gives one object. The empty id, which would be the path of the collection, is not found.
func (k collection[W]) read(ctx context.Context, p *Provider, id sdn.ID) (W, error) {
	answer := envelope[W]{name: k.item}
	if id == "" {
		return answer.value, sdn.NotFound(k.title, id)
	}
	err := k.client(p).get(ctx, k.at(id), nil, &answer)
	return answer.value, err
}

// find streams what a filter finds.
func (k collection[W]) find(ctx context.Context, p *Provider, q url.Values) iter.Seq2[W, error] {
	return list[W](ctx, k.client(p), k.path, q)
}

// matching streams the sdn forms of what a filter finds and matches accepts. seen, if not nil, gets each
// object that was read.
func matching[W decoder[T], T any](
	ctx context.Context, p *Provider, k collection[W], filter url.Values,
	matches func(T) bool, seen func(W),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for w, err := range k.find(ctx, p, filter) {
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			if seen != nil {
				seen(w)
			}
			if t := w.decode(p.owner); matches(t) && !yield(t, nil) {
				return
			}
		}
	}
}

// failed streams an error.
func failed[T any](err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		yield(none, err)
	}
}

// byKey gives the objects that carry the base's Key in its project, the oldest first:
// Neutron ensures no uniqueness, so two objects may have one Key for a moment. Objects of
// other projects do not count, whatever their description is.
func (k collection[W]) byKey(ctx context.Context, p *Provider, b sdn.Base) ([]W, error) {
	found, err := sdn.All(k.find(ctx, p, url.Values{"description": {b.Key.String()}}))
	found = ofProject(p, b, found)
	slices.SortFunc(found, func(a, b W) int { return older(a.common(), b.common()) })
	return found, err
}

// older orders objects of one Key: by their creation, which Neutron tells in seconds, then by id.
func older(a, b *meta) int {
	if d := a.Created.Compare(b.Created.Time); d != 0 {
		return d
	}
	if a.ID < b.ID {
		return -1
	}
	return 1
}

// create makes one object. It is sent once.
func (k collection[W]) create(
	ctx context.Context, p *Provider, body map[string]any,
) (W, error) {
	answer := envelope[W]{name: k.item}
	err := k.client(p).post(ctx, k.path, map[string]any{k.item: body}, &answer)
	return answer.value, err
}

// createBulk makes several objects in one request, all or none, in the order of the bodies. The client
// has the deadline for so many.
func (k collection[W]) createBulk(
	ctx context.Context, c *client, bodies []map[string]any,
) ([]W, error) {
	answer := envelope[[]W]{name: k.items}
	err := c.post(ctx, k.path, map[string]any{k.items: bodies}, &answer)
	if n := len(answer.value); err == nil && n != len(bodies) {
		err = sdn.Unavailable(nil, c.who(), "it answers with %d %s to a request for %d",
			n, k.items, len(bodies))
	}
	return answer.value, err
}

// update changes one object; ifRevision is as in client.put. With an empty body it only reads.
func (k collection[W]) update(
	ctx context.Context, p *Provider, id sdn.ID, ifRevision int64, body map[string]any,
) (W, error) {
	answer := envelope[W]{name: k.item}
	if id == "" {
		return answer.value, sdn.NotFound(k.title, id)
	}
	if len(body) == 0 || k.readFirst && ifRevision != 0 {
		w, err := k.read(ctx, p, id)
		if err == nil && ifRevision != 0 && int64(w.common().Revision) != ifRevision {
			err = stale(k.title, w.common())
		}
		if err != nil || len(body) == 0 {
			return w, err
		}
		ifRevision = 0
	}
	err := k.client(p).put(ctx, k.at(id), ifRevision, map[string]any{k.item: body}, &answer)
	return answer.value, err
}

// erase deletes one object; ifRevision is as in client.remove. What is not there counts as deleted.
func (k collection[W]) erase(
	ctx context.Context, p *Provider, id sdn.ID, ifRevision int64,
) error {
	if id == "" {
		return nil
	}
	return ignoreAbsent(k.client(p).remove(ctx, k.at(id), ifRevision))
}

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

// An envelope is Neutron's answer around one object, {"port": {…}}, or a list, {"ports": […], "ports_links": […]}.
type envelope[T any] struct {
	name  string // the key of what is inside
	value T
	next  bool // there is another page
}

// UnmarshalJSON takes out what is under the envelope's name, and refuses an answer without it.
func (e *envelope[T]) UnmarshalJSON(data []byte) error {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	inside, ok := parts[e.name]
	if !ok {
		return fmt.Errorf("it has no %q", e.name)
	}
	if links := parts[e.name+"_links"]; links != nil {
		var all []struct {
			Rel string `json:"rel"`
		}
		if err := json.Unmarshal(links, &all); err != nil {
			return err
		}
		for _, l := range all {
			e.next = e.next || l.Rel == "next"
		}
	}
	return json.Unmarshal(inside, &e.value)
}
