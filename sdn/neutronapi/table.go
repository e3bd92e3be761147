package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// A table describes one resource, of Neutron or of Octavia: its names, its attributes, and the
// calls of the provider. T is the provider's object, S asks for a new one, and P changes one. A
// nil function means that the API lacks the method, unless its comment says otherwise.
//
// This file and field.go are compiled for each resource. They must stay small: the handlers are
// in resource, which knows a table as untyped.
type table[T, S, P any] struct {
	member, collection string   // its names in bodies
	path               string   // below /v2.0/; "" is the collection
	title              string   // of one object in errors: "subnet pool"
	noun               sdn.Noun // for sdn.ConditionalDelete; "" if that does not delete it

	meta func(*T) sdn.Meta
	// shows are the attributes that objects show of their Meta, before the fields.
	shows  []metaField
	fields []field[T, S, P]
	// base and patch say where a new object's Base and a change's Patch are. With them, a body
	// has a name, a description and a project; nil: fields read all that a body has.
	base  func(*S) *sdn.Base
	patch func(*P) *sdn.Patch
	tags  bool // objects have the paths of tags; patch and update change these

	get func(context.Context, sdn.ID) (T, error)
	// find takes from the filter what the provider can select by. The rest is compared with
	// the attributes.
	find func(context.Context, *filter) iter.Seq2[T, error]
	// shared reports whether every caller sees an object. nil: only its project does.
	shared func(*call, *T) (bool, error)
	// canDelete reports whether the caller may delete another project's object. nil: it may not.
	canDelete func(*call, *T) (bool, error)

	// beforePost and beforePut run before the fields are read, checkPost and checkPut after it.
	// They read what concerns several attributes, and check what the body refers to.
	beforePost, checkPost func(*call, *body, *S)
	beforePut, checkPut   func(*call, *body, *T, *P)

	create func(context.Context, S) (T, error)
	// createAll creates all objects or none, see bulk. nil: they are created one by one, and
	// deleted again if one fails. A crash in between leaves some of them.
	createAll func(ctx context.Context, specs []any) ([]any, error)
	update    func(context.Context, sdn.ID, P) (T, error)
	remove    func(context.Context, sdn.ID) error
	// removeIf removes an object at a revision. nil: resource.deleteAt says how it is done.
	removeIf func(context.Context, sdn.ID, int64) error
}

// resource returns what the handlers serve.
func (t *table[T, S, P]) resource() *resource {
	r := &resource{
		untyped: t, member: t.member, collection: t.collection, path: t.path, title: t.title, kind: t.noun,
		private: t.shared == nil, creates: t.create != nil, createAll: t.createAll,
		updates: t.update != nil, remove: t.remove, removeIf: t.removeIf,
	}
	for _, m := range t.shows {
		r.fields = append(r.fields, attribute{name: m.name, show: func(object any) any { return m.show(t.metaOf(object)) }})
	}
	r.fields = append(r.fields, attributesOf(t.fields)...)
	if t.tags {
		r.setTags = t.setTags
	}
	return r
}

// setTags changes only the tags.
func (t *table[T, S, P]) setTags(ctx context.Context, id sdn.ID, change sdn.Patch) error {
	var p P
	*t.patch(&p) = change
	_, err := t.update(ctx, id, p)
	return err
}

// need returns an object that the caller sees. An object that it does not see is not found.
func (t *table[T, S, P]) need(c *call, id sdn.ID) (T, error) {
	object, err := t.get(c.ctx(), id)
	if err != nil || c.owns(t.meta(&object)) {
		return object, err
	}
	sees, err := t.isShared(c, &object)
	if err == nil && !sees {
		err = sdn.NotFound(t.title, id)
	}
	return object, err
}

// own returns an object that the caller may change. The policy denies one that it only sees.
func (t *table[T, S, P]) own(c *call, id sdn.ID) (T, error) {
	object, err := t.need(c, id)
	if err == nil && !c.owns(t.meta(&object)) {
		err = c.denied("it is another project's")
	}
	return object, err
}

// untyped is a table without its types. An object is a *T, a spec is an S.
type untyped interface {
	getObject(context.Context, sdn.ID) (any, error)
	findObjects(context.Context, *filter) iter.Seq2[any, error]
	metaOf(object any) sdn.Meta
	// zero returns an object that shows the types of the attributes.
	zero() any
	isShared(c *call, object any) (bool, error)
	isDeletable(c *call, object any) (bool, error)

	readSpec(*resource, *body) (spec any)
	createObject(ctx context.Context, spec any) (any, error)
	// updateObject reads a change from the body, and makes it unless the body is wrong.
	updateObject(r *resource, b *body, object any) (any, error)
}

func (t *table[T, S, P]) zero() any { return new(T) }

func (t *table[T, S, P]) getObject(ctx context.Context, id sdn.ID) (any, error) {
	object, err := t.get(ctx, id)
	return &object, err
}

func (t *table[T, S, P]) findObjects(ctx context.Context, f *filter) iter.Seq2[any, error] {
	found := t.find(ctx, f)
	return func(yield func(any, error) bool) {
		found(func(object T, err error) bool { return yield(&object, err) })
	}
}

func (t *table[T, S, P]) metaOf(object any) sdn.Meta { return t.meta(object.(*T)) }

func (t *table[T, S, P]) isShared(c *call, object any) (bool, error) {
	if t.shared == nil {
		return false, nil
	}
	return t.shared(c, object.(*T))
}

func (t *table[T, S, P]) isDeletable(c *call, object any) (bool, error) {
	if t.canDelete == nil {
		return false, nil
	}
	return t.canDelete(c, object.(*T))
}

func (t *table[T, S, P]) readSpec(r *resource, b *body) any {
	var spec S
	b.required(needed(r.fields)...)
	if t.beforePost != nil {
		t.beforePost(b.call, b, &spec)
	}
	b.privileges(r.fields)
	if t.base != nil {
		*t.base(&spec) = b.base()
	}
	b.attributes(r.fields, &spec)
	if t.checkPost != nil {
		t.checkPost(b.call, b, &spec)
	}
	return spec
}

func (t *table[T, S, P]) createObject(ctx context.Context, spec any) (any, error) {
	object, err := t.create(ctx, spec.(S))
	return &object, err
}

func (t *table[T, S, P]) updateObject(r *resource, b *body, object any) (any, error) {
	var patch P
	now := object.(*T)
	if t.beforePut != nil {
		t.beforePut(b.call, b, now, &patch)
	}
	b.privileges(r.fields)
	if t.patch != nil {
		*t.patch(&patch) = b.changes(t.meta(now))
	}
	b.attributes(r.fields, &patch)
	if t.checkPut != nil {
		t.checkPut(b.call, b, now, &patch)
	}
	if err := b.done(); err != nil {
		return nil, err
	}
	changed, err := t.update(b.ctx(), t.meta(now).ID, patch)
	return &changed, err
}

// bulk makes createAll of a provider's function. Few resources have one.
func bulk[T, S any](create func(context.Context, []S) ([]T, error)) func(context.Context, []any) ([]any, error) {
	return func(ctx context.Context, specs []any) ([]any, error) {
		all := make([]S, len(specs))
		for i, spec := range specs {
			all[i] = spec.(S)
		}
		created, err := create(ctx, all)
		out := make([]any, len(created))
		for i := range created {
			out[i] = &created[i]
		}
		return out, err
	}
}
