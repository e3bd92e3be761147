//go:build linux

package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// add gives a container an interface. A failed one leaves nothing, or a row whose deletion is
// repeated. One that is there already is answered again.
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
	i := Intent{Attachment: a}
	if args.Port != "" {
		i.Args = c.Args
	}
	ctx, done := s.adds.begin(ctx, a.Key())
	defer done()
	unlock, err := s.lock(ctx, a)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// A container that comes back under its name gets nothing of what it had.
	if err := s.take(ctx, c.Container, c.Interface); err != nil {
		return nil, err
	}
	if err := s.finishDeletion(ctx, a.Key()); err != nil {
		return nil, err
	}
	w, kept, err := s.attach(ctx, i)
	if sdn.IsNotFound(err) && args.Given() { // the arguments alone say it
		bound, err := s.static.Bind(ctx, c, conf, args)
		if err != nil {
			return nil, err
		}
		return cni.Encode(bound.Plugged().Result(), conf.CNIVersion)
	}
	if err != nil {
		return nil, err
	}
	p := plugged(a, w)
	p.KeptRoutes = kept
	return cni.Encode(p.Result(), conf.CNIVersion)
}

// finishDeletion completes the deletion of what an attachment had, and waits until its Source no
// longer counts on it: its port must not be allocated to it again before.
func (s *Server) finishDeletion(ctx context.Context, key string) error {
	for {
		changed := s.gone.next()
		if r, ok := s.rows.Get(key); !ok || r.Phase != reconcile.Deleting {
			return nil
		}
		if err := s.rows.Remove(ctx, key); err != nil {
			return err
		}
		if _, ok := s.rows.Get(key); !ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sdn.Unavailable(context.Cause(ctx), "attachment", "its earlier deletion is not complete")
		}
	}
}

// gone reports that a row is gone to those that wait for one.
type gone struct {
	mu   sync.Mutex
	once chan struct{}
}

// next returns a channel that is closed when the next row is gone.
func (g *gone) next() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.once == nil {
		g.once = make(chan struct{})
	}
	return g.once
}

func (g *gone) tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.once != nil {
		close(g.once)
		g.once = nil
	}
}

// attach allocates a port, stores the intent and plugs the port. An intent that is stored already
// is plugged again, because its interface may be gone.
func (s *Server) attach(ctx context.Context, i Intent) (Wiring, []netip.Prefix, error) {
	before, again := s.rows.Get(i.Key())
	again = again && before.Phase == reconcile.Wanted
	port, err := s.source.Allocate(ctx, i.Attachment)
	if err != nil {
		return Wiring{}, nil, err
	}
	i.Port = port
	made, err := s.set(ctx, i)
	if err != nil {
		return Wiring{}, nil, err
	}
	if now, ok := s.rows.Get(i.Key()); again && ok {
		if made, err = (target{s}).Ensure(ctx, now.Object, i, made); err != nil {
			return Wiring{}, nil, err
		}
	}
	if made.Wiring != nil {
		return *made.Wiring, made.KeptRoutes, nil
	}
	return i.Port.Wiring, made.KeptRoutes, nil
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
