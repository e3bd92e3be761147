// Package dockertest has what tests of the Docker front end share. It owns the faulty SDN.
package dockertest

import (
	"context"
	"iter"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// Provider is a faulty SDN: it calls hooks around each call of an SDN that works. Hooks that are
// nil are not called. A test sets them before the calls that they are about.
type Provider struct {
	sdn.Provider
	// Can changes the capabilities.
	Can func(*sdn.Capabilities)
	// Before is called before a call. It may change the arguments. Its error is the answer, and
	// the SDN is not called.
	Before func(c Call) error
	// Found is called for each object that a Find finds, and may change it.
	Found func(c Call, object any)
	// After is called after a call and may change the result. It returns the error that is
	// answered. A Find is one call, which ends with its last object.
	After func(c Call, err error) error
}

// Call is a call of a method of sdn.Provider.
type Call struct {
	Context context.Context
	Method  string
	// Args has pointers to the arguments, such as *sdn.NetworkSpec.
	Args []any
	// Result is a pointer to the result, nil before the call and for methods without one.
	Result any
}

// Changes reports whether the call changes the SDN.
func (c Call) Changes() bool {
	for _, verb := range []string{
		"Ensure", "Update", "Delete", "Attach", "Detach", "Apply", "Add", "Remove", "Publish", "Unpublish",
	} {
		if strings.HasPrefix(c.Method, verb) {
			return true
		}
	}
	return false
}

// Arg returns the first argument of a type, and whether the call has one.
func Arg[T any](c Call) (*T, bool) {
	for _, a := range c.Args {
		if a, ok := a.(*T); ok {
			return a, true
		}
	}
	return nil, false
}

// Capabilities implements sdn.Provider.
func (p *Provider) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	if p.Can != nil {
		p.Can(&can)
	}
	return can
}

// Ping implements sdn.Provider.
func (p *Provider) Ping(ctx context.Context) error {
	return p.call(Call{Context: ctx, Method: "Ping"}, nil, func() error { return p.Provider.Ping(ctx) })
}

func (p *Provider) call(c Call, result any, serve func() error) error {
	if p.Before != nil {
		if err := p.Before(c); err != nil {
			return err
		}
	}
	err := serve()
	if c.Result = result; p.After != nil {
		err = p.After(c, err)
	}
	return err
}

func get[A, T any](
	ctx context.Context, p *Provider, method string, serve func(context.Context, A) (T, error), a A,
) (out T, err error) {
	err = p.call(Call{ctx, method, []any{&a}, nil}, &out, func() (err error) {
		out, err = serve(ctx, a)
		return err
	})
	return out, err
}

func get2[A, B, T any](
	ctx context.Context, p *Provider, method string, serve func(context.Context, A, B) (T, error), a A, b B,
) (out T, err error) {
	err = p.call(Call{ctx, method, []any{&a, &b}, nil}, &out, func() (err error) {
		out, err = serve(ctx, a, b)
		return err
	})
	return out, err
}

func do[A any](
	ctx context.Context, p *Provider, method string, serve func(context.Context, A) error, a A,
) error {
	return p.call(Call{ctx, method, []any{&a}, nil}, nil, func() error { return serve(ctx, a) })
}

func do2[A, B any](
	ctx context.Context, p *Provider, method string, serve func(context.Context, A, B) error, a A, b B,
) error {
	return p.call(Call{ctx, method, []any{&a, &b}, nil}, nil, func() error { return serve(ctx, a, b) })
}

func do3[A, B, C any](
	ctx context.Context, p *Provider, method string,
	serve func(context.Context, A, B, C) error, a A, b B, c C,
) error {
	return p.call(Call{ctx, method, []any{&a, &b, &c}, nil}, nil, func() error { return serve(ctx, a, b, c) })
}

func find[Q, T any](
	ctx context.Context, p *Provider, method string,
	serve func(context.Context, Q) iter.Seq2[T, error], q Q,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		c := Call{ctx, method, []any{&q}, nil}
		going := true
		err := p.call(c, nil, func() error {
			for object, err := range serve(ctx, q) {
				if err != nil {
					return err
				}
				if p.Found != nil {
					p.Found(c, &object)
				}
				if going = yield(object, nil); !going {
					return nil
				}
			}
			return nil
		})
		if err != nil && going {
			var none T
			yield(none, err)
		}
	}
}
