package neutronapi

import "net/http"

// put changes one object.
func (r *resource) put(w http.ResponseWriter, c *call) error {
	document, err := c.document()
	if err != nil {
		return err
	}
	object, err := r.own(c, c.target())
	if err != nil {
		return err
	}
	values, ok := document[r.member].(map[string]any)
	if !ok {
		return badRequest("Unable to find '" + r.member + "' in request body")
	}
	b := &body{call: c, noun: r.member, values: values}
	if b.ifRevision, err = c.condition(r.title, r.meta(object)); err != nil {
		return err
	}
	if object, err = r.change(b, object); err != nil {
		return err
	}
	r.writeOne(w, c, http.StatusOK, object)
	return nil
}
