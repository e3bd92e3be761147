package doctor

import (
	"errors"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// DatabaseFacts are the state of the database of the Docker front end.
type DatabaseFacts struct {
	Path    string
	Running bool // its daemon answers
	Health  reconcile.Health
}

// Database judges a database. Without one it finds nothing.
func Database(d DatabaseFacts) []Finding {
	f := findings{check: "database"}
	h := d.Health
	switch {
	case errors.Is(h.Err, reconcile.ErrInUse):
		if !d.Running {
			f.add(Problem, d.Path+" is open in another process, and kuryr does not answer",
				"`fuser "+d.Path+"` names the process: stop it, or wait until it answers")
		}
	case errors.Is(h.Err, reconcile.ErrNewer):
		f.add(Problem, d.Path+": "+h.Err.Error(), "install that version of kuryr again")
	case h.Err != nil:
		f.add(Problem, d.Path+" cannot be read: "+h.Err.Error(),
			"start kuryr, which keeps a damaged file as "+d.Path+".damaged and begins with an empty one")
	}
	if h.Full {
		f.add(Problem, d.Path+" has no room for new rows", "make room on its file system")
	}
	if h.Damaged != "" {
		f.add(Warning, d.Path+" was damaged and was replaced by an empty one; "+h.Damaged+" has what it was",
			"`kuryr doctor --fix` removes what Docker does not have; then delete "+h.Damaged)
	}
	if !h.Exists && len(f.list) == 0 {
		return nil
	}
	return f.orOK(d.Path + " is whole and has room")
}
