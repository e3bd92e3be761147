package claim

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/agent/wiring"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// This file brings attachments into the index that a start finds: those of the table, of an
// earlier version's journal, and of the API.

// Restore implements agent.Restorer: it reads the rows. Of two wanted rows of one port, between
// which a port was taken over, the newer has it. A row that is being deleted has its port until
// its interface is known to be gone, unless another row has it already.
func (c *Allocator) Restore(s *agent.Server) error {
	c.server, c.index.row = s, s.Row
	objects := map[*attachment]reconcile.Object{}
	var older []*attachment
	var leaving []agent.Row
	for r := range s.Rows() {
		if r.Spec.Port == nil {
			continue
		}
		if r.Phase == reconcile.Deleting {
			leaving = append(leaving, r)
			continue
		}
		a := &attachment{Intent: r.Spec}
		objects[a] = r.Object
		if other := c.index.holders[a.port()]; other != nil {
			if !a.after(other) {
				older = append(older, a)
				continue
			}
			c.index.detach(other)
			older = append(older, other)
		}
		c.index.hold(a)
		c.index.attach(a)
	}
	// Of several rows of one port the newest has it.
	sortslice.Func(leaving, func(a, b agent.Row) int { return cmp.Compare(b.Gen, a.Gen) })
	for _, r := range leaving {
		a := &attachment{Intent: r.Spec, stored: true, leaving: true}
		if c.index.holders[a.port()] == nil {
			c.index.hold(a)
		} else {
			in(c.index.released, a.port())[r.Object] = struct{}{}
		}
	}
	ctx := context.Background()
	for _, a := range older {
		in(c.index.released, a.port())[objects[a]] = struct{}{}
		if err := s.Drop(ctx, a.Attachment); err != nil {
			return err
		}
	}
	if err := c.importJournal(ctx); err != nil {
		c.Log.Error("journal of an earlier version not read in whole", "folder", c.Journal, "err", err)
	}
	c.republish()
	return nil
}

// bootFile identifies one boot of the kernel (random(4)).
const bootFile = "/proc/sys/kernel/random/boot_id"

// old is a record as earlier versions kept it, in a file of this boot's folder.
type old struct {
	Attachment agent.Attachment
	UID        types.UID
	Port       v1.KuryrPortSpec
	Since      time.Time
	Adopted    bool
	Released   bool // the API may not know yet
}

// importJournal makes rows of the records of an earlier version, once.
func (c *Allocator) importJournal(ctx context.Context) error {
	if c.Journal == "" {
		return nil
	}
	boot := c.Boot
	if boot == "" {
		id, err := os.ReadFile(bootFile)
		if err != nil {
			return err
		}
		boot = strings.TrimSpace(string(id))
	}
	named, err := jsonstore.Load[old](jsonstore.Shared(filepath.Join(c.Journal, boot)))
	var all []old
	for _, r := range named {
		all = append(all, r)
	}
	// The newest record of a port has it. Released ones come last.
	slices.SortFunc(all, func(a, b old) int {
		switch {
		case a.Released != b.Released:
			return order(b.Released)
		case a.Adopted != b.Adopted:
			return order(b.Adopted)
		}
		return b.Since.Compare(a.Since)
	})
	for _, r := range all {
		err = errors.Join(err, c.importRecord(ctx, r))
	}
	if err != nil {
		return err // and again at the next start
	}
	return os.RemoveAll(c.Journal)
}

func order(second bool) int {
	if second {
		return -1
	}
	return 1
}

func (c *Allocator) importRecord(ctx context.Context, r old) error {
	w, err := wiring.Of(&r.Port)
	if err != nil {
		// It is a pod's all the same, and can be deleted.
		c.Log.Error("port of a record cannot be read", "container", r.Attachment.Container, "port", r.Port.ID, "err", err)
		w.Port = sdn.Port{
			Meta: sdn.Meta{ID: sdn.ID(r.Port.ID)}, VIF: sdn.VIF{Type: r.Port.VIF.Type, Details: r.Port.VIF.Details},
		}
	}
	a := &attachment{Intent: agent.Intent{Attachment: r.Attachment, Port: &agent.Allocation{
		Wiring: w, Pool: r.Port.Pool, UID: string(r.UID), Since: r.Since, Adopted: r.Adopted,
	}}}
	made, err := c.adopt(ctx, a, func() bool { return c.index.holders[a.port()] == nil && c.index.at(a.Key()) == nil })
	if err == nil && made && r.Released {
		return c.server.Drop(ctx, r.Attachment)
	}
	return err
}

// adopt makes a row of an attachment that has none, if it is missing, which is called with the
// lock held.
func (c *Allocator) adopt(ctx context.Context, a *attachment, missing func() bool) (made bool, err error) {
	err = c.server.Adopt(ctx, a.Attachment, func() (agent.Intent, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if made = missing(); made {
			c.index.hold(a)
		}
		return a.Intent, made
	})
	return made, err
}

// adoptPort makes a row for the pod that the API has for a port, if the table has none.
func (c *Allocator) adoptPort(ctx context.Context, name string) error {
	c.mu.Lock()
	p := c.index.ports[name]
	if p == nil || p.broken != nil || !c.index.unknown(p) {
		c.mu.Unlock()
		return nil
	}
	pp := p.object.Status.Pod
	a := &attachment{Intent: agent.Intent{
		Attachment: agent.Attachment{
			Container: containerOf(pp), Interface: pp.Interface, Network: c.Network,
			Pod: &agent.Pod{Namespace: pp.Namespace, Name: pp.Name, UID: string(pp.UID)},
		},
		Port: &agent.Allocation{
			Wiring: p.wiring, Pool: p.object.Spec.Pool, UID: string(pp.UID), Since: pp.Since.UTC(), Adopted: true,
		},
	}}
	if pp.Container == "" {
		a.Network = "" // GC, which goes by container, must not delete it
	}
	c.mu.Unlock()
	made, err := c.adopt(ctx, a, func() bool {
		return c.index.ports[name] == p && c.index.unknown(p) && p.object.Status.Pod.Container == pp.Container
	})
	if err == nil && made {
		c.Log.InfoContext(ctx, "port adopted from the API",
			"port", name, "pod", pp.Namespace+"/"+pp.Name, "container", pp.Container)
	}
	return err
}
