package local

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/kuryr/kuryr/datapath/fabric"
	"github.com/kuryr/kuryr/datapath/policy"
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

// untold are the definitions of a change that its domain does not know yet.
func (t *told) untold(c *change) (groups []policy.Group, sets []policy.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.revisions[c.domain]
	for id, g := range c.groups {
		if revision, is := known[definition{"group", id}]; !is || revision != g.Revision {
			groups = append(groups, g)
		}
	}
	for id, s := range c.sets {
		if revision, is := known[definition{"set", id}]; !is || revision != s.Revision {
			sets = append(sets, s)
		}
	}
	return groups, sets
}

func (t *told) note(domain string, groups []policy.Group, sets []policy.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.revisions[domain]
	if known == nil || len(known) >= mostTold {
		known = map[definition]int64{}
		t.revisions[domain] = known
	}
	for _, g := range groups {
		known[definition{"group", g.ID}] = g.Revision
	}
	for _, s := range sets {
		known[definition{"set", s.ID}] = s.Revision
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

// updatePorts is the data path's for a change whose domain was told what it needs, or was thought to know it.
func (p *Provider) updatePorts(ctx context.Context, c *change, thought bool, remove, add []fabric.Port) error {
	err := p.datapath.UpdatePorts(ctx, c.domain, remove, add)
	if !thought || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	p.told.forget(c.domain)
	if _, err := p.tell(ctx, c); err != nil {
		return err
	}
	return p.datapath.UpdatePorts(ctx, c.domain, remove, add)
}

// tell has a domain know the definitions of a change. It tells whether some were thought to be known.
func (p *Provider) tell(ctx context.Context, c *change) (thought bool, err error) {
	groups, sets := p.told.untold(c)
	thought = len(groups)+len(sets) < len(c.groups)+len(c.sets)
	if len(groups)+len(sets) == 0 {
		return thought, nil
	}
	if err := p.datapath.UpdateGroups(ctx, c.domain, groups, sets); err != nil {
		p.told.forget(c.domain)
		return thought, err
	}
	failpoint.Here("local.apply.groups")
	p.told.note(c.domain, groups, sets)
	return thought, nil
}
