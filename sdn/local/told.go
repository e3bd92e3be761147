package local

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/failpoint"
)

// told remembers which definitions the domains have been told, so that a port whose groups are known costs the kernel the port alone. It may take too
// much for known, since the kernel forgets what no port has any more: then such a port is refused, and all that it needs is told anew.
type told struct {
	mu        sync.Mutex
	revisions map[string]map[definition]int64 // by domain
}

// definition names a security group or an address group.
type definition struct{ kind, id string }

// mostTold bounds what is remembered of a domain, of groups that are long gone among it.
const mostTold = 1 << 12

// knows tells whether a change's domain was told all of its definitions.
func (t *told) knows(c *change) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.revisions[c.domain]
	for id, g := range c.groups {
		if revision, is := known[definition{"group", id}]; !is || revision != g.Revision {
			return false
		}
	}
	for id, s := range c.sets {
		if revision, is := known[definition{"set", id}]; !is || revision != s.Revision {
			return false
		}
	}
	return true
}

func (t *told) note(c *change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.revisions[c.domain]
	if known == nil || len(known) >= mostTold {
		known = map[definition]int64{}
		t.revisions[c.domain] = known
	}
	for id, g := range c.groups {
		known[definition{"group", id}] = g.Revision
	}
	for id, s := range c.sets {
		known[definition{"set", id}] = s.Revision
	}
}

func (t *told) forget(domain string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.revisions, domain)
}

func (t *told) forgetAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.revisions = map[string]map[definition]int64{}
}

// tell has a domain know the definitions of a change, all of them unless it was told each before: a group's rules may name sets that were forgotten.
func (p *Provider) tell(ctx context.Context, c *change) (thought bool, err error) {
	if len(c.groups)+len(c.sets) == 0 || p.told.knows(c) {
		return true, nil
	}
	if err := p.datapath.UpdateGroups(ctx, c.domain, slices.Collect(maps.Values(c.groups)), slices.Collect(maps.Values(c.sets))); err != nil {
		p.told.forget(c.domain)
		return false, err
	}
	failpoint.Here("local.apply.groups")
	p.told.note(c)
	return false, nil
}

// updatePorts is the data path's for a change whose definitions the domain was told, or is thought to know.
func (p *Provider) updatePorts(ctx context.Context, c *change, thought bool, remove, add []router.Port) error {
	err := p.datapath.UpdatePorts(ctx, c.domain, remove, add)
	if !thought || len(c.groups) == 0 || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	p.told.forget(c.domain)
	if _, err := p.tell(ctx, c); err != nil {
		return err
	}
	return p.datapath.UpdatePorts(ctx, c.domain, remove, add)
}
