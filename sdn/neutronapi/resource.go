package neutronapi

import (
	"context"
	"maps"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// resource serves the objects of one table: list.go lists and shows them, create.go, update.go
// and delete.go change them, and tags.go changes their tags.
type resource struct {
	untyped
	member, collection string // its names in bodies
	path               string // below /v2.0/
	title              string // of one object in errors
	kind               sdn.Noun
	fields             []attribute
	index              map[string]int // of fields, by name
	known              object         // see attributes

	encode func(any) any
	quick  func(any, string) (any, bool)
	hidden []string

	private          bool // no caller sees another project's objects
	creates, updates bool // the definition has create, update
	createAll        func(context.Context, []any) ([]any, error)
	remove           func(context.Context, sdn.ID) error
	removeIf         func(context.Context, sdn.ID, int64) error
	setTags          func(context.Context, sdn.ID, sdn.Patch) error
}

// serve adds the paths of a resource: its collection, one object and its tags.
func (s *server) serve(r *resource) {
	if r.path == "" {
		r.path = r.collection
	}
	r.prepare()
	collection, member := s.nouns+r.path, s.nouns+r.path+"/{id}"
	all := map[string]handler{http.MethodGet: r.list}
	if r.creates {
		all[http.MethodPost] = r.post
	}
	s.handle(collection, all)
	one := map[string]handler{http.MethodGet: r.show}
	if r.updates {
		one[http.MethodPut] = r.put
	}
	if r.remove != nil {
		one[http.MethodDelete] = r.delete
	}
	s.handle(member, one)
	if r.setTags != nil {
		s.handle(member+"/tags", map[string]handler{
			http.MethodGet: r.listTags, http.MethodPut: r.replaceTags,
			http.MethodPost: r.addTags, http.MethodDelete: r.removeTags,
		})
		s.handle(member+"/tags/{tag}", map[string]handler{
			http.MethodGet: r.showTag, http.MethodPut: r.addTag, http.MethodDelete: r.removeTag,
		})
	}
}

// serveWithin adds the paths of a resource whose objects are parts of another object. find
// returns the resource for the object that the path names. more are methods of the collection.
func (s *server) serveWithin(path string, find func(*call) (*resource, error), more map[string]handler) {
	do := func(method func(*resource, http.ResponseWriter, *call) error) handler {
		return func(w http.ResponseWriter, c *call) error {
			r, err := find(c)
			if err != nil {
				return err
			}
			return method(r.prepare(), w, c)
		}
	}
	all := map[string]handler{
		http.MethodGet: do((*resource).list), http.MethodPost: do((*resource).post),
	}
	maps.Copy(all, more)
	s.handle(path, all)
	s.handle(path+"/{id}", map[string]handler{
		http.MethodGet: do((*resource).show), http.MethodPut: do((*resource).put),
		http.MethodDelete: do((*resource).delete),
	})
}

// prepare does what is done once for all requests.
func (r *resource) prepare() *resource {
	r.index = make(map[string]int, len(r.fields))
	for i, a := range r.fields {
		r.index[a.name] = i
	}
	r.known = r.attributes()
	return r
}

// attributes returns the attributes of the zero object: their names and the types of values.
func (r *resource) attributes() object {
	if r.known != nil {
		return r.known
	}
	if r.encode != nil {
		return objectOf(r.encode(r.zero()))
	}
	zero, known := r.zero(), object{}
	for _, a := range r.fields {
		if a.show != nil {
			known[a.name] = decoded(a.show(zero))
		}
	}
	return known
}

// value returns an attribute of an object, as filters and orders compare it.
func (r *resource) value(object any, name string) any {
	if r.encode != nil {
		if v, ok := r.quick(object, name); ok {
			return v
		}
		return objectOf(r.encode(object))[name]
	}
	if i, ok := r.index[name]; ok && r.fields[i].show != nil {
		return decoded(r.fields[i].show(object))
	}
	return nil
}

// append encodes what the view shows of an object.
func (r *resource) append(out []byte, object any, v view) []byte {
	if r.encode != nil {
		v.hidden = nil
		if !v.admin {
			v.hidden = r.hidden
		}
		return appendJSON(out, v.of(r.encode(object)))
	}
	return appendObject(out, r.fields, object, v)
}

// sees reports whether the caller sees an object.
func (r *resource) sees(c *call, m sdn.Meta, object any) (bool, error) {
	if c.owns(m) {
		return true, nil
	}
	return r.isShared(c, object)
}

// need returns an object that the caller sees. An object that it does not see is not found.
func (r *resource) need(c *call, id sdn.ID) (any, error) {
	object, err := r.getObject(c.ctx(), id)
	if err != nil {
		return object, err
	}
	sees, err := r.sees(c, r.metaOf(object), object)
	if err == nil && !sees {
		err = sdn.NotFound(r.title, id)
	}
	return object, err
}

// own returns an object that the caller may change. The policy denies one that it only sees.
func (r *resource) own(c *call, id sdn.ID) (any, error) {
	object, err := r.need(c, id)
	if err == nil && !c.owns(r.metaOf(object)) {
		err = c.denied("it is another project's")
	}
	return object, err
}

// target is the id in the path.
func (c *call) target() sdn.ID { return sdn.ID(c.PathValue("id")) }
