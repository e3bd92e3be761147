package neutron

import (
	"cmp"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// owner says which objects are this installation's: those with one of its Keys in a
// project of its own. Any tenant can write a Key into the description of an object that
// this installation sees, because its credentials see all projects or because the object
// is shared.
type owner struct {
	installation string
	project      func() string // that objects are made in unless a call names another

	mu    sync.RWMutex
	named map[string]bool // projects that calls have named
}

// note adds a project that a call names.
func (o *owner) note(projects ...string) {
	for _, project := range projects {
		if project == "" {
			continue
		}
		o.mu.Lock()
		if o.named == nil {
			o.named = map[string]bool{}
		}
		o.named[project] = true
		o.mu.Unlock()
	}
}

// has reports whether a project is the installation's own.
func (o *owner) has(project string) bool {
	if project == o.project() {
		return true
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.named[project]
}

// keyOf is the Key that the description of an object of the installation's own projects
// carries. In any other project it is a text. nil takes every description.
func (o *owner) keyOf(m *meta) (sdn.Key, bool) {
	key, ok := sdn.ParseKey(m.Description)
	if !ok || o != nil && !o.has(m.Project) {
		return sdn.Key{}, false
	}
	return key, true
}

// ownProject is the project that objects are made in unless a call names another: the
// configuration's, or that of the credentials if it has none.
func (p *Provider) ownProject() string { return cmp.Or(p.config.Project, p.client.auth.project()) }

// projectOf is the project that a Base means. It is known once a request was answered.
func (p *Provider) projectOf(b sdn.Base) string { return cmp.Or(b.Project, p.ownProject()) }

// ofProject leaves out the objects of other projects than the one that a Base means.
func ofProject[W wire](p *Provider, b sdn.Base, found []W) []W {
	project := p.projectOf(b)
	return slices.DeleteFunc(found, func(w W) bool { return w.common().Project != project })
}
