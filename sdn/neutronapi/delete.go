package neutronapi

import (
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// delete deletes one object.
func (r *resource) delete(w http.ResponseWriter, c *call) error {
	if c.hasBody() {
		return badRequest("Request body is not supported in DELETE.")
	}
	m, err := r.deletable(c, c.target())
	if err != nil {
		return err
	}
	revision, err := c.condition(r.title, m)
	if err != nil {
		return err
	}
	if err := r.deleteAt(c, m.ID, revision); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// deletable returns an object that the caller may delete.
func (r *resource) deletable(c *call, id sdn.ID) (sdn.Meta, error) {
	object, err := r.need(c, id)
	if err != nil {
		return sdn.Meta{}, err
	}
	m := r.meta(object)
	may := false
	if r.canDelete != nil {
		may, err = r.canDelete(c, object)
	}
	if err == nil && !may && !c.owns(m) {
		err = c.denied("it is another project's")
	}
	return m, err
}

// deleteAt deletes an object that has just been read at the revision; 0 is any revision. A
// provider that cannot compare the revision deletes the object at any.
func (r *resource) deleteAt(c *call, id sdn.ID, revision int64) error {
	if revision != 0 && r.removeIf != nil {
		return r.removeIf(c.ctx(), id, revision)
	}
	if conditional, ok := c.server.p.(sdn.ConditionalDelete); ok && revision != 0 && r.noun != "" {
		return conditional.DeleteIf(c.ctx(), r.noun, id, revision)
	}
	return r.remove(c.ctx(), id)
}
