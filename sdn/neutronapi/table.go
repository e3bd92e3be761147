package neutronapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// A table describes one resource, of Neutron or of Octavia: its names, its attributes, and the
// calls of the provider. Objects, requests for new ones and changes are pointers in its functions,
// to which the functions below give their types. A nil function means that the API lacks the
// method, unless its comment says otherwise.
type table struct {
	member, collection string   // its names in bodies
	path               string   // below /v2.0/; "" is the collection
	title              string   // of one object in errors: "subnet pool"
	noun               sdn.Noun // for sdn.ConditionalDelete; "" if that does not delete it

	meta func(object any) sdn.Meta
	// shows are the attributes that objects show of their Meta, before the fields.
	shows  []metaField
	fields []field
	// base and patch say where a new object's Base and a change's Patch are. With them, a body
	// has a name, a description and a project; nil: fields read all that a body has.
	base  func(spec any) *sdn.Base
	patch func(change any) *sdn.Patch
	tags  bool // objects have the paths of tags; patch and update change these

	get getCall
	// find takes from the filter what the provider can select by. The rest is compared with
	// the attributes.
	find func(context.Context, *filter) iter.Seq2[any, error]
	// shared reports whether every caller sees an object. nil: only its project does.
	shared func(*call, any) (bool, error)
	// canDelete reports whether the caller may delete another project's object. nil: it may not.
	canDelete func(*call, any) (bool, error)

	// beforePost and beforePut run before the fields are read, checkPost and checkPut after it.
	// They read what concerns several attributes, and check what the body refers to.
	beforePost, checkPost func(c *call, b *body, spec any)
	beforePut, checkPut   func(c *call, b *body, object, change any)

	create createCall
	// createAll creates all objects or none, see bulk. nil: they are created one by one, and
	// deleted again if one fails. A crash in between leaves some of them.
	createAll func(ctx context.Context, specs []any) ([]any, error)
	update    updateCall
	remove    func(context.Context, sdn.ID) error
	// removeIf removes an object at a revision. nil: resource.deleteAt says how it is done.
	removeIf func(context.Context, sdn.ID, int64) error
}

// The calls of a provider, each with a function that makes what it returns or takes.
type (
	getCall struct {
		zero func() any // an object that shows the types of the attributes
		call func(context.Context, sdn.ID) (any, error)
	}
	createCall struct {
		spec func() any
		call func(ctx context.Context, spec any) (any, error)
	}
	updateCall struct {
		patch func() any
		call  func(ctx context.Context, id sdn.ID, change any) (any, error)
	}
)

func made[T any]() any { return new(T) }

//go:noinline
func got[T any](get func(context.Context, sdn.ID) (T, error)) getCall {
	return getCall{made[T], func(ctx context.Context, id sdn.ID) (any, error) {
		object, err := get(ctx, id)
		return &object, err
	}}
}

// pointer and pointers make pointers of what a provider returns.
func pointer[T any](object T, err error) (any, error) { return &object, err }

func pointers[T any](found iter.Seq2[T, error]) iter.Seq2[any, error] {
	return func(yield func(any, error) bool) {
		found(func(object T, err error) bool { return yield(&object, err) })
	}
}

//go:noinline
func sought[T any](find func(context.Context, *filter) iter.Seq2[T, error]) func(context.Context, *filter) iter.Seq2[any, error] {
	return func(ctx context.Context, f *filter) iter.Seq2[any, error] { return pointers(find(ctx, f)) }
}

//go:noinline
func creates[S, T any](create func(context.Context, S) (T, error)) createCall {
	return createCall{made[S], func(ctx context.Context, spec any) (any, error) {
		object, err := create(ctx, *spec.(*S))
		return &object, err
	}}
}

//go:noinline
func updates[P, T any](update func(context.Context, sdn.ID, P) (T, error)) updateCall {
	return updateCall{made[P], func(ctx context.Context, id sdn.ID, change any) (any, error) {
		object, err := update(ctx, id, *change.(*P))
		return &object, err
	}}
}

// bulk makes createAll of a provider's function. Few resources have one.
//
//go:noinline
func bulk[S, T any](create func(context.Context, []S) ([]T, error)) func(context.Context, []any) ([]any, error) {
	return func(ctx context.Context, specs []any) ([]any, error) {
		all := make([]S, len(specs))
		for i, spec := range specs {
			all[i] = *spec.(*S)
		}
		created, err := create(ctx, all)
		out := make([]any, len(created))
		for i := range created {
			out[i] = &created[i]
		}
		return out, err
	}
}

//go:noinline
func judged[P any](f func(*call, P) (bool, error)) func(*call, any) (bool, error) {
	return func(c *call, object any) (bool, error) { return f(c, object.(P)) }
}

//go:noinline
func hook[P any](f func(*call, *body, P)) func(*call, *body, any) {
	return func(c *call, b *body, spec any) { f(c, b, spec.(P)) }
}

//go:noinline
func hookOn[T, P any](f func(*call, *body, T, P)) func(*call, *body, any, any) {
	return func(c *call, b *body, object, change any) { f(c, b, object.(T), change.(P)) }
}

// tableOf is a table whose objects are of type T.
type tableOf[T any] struct{ *table }

// need returns an object that the caller sees. An object that it does not see is not found.
func (t tableOf[T]) need(c *call, id sdn.ID) (T, error) {
	object, err := t.resource().need(c, id)
	return *object.(*T), err
}

// own returns an object that the caller may change. The policy denies one that it only sees.
func (t tableOf[T]) own(c *call, id sdn.ID) (T, error) {
	object, err := t.resource().own(c, id)
	return *object.(*T), err
}

// resource returns what the handlers serve.
func (t *table) resource() *resource { return &resource{table: t} }

// setTags changes only the tags.
func (t *table) setTags(ctx context.Context, id sdn.ID, change sdn.Patch) error {
	p := t.update.patch()
	*t.patch(p) = change
	_, err := t.update.call(ctx, id, p)
	return err
}

func (t *table) readSpec(b *body) any {
	spec := t.create.spec()
	b.required(needed(t.fields)...)
	if t.beforePost != nil {
		t.beforePost(b.call, b, spec)
	}
	b.privileges(t.fields)
	if t.base != nil {
		*t.base(spec) = b.base()
	}
	b.attributes(t.fields, spec)
	if t.checkPost != nil {
		t.checkPost(b.call, b, spec)
	}
	return spec
}

// change reads a change of an object from the body, and makes it unless the body is wrong.
func (t *table) change(b *body, object any) (any, error) {
	patch := t.update.patch()
	if t.beforePut != nil {
		t.beforePut(b.call, b, object, patch)
	}
	b.privileges(t.fields)
	if t.patch != nil {
		*t.patch(patch) = b.changes(t.meta(object))
	}
	b.attributes(t.fields, patch)
	if t.checkPut != nil {
		t.checkPut(b.call, b, object, patch)
	}
	if err := b.done(); err != nil {
		return nil, err
	}
	return t.update.call(b.ctx(), t.meta(object).ID, patch)
}
