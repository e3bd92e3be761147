package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

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
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.DeleteNetwork(ctx, id) })
	return err
}

func (l *leaving) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return many(l, l.Provider.FindSubnets(ctx, q))
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
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.DeleteSubnetPool(ctx, id) })
	return err
}

func (l *leaving) EnsurePorts(ctx context.Context, s []sdn.PortSpec) ([]sdn.Port, error) {
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
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.DeletePorts(ctx, ids) })
	return err
}

func (l *leaving) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	if l.holds.Load() {
		return sdn.Conflict(sdn.InUse, "port", "", "something has it")
	}
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.DeletePort(ctx, id, ifRevision) })
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
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.AttachSubnet(ctx, router, subnet, a) })
	return err
}

func (l *leaving) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.DetachSubnet(ctx, router, subnet) })
	return err
}

func (l *leaving) DeleteRouter(ctx context.Context, id sdn.ID) error {
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.DeleteRouter(ctx, id) })
	return err
}

func (l *leaving) EnsureFloatingIP(ctx context.Context, s sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	return one(l, func() (sdn.FloatingIP, error) { return l.Provider.EnsureFloatingIP(ctx, s) })
}

func (l *leaving) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	return many(l, l.Provider.FindFloatingIPs(ctx, q))
}

func (l *leaving) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	_, err := one(l, func() (nothing, error) { return nothing{}, l.Provider.DeleteFloatingIP(ctx, id) })
	return err
}

func (l *leaving) EnsureForwards(ctx context.Context, f sdn.ID, w []sdn.Forward) ([]sdn.Forward, error) {
	return one(l, func() ([]sdn.Forward, error) { return l.Provider.EnsureForwards(ctx, f, w) })
}

func (l *leaving) FindForwards(ctx context.Context, q sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	return many(l, l.Provider.FindForwards(ctx, q))
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
	if n := b.driver.owed.count(); n != 0 {
		b.t.Errorf("%d calls are still owed", n)
	}
	files, err := filepath.Glob(filepath.Join(b.config.StateDir, "owed", "*"))
	b.must(err)
	if len(files) > 0 {
		b.t.Errorf("left in the state folder: %v", files)
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

// TestAwayStop stops containers and removes their networks in all orders while the SDN is away, with the plugin killed between every two calls or
// not, and from every moment on at which the SDN can go away.
func TestAwayStop(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		for _, remove := range []bool{false, true} {
			for after := int64(0); ; after++ {
				gone := false
				name := fmt.Sprintf("kill=%v remove=%v after=%d", kill, remove, after)
				t.Run(name, func(t *testing.T) {
					b, l := awayBox(t)
					n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}, v6: []*pool{{}}})
					one := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
					two := b.run(&endpoint{net: n})
					before := l.calls.Load()
					if l.after.Store(after); after == 0 {
						l.gone.Store(true)
					}
					tidy := func(method string, body m) {
						if kill {
							b.driver.Close()
							b.restart()
						}
						b.ok(method, body)
					}
					for _, e := range []*endpoint{one, two} {
						tidy("NetworkDriver.RevokeExternalConnectivity", e.body())
						tidy("NetworkDriver.Leave", e.body())
						tidy("NetworkDriver.DeleteEndpoint", e.body())
					}
					if got := b.binder.count(); got != 0 {
						t.Errorf("%d interfaces are plugged while the SDN is away", got)
					}
					for _, e := range []*endpoint{two, one} {
						tidy("IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": e.ip4})
						tidy("IpamDriver.ReleaseAddress", m{"PoolID": n.v6[0].id, "Address": e.ip6})
					}
					if remove {
						for _, p := range append(slices.Clone(n.v4), n.v6...) {
							tidy("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway})
							tidy("IpamDriver.ReleasePool", m{"PoolID": p.id})
						}
						tidy("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
					}
					gone = l.gone.Load()
					l.after.Store(0)
					b.back(l)
					if !remove {
						b.remove(n)
					}
					b.clean()
					b.nothingPlugged()
					if !gone && l.calls.Load() == before {
						t.Error("the SDN was not asked")
					}
				})
				if after > 0 && !gone {
					break // it went away after all was done
				}
			}
		}
	}
}

// TestAwayFails: what gives fails at once and says so in words, and what it is asked anew when the SDN is back is done.
func TestAwayFails(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	b.restart() // it starts while the SDN is down
	b.ok("Plugin.Activate", nil)
	b.ok("NetworkDriver.GetCapabilities", nil)
	for method, body := range map[string]m{
		"IpamDriver.RequestPool":        {"AddressSpace": localSpace, "Pool": "10.2.0.0/24"},
		"IpamDriver.RequestAddress":     {"PoolID": n.v4[0].id, "Options": m{optMAC: "02:00:00:00:00:09"}},
		"NetworkDriver.CreateNetwork":   {"NetworkID": newID(), "Options": m{}, "IPv4Data": []m{}},
		"NetworkDriver.CreateEndpoint":  {"NetworkID": n.id, "EndpointID": newID()},
		"NetworkDriver.AllocateNetwork": {"NetworkID": swarmID(), "Options": m{}, "IPv4Data": []m{n.v4[0].data()}},
	} {
		text := b.fails(method, body)
		b.contains(text, "the SDN does not answer")
		if strings.Contains(text, "dial tcp") {
			t.Errorf("%s: %q tells of Go's insides", method, text)
		}
	}
	b.ok("NetworkDriver.EndpointOperInfo", e.body())
	// An endpoint that was made before can be joined: what is needed for that is remembered.
	b.ok("NetworkDriver.Leave", e.body())
	l.gone.Store(false)
	b.ok("NetworkDriver.Join", e.joinBody())
	if b.binder.count() != 1 {
		t.Error("the Leave that was owed took the interface of the Join after it")
	}
	b.must(b.driver.settleAll(t.Context()))
	if b.binder.count() != 1 {
		t.Error("the Leave that was owed took the interface of the Join after it")
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// TestAwayCreate: a network for whose making the SDN goes away, at every moment, is gone when it is back. The engine never has it, and releases its range alone.
func TestAwayCreate(t *testing.T) {
	t.Parallel()
	owed := 0
	for after := int64(1); ; after++ {
		gone := false
		t.Run(fmt.Sprintf("after=%d", after), func(t *testing.T) {
			b, l := awayBox(t)
			n := &network{v4: []*pool{{cidr: "10.1.0.0/24"}}}
			body := b.request(n)
			l.after.Store(after)
			status, answer := b.post("NetworkDriver.CreateNetwork", encode(body))
			gone = l.gone.Load()
			l.after.Store(0)
			if status != http.StatusOK || (answer["Err"] != nil) != gone {
				t.Errorf("status %d, %v, while the SDN is away: %v", status, answer, gone)
			}
			owed += b.driver.owed.count()
			b.release(n)
			if !gone {
				b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
			}
			b.restart()
			b.back(l)
			b.clean()
		})
		if !gone {
			break
		}
	}
	if owed == 0 {
		t.Error("the SDN never went away between what was made and its end")
	}
}

// TestAwayGivenAgain: what was given again meanwhile is not destroyed by a clean-up that is still owed.
func TestAwayGivenAgain(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			t.Parallel()
			b, l := awayBox(t)
			n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}, v6: []*pool{{}}})
			e := b.run(&endpoint{net: n, ip4: "10.1.0.9"})
			l.gone.Store(true)
			b.stop(e)
			if restart {
				b.restart()
			}
			l.gone.Store(false)
			// The same container is started again at once, with its address and its MAC.
			again := b.run(&endpoint{net: n, ip4: e.ip4, mac: e.mac})
			b.must(b.driver.settleAll(t.Context()))
			port := b.portOf(again.id)
			if port.DeviceID != again.id || !slices.ContainsFunc(port.Addresses, func(a sdn.Address) bool { return a.Addr.String() == again.ip4 }) {
				t.Errorf("the port that was given again is %+v", port)
			}
			if b.binder.count() != 1 {
				t.Errorf("%d interfaces", b.binder.count())
			}
			// A range is given again.
			b.stop(again)
			l.gone.Store(true)
			b.release(n)
			b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
			l.gone.Store(false)
			n = b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
			b.must(b.driver.settleAll(t.Context()))
			b.stop(b.run(&endpoint{net: n}))
			b.remove(n)
			b.clean()
		})
	}
}

// TestAwayOtherHost: a release is done, and the note of that is lost with the machine; meanwhile another host has got the address.
func TestAwayOtherHost(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} { // whether DeleteEndpoint was done before the SDN was away
		t.Run(fmt.Sprintf("deleted=%v", deleted), func(t *testing.T) {
			t.Parallel()
			b, l := awayBox(t)
			n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
			e := b.run(&endpoint{net: n})
			l.gone.Store(!deleted)
			b.ok("NetworkDriver.Leave", e.body())
			b.ok("NetworkDriver.DeleteEndpoint", e.body())
			l.gone.Store(true)
			b.giveBack(e)
			debts := map[string][]byte{}
			files, err := filepath.Glob(filepath.Join(b.config.StateDir, "owed", "*"))
			b.must(err)
			for _, f := range files {
				debts[f], err = os.ReadFile(f)
				b.must(err)
			}
			b.back(l)
			other := &endpoint{net: n, ip4: e.ip4}
			b.run(other)
			for f, text := range debts {
				b.must(os.WriteFile(f, text, 0o600))
			}
			b.restart()
			b.must(b.driver.settleAll(t.Context()))
			if port := b.portOf(other.id); len(port.Addresses) != 1 || port.Addresses[0].Addr.String() != e.ip4 || len(tagValues(port.Tags, tagFreed)) > 0 {
				t.Errorf("the other's port is %+v", port)
			}
			b.stop(other)
			b.remove(n)
			b.clean()
		})
	}
}

// TestAwayRun: what is owed is done as soon as a call shows that the SDN is back, and after a start while it was down.
func TestAwayRun(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	b.stop(e)
	b.restart()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.driver.Run(ctx) }()
	l.gone.Store(false)
	b.requestPool(&pool{cidr: "10.7.0.0/24"}, false)
	for b.driver.owed.count() > 0 {
		// Each turn asks the SDN, which is what wakes Run.
		b.requestGateway(&pool{id: n.v4[0].id})
	}
	stop()
	b.must(<-ended)
	if ports, err := sdn.All(l.FindPorts(t.Context(), sdn.PortQuery{Devices: []string{e.id}})); err != nil || len(ports) > 0 {
		t.Errorf("ports %+v, %v", ports, err)
	}
}

// TestOwedRefused: a port that something keeps there when its address is released goes when it can.
func TestOwedRefused(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := &endpoint{net: n}
	b.take(e)
	l.holds.Store(true)
	b.giveBack(e)
	if err := b.driver.settleAll(t.Context()); !sdn.IsConflict(err) {
		t.Errorf("the error is %v", err)
	}
	b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": e.ip4, "Options": m{optMAC: "02:00:00:00:00:09"}})
	l.holds.Store(false)
	b.back(l)
	b.run(&endpoint{net: n, ip4: e.ip4})
	// What is never let go is left in the end, and said.
	gone := &endpoint{net: n}
	b.take(gone)
	l.holds.Store(true)
	b.giveBack(gone)
	for _, name := range b.driver.owed.names(func(owedCall) bool { return true }) {
		c := b.driver.owed.all[name]
		c.At = c.At.Add(-patience)
		b.driver.owed.all[name] = c
	}
	b.back(l)
}

// TestOwedStuck: a call that the SDN fails at each time keeps neither others nor what is to be done at the start from being done, but for those that are
// about the same.
func TestOwedStuck(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	stuck, other := b.run(&endpoint{net: n}), b.run(&endpoint{net: n})
	gone := b.create(&network{v4: []*pool{{cidr: "10.2.0.0/24"}}})
	l.gone.Store(true)
	b.stop(stuck)
	b.stop(other)
	b.release(gone)
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": gone.id})
	l.gone.Store(false)
	l.fails.Store(&stuck.id)
	if err := b.driver.settleAll(t.Context()); !away(err) {
		t.Errorf("the error is %v", err)
	}
	for _, name := range b.driver.owed.names(func(c owedCall) bool {
		return c.about.EndpointID != stuck.id && (len(c.Addresses) == 0 || c.Addresses[0].String() != stuck.ip4)
	}) {
		c, _ := b.driver.owed.get(name)
		t.Errorf("%s of %s is still owed", c.Method, c.Body)
	}
	if b.driver.owed.count() == 0 {
		t.Error("nothing is owed of the endpoint that could not be taken away")
	}
	l.fails.Store(nil)
	b.back(l)
	b.remove(n)
	b.clean()
}

// TestOwedStuckNetwork: a network that the SDN cannot delete keeps nobody from making another, where no pool is given twice.
func TestOwedStuckNetwork(t *testing.T) {
	t.Parallel()
	l := &leaving{Provider: tagless{openStore(t, filepath.Join(t.TempDir(), "store"), true)}}
	folder := t.TempDir()
	b := boxOn(t, l, func(c *Config) { c.StateDir, c.RunDir = filepath.Join(folder, "state"), filepath.Join(folder, "run") })
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	found, _, err := b.driver.findNetwork(t.Context(), n.id)
	b.must(err)
	id := string(found.ID)
	l.gone.Store(true)
	b.release(n)
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	l.gone.Store(false)
	l.fails.Store(&id)
	other := b.create(&network{v4: []*pool{{cidr: "10.2.0.0/24"}}})
	if b.driver.owed.count() == 0 {
		t.Error("the network that cannot be deleted is not owed any more")
	}
	l.fails.Store(nil)
	b.back(l)
	b.remove(other)
	b.clean()
}

// TestPortUnseen: a container whose port the SDN does not show, to other credentials than before it may be, is not cut off by a restart; when it is stopped
// nothing is left.
func TestPortUnseen(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	b.must(l.DeletePorts(t.Context(), []sdn.ID{b.portOf(e.id).ID}))
	b.restart()
	b.must(b.driver.Reconcile(t.Context()))
	if b.binder.count() != 1 {
		t.Error("the container has lost its interface")
	}
	b.stop(e)
	if b.binder.count() != 0 {
		t.Error("the interface is left")
	}
	b.nothingPlugged()
	b.remove(n)
	b.clean()
}

// TestAwayWithoutFolder: where there is no folder, what cannot be cleaned up is said to the engine.
func TestAwayWithoutFolder(t *testing.T) {
	t.Parallel()
	l := &leaving{Provider: openStore(t, filepath.Join(t.TempDir(), "store"), true)}
	b := boxOn(t, l)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	status, answer := b.post("NetworkDriver.DeleteEndpoint", encode(e.body()))
	if status != http.StatusOK || answer["Err"] == nil {
		t.Errorf("%d %v", status, answer)
	}
	if b.binder.count() != 0 {
		t.Error("the interface is still plugged")
	}
}

// TestOwedStrange: what is no clean-up is not done, whoever wrote it down.
func TestOwedStrange(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	for _, method := range []string{"NetworkDriver.CreateNetwork", "Nobody.Knows", "NetworkDriver.DeleteEndpoint"} {
		b.must(b.driver.owed.add(owedCall{Method: method, Body: []byte(`{"NetworkID":"x"}`)}))
	}
	b.must(b.driver.settleAll(t.Context()))
	if n := b.driver.owed.count(); n != 0 {
		t.Errorf("%d are still owed", n)
	}
	b.clean()
}

// TestOwedBound: what is written down has a bound, and what cannot be read of it is passed over.
func TestOwedBound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var told bytes.Buffer
	log := slog.New(slog.NewTextHandler(&told, nil))
	o := openOwed(dir, log)
	for i := range maxOwed {
		o.all[fmt.Sprint(i)] = owedCall{}
	}
	if o.add(owedCall{}) == nil {
		t.Error("there is no bound")
	}
	if err := os.WriteFile(filepath.Join(dir, "00000000000000000007.json"), []byte(`{"Method":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if o = openOwed(dir, log); o.count() != 0 || !strings.Contains(told.String(), "00000000000000000007") {
		t.Errorf("%d are owed; the log says %q", o.count(), told.String())
	}
}

// TestAwayNoRoom: a folder that cannot be made keeps nobody from being served.
func TestAwayNoRoom(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := &leaving{Provider: openStore(t, filepath.Join(t.TempDir(), "store"), true)}
	b := boxOn(t, l, func(c *Config) { c.StateDir, c.RunDir = file, file })
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := b.run(&endpoint{net: n})
	l.gone.Store(true)
	b.fails("NetworkDriver.DeleteEndpoint", e.body())
	l.gone.Store(false)
	b.stop(e)
	b.remove(n)
	b.clean()
}
