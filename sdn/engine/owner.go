package engine

import (
	"context"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// ownProjects are the projects whose Keys are this installation's, besides the project
// without a name.
type ownProjects struct {
	mu    sync.RWMutex
	named map[string]bool
}

// note adds the projects that a call of this installation's own names. A server's clients
// name theirs.
func (o *ownProjects) note(ctx context.Context, projects ...string) {
	if _, served := sdn.ClientOf(ctx); served {
		return
	}
	for _, project := range projects {
		if o.has(project) {
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

// has reports whether the project is this installation's.
func (o *ownProjects) has(project string) bool {
	if project == "" {
		return true
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.named[project]
}

// owns is has for a call, which can name further projects.
func (o *ownProjects) owns(ctx context.Context, project string) bool {
	return o.has(project) || slices.Contains(sdn.ProjectsOf(ctx), project)
}

// disown makes the Key of another project's object a description like any other: a tenant
// may have written it. A server's clients see Keys as they are.
func (e *Engine) disown(ctx context.Context, m *sdn.Meta) {
	if _, served := sdn.ClientOf(ctx); served || m.Key.IsZero() || e.projects.owns(ctx, m.Project) {
		return
	}
	m.Description, m.Key, m.Foreign = m.Key.String(), sdn.Key{}, true
}
