package restapi

import (
	"context"
	"iter"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// Resource is a noun's two words in bodies. Its path is the collection with '-' for '_'.
type Resource[E any] struct{ Member, Collection string }

// noun is how one of the contract's nouns is served: T is its object, E the same in Neutron's JSON, S what asks for a new one, P what changes one. A
// verb that is nil is not there (405), except createAll and removeIf.
type noun[T, E, S, P any] struct {
	Resource[E]
	path  string   // below /v2.0/; "" is the collection
	title string   // of one object, as errors name it: "subnet pool"
	kind  sdn.Noun // for sdn.ConditionalDelete; "": not by it
	meta  func(T) sdn.Meta
	known object // what attributes there are; see attributes

	get func(context.Context, sdn.ID) (T, error)
	// find takes from the filters what the provider can select by; what it leaves is compared with the encoded object.
	find   func(context.Context, *filter) iter.Seq2[T, error]
	encode func(T) E
	// quick gives some attributes as the encoded object has them, without encoding it; for long lists. nil: of none.
	quick func(T, string) (any, bool)
	// hidden are the attributes that only administrators see.
	hidden []string
	// shared tells whether everybody sees an object, whosesoever it is. nil: nobody else does.
	shared func(*call, T) (bool, error)

	// holds tells whether the caller may delete an object of another's. nil: it may not.
	holds func(*call, T) (bool, error)

	// spec and patch read a body. They must not ask the provider for more than what the body refers to; the body remembers what is wrong.
	spec  func(*call, *body) S
	patch func(*call, *body, T) P

	create func(context.Context, S) (T, error)
	// createAll makes all or none. nil: they are made one by one, and taken back where one fails, which who is killed cannot.
	createAll func(context.Context, []S) ([]T, error)
	update    func(context.Context, sdn.ID, P) (T, error)
	remove    func(context.Context, sdn.ID) error
	// removeIf is remove of an object at a revision. nil: by sdn.ConditionalDelete, or after a look.
	removeIf func(context.Context, sdn.ID, int64) error
	// retag changes nothing but the tags. nil: objects have none.
	retag func(context.Context, sdn.ID, sdn.Patch) error
}

// serve adds the paths of a noun.
func serve[T, E, S, P any](s *server, n *noun[T, E, S, P]) {
	if n.path == "" {
		n.path = n.Collection
	}
	n.known = n.attributes()
	collection, member := s.nouns+n.path, s.nouns+n.path+"/{id}"
	all := map[string]handler{http.MethodGet: n.list}
	if n.create != nil {
		all[http.MethodPost] = n.post
	}
	s.handle(collection, all)
	one := map[string]handler{http.MethodGet: n.show}
	if n.update != nil {
		one[http.MethodPut] = n.put
	}
	if n.remove != nil {
		one[http.MethodDelete] = n.delete
	}
	s.handle(member, one)
	if n.retag != nil {
		n.serveTags(s, member+"/tags")
	}
}

// attributes shows which attributes there are and what sort of value each has: those of an object that is nothing.
func (n *noun[T, E, S, P]) attributes() object {
	if n.known != nil {
		return n.known
	}
	var none T
	return objectOf(n.encode(none))
}

// sees tells whether the caller may know of an object.
func (n *noun[T, E, S, P]) sees(c *call, t T) (bool, error) {
	if c.owns(n.meta(t)) {
		return true, nil
	}
	if n.shared == nil {
		return false, nil
	}
	return n.shared(c, t)
}

// need gives an object that the caller sees. What it does not see is not there.
func (n *noun[T, E, S, P]) need(c *call, id sdn.ID) (t T, err error) {
	if t, err = n.get(c.ctx(), id); err != nil {
		return t, err
	}
	sees, err := n.sees(c, t)
	if err == nil && !sees {
		err = sdn.NotFound(n.title, id)
	}
	return t, err
}

// own gives an object that the caller may change. What it only sees IsDenied.
func (n *noun[T, E, S, P]) own(c *call, id sdn.ID) (t T, err error) {
	if t, err = n.need(c, id); err != nil {
		return t, err
	}
	if !c.owns(n.meta(t)) {
		return t, c.denied("it is another project's")
	}
	return t, nil
}

// held gives an object that the caller may delete.
func (n *noun[T, E, S, P]) held(c *call, id sdn.ID) (t T, err error) {
	if n.holds == nil {
		return n.own(c, id)
	}
	if t, err = n.need(c, id); err != nil {
		return t, err
	}
	holds, err := n.holds(c, t)
	if err == nil && !holds && !c.owns(n.meta(t)) {
		err = c.denied("it is another project's")
	}
	return t, err
}

// target is the id in the path.
func (c *call) target() sdn.ID { return sdn.ID(c.PathValue("id")) }

func (n *noun[T, E, S, P]) show(w http.ResponseWriter, c *call) error {
	t, err := n.need(c, c.target())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{n.Member: n.view(c).of(n.encode(t))})
	return nil
}

func (n *noun[T, E, S, P]) put(w http.ResponseWriter, c *call) error {
	document, err := c.document()
	if err != nil {
		return err
	}
	t, err := n.own(c, c.target())
	if err != nil {
		return err
	}
	values, ok := document[n.Member].(map[string]any)
	if !ok {
		return badRequest("Unable to find '" + n.Member + "' in request body")
	}
	b := &body{call: c, noun: n.Member, values: values}
	if b.ifRevision, err = c.condition(n.title, n.meta(t)); err != nil {
		return err
	}
	p := n.patch(c, b, t)
	if err := b.done(); err != nil {
		return err
	}
	if t, err = n.update(c.ctx(), n.meta(t).ID, p); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{n.Member: n.view(c).of(n.encode(t))})
	return nil
}

func (n *noun[T, E, S, P]) delete(w http.ResponseWriter, c *call) error {
	if c.hasBody() {
		return badRequest("Request body is not supported in DELETE.")
	}
	t, err := n.held(c, c.target())
	if err != nil {
		return err
	}
	m := n.meta(t)
	revision, err := c.condition(n.title, m)
	if err != nil {
		return err
	}
	if err := n.removeAt(c, m.ID, revision); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// removeAt deletes an object that was seen at the revision just now; 0 is any.
func (n *noun[T, E, S, P]) removeAt(c *call, id sdn.ID, revision int64) error {
	if revision != 0 && n.removeIf != nil {
		return n.removeIf(c.ctx(), id, revision)
	}
	if conditional, ok := c.server.p.(sdn.ConditionalDelete); ok && revision != 0 && n.kind != "" {
		return conditional.DeleteIf(c.ctx(), n.kind, id, revision)
	}
	return n.remove(c.ctx(), id)
}
