package docker

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// leaving is a provider that can be away: then every call of it fails.
type leaving struct {
	sdn.Provider
	gone  atomic.Bool
	after atomic.Int64 // if more than 0: how many calls are served before it is away
	calls atomic.Int64
	holds atomic.Bool            // ports: they cannot be deleted
	fails atomic.Pointer[string] // the device whose ports cannot be found, or the network that cannot be deleted
	flag  string                 // a file whose presence says that it is away, for other processes
	loses atomic.Bool            // the ports that are asked for are made when they land, and who asks is told that it is away
	lost  []sdn.PortSpec         // those
	lands atomic.Bool            // they land right before the next port is asked for
}

// land makes the ports that were lost.
func (l *leaving) land(ctx context.Context) error {
	specs := l.lost
	l.lost = nil
	_, err := l.Provider.EnsurePorts(ctx, specs)
	return err
}

func (l *leaving) away() error {
	l.calls.Add(1)
	if n := l.after.Load(); n > 0 && l.after.Add(-1) == 0 {
		l.gone.Store(true)
	}
	if _, err := os.Stat(l.flag); !l.gone.Load() && (l.flag == "" || err != nil) {
		return nil
	}
	return sdn.Unavailable(errors.New("dial tcp 192.0.2.1:9696: i/o timeout"), "SDN", "the SDN does not answer")
}

func one[T any](l *leaving, do func() (T, error)) (T, error) {
	if err := l.away(); err != nil {
		var zero T
		return zero, err
	}
	return do()
}

func many[T any](l *leaving, found iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err := l.away(); err != nil {
			var zero T
			yield(zero, err)
			return
		}
		found(yield)
	}
}

func (l *leaving) Ping(ctx context.Context) error {
	return errors.Join(l.away(), l.Provider.Ping(ctx))
}

func (l *leaving) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	return one(l, func() (sdn.Network, error) { return l.Provider.EnsureNetwork(ctx, s) })
}

func (l *leaving) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	return one(l, func() (sdn.Network, error) { return l.Provider.Network(ctx, id) })
}

func (l *leaving) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	return many(l, l.Provider.FindNetworks(ctx, q))
}

func (l *leaving) UpdateNetwork(ctx context.Context, id sdn.ID, p sdn.NetworkPatch) (sdn.Network, error) {
	return one(l, func() (sdn.Network, error) { return l.Provider.UpdateNetwork(ctx, id, p) })
}

func (l *leaving) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	if network := l.fails.Load(); network != nil && *network == string(id) {
		return sdn.Unavailable(nil, "SDN", "it answers 500 to this one")
	}
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DeleteNetwork(ctx, id) })
	return err
}

func (l *leaving) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return many(l, l.Provider.FindSubnets(ctx, q))
}

func (l *leaving) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	return one(l, func() (sdn.Subnet, error) { return l.Provider.Subnet(ctx, id) })
}

func (l *leaving) EnsureSubnet(ctx context.Context, s sdn.SubnetSpec) (sdn.Subnet, error) {
	return one(l, func() (sdn.Subnet, error) { return l.Provider.EnsureSubnet(ctx, s) })
}

func (l *leaving) UpdateSubnet(ctx context.Context, id sdn.ID, p sdn.SubnetPatch) (sdn.Subnet, error) {
	return one(l, func() (sdn.Subnet, error) { return l.Provider.UpdateSubnet(ctx, id, p) })
}

func (l *leaving) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DeleteSubnet(ctx, id) })
	return err
}

func (l *leaving) EnsureSubnetPool(ctx context.Context, s sdn.SubnetPoolSpec) (sdn.SubnetPool, error) {
	return one(l, func() (sdn.SubnetPool, error) { return l.Provider.EnsureSubnetPool(ctx, s) })
}

func (l *leaving) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	return one(l, func() (sdn.SubnetPool, error) { return l.Provider.SubnetPool(ctx, id) })
}

func (l *leaving) FindSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	return many(l, l.Provider.FindSubnetPools(ctx, q))
}

func (l *leaving) UpdateSubnetPool(ctx context.Context, id sdn.ID, p sdn.SubnetPoolPatch) (sdn.SubnetPool, error) {
	return one(l, func() (sdn.SubnetPool, error) { return l.Provider.UpdateSubnetPool(ctx, id, p) })
}

func (l *leaving) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DeleteSubnetPool(ctx, id) })
	return err
}

func (l *leaving) EnsurePorts(ctx context.Context, s []sdn.PortSpec) ([]sdn.Port, error) {
	if l.loses.Load() {
		l.lost = append(l.lost, s...)
		return make([]sdn.Port, len(s)), sdn.Unavailable(context.DeadlineExceeded, "SDN", "it does not answer in time")
	}
	if l.lands.Swap(false) {
		if err := l.land(ctx); err != nil {
			return nil, err
		}
	}
	return one(l, func() ([]sdn.Port, error) { return l.Provider.EnsurePorts(ctx, s) })
}

func (l *leaving) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	return one(l, func() (sdn.Port, error) { return l.Provider.Port(ctx, id) })
}

func (l *leaving) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	if device := l.fails.Load(); device != nil && slices.Contains(q.Devices, *device) {
		return func(yield func(sdn.Port, error) bool) {
			yield(sdn.Port{}, sdn.Unavailable(nil, "SDN", "it answers 500 to this one"))
		}
	}
	return many(l, l.Provider.FindPorts(ctx, q))
}

func (l *leaving) UpdatePort(ctx context.Context, id sdn.ID, p sdn.PortPatch) (sdn.Port, error) {
	return one(l, func() (sdn.Port, error) { return l.Provider.UpdatePort(ctx, id, p) })
}

func (l *leaving) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DeletePorts(ctx, ids) })
	return err
}

func (l *leaving) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	if l.holds.Load() {
		return sdn.Conflict(sdn.InUse, "port", "", "something has it")
	}
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DeletePort(ctx, id, ifRevision) })
	return err
}

func (l *leaving) EnsureRouter(ctx context.Context, s sdn.RouterSpec) (sdn.Router, error) {
	return one(l, func() (sdn.Router, error) { return l.Provider.EnsureRouter(ctx, s) })
}

func (l *leaving) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	return one(l, func() (sdn.Router, error) { return l.Provider.Router(ctx, id) })
}

func (l *leaving) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	return many(l, l.Provider.FindRouters(ctx, q))
}

func (l *leaving) AttachSubnet(ctx context.Context, router, subnet sdn.ID, a netip.Addr) error {
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.AttachSubnet(ctx, router, subnet, a) })
	return err
}

func (l *leaving) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DetachSubnet(ctx, router, subnet) })
	return err
}

func (l *leaving) DeleteRouter(ctx context.Context, id sdn.ID) error {
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DeleteRouter(ctx, id) })
	return err
}

func (l *leaving) EnsureFloatingIP(ctx context.Context, s sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	return one(l, func() (sdn.FloatingIP, error) { return l.Provider.EnsureFloatingIP(ctx, s) })
}

func (l *leaving) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	return many(l, l.Provider.FindFloatingIPs(ctx, q))
}

func (l *leaving) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	_, err := one(l, func() (struct{}, error) { return struct{}{}, l.Provider.DeleteFloatingIP(ctx, id) })
	return err
}

func (l *leaving) EnsureForwards(ctx context.Context, f sdn.ID, w []sdn.Forward) ([]sdn.Forward, error) {
	return one(l, func() ([]sdn.Forward, error) { return l.Provider.EnsureForwards(ctx, f, w) })
}

func (l *leaving) FindForwards(ctx context.Context, q sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	return many(l, l.Provider.FindForwards(ctx, q))
}

func (l *leaving) Publish(ctx context.Context, spec sdn.PublicationSpec) (sdn.Publication, error) {
	return one(l, func() (sdn.Publication, error) { return l.Provider.Publish(ctx, spec) })
}

func (l *leaving) Publication(ctx context.Context, key sdn.Key) (sdn.Publication, error) {
	return one(l, func() (sdn.Publication, error) { return l.Provider.Publication(ctx, key) })
}

func (l *leaving) Unpublish(ctx context.Context, key sdn.Key) error {
	_, err := one(l, func() (api.Empty, error) { return api.Empty{}, l.Provider.Unpublish(ctx, key) })
	return err
}

// awayBox is a box whose SDN can be away and whose folders outlive a restart.
func awayBox(t *testing.T) (*box, *leaving) {
	t.Helper()
	l := &leaving{Provider: openStore(t, filepath.Join(t.TempDir(), "store"), true)}
	folder := t.TempDir()
	b := boxOn(t, l, func(c *Config) { c.StateDir, c.RunDir = filepath.Join(folder, "state"), filepath.Join(folder, "run") })
	return b, l
}

// back is the SDN's return, and all that is owed by then.
func (b *box) back(l *leaving) {
	b.t.Helper()
	l.gone.Store(false)
	b.must(b.driver.settleAll(b.t.Context()))
	b.wait(landing) // for ports that never land
	b.must(b.driver.settleAll(b.t.Context()))
	if n := b.driver.owed.count(); n != 0 {
		b.t.Errorf("%d calls are still owed", n)
	}
	files, err := filepath.Glob(filepath.Join(b.config.StateDir, "owed", "*"))
	b.must(err)
	if len(files) > 0 {
		b.t.Errorf("left in the state folder: %v", files)
	}
}

// wait is time that passes for ports that may yet be made.
func (b *box) wait(long time.Duration) {
	for _, name := range b.driver.owed.names(owedCall.isLate) {
		c := b.driver.owed.all[name]
		if !c.missed.IsZero() {
			c.missed, c.due = c.missed.Add(-long), c.due.Add(-long)
		}
		b.driver.owed.all[name] = c
	}
}

// nothingPlugged checks that no endpoint is remembered.
func (b *box) nothingPlugged() {
	b.t.Helper()
	files, err := filepath.Glob(filepath.Join(b.config.RunDir, "endpoints", "*"))
	b.must(err)
	if known := b.driver.plugged.endpoints(); len(known) > 0 || len(files) > 0 {
		b.t.Errorf("endpoints are still remembered: %v, files %v", known, files)
	}
}
