package claim

import (
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
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node"
	"github.com/kuryr/kuryr/kube/node/wiring"
	"github.com/kuryr/kuryr/sdn"
)

// key is an attachment's identity.
type key struct{ container, iface string }

func keyOf(a node.Attachment) key { return key{a.Container, a.Interface} }

// record is what a row says of an attachment.
type record struct {
	Attachment node.Attachment
	UID        types.UID // the pod's in the API; the runtime may tell none
	Port, Pool string    // names
	Since      time.Time // to the second, as the API keeps it
	// Adopted is set where the API alone knew of it: its container is of before a reboot, or the table was lost.
	Adopted bool
}

func recordOf(i node.Intent) record {
	return record{
		Attachment: i.Attachment, UID: types.UID(i.Port.UID), Port: string(i.Port.Wiring.Port.ID), Pool: i.Port.Pool,
		Since: i.Port.Since, Adopted: i.Port.Adopted,
	}
}

// allocation is the reverse of recordOf.
func (a *attachment) allocation() *node.Allocation {
	return &node.Allocation{Wiring: a.wiring, Pool: a.Pool, UID: string(a.UID), Since: a.Since, Adopted: a.Adopted}
}

// after reports whether this is the newer of two records of one port. An adopted record is older
// than all others.
func (r record) after(other record) bool {
	if r.Adopted != other.Adopted {
		return other.Adopted
	}
	return r.Since.After(other.Since)
}

// Restore reads the rows. Of two wanted rows of one port, between which a port was taken over,
// the newer has it. A row that is being deleted has its port until its interface is known to be
// gone, unless another row has it already.
func (c *Claimant) Restore(s *node.Server) error {
	c.server = s
	objects := map[*attachment]reconcile.Object{}
	var older []*attachment
	var leaving []node.Row
	for r := range s.Rows() {
		if r.Spec.Port == nil {
			continue
		}
		if r.Phase == reconcile.Deleting {
			leaving = append(leaving, r)
			continue
		}
		a := &attachment{record: recordOf(r.Spec), wiring: r.Spec.Port.Wiring}
		objects[a] = r.Object
		if other := c.index.holders[a.Port]; other != nil {
			if !a.after(other.record) {
				older = append(older, a)
				continue
			}
			c.index.detach(other)
			older = append(older, other)
		}
		c.index.hold(a)
		c.index.attach(a)
	}
	for _, r := range leaving {
		a := &attachment{record: recordOf(r.Spec), wiring: r.Spec.Port.Wiring, written: true, leaving: true}
		if c.index.holders[a.Port] == nil {
			c.index.hold(a)
		} else {
			in(c.index.owed, a.Port)[r.Object] = struct{}{}
		}
	}
	ctx := context.Background()
	for _, a := range older {
		in(c.index.owed, a.Port)[objects[a]] = struct{}{}
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
	Attachment node.Attachment
	UID        types.UID
	Port       v1.KuryrPortSpec
	Since      time.Time
	Adopted    bool
	Released   bool // the API may not know yet
}

// importJournal makes rows of the records of an earlier version, once.
func (c *Claimant) importJournal(ctx context.Context) error {
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
	// The newest record of a port has it. What was released comes last.
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

func (c *Claimant) importRecord(ctx context.Context, r old) error {
	w, err := wiring.Of(&r.Port)
	if err != nil {
		// It is a pod's all the same, and can be taken away.
		c.Log.Error("port of a record cannot be read", "container", r.Attachment.Container, "port", r.Port.ID, "err", err)
		w.Port = sdn.Port{Meta: sdn.Meta{ID: sdn.ID(r.Port.ID)}, VIF: sdn.VIF{Type: r.Port.VIF.Type, Details: r.Port.VIF.Details}}
	}
	a := &attachment{wiring: w, record: record{
		Attachment: r.Attachment, UID: r.UID, Port: r.Port.ID, Pool: r.Port.Pool, Since: r.Since, Adopted: r.Adopted,
	}}
	made := false
	err = c.server.Adopt(ctx, r.Attachment, func() (node.Intent, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.index.attached[keyOf(r.Attachment)] != nil || c.index.holders[r.Port.ID] != nil {
			return node.Intent{}, false
		}
		c.index.hold(a)
		made = true
		return node.Intent{Attachment: r.Attachment, Port: a.allocation()}, true
	})
	if err == nil && made && r.Released {
		return c.server.Drop(ctx, r.Attachment)
	}
	return err
}
