package neutron

import (
	"cmp"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// meta is what Neutron says of every object. Wire structs embed it, so that collections, ensure and the
// cache can work on any noun: gophercloud's types have these fields one by one.
type meta struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Project     string   `json:"project_id"`
	Tags        []string `json:"tags"`
	Revision    revision `json:"revision_number"`
	Created     stamp    `json:"created_at"`
	Updated     stamp    `json:"updated_at"`
}

// common gives what all wire structs have.
func (m *meta) common() *meta { return m }

// wire is a wire struct: a pointer to a struct that embeds meta.
type wire interface{ common() *meta }

// decoder is a wire struct with its sdn form. The Keys that decode finds are those of the owner.
type decoder[T any] interface {
	wire
	decode(o *owner) T
}

// decoded returns the sdn form of the answer to a request.
func decoded[W decoder[T], T any](o *owner, w W, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return w.decode(o), nil
}

// stamp is a time. Octavia's have no zone: they are UTC. null and "" are the zero time.
type stamp struct{ time.Time }

// UnmarshalJSON reads both forms.
func (t *stamp) UnmarshalJSON(data []byte) (err error) {
	if string(data) != `""` && t.Time.UnmarshalJSON(data) != nil {
		t.Time, err = time.Parse(`"2006-01-02T15:04:05"`, string(data))
	}
	return err
}

// revision is Neutron's revision_number plus one: Neutron counts some nouns (subnets, floating IPs, QoS policies) from 0, which the contract has for
// none. It is so everywhere but in what is sent.
type revision int64

// UnmarshalJSON adds the one.
func (r *revision) UnmarshalJSON(data []byte) error {
	var n *int64
	if err := json.Unmarshal(data, &n); err != nil || n == nil {
		return err
	}
	*r = revision(*n + 1)
	return nil
}

// decode gives the sdn form: a description that is a Key is one, in a project of the
// owner.
func (m *meta) decode(o *owner) sdn.Meta {
	out := sdn.Meta{
		ID: sdn.ID(m.ID), Revision: int64(m.Revision), Created: m.Created.Time, Updated: m.Updated.Time,
		Base: sdn.Base{Name: m.Name, Description: m.Description, Project: m.Project, Tags: valid.TagSet(m.Tags)},
	}
	if key, ok := o.keyOf(m); ok {
		out.Key, out.Description = key, ""
	}
	out.Foreign = o == nil || out.Key.Owner != o.installation
	return out
}

// mine reports whether an object carries a Key of this installation, in a project of its
// own.
func (p *Provider) mine(m *meta) bool {
	key, ok := p.owner.keyOf(m)
	return ok && key.Owner == p.config.Installation
}

// body is the beginning of a creating request's body: what every object has. The Key goes where Neutron keeps it.
func (p *Provider) body(b sdn.Base) map[string]any {
	body := map[string]any{"description": cmp.Or(b.Key.String(), b.Description)}
	set(body, "name", nonZero(b.Name))
	set(body, "project_id", nonZero(cmp.Or(b.Project, p.config.Project)))
	return body
}

// set puts a field of a patch into the body of a request; nil says nothing.
func set[T any](body map[string]any, attribute string, value *T) {
	if value != nil {
		body[attribute] = *value
	}
}

// setNot is set of a field that means the opposite of the attribute.
func setNot(body map[string]any, attribute string, value *bool) {
	if value != nil {
		body[attribute] = !*value
	}
}

// query is the filter for a search, whose projects are the caller's from then on.
func (p *Provider) query(m sdn.Match) url.Values {
	p.owner.note(m.Projects...)
	return query(m)
}

// query is the filter that asks Neutron for at least what m selects. What Neutron cannot filter (a Key's owner and kind, the
// case of tags) m.Matches must sort out afterwards.
func query(m sdn.Match) url.Values {
	q := url.Values{}
	for _, id := range m.IDs {
		q.Add("id", string(id))
	}
	for _, k := range m.Keys {
		q.Add("description", k.String())
	}
	for _, n := range m.Names {
		q.Add("name", n)
	}
	for _, p := range m.Projects {
		q.Add("project_id", p)
	}
	if len(m.Tags) > 0 {
		q.Set("tags", strings.Join(m.Tags, ","))
	}
	return q
}

// addIDs adds a filter by ids of another noun.
func addIDs(q url.Values, name string, ids []sdn.ID) {
	for _, id := range ids {
		q.Add(name, string(id))
	}
}
