package neutronapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// post creates one object, or several: all or none.
func (r *resource) post(w http.ResponseWriter, c *call) error {
	document, err := c.document()
	if err != nil {
		return err
	}
	values, bulk, err := r.bodies(document)
	if err != nil {
		return err
	}
	specs := make([]any, len(values))
	bodies := make([]*body, len(values))
	for i, v := range values {
		bodies[i] = &body{call: c, noun: r.member, values: v, post: true}
		specs[i] = r.readSpec(bodies[i])
		if err := bodies[i].done(); err != nil {
			return err
		}
	}
	created, err := r.make(c, bodies, specs)
	if err != nil {
		return err
	}
	for _, object := range created {
		c.made = append(c.made, string(r.meta(object).ID))
	}
	if bulk {
		r.writeAll(w, c, http.StatusCreated, created, nil)
	} else {
		r.writeOne(w, c, http.StatusCreated, created[0])
	}
	return nil
}

// bodies takes apart {"port": {…}} and {"ports": [{…}, {"port": {…}}]}.
func (r *resource) bodies(document map[string]any) (values []map[string]any, bulk bool, err error) {
	many, bulk := document[r.collection]
	if !bulk {
		one, there := document[r.member]
		if !there || one == nil {
			return nil, false, badRequest("Unable to find '" + r.member + "' in request body")
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
		return nil, bulk, badRequest(fmt.Sprintf("The body asks for %d %s, and at most %d are made at once", len(list), r.collection, maxItems))
	}
	for _, item := range list {
		object, ok := item.(map[string]any)
		if inner, wrapped := object[r.member]; wrapped && bulk {
			object, ok = inner.(map[string]any)
		}
		if !ok {
			return nil, bulk, badRequest("Object '" + r.member + "' contains invalid data")
		}
		values = append(values, object)
	}
	return values, bulk, nil
}

// make creates all objects or none.
func (r *resource) make(c *call, bodies []*body, specs []any) ([]any, error) {
	existing, err := r.existing(c, bodies)
	if err != nil {
		return nil, err
	}
	if r.createAll != nil && len(specs) > 1 {
		return r.createAll(c.ctx(), specs)
	}
	var out []any
	for _, spec := range specs {
		object, err := r.create.call(c.ctx(), spec)
		if err != nil {
			return nil, errors.Join(err, r.undo(c, out, existing))
		}
		out = append(out, object)
	}
	return out, nil
}

// existing returns the objects that exist already, by the Keys in the bodies' descriptions. The
// answer contains them, and undo must not delete them.
func (r *resource) existing(c *call, bodies []*body) (map[sdn.ID]bool, error) {
	var keys []string
	for _, b := range bodies {
		if !b.key.IsZero() {
			keys = append(keys, b.key.String())
		}
	}
	if len(keys) == 0 || len(bodies) < 2 {
		return nil, nil
	}
	ids := map[sdn.ID]bool{}
	for object, err := range r.find(c.ctx(), newFilter(url.Values{"description": keys})) {
		if err != nil {
			return nil, err
		}
		ids[r.meta(object).ID] = true
	}
	return ids, nil
}

// undoTimeout bounds undo, which continues after the client has disconnected.
const undoTimeout = 30 * time.Second

// undo deletes what was created before a failure, the last first.
func (r *resource) undo(c *call, created []any, existing map[sdn.ID]bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), undoTimeout)
	defer cancel()
	var errs []error
	for i := len(created) - 1; i >= 0; i-- {
		if id := r.meta(created[i]).ID; !existing[id] && r.remove != nil {
			errs = append(errs, r.remove(ctx, id))
		}
	}
	return errors.Join(errs...)
}
