package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// Resource names a resource in bodies. Its path is the collection with '-' for '_'.
type Resource[E any] struct{ Member, Collection string }

// definition describes one resource. T is the provider's type of an object, E the type of its
// JSON, S asks the provider for a new object, P changes one. A nil function means that the API
// lacks the method, unless its comment says otherwise.
//
// This file is all that is compiled for each resource. It must stay small: the handlers are in
// resource, which knows a definition as untyped.
type definition[T, E, S, P any] struct {
	Resource[E]
	path   string   // below /v2.0/; "" is the collection
	title  string   // of one object in errors: "subnet pool"
	kind   sdn.Noun // for sdn.ConditionalDelete; "" if that does not delete it
	hidden []string // attributes that only administrators see

	meta func(T) sdn.Meta
	get  func(context.Context, sdn.ID) (T, error)
	// find takes from the filter what the provider can select by. The rest is compared with
	// the encoded object.
	find   func(context.Context, *filter) iter.Seq2[T, error]
	encode func(T) E
	// quick returns an attribute as encode does, but without encoding the object. It makes
	// long lists cheap. nil: only the attributes of quickMeta are quick.
	quick func(T, string) (any, bool)
	// shared reports whether every caller sees an object. nil: only its project does.
	shared func(*call, T) (bool, error)
	// canDelete reports whether the caller may delete another project's object. nil: it may not.
	canDelete func(*call, T) (bool, error)

	// spec and patch read a body, which remembers what is wrong. They ask the provider only for
	// what the body refers to.
	spec  func(*call, *body) S
	patch func(*call, *body, T) P

	create func(context.Context, S) (T, error)
	// createAll creates all objects or none, see bulk. nil: they are created one by one, and
	// deleted again if one fails. A crash in between leaves some of them.
	createAll func(ctx context.Context, specs []any) ([]any, error)
	update    func(context.Context, sdn.ID, P) (T, error)
	remove    func(context.Context, sdn.ID) error
	// removeIf removes an object at a revision. nil: resource.deleteAt says how it is done.
	removeIf func(context.Context, sdn.ID, int64) error
	// setTags changes only the tags. nil: the objects have no tags.
	setTags func(context.Context, sdn.ID, sdn.Patch) error
}

// resource returns what the handlers serve.
func (d *definition[T, E, S, P]) resource() *resource {
	return &resource{
		untyped: d, encode: func(object any) any { return d.encode(as[T](object)) }, quick: d.quickly, member: d.Member, collection: d.Collection,
		path: d.path, title: d.title, kind: d.kind, hidden: d.hidden,
		private: d.shared == nil, creates: d.create != nil, createAll: d.createAll,
		updates: d.update != nil, remove: d.remove, removeIf: d.removeIf, setTags: d.setTags,
	}
}

// need returns an object that the caller sees, see resource.need.
func (d *definition[T, E, S, P]) need(c *call, id sdn.ID) (T, error) {
	object, err := d.resource().need(c, id)
	return as[T](object), err
}

// own returns an object that the caller may change, see resource.own.
func (d *definition[T, E, S, P]) own(c *call, id sdn.ID) (T, error) {
	object, err := d.resource().own(c, id)
	return as[T](object), err
}

// as returns the value of type T that was stored in v, or the zero T for nil.
func as[T any](v any) T {
	t, _ := v.(T)
	return t
}

func (d *definition[T, E, S, P]) getObject(ctx context.Context, id sdn.ID) (any, error) {
	return d.get(ctx, id)
}

func (d *definition[T, E, S, P]) findObjects(ctx context.Context, f *filter) iter.Seq2[any, error] {
	found := d.find(ctx, f)
	return func(yield func(any, error) bool) {
		found(func(t T, err error) bool { return yield(t, err) })
	}
}

func (d *definition[T, E, S, P]) metaOf(object any) sdn.Meta { return d.meta(as[T](object)) }

func (d *definition[T, E, S, P]) zero() any { return as[T](nil) }

func (d *definition[T, E, S, P]) quickly(object any, name string) (any, bool) {
	if d.quick != nil {
		if value, ok := d.quick(as[T](object), name); ok {
			return value, true
		}
	}
	return quickMeta(d.metaOf(object), name)
}

func (d *definition[T, E, S, P]) isShared(c *call, object any) (bool, error) {
	if d.shared == nil {
		return false, nil
	}
	return d.shared(c, as[T](object))
}

func (d *definition[T, E, S, P]) isDeletable(c *call, object any) (bool, error) {
	if d.canDelete == nil {
		return false, nil
	}
	return d.canDelete(c, as[T](object))
}

func (d *definition[T, E, S, P]) readSpec(_ *resource, b *body) any { return d.spec(b.call, b) }

func (d *definition[T, E, S, P]) createObject(ctx context.Context, spec any) (any, error) {
	return d.create(ctx, as[S](spec))
}

func (d *definition[T, E, S, P]) updateObject(_ *resource, b *body, object any) (any, error) {
	t := as[T](object)
	patch := d.patch(b.call, b, t)
	if err := b.done(); err != nil {
		return nil, err
	}
	return d.update(b.ctx(), d.meta(t).ID, patch)
}

// bulkOf makes createAll of a provider's function. Few resources have one.
func bulkOf[T, S any](create func(context.Context, []S) ([]T, error)) func(context.Context, []any) ([]any, error) {
	return func(ctx context.Context, specs []any) ([]any, error) {
		all := make([]S, len(specs))
		for i, spec := range specs {
			all[i] = as[S](spec)
		}
		created, err := create(ctx, all)
		out := make([]any, len(created))
		for i, t := range created {
			out[i] = t
		}
		return out, err
	}
}

// quickMeta returns an attribute that most objects have, as encodeMeta encodes it.
func quickMeta(m sdn.Meta, name string) (any, bool) {
	switch name {
	case "id":
		return string(m.ID), true
	case "name":
		return m.Name, true
	case "project_id", "tenant_id":
		return m.Project, true
	case "created_at":
		return timestamp(m.Created), true
	case "updated_at":
		return timestamp(m.Updated), true
	}
	return nil, false
}
