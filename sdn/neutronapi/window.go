package neutronapi

import (
	"net/url"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// row is an object of a list.
type row struct {
	id       sdn.ID
	resource *resource
	object   any
}

// value returns an attribute.
func (r *row) value(name string) any { return r.resource.value(r.object, name) }

// window collects the rows of a page out of what comes by, and never holds more than that.
type window struct {
	page    page
	ordered bool // they come in the page's order
	marker  *row // nil: the page begins at the marker's id, if there is one
	rows    []*row
}

// add takes a row if it is of the page, and tells whether nothing further can be.
func (w *window) add(r *row) (full bool) {
	switch {
	case w.marker != nil && w.page.order(r, w.marker) <= 0:
		return false
	case w.marker == nil && w.page.marker != "" && r.id <= w.page.marker:
		return false
	case w.ordered:
		w.rows = append(w.rows, r)
		return len(w.rows) == w.page.limit
	}
	at, _ := slices.BinarySearchFunc(w.rows, r, w.page.order)
	if at == w.page.limit {
		return false
	}
	if len(w.rows) == w.page.limit {
		w.rows = w.rows[:len(w.rows)-1]
	}
	w.rows = slices.Insert(w.rows, at, r)
	return false
}

// result gives the rows as they are shown: in the order asked for, also where what comes before a marker was.
func (w *window) result() []*row {
	if w.page.reverse {
		slices.Reverse(w.rows)
	}
	return w.rows
}

// link leads to another page.
type link struct {
	Rel  string `json:"rel"`
	Href string `json:"href"`
}

// links lead to the next page and to the previous one, as Neutron has them: whether there is anything on it is known by asking. Where no limit was asked
// for there are none, unless the server's own cut the list.
func (w *window) links(c *call) (out []link) {
	full := len(w.rows) == w.page.limit
	if !w.page.asked && !full && w.page.marker == "" {
		return nil
	}
	if full || w.page.reverse {
		out = append(out, link{"next", w.href(c, false)})
	}
	if full || !w.page.reverse {
		out = append(out, link{"previous", w.href(c, true)})
	}
	return out
}

// href is the address of the page behind the last row, or in front of the first.
func (w *window) href(c *call, reverse bool) string {
	q := c.URL.Query()
	q.Del("marker")
	q.Del("page_reverse")
	if len(w.rows) > 0 && reverse {
		q.Set("marker", string(w.rows[0].id))
	} else if len(w.rows) > 0 {
		q.Set("marker", string(w.rows[len(w.rows)-1].id))
	}
	if reverse {
		q.Set("page_reverse", "True")
	}
	return (&url.URL{Scheme: c.scheme(), Host: c.Host, Path: c.URL.Path, RawPath: c.URL.RawPath, RawQuery: q.Encode()}).String()
}

// scheme is what the client has asked with.
func (c *call) scheme() string {
	if forwarded := c.Header.Get("X-Forwarded-Proto"); forwarded == "http" || forwarded == "https" {
		return forwarded
	}
	if c.TLS != nil {
		return "https"
	}
	return "http"
}
