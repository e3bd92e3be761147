//go:build linux

package agent

import (
	"context"
	"errors"
	"iter"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// kindAttachment names the kind of row that this package owns. It is part of the table's format.
const kindAttachment = "attachment"

// Row is an attachment's row.
type Row = reconcile.Row[Intent, Made]

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

// release deletes an attachment whose lock is held. The Source can know a static binding too, by
// another key, if Raven allocated its port.
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
