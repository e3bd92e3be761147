package neutronapi

import (
	"context"
	"fmt"
	"iter"

	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/sdn"
)

// What the contract applies as a whole value (a security group, an address group, a QoS policy) this API changes by its parts. So it is read, changed and
// applied again; who does the same at the same time waits in this process, and is seen by the revision from another.

// rewrites is how often a value is read anew because another process was faster.
const rewrites = 20

// valueChange is what is to become of a value: change writes it into what is to be applied, which says what there is, or refuses. It may be called several
// times. With a revision it is made to the value of that revision only.
type valueChange[S any] struct {
	ifRevision int64
	change     func(*S) error
	patch      sdn.Patch // if it is not zero, it is made instead of the change, or after it: see clearing
	both       bool      // the change is made too
}

// rewrite makes the object at id what a change says. spec says what there is, to be applied at the revision it has.
func rewrite[T, S any](ctx context.Context, s *server, id sdn.ID, by valueChange[S], get func(context.Context, sdn.ID) (T, error), spec func(T) (S, sdn.Meta),
	apply func(context.Context, S) (T, error)) (out T, err error) {
	unlock, err := s.locks.lock(ctx, string(id))
	if err != nil {
		return out, err
	}
	defer unlock()
	for n := 1; ; n++ {
		if out, err = get(ctx, id); err != nil {
			return out, err
		}
		value, m := spec(out)
		if by.ifRevision != 0 && by.ifRevision != m.Revision {
			return out, &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Stale, ID: string(id), Detail: fmt.Sprintf("it is at revision %d, not %d", m.Revision, by.ifRevision)}
		}
		if err := by.change(&value); err != nil {
			return out, err
		}
		if out, err = apply(ctx, value); sdn.ReasonOf(err) != sdn.Stale || by.ifRevision != 0 || n == rewrites {
			return out, err
		}
	}
}

// A valuePatch is what a body says of such a value. change makes it of what is no part of the
// Patch; nil: nothing.
type valuePatch[S any] struct {
	sdn.Patch
	change   func(*S)
	clearing sdn.Patch // see clearing
}

// also adds to the change.
func (p *valuePatch[S]) also(change func(*S)) {
	before := p.change
	p.change = func(value *S) {
		if before != nil {
			before(value)
		}
		change(value)
	}
}

// of returns the change of a value. base says where the value's Base is.
func (p valuePatch[S]) of(base func(*S) *sdn.Base) valueChange[S] {
	return valueChange[S]{ifRevision: p.IfRevision, patch: p.clearing, both: p.change != nil, change: func(value *S) error {
		rebase(base(value), p.Patch)
		if p.change != nil {
			p.change(value)
		}
		return nil
	}}
}

// identity selects the object that a spec is of: the one with its Key in its project.
func identity(b sdn.Base) sdn.Match {
	return sdn.Match{Keys: []sdn.Key{b.Key}, Projects: []string{b.Project}}
}

// unlessThere gives the object of a Key, and makes it where there is none: what it is others may have changed since it was made.
func unlessThere[T any](
	ctx context.Context, s *server, title string, base sdn.Base,
	find func(sdn.Match) iter.Seq2[T, error], create func() (T, error),
) (out T, err error) {
	if base.Key.IsZero() {
		return create()
	}
	unlock, err := s.locks.lock(ctx, title+" "+base.Key.String()+" "+base.Project)
	if err != nil {
		return out, err
	}
	defer unlock()
	if there, ok, err := sdn.First(find(identity(base))); ok || err != nil {
		return there, err
	}
	return create()
}

// checked gives the two ways to delete an object, at any revision and at one, that first ask whether it may be.
func (s *server) checked(kind sdn.Noun, check func(context.Context, sdn.ID) error, remove func(context.Context, sdn.ID) error) (
	plain func(context.Context, sdn.ID) error, at func(context.Context, sdn.ID, int64) error) {
	at = func(ctx context.Context, id sdn.ID, revision int64) error {
		if err := check(ctx, id); err != nil {
			return err
		}
		if conditional, ok := s.p.(sdn.ConditionalDelete); ok && revision != 0 {
			if err := conditional.DeleteIf(ctx, kind, id, revision); !sdn.IsUnsupported(err) {
				return err
			}
		}
		return remove(ctx, id)
	}
	return func(ctx context.Context, id sdn.ID) error { return at(ctx, id, 0) }, at
}

// rebase writes what a patch says of every object into a value's Base.
func rebase(b *sdn.Base, p sdn.Patch) {
	if p.Key != nil {
		b.Key = *p.Key
	}
	if p.Name != nil {
		b.Name = *p.Name
	}
	if p.Description != nil {
		b.Description = *p.Description
	}
	if p.Tags != nil {
		b.Tags = *p.Tags
	}
}

// clearing returns the patch if it empties a name or a description. A value cannot do that: what is
// empty in it stays as it is.
func (b *body) clearing(title string, m sdn.Meta, p sdn.Patch) sdn.Patch {
	name := p.Name != nil && *p.Name == "" && m.Name != ""
	description := p.Description != nil && *p.Description == "" && m.Description != "" && p.Key == nil
	if !name && !description {
		return sdn.Patch{}
	}
	if _, ok := b.server.p.(sdn.MetaPatch); !ok {
		b.fail(&sdn.Error{
			Kind: sdn.KindUnsupported, Noun: title, ID: string(m.ID),
			Detail: "a name or a description can become another, but not none",
		})
	}
	return p
}

// changeValue makes a change of a value: by the value, by a patch, or by both. The value is first,
// because only it is refused.
func changeValue[T, S any](
	ctx context.Context, s *server, noun sdn.Noun, id sdn.ID, by valueChange[S],
	get func(context.Context, sdn.ID) (T, error), spec func(T) (S, sdn.Meta),
	apply func(context.Context, S) (T, error),
) (out T, err error) {
	unlock, err := s.locks.lock(ctx, string(id))
	if err != nil {
		return out, err
	}
	defer unlock()
	ctx = holding(ctx, string(id))
	if by.patch == (sdn.Patch{}) || by.both {
		out, err = rewrite(ctx, s, id, by, get, spec, apply)
		by.patch.IfRevision = 0 // the value has another revision now
		if err != nil || by.patch == (sdn.Patch{}) {
			return out, err
		}
	}
	if err := s.p.(sdn.MetaPatch).PatchMeta(ctx, noun, id, by.patch); err != nil {
		return out, err
	}
	return get(ctx, id)
}

// locks keep calls for one object apart.
type locks struct{ keymutex.Mutex }

type holdingKey struct{}

// holding marks a context as one of who has the lock of a name, and need not wait for it again.
func holding(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, holdingKey{}, name)
}

// lock waits for the name. The function it gives lets go.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	if ctx.Value(holdingKey{}) == name {
		return func() {}, nil
	}
	if unlock, err = l.Lock(ctx, name); err != nil {
		return nil, sdn.Unavailable(err, "API", "another call for the same object has not ended in time")
	}
	return unlock, nil
}
