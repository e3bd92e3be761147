package neutronapi

import (
	"cmp"
	"maps"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// resource serves the objects of one table: list.go lists and shows them, create.go, update.go
// and delete.go change them, and tags.go changes their tags.
type resource struct {
	*table
	all   []field        // what objects show of their Meta, and the fields
	index map[string]int // of all, by name
	known object         // the attributes of the zero object: their names and the types of values
	// public are the known attributes that every caller sees, hidden the names of the others.
	public object
	hidden []string
}

// serve adds the paths of a resource: its collection, one object and its tags.
func (s *server) serve(r *resource) {
	r.prepare()
	collection, member := s.nouns+cmp.Or(r.path, r.collection), s.nouns+cmp.Or(r.path, r.collection)+"/{id}"
	all := map[string]handler{http.MethodGet: r.list}
	if r.create.call != nil {
		all[http.MethodPost] = r.post
	}
	s.handle(collection, all)
	one := map[string]handler{http.MethodGet: r.show}
	if r.update.call != nil {
		one[http.MethodPut] = r.put
	}
	if r.remove != nil {
		one[http.MethodDelete] = r.delete
	}
	s.handle(member, one)
	if r.tags {
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
	for _, m := range r.shows {
		r.all = append(r.all, field{name: m.name, show: func(object any) any { return m.show(r.meta(object)) }})
	}
	r.all = append(r.all, r.fields...)
	r.index, r.known = make(map[string]int, len(r.all)), object{}
	zero := r.get.zero()
	for i, a := range r.all {
		r.index[a.name] = i
		if a.show != nil {
			r.known[a.name] = decoded(a.show(zero))
		}
	}
	r.public = maps.Clone(r.known)
	for _, a := range r.all {
		if a.access&adminShow != 0 {
			r.hidden = append(r.hidden, a.name)
			delete(r.public, a.name)
		}
	}
	return r
}

// value returns an attribute of an object, as filters and orders compare it.
func (r *resource) value(object any, name string) any {
	if i, ok := r.index[name]; ok && r.all[i].show != nil {
		return decoded(r.all[i].show(object))
	}
	return nil
}

// sees reports whether the caller sees an object.
func (r *resource) sees(c *call, m sdn.Meta, object any) (bool, error) {
	if c.owns(m) {
		return true, nil
	}
	if r.shared == nil {
		return false, nil
	}
	return r.shared(c, object)
}

// need returns an object that the caller sees. An object that it does not see is not found.
func (r *resource) need(c *call, id sdn.ID) (any, error) {
	object, err := r.get.call(c.ctx(), id)
	if err != nil {
		return object, err
	}
	sees, err := r.sees(c, r.meta(object), object)
	if err == nil && !sees {
		err = sdn.NotFound(r.title, id)
	}
	return object, err
}

// own returns an object that the caller may change. The policy denies one that it only sees.
func (r *resource) own(c *call, id sdn.ID) (any, error) {
	object, err := r.need(c, id)
	if err == nil && !c.owns(r.meta(object)) {
		err = c.denied("it is another project's")
	}
	return object, err
}

// target is the id in the path.
func (c *call) target() sdn.ID { return sdn.ID(c.PathValue("id")) }
