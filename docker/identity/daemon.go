package identity

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Daemon is what the services of one daemon share.
type Daemon struct {
	SDN     sdn.Provider
	Names   Namer
	Host    string           // the name that ports are bound to
	Store   *reconcile.Store // not started yet
	Engine  reconcile.Engine // lists what Docker has, an engine.Lister; nil: no row is an orphan
	Timeout time.Duration    // of calls of the SDN that no caller waits for
	Log     *slog.Logger
}

// IsOwn reports whether Kuryr made a port, or kuryr-libnetwork on this host, and not its user.
func (d Daemon) IsOwn(p sdn.Port) bool {
	return d.Names.Ours(p.Meta, KindPort, KindEndpoint) || PeersPort(p) && !Elsewhere(p, d.Host)
}

// PortAt returns the port that has an address of a subnet.
func (d Daemon) PortAt(ctx context.Context, subnet sdn.ID, a netip.Addr) (sdn.Port, bool, error) {
	query := sdn.PortQuery{Subnets: []sdn.ID{subnet}, Addresses: []netip.Addr{a}}
	return sdn.First(d.SDN.FindPorts(ctx, query))
}

// Queued returns the error of a deletion for Docker: one that is stored and is repeated is a success.
func (d Daemon) Queued(ctx context.Context, err error) error {
	if !reconcile.IsPending(err) {
		return err
	}
	d.Log.InfoContext(ctx, "cleanup queued", "err", err)
	return nil
}

// DropPorts deletes those of our ports that a query finds. It returns how many it deleted, and
// the others.
func (d Daemon) DropPorts(ctx context.Context, of sdn.PortQuery) (deleted int, others []sdn.Port, err error) {
	var ours []sdn.ID
	for p, err := range d.SDN.FindPorts(ctx, of) {
		switch {
		case err != nil:
			return 0, nil, err
		case d.Names.Ours(p.Meta, KindPort, KindEndpoint):
			ours = append(ours, p.ID)
		default:
			others = append(others, p)
		}
	}
	if len(ours) == 0 {
		return 0, others, nil
	}
	return len(ours), others, d.SDN.DeletePorts(ctx, ours)
}

// TagNetwork makes the tags those of a network, unless another has changed it since it was read.
func (d Daemon) TagNetwork(ctx context.Context, n sdn.Network, tags []string) (sdn.Network, error) {
	if slices.Equal(tags, n.Tags) {
		return n, nil
	}
	return d.SDN.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &tags}})
}

// TagSubnet is TagNetwork for a subnet.
func (d Daemon) TagSubnet(ctx context.Context, s sdn.Subnet, tags []string) (sdn.Subnet, error) {
	if slices.Equal(tags, s.Tags) {
		return s, nil
	}
	patch := sdn.SubnetPatch{Patch: sdn.Patch{IfRevision: s.Revision, Tags: &tags}}
	tagged, err := d.SDN.UpdateSubnet(ctx, s.ID, patch)
	if err != nil {
		return s, err
	}
	return tagged, nil
}

// TagPool is TagNetwork for a subnet pool.
func (d Daemon) TagPool(ctx context.Context, p sdn.SubnetPool, tags []string) error {
	if slices.Equal(tags, p.Tags) {
		return nil
	}
	_, err := d.SDN.UpdateSubnetPool(ctx, p.ID, sdn.SubnetPoolPatch{
		Patch: sdn.Patch{IfRevision: p.Revision, Tags: &tags},
	})
	return err
}

// ByKey matches the object with a Key.
func ByKey(key sdn.Key) sdn.Match { return sdn.Match{Keys: []sdn.Key{key}} }

// Again sets a row once more: a process that was killed may have lost the answer of the SDN.
func Again[S, T any](
	ctx context.Context, k *reconcile.Kind[S, T], r reconcile.Row[S, T],
) (reconcile.Row[S, T], error) {
	_, err := k.Set(ctx, reconcile.Request[S]{
		Key: r.Key, Spec: r.Spec, Claims: r.Claims, Owners: r.Owners, Engine: r.Engine,
	})
	if now, ok := k.Get(r.Key); ok {
		r = now
	}
	return r, err
}

// Outcome marks the error of a target for its store: reconcile.Refused if nothing was changed, by
// this call or before, and reconcile.Unconfirmed if the SDN may still do what it was asked.
func Outcome(err error, changed bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sdn.ErrNotSent):
		if changed {
			return err
		}
		return reconcile.Refused(err)
	case sdn.IsUnavailable(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reconcile.Unconfirmed(err)
	case !changed && isRefusal(err):
		return reconcile.Refused(err)
	}
	return err
}

// isRefusal reports whether the SDN answered and changed nothing.
func isRefusal(err error) bool {
	return sdn.IsInvalid(err) || sdn.IsDenied(err) || sdn.IsUnsupported(err) ||
		sdn.IsExhausted(err) || sdn.IsNotFound(err) || sdn.IsConflict(err)
}

// IgnoreAbsent returns the error of a call about an object that may be gone.
func IgnoreAbsent(err error) error {
	if sdn.IsNotFound(err) {
		return nil
	}
	return err
}
