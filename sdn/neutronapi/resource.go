package neutronapi

import (
	"context"
	"maps"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// resource serves the objects of one definition: list.go lists and shows them, create.go, update.go
// and delete.go change them, and tags.go changes their tags.
type resource struct {
	untyped
	member, collection string // its names in bodies
	path               string // below /v2.0/
	title              string // of one object in errors
	kind               sdn.Noun
	hidden             []string // attributes that only administrators see
	known              object   // see attributes

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
	r.known = r.attributes()
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
			return method(r, w, c)
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

// attributes returns the attributes of the zero object: their names and the types of values.
func (r *resource) attributes() object {
	if r.known != nil {
		return r.known
	}
	return objectOf(r.encoded(nil))
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
