//go:build linux

package node

import (
	"context"
	"errors"
	"os"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/given"
	"github.com/kuryr/kuryr/sdn"
)

// add claims a port, plugs it, and tells of it. What fails is taken back whole; what is there already is found and told again.
func (s *Server) add(ctx context.Context, c cni.Call, conf cni.Config) ([]byte, error) {
	args, err := cni.ParseArgs(c.Args)
	if err != nil {
		return nil, err
	}
	a, err := attachment(c, conf, args)
	if err != nil {
		return nil, err
	}
	if err := checkNamespace(c.Namespace); err != nil {
		return nil, err
	}
	ctx, done := s.adds.begin(ctx, attachmentName(c.Container, c.Interface))
	defer done()
	unlock, err := s.lock(ctx, c.Container, c.Interface)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// A container that comes back under its name gets nothing of what it had: that is owed.
	if err := s.payOne(ctx, cni.RecordName(c.Container, c.Interface)); err != nil {
		return nil, err
	}
	w, err := s.source.Claim(ctx, a)
	switch {
	case sdn.IsNotFound(err) && args.Given(): // the arguments alone say it
		bound, err := s.given.Bind(ctx, c, conf, args)
		if err != nil {
			return nil, err
		}
		return cni.Encode(bound.Plugged().Result(), conf.CNIVersion)
	case sdn.IsUnavailable(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // it may have come to something
		s.undo(ctx, a, Wiring{})
		return nil, err
	case err != nil:
		return nil, err
	}
	failpoint.Here("node.add.claimed")
	out, err := s.plug(ctx, a, w, args, conf.CNIVersion)
	if err != nil {
		s.undo(ctx, a, w)
		return nil, err
	}
	failpoint.Here("node.add.plugged")
	return out, nil
}

// plug makes the interface of a claimed port, and its result.
func (s *Server) plug(ctx context.Context, a Attachment, w Wiring, args cni.Args, version string) ([]byte, error) {
	if err := given.Matches(w.Port, w.Subnets, args); err != nil {
		return nil, err
	}
	if err := s.given.Forget(w.Port.ID); err != nil {
		return nil, sdn.OfHost(err)
	}
	r, err := s.binder.Plug(ctx, bind.Interface{
		Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Namespace: a.Namespace, Name: a.Interface, Limits: w.Limits,
	})
	if err != nil {
		return nil, err
	}
	p := plugged(a, w)
	p.KeptRoutes = r.KeptRoutes
	return cni.Encode(p.Result(), version)
}

// plugged is what is told of an attachment. The host end is told where it is in the host's namespace.
func plugged(a Attachment, w Wiring) cni.Plugged {
	p := cni.Plugged{Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Name: a.Interface, Namespace: a.Namespace}
	if w.Port.VIF.Type == sdn.VIFOVS || w.Port.VIF.Type == sdn.VIFBridge || w.Port.VIF.Type == sdn.VIFTap {
		if w.Port.VIF.Details[sdn.DetailNamespace] == "" {
			p.Host = bind.HostName(w.Port.ID)
		}
	}
	return p
}

// undo takes back what a failed ADD has made, also when its own time is up. What cannot be taken back now is owed.
func (s *Server) undo(ctx context.Context, a Attachment, w Wiring) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	var err error
	if w.Port.ID != "" {
		err = s.binder.Unplug(ctx, w.Port)
	}
	failpoint.Here("node.add.undo")
	if err == nil {
		err = s.source.Release(ctx, a)
	}
	if err == nil {
		return
	}
	if owing := s.owe(a); owing != nil {
		s.log.ErrorContext(ctx, "a failed ADD has left something behind", "container", a.Container, "interface", a.Interface, "error", errors.Join(err, owing))
	}
}

// checkNamespace refuses what is no file, and the daemon's own network namespace, which is the host's.
func checkNamespace(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return cni.UnknownContainer.Errorf("CNI_NETNS: %s: there is no such file", path)
	}
	if err != nil {
		return cni.BadNamespace.Errorf("CNI_NETNS: %v", err)
	}
	if own, err := os.Stat("/proc/thread-self/ns/net"); err == nil && os.SameFile(own, info) {
		return cni.BadNamespace.Errorf("CNI_NETNS: %s is the host's own network namespace", path)
	}
	return nil
}
