//go:build linux

package node

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
	"github.com/kuryr/kuryr/sdn"
)

// kindAttachment names the kind of row that this package owns. It is part of the table's format.
const kindAttachment = "attachment"

// Row is an attachment's row.
type Row = reconcile.Row[Intent, Made]

// Made is what an intent led to.
type Made struct {
	Wiring     *Wiring        `json:",omitempty"` // the port, if the intent does not have it
	KeptRoutes []netip.Prefix `json:",omitempty"` // bind.Result
}

// port returns the port of a row, if the row knows it.
func (m Made) port(i Intent) (sdn.Port, bool) {
	switch {
	case i.Port != nil:
		return i.Port.Wiring.Port, true
	case m.Wiring != nil:
		return m.Wiring.Port, true
	}
	return sdn.Port{}, false
}

// target provides and plugs the port of an attachment.
type target struct{ *Server }

// Ensure implements reconcile.Target.
func (t target) Ensure(ctx context.Context, _ reconcile.Object, i Intent, last Made) (Made, error) {
	if i.Found && i.Port == nil {
		return last, nil
	}
	w, err := t.source.Ensure(ctx, i)
	switch {
	case sdn.IsUnavailable(err) && i.Port == nil: // the answer may be lost
		return last, reconcile.Unconfirmed(err)
	case err != nil:
		return last, err
	}
	made := Made{}
	if i.Port == nil {
		made.Wiring = &w
	}
	if i.Found {
		return made, nil
	}
	failpoint.Here("node.add.claimed")
	if i.Args != "" {
		args, err := cni.ParseArgs(i.Args)
		if err != nil {
			return made, err
		}
		if err := static.Matches(w.Port, w.Subnets, args); err != nil {
			return made, err
		}
	}
	if err := t.static.Forget(w.Port.ID); err != nil {
		return made, sdn.OfHost(err)
	}
	r, err := t.binder.Plug(ctx, bind.Interface{
		Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Namespace: i.Namespace, Name: i.Interface, Limits: w.Limits,
	})
	made.KeptRoutes = r.KeptRoutes
	if err == nil {
		failpoint.Here("node.add.plugged")
	}
	return made, err
}

// Delete implements reconcile.Target. A port that the row knows is unplugged before the SDN is
// asked, which may be unavailable.
func (t target) Delete(ctx context.Context, o reconcile.Object, i Intent, last Made) error {
	if r, ok := t.rows.Get(o.Key); ok && r.Object != o && i.Port == nil {
		return nil // an SDN's port has no incarnation: it is the present row's
	}
	if i.Port == nil {
		if _, err := t.static.Unbind(ctx, i.Container, i.Interface); err != nil {
			return err
		}
	}
	if last.Wiring != nil {
		if err := t.binder.Unplug(ctx, last.Wiring.Port); err != nil {
			return err
		}
	}
	w, err := t.source.Leave(ctx, i)
	switch {
	case sdn.IsNotFound(err):
	case err != nil:
		return err
	case last.Wiring == nil || last.Wiring.Port.ID != w.Port.ID:
		if err := t.binder.Unplug(ctx, w.Port); err != nil {
			return err
		}
	}
	failpoint.Here("node.del.unplugged")
	return t.source.Release(ctx, o, i) // also if nothing was found: a create may be incomplete
}

// Row returns the intent of the row with this key.
func (s *Server) Row(key string) (i Intent, ok bool) {
	r, ok := s.rows.Get(key)
	return r.Spec, ok
}

// Rows yields the attachments' rows.
func (s *Server) Rows() iter.Seq[Row] { return s.rows.Rows() }

// Wake reports that what Source.Release waited for has come.
func (s *Server) Wake(o reconcile.Object) { s.rows.Wake(o) }

// Pending counts the deletions that have failed and are repeated.
func (s *Server) Pending() (n int) {
	for r := range s.rows.Rows() {
		if r.Phase == reconcile.Deleting && r.Tries > 0 {
			n++
		}
	}
	return n
}

// Adopt makes a row of an attachment that has none, if look, which is called while no call for
// the attachment is in progress, returns an intent.
func (s *Server) Adopt(ctx context.Context, a Attachment, look func() (Intent, bool)) error {
	unlock, err := s.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	i, ok := look()
	if !ok {
		return nil
	}
	return s.adopt(ctx, i)
}

// adopt makes a row of an attachment whose lock is held.
func (s *Server) adopt(ctx context.Context, i Intent) error {
	i.Found = true
	_, err := s.set(ctx, i)
	return err
}

func (s *Server) set(ctx context.Context, i Intent) (Made, error) {
	made, err := s.rows.Set(ctx, reconcile.Request[Intent]{Key: i.Key(), Spec: i})
	if err != nil {
		s.source.Free(i)
	}
	if errors.Is(err, reconcile.ErrFull) {
		err = sdn.OfHost(err)
	}
	return made, err
}

// Drop deletes the row of an attachment that has no port any more.
func (s *Server) Drop(ctx context.Context, a Attachment) error { return s.rows.Remove(ctx, a.Key()) }

// remove deletes a row, or leaves that to the store if the SDN or the switch is unavailable.
func (s *Server) remove(ctx context.Context, key string) error {
	err := s.rows.Remove(ctx, key)
	if reconcile.IsPending(err) && (sdn.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)) {
		s.log.WarnContext(ctx, "cleanup queued", "attachment", key, "err", err)
		return nil
	}
	return err
}

// release deletes an attachment whose lock is held. What was bound without the daemon can be
// known to the Source too, by another key: Raven has claimed its port.
func (s *Server) release(ctx context.Context, a Attachment) error {
	key, ok := s.source.RowOf(a)
	if _, bound, err := s.static.Find(a.Container, a.Interface); err != nil {
		return err
	} else if bound && (!ok || key != a.Key()) {
		if err := s.releaseRow(ctx, a.Key(), a); err != nil {
			return err
		}
	}
	if !ok {
		return nil
	}
	return s.releaseRow(ctx, key, a)
}

// releaseRow deletes a row. Without one, what the attachment may have is unknown: it gets a row,
// so that the deletion is repeated until it is complete. A full disk allows one attempt.
func (s *Server) releaseRow(ctx context.Context, key string, a Attachment) error {
	if _, ok := s.rows.Get(key); !ok {
		i := Intent{Attachment: a}
		err := s.adopt(ctx, i)
		if errors.Is(err, reconcile.ErrFull) {
			err = (target{s}).Delete(ctx, reconcile.Object{Key: key}, i, Made{})
			if errors.Is(err, reconcile.ErrAbsent) {
				return nil
			}
		}
		if err != nil {
			return err
		}
	}
	return s.remove(ctx, key)
}

// settle brings in order what an earlier daemon, and kuryr-cni without one, have left. Each step is
// repeated until it succeeds.
func (s *Server) settle(ctx context.Context) {
	steps := map[string]func(context.Context) error{
		"DELs without a daemon": s.takeAll, "attachments": s.restore,
	}
	if r, ok := s.source.(Recoverer); ok {
		steps["ports of the host"] = r.Recover
	}
	wait := backoff.Backoff{Min: time.Second, Max: time.Minute} // an SDN does not report that it is back
	for {
		for what, do := range steps {
			one, cancel := context.WithTimeout(ctx, requestLimit)
			err := do(one)
			cancel()
			if err == nil {
				delete(steps, what)
			} else if ctx.Err() == nil {
				s.log.WarnContext(ctx, "recovery incomplete", "of", what, "err", err)
			}
		}
		if len(steps) == 0 || wait.Wait(ctx) != nil {
			return
		}
	}
}

// restore makes the missing rows, and deletes those without an interface.
func (s *Server) restore(ctx context.Context) error {
	if err := s.list(ctx); err != nil {
		return err
	}
	return s.sweep(ctx)
}

// list makes rows of the attachments that have none, as after a reboot.
func (s *Server) list(ctx context.Context) error {
	l, ok := s.source.(Lister)
	if !ok {
		return nil
	}
	all, err := l.Attachments(ctx)
	for _, a := range all {
		err = errors.Join(err, s.Adopt(ctx, a, func() (Intent, bool) {
			_, has := s.rows.Get(a.Key())
			return Intent{Attachment: a}, !has
		}))
	}
	return err
}

// takeAll takes over every DEL that kuryr-cni could not hand to a daemon.
func (s *Server) takeAll(ctx context.Context) error {
	all, err := jsonstore.Load[cni.Call](s.pending)
	for _, c := range all {
		unlock, locked := s.lock(ctx, Attachment{Container: c.Container, Interface: c.Interface})
		if locked == nil {
			locked = s.take(ctx, c.Container, c.Interface)
			unlock()
		}
		err = errors.Join(err, locked)
	}
	return err
}

// take takes over the DEL of an attachment, whose lock is held, that kuryr-cni could not hand to
// a daemon; none is no error. Its file goes when the deletion is stored.
func (s *Server) take(ctx context.Context, container, iface string) error {
	name := cni.RecordName(container, iface)
	c, there, err := jsonstore.Get[cni.Call](s.pending, name)
	if err != nil || !there {
		return err
	}
	conf, err := cni.ParseConfig(cni.Del, c.Config)
	if err != nil {
		return err
	}
	args, err := cni.ParseArgs(c.Args)
	if err != nil {
		args = cni.Args{}
	}
	a, err := attachment(c, conf, args)
	if err != nil {
		return err
	}
	if err := s.release(ctx, a); err != nil && !reconcile.IsPending(err) {
		return err
	}
	return s.pending.Delete(name)
}

// sweep deletes the attachments without an interface: an ADD was killed before it plugged, or
// the machine was started again and the namespaces are gone. A port that waits for its pod's
// next sandbox stays.
func (s *Server) sweep(ctx context.Context) error {
	var err error
	for r := range s.rows.Rows() {
		err = errors.Join(err, s.sweepOne(ctx, r.Spec.Attachment))
	}
	return err
}

func (s *Server) sweepOne(ctx context.Context, a Attachment) error {
	unlock, err := s.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	r, ok := s.rows.Get(a.Key())
	if !ok || r.Phase == reconcile.Deleting || r.Spec.Port != nil && r.Spec.Port.Adopted {
		return nil
	}
	port, known := r.Last.port(r.Spec)
	if !known {
		w, err := s.source.Find(ctx, a)
		if err != nil && !sdn.IsNotFound(err) {
			return err
		}
		port = w.Port
	}
	if port.ID != "" {
		state, err := s.binder.State(ctx, port)
		if err != nil || state != bind.Absent {
			return err
		}
	}
	s.log.InfoContext(ctx, "attachment has no interface", "container", a.Container, "interface", a.Interface, "port", port.ID)
	return s.remove(ctx, a.Key())
}
