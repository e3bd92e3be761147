//go:build linux

package main

import (
	"context"
	"net/url"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
)

// resource describes a resource of the API for the commands list and show. E is an object.
type resource[E any] struct {
	names   api.Resource[E]
	title   string // "subnet pool"
	common  func(E) api.Common
	filters []string          // of a list, besides id, name and tags
	list    []table.Column[E] // of a list, after id and name
	show    []table.Column[E] // of one object, after those of a list
	// fill, if set, asks for what the API does not tell with the object.
	fill func(context.Context, *api.Client, *E) error
	// called returns the users' name of an object, "" if they have none. nil: they never have.
	called func(userNames, E) string
	// named reports whether a word that is none of these names stands for the object.
	named func(names userNames, e E, word string) bool
	// more returns columns of a list that need other objects.
	more func(topology.Objects, userNames) []table.Column[E]
}

// untypedResource is a resource without its type, so that the commands are compiled only once.
type untypedResource struct {
	untyped
	member  string // its name in the API
	title   string
	filters []string
	called  bool // users have names for objects
	more    bool // moreColumns returns any
}

// untyped returns what the commands use.
func (r *resource[E]) untyped() *untypedResource {
	return &untypedResource{
		untyped: r, member: r.names.Member, title: r.title, filters: r.filters,
		called: r.called != nil, more: r.more != nil,
	}
}

// find returns the object with an id or a name, see untypedResource.find.
func (r *resource[E]) find(ctx context.Context, client *api.Client, names userNames, id string) (E, error) {
	object, err := r.untyped().find(ctx, client, names, id)
	e, _ := object.(E)
	return e, err
}

// untyped is the part of a resource that depends on its type. An object is an E.
type untyped interface {
	listObjects(context.Context, *api.Client, url.Values) ([]any, error)
	getObject(ctx context.Context, client *api.Client, id string) (any, error)
	// filled returns the object with what fill asks for.
	filled(ctx context.Context, client *api.Client, object any) (any, error)
	commonOf(object any) api.Common
	calledName(names userNames, object any) string
	isNamed(names userNames, object any, word string) bool
	listColumns() []table.Column[any]
	showColumns() []table.Column[any]
	moreColumns(topology.Objects, userNames) []table.Column[any]
}

func (r *resource[E]) listObjects(ctx context.Context, client *api.Client, query url.Values) ([]any, error) {
	all, err := api.List(ctx, client, r.names, query)
	out := make([]any, len(all))
	for i, e := range all {
		out[i] = e
	}
	return out, err
}

func (r *resource[E]) getObject(ctx context.Context, client *api.Client, id string) (any, error) {
	return api.Get(ctx, client, r.names, id)
}

func (r *resource[E]) filled(ctx context.Context, client *api.Client, object any) (any, error) {
	if r.fill == nil {
		return object, nil
	}
	e := object.(E)
	err := r.fill(ctx, client, &e)
	return e, err
}

func (r *resource[E]) commonOf(object any) api.Common { return r.common(object.(E)) }

func (r *resource[E]) calledName(names userNames, object any) string {
	if r.called == nil {
		return ""
	}
	return r.called(names, object.(E))
}

func (r *resource[E]) isNamed(names userNames, object any, word string) bool {
	return r.named != nil && r.named(names, object.(E), word)
}

func (r *resource[E]) listColumns() []table.Column[any] { return untypedColumns(r.list) }

func (r *resource[E]) showColumns() []table.Column[any] { return untypedColumns(r.show) }

func (r *resource[E]) moreColumns(o topology.Objects, names userNames) []table.Column[any] {
	return untypedColumns(r.more(o, names))
}

func untypedColumns[E any](columns []table.Column[E]) []table.Column[any] {
	out := make([]table.Column[any], len(columns))
	for i, c := range columns {
		out[i] = table.Column[any]{Name: c.Name, Value: func(v any) string { return c.Value(v.(E)) }}
	}
	return out
}
