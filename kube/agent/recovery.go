//go:build linux

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// recover completes what an earlier daemon, and kuryr-cni without one, have left. Each step is
// repeated until it succeeds.
func (s *Server) recover(ctx context.Context) {
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
	s.log.InfoContext(ctx, "attachment has no interface",
		"container", a.Container, "interface", a.Interface, "port", port.ID)
	return s.remove(ctx, a.Key())
}
