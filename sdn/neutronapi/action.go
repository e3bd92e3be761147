package neutronapi

import (
	"cmp"
	"encoding/json"
	"net/http"
)

// An action is a PUT below an object that changes it by parts.
type action[T any] struct {
	wrapped bool // the body has the member's name around it
	// locked changes one object by one call after another: the object is read again under the lock.
	locked bool
	// read reads the body. What it returns runs if the body is right.
	read func(*body) acting[T]
}

// acting changes an object, at a revision if that is not 0, and returns the answer.
type acting[T any] func(c *call, object T, revision int64) (any, error)

// act serves an action of a resource.
func (t tableOf[T]) act(s *server, name string, a action[T]) {
	t.table.act(s, name, action[any]{wrapped: a.wrapped, locked: a.locked, read: func(b *body) acting[any] {
		do := a.read(b)
		return func(c *call, object any, revision int64) (any, error) { return do(c, *object.(*T), revision) }
	}})
}

func (t *table) act(s *server, name string, a action[any]) {
	path := s.nouns + cmp.Or(t.path, t.collection) + "/{id}/" + name
	s.handle(path, map[string]handler{http.MethodPut: func(w http.ResponseWriter, c *call) error {
		document, err := c.document()
		if err != nil {
			return err
		}
		object, err := t.resource().own(c, c.target())
		if err != nil {
			return err
		}
		if a.wrapped {
			inner, ok := document[t.member].(map[string]any)
			if !ok {
				return badRequest("Unable to find '" + t.member + "' in request body")
			}
			document = inner
		}
		b := &body{call: c, noun: t.member, values: document}
		do := a.read(b)
		if err := b.done(); err != nil {
			return err
		}
		if a.locked {
			unlock, err := s.locks.lock(c.ctx(), string(c.target()))
			if err != nil {
				return err
			}
			defer unlock()
			if object, err = t.get.call(c.ctx(), c.target()); err != nil {
				return err
			}
		}
		revision, err := c.condition(t.title, t.meta(object))
		if err != nil {
			return err
		}
		answer, err := do(c, object, revision)
		if err == nil {
			writeJSON(w, http.StatusOK, answer)
		}
		return err
	}})
}

// answer is an object as the call sees it, with the member's name around it.
func (t *table) answer(c *call, object any) any {
	return map[string]any{t.member: json.RawMessage(appendObject(nil, t.resource().prepare().all, object, c.view()))}
}
