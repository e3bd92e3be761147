package neutronapi

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// page is which part of a list is asked for, and in what order.
type page struct {
	limit   int
	asked   bool // the limit was
	marker  sdn.ID
	reverse bool // what comes before the marker
	sorts   []sorting
}

type sorting struct {
	key  string
	desc bool
}

// paging is what of a list's query is not a filter.
var paging = []string{"limit", "marker", "page_reverse", "sort_key", "sort_dir", "fields"}

// readPage reads it; most is the largest page.
func readPage(q url.Values, most int, known object) (page, error) {
	p := page{limit: most, marker: sdn.ID(q.Get("marker")), reverse: strings.EqualFold(q.Get("page_reverse"), "true")}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return p, badOf("limit", "Limit must be an integer 0 or greater and not '%s'", text)
		}
		p.asked = n > 0
		p.limit = min(cmp.Or(n, most), most)
	}
	keys, dirs := filled(q["sort_key"]), filled(q["sort_dir"])
	if len(keys) != len(dirs) {
		return p, badRequest("The number of sort_keys and sort_dirs must be same")
	}
	for i, key := range keys {
		if value, there := known[key]; !there || !scalar(value) {
			return p, badRequest("['" + key + "'] is invalid attribute for sort_keys")
		}
		if dirs[i] != "asc" && dirs[i] != "desc" {
			return p, badRequest("['" + dirs[i] + "'] is invalid value for sort_dirs, valid value is 'asc' and 'desc'")
		}
		if !slices.ContainsFunc(p.sorts, func(s sorting) bool { return s.key == key }) { // by what it is sorted by already it is sorted
			p.sorts = append(p.sorts, sorting{key, dirs[i] == "desc"})
		}
	}
	p.sorts = append(p.sorts, sorting{key: "id"})
	return p, nil
}

func filled(values []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" })
}

// byID tells that the page is in the order of ids, forwards.
func (p page) byID() bool { return p.sorts[0] == sorting{key: "id"} && !p.reverse }

// order compares two rows as the page has them.
func (p page) order(a, b *row) int {
	for _, s := range p.sorts {
		n := compare(a.value(s.key), b.value(s.key))
		if s.desc != p.reverse {
			n = -n
		}
		if n != 0 {
			return n
		}
	}
	return 0
}

// list answers with a page of the objects that the filters select.
func (r *resource) list(w http.ResponseWriter, c *call) error {
	q := c.URL.Query()
	known := r.known
	if !c.caller.admin() {
		known = r.public
	}
	if c.server.faults {
		splitSort(q)
	}
	p, err := readPage(q, c.server.maxPage, known)
	if err != nil {
		return err
	}
	for _, name := range paging {
		q.Del(name)
	}
	f := newFilter(q)
	if !c.caller.admin() {
		f.hide(r.hidden)
	}
	ordered := c.server.p.Capabilities().Ordered && p.byID()
	if ordered {
		f.after = p.marker
	}
	if _, owned := known["project_id"]; owned && r.shared == nil && !c.caller.admin() {
		f.project(c.caller.Project)
	}
	found := r.find(c.ctx(), f)
	if err := f.rest(known); err != nil {
		return err
	}
	rows := &window{page: p, ordered: ordered && !f.named}
	if err := r.findMarker(c, rows); err != nil {
		return err
	}
	for object, err := range found {
		if err != nil {
			return err
		}
		m := r.meta(object)
		row := &row{id: m.ID, resource: r, object: object}
		sees, err := r.sees(c, m, object) // and marks it as shared, which a filter may ask
		if err != nil {
			return err
		}
		if sees && f.keeps(m, row) && rows.add(row) {
			break
		}
	}
	objects := make([]any, len(rows.rows))
	for i, row := range rows.result() {
		objects[i] = row.object
	}
	r.writeAll(w, c, http.StatusOK, objects, rows.links(c))
	return nil
}

// findMarker reads the marker's object if the page does not simply begin after its id.
func (r *resource) findMarker(c *call, rows *window) error {
	if rows.page.marker == "" || rows.page.byID() {
		return nil
	}
	object, err := r.need(c, rows.page.marker)
	if err == nil {
		rows.marker = &row{id: r.meta(object).ID, resource: r, object: object}
	}
	return err
}

// show answers with one object.
func (r *resource) show(w http.ResponseWriter, c *call) error {
	object, err := r.need(c, c.target())
	if err != nil {
		return err
	}
	r.writeOne(w, c, http.StatusOK, object)
	return nil
}

// writeOne answers with one object.
func (r *resource) writeOne(w http.ResponseWriter, c *call, status int, object any) {
	out := append(appendText([]byte{'{'}, r.member), ':')
	writeData(w, status, append(appendObject(out, r.all, object, c.view()), '}'))
}

// objectSize is room for one object in an answer.
const objectSize = 1024

// writeAll answers with several objects, and with links to other pages.
func (r *resource) writeAll(w http.ResponseWriter, c *call, status int, objects []any, links []link) {
	view := c.view()
	out := append(make([]byte, 0, (len(objects)+1)*objectSize), '{')
	out = append(appendText(out, r.collection), ':', '[')
	for i, object := range objects {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendObject(out, r.all, object, view)
	}
	out = append(out, ']')
	if len(links) > 0 {
		out = append(appendText(append(out, ','), r.collection+"_links"), ':')
		out = appendJSON(out, links)
	}
	writeData(w, status, append(out, '}'))
}
