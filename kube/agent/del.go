//go:build linux

package agent

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// del deletes an attachment. An absent one is no error. If the SDN is unavailable, the deletion
// is repeated.
func (s *Server) del(ctx context.Context, c cni.Call, conf cni.Config) error {
	args, err := cni.ParseArgs(c.Args)
	if err != nil {
		args = cni.Args{} // arguments that ADD would refuse do not keep a DEL from its work
	}
	a, err := attachment(c, conf, args)
	if err != nil {
		return err
	}
	s.adds.supersede(a.Key())
	unlock, err := s.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.take(ctx, c.Container, c.Interface); err != nil {
		return err
	}
	return s.release(ctx, a)
}

// collect is GC: it deletes every attachment of the network that is not in the list.
func (s *Server) collect(ctx context.Context, conf cni.Config) error {
	valid := map[types.GCAttachment]bool{}
	for _, v := range *conf.Valid {
		valid[v] = true
	}
	errs := []error{s.list(ctx)}
	held, err := s.heldWithout(valid)
	errs = append(errs, err)
	for _, a := range s.attachments(&errs) {
		if a.Network != conf.Name || valid[types.GCAttachment{ContainerID: a.Container, IfName: a.Interface}] {
			continue
		}
		if len(held) > 0 {
			if w, err := s.source.Find(ctx, a); err == nil && held[w.Port.ID] {
				continue
			}
		}
		s.log.InfoContext(ctx, "attachment is not valid any more", "container", a.Container, "interface", a.Interface)
		errs = append(errs, s.Leave(ctx, a))
	}
	return errors.Join(errs...)
}

// heldWithout returns the ports of valid attachments that have a static binding. The Source may know
// them by an earlier container.
func (s *Server) heldWithout(valid map[types.GCAttachment]bool) (map[sdn.ID]bool, error) {
	bound, err := s.static.All()
	held := map[sdn.ID]bool{}
	for _, b := range bound {
		if valid[types.GCAttachment{ContainerID: b.Container, IfName: b.Interface}] {
			held[b.Port.ID] = true
		}
	}
	return held, err
}

// Leave deletes an attachment for which no DEL will come, because its pod and its network
// namespace are gone.
func (s *Server) Leave(ctx context.Context, a Attachment) error {
	unlock, err := s.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	return s.release(ctx, a)
}

// attachments returns those that have a row or a static binding.
func (s *Server) attachments(errs *[]error) (all []Attachment) {
	for r := range s.rows.Rows() {
		if r.Phase == reconcile.Wanted {
			all = append(all, r.Spec.Attachment)
		}
	}
	bound, err := s.static.All()
	for _, b := range bound {
		all = append(all, Attachment{
			Container: b.Container, Interface: b.Interface, Namespace: b.Namespace, Network: b.Network,
		})
	}
	*errs = append(*errs, err)
	return all
}
