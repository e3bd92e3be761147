package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// post makes one object, or several: all or none.
func (n *noun[T, E, S, P]) post(w http.ResponseWriter, c *call) error {
	document, err := c.document()
	if err != nil {
		return err
	}
	values, bulk, err := n.bodies(document)
	if err != nil {
		return err
	}
	specs := make([]S, len(values))
	bodies := make([]*body, len(values))
	for i, v := range values {
		bodies[i] = &body{call: c, noun: n.Member, values: v, post: true}
		specs[i] = n.spec(c, bodies[i])
		if err := bodies[i].done(); err != nil {
			return err
		}
	}
	made, err := n.make(c, bodies, specs)
	if err != nil {
		return err
	}
	view := n.view(c)
	out := make([]any, len(made))
	for i, t := range made {
		c.made = append(c.made, string(n.meta(t).ID))
		out[i] = view.of(n.encode(t))
	}
	if bulk {
		writeJSON(w, http.StatusCreated, map[string]any{n.Collection: out})
	} else {
		writeJSON(w, http.StatusCreated, map[string]any{n.Member: out[0]})
	}
	return nil
}

// bodies takes apart {"port": {…}} and {"ports": [{…}, {"port": {…}}]}.
func (n *noun[T, E, S, P]) bodies(document map[string]any) (values []map[string]any, bulk bool, err error) {
	many, bulk := document[n.Collection]
	if !bulk {
		one, there := document[n.Member]
		if !there || one == nil {
			return nil, false, badRequest("Unable to find '" + n.Member + "' in request body")
		}
		many = []any{one}
	}
	list, ok := many.([]any)
	switch {
	case !ok:
		return nil, bulk, badRequest("Body contains invalid data")
	case len(list) == 0:
		return nil, bulk, badRequest("Resources required")
	case len(list) > maxItems:
		return nil, bulk, badRequest(fmt.Sprintf("The body asks for %d %s, and at most %d are made at once", len(list), n.Collection, maxItems))
	}
	for _, item := range list {
		object, ok := item.(map[string]any)
		if inner, wrapped := object[n.Member]; wrapped && bulk {
			object, ok = inner.(map[string]any)
		}
		if !ok {
			return nil, bulk, badRequest("Object '" + n.Member + "' contains invalid data")
		}
		values = append(values, object)
	}
	return values, bulk, nil
}

// make makes all or none.
func (n *noun[T, E, S, P]) make(c *call, bodies []*body, specs []S) ([]T, error) {
	before, err := n.before(c, bodies)
	if err != nil {
		return nil, err
	}
	if n.createAll != nil && len(specs) > 1 {
		return n.createAll(c.ctx(), specs)
	}
	var out []T
	for _, spec := range specs {
		t, err := n.create(c.ctx(), spec)
		if err != nil {
			return nil, errors.Join(err, n.takeBack(c, out, before))
		}
		out = append(out, t)
	}
	return out, nil
}

// before finds which of the objects are there already, by the Keys that the bodies have for descriptions: they are answered with, and not to be taken
// back.
func (n *noun[T, E, S, P]) before(c *call, bodies []*body) (map[sdn.ID]bool, error) {
	var keys []string
	for _, b := range bodies {
		if !b.key.IsZero() {
			keys = append(keys, b.key.String())
		}
	}
	if len(keys) == 0 || len(bodies) < 2 {
		return nil, nil
	}
	there := map[sdn.ID]bool{}
	for t, err := range n.find(c.ctx(), newFilter(url.Values{"description": keys})) {
		if err != nil {
			return nil, err
		}
		there[n.meta(t).ID] = true
	}
	return there, nil
}

// takeBackTime is how long it may take to undo, which goes on when nobody waits for the answer any more.
const takeBackTime = 30 * time.Second

// takeBack deletes what was made before a failure, the last first.
func (n *noun[T, E, S, P]) takeBack(c *call, made []T, before map[sdn.ID]bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), takeBackTime)
	defer cancel()
	var errs []error
	for i := len(made) - 1; i >= 0; i-- {
		if id := n.meta(made[i]).ID; !before[id] && n.remove != nil {
			errs = append(errs, n.remove(ctx, id))
		}
	}
	return errors.Join(errs...)
}
