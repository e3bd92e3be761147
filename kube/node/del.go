//go:build linux

package node

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// del takes an attachment away. Nothing there is no error, and nor is an SDN that is away: it is owed then.
func (s *Server) del(ctx context.Context, c cni.Call, conf cni.Config) error {
	args, err := cni.ParseArgs(c.Args)
	if err != nil {
		args = cni.Args{} // what ADD would refuse does not keep anything from being taken away
	}
	a, err := attachment(c, conf, args)
	if err != nil {
		return err
	}
	s.adds.overtake(attachmentName(c.Container, c.Interface))
	unlock, err := s.lock(ctx, c.Container, c.Interface)
	if err != nil {
		return err
	}
	defer unlock()
	return s.release(ctx, a)
}

// release takes an attachment away whose lock is held, or owes it.
func (s *Server) release(ctx context.Context, a Attachment) error {
	err := s.takeAway(ctx, a)
	if sdn.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) {
		s.log.WarnContext(ctx, "an interface cannot be taken away yet; it is tried again", "container", a.Container, "interface", a.Interface, "error", err)
		return s.owe(a)
	}
	if err != nil {
		return err
	}
	return s.owed.Delete(cni.RecordName(a.Container, a.Interface))
}

// takeAway unplugs what the attachment has, and gives it back.
func (s *Server) takeAway(ctx context.Context, a Attachment) error {
	// What was bound without the daemon may be a port of the Source's all the same: Raven has claimed it.
	if _, err := s.given.Unbind(ctx, a.Container, a.Interface); err != nil {
		return err
	}
	w, err := s.source.Find(ctx, a)
	if err != nil && !sdn.IsNotFound(err) {
		return err
	}
	if err == nil {
		if err := s.binder.Unplug(ctx, w.Port); err != nil {
			return err
		}
	}
	failpoint.Here("node.del.unplugged")
	return s.source.Release(ctx, a) // also where nothing was found: half of a claim may be there
}

// collect is GC: it takes away every attachment of the network that is not in the list.
func (s *Server) collect(ctx context.Context, conf cni.Config) error {
	valid := map[types.GCAttachment]bool{}
	for _, v := range *conf.Valid {
		valid[v] = true
	}
	all, err := s.attachments(ctx)
	errs := []error{err}
	held, err := s.heldWithout(valid)
	errs = append(errs, err)
	for _, a := range all {
		if a.Network != conf.Name || valid[types.GCAttachment{ContainerID: a.Container, IfName: a.Interface}] {
			continue
		}
		if len(held) > 0 {
			if w, err := s.source.Find(ctx, a); err == nil && held[w.Port.ID] {
				continue
			}
		}
		s.log.InfoContext(ctx, "an interface that nobody has any more is taken away", "container", a.Container, "interface", a.Interface)
		errs = append(errs, s.lockedRelease(ctx, a))
	}
	return errors.Join(errs...)
}

// heldWithout are the ports of valid attachments that were bound without the daemon: the Source may know them by a container of before.
func (s *Server) heldWithout(valid map[types.GCAttachment]bool) (map[sdn.ID]bool, error) {
	bound, err := s.given.All()
	held := map[sdn.ID]bool{}
	for _, b := range bound {
		if valid[types.GCAttachment{ContainerID: b.Container, IfName: b.Interface}] {
			held[b.Port.ID] = true
		}
	}
	return held, err
}

// Leave takes away an attachment for which no DEL will come: its pod has gone, and its network namespace with it. What cannot be taken away now is owed.
func (s *Server) Leave(ctx context.Context, a Attachment) error { return s.lockedRelease(ctx, a) }

func (s *Server) lockedRelease(ctx context.Context, a Attachment) error {
	unlock, err := s.lock(ctx, a.Container, a.Interface)
	if err != nil {
		return err
	}
	defer unlock()
	return s.release(ctx, a)
}

// attachments are all there are: the Source's, and what was bound by CNI_ARGS alone.
func (s *Server) attachments(ctx context.Context) ([]Attachment, error) {
	all, err := s.source.Attachments(ctx)
	bound, unread := s.given.All()
	for _, b := range bound {
		all = append(all, Attachment{Container: b.Container, Interface: b.Interface, Namespace: b.Namespace, Network: b.Network})
	}
	return all, errors.Join(err, unread)
}
