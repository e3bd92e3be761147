//go:build linux

package bind

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// maxMakes is how often the pair is made before giving up: once, once more after an old
// one was put down, and once more after the retired links have gone.
const maxMakes = 3

// A seat is where the host ends of a VIF type go: what differs between the drivers that
// make a veth pair. Its methods may be repeated. They work by s, a socket in ns, which is
// the port's namespace; the calling thread may be in another.
type seat interface {
	// find gives the place of the port's host end, and makes what of it is the driver's to
	// make if make is set. A bridge that is not there IsNotFound; what a find has made that
	// fails is gone again.
	find(ctx context.Context, s *socket, ns namespace, i Interface, make bool) (place, error)
	// join tells the switch of the host end, which is there and up, and fresh if it
	// was made just now.
	join(ctx context.Context, port sdn.Port, fresh bool) error
	// unjoin undoes join alone.
	unjoin(ctx context.Context, port sdn.Port) error
	// joined reports whether it was told.
	joined(ctx context.Context, port sdn.Port) (bool, error)
	// leave undoes join and find, before the host end goes.
	leave(ctx context.Context, s *socket, ns namespace, port sdn.Port) error
}

// place is where a host end belongs.
type place struct {
	bridge int32  // the index of the Linux bridge it is put on; 0: none, and its master is not ours
	name   string // of the bridge
	// routed: the host itself speaks by way of the host end, which so needs ARP and a
	// link-local address.
	routed bool
	// wholeSums: who takes frames from the host end does not complete checksums, so the
	// container must.
	wholeSums bool
	// known: the switch was told already, of a link of this name. It must forget it before
	// another gets the name: Open vSwitch may not notice that it is another, and puts flags
	// that it remembers of the one it lets go on whatever has the name then.
	known bool
}

// flags are a host end's. A bridge's port speaks for no host: without NOARP it would
// itself listen to ARP in frames to the bridge group (01:80:c2:00:00:0x), which no filter
// of bridges sees.
func (p place) flags() uint32 {
	if p.routed {
		return unix.IFF_UP
	}
	return unix.IFF_UP | unix.IFF_NOARP
}

// on puts the link of a message on the place's bridge.
func (p place) on(b *batch) {
	if p.bridge != 0 {
		b.u32(unix.IFLA_MASTER, uint32(p.bridge))
	}
}

// alone is a seat that tells no switch.
type alone struct{}

func (alone) join(context.Context, sdn.Port, bool) error                { return nil }
func (alone) unjoin(context.Context, sdn.Port) error                    { return nil }
func (alone) joined(context.Context, sdn.Port) (bool, error)            { return true, nil }
func (alone) leave(context.Context, *socket, namespace, sdn.Port) error { return nil }

// vethDriver plugs ports by a veth pair with its host end on a seat.
type vethDriver struct {
	host   *host
	reaper *reaper
	log    *slog.Logger
	seat   seat
}

// Plug makes the pair in one message, the host end on its bridge and the container end in
// its namespace, and configures both.
func (d *vethDriver) Plug(ctx context.Context, i Interface) (Result, error) {
	conf, err := i.setup()
	if err != nil {
		return Result{}, err
	}
	near, err := d.host.openNamespace(i.Port.VIF.Details[sdn.DetailNamespace])
	if err != nil {
		return Result{}, err
	}
	defer near.close()
	far, err := d.host.openNamespace(i.Namespace)
	if err != nil {
		return Result{}, err
	}
	defer far.close()

	p := &pair{Interface: i, conf: conf, near: near, far: far, reaper: d.reaper, seat: d.seat}
	if err := visit(func() error { return p.plug(ctx) }); err != nil {
		return Result{}, err
	}
	d.reaper.look(near.path)
	return Result{
		HostName: HostName(i.Port.ID), Name: i.Name, MAC: slices.Clone(i.Port.MAC), MTU: p.MTU,
		Namespace: i.Namespace, KeptRoutes: p.kept,
	}, nil
}

// Unplug retires the host end; its other end goes with it. Also where the
// switch cannot be told: then the error says so, and another Unplug tells it.
func (d *vethDriver) Unplug(ctx context.Context, port sdn.Port) error {
	ns, err := d.host.openNamespace(port.VIF.Details[sdn.DetailNamespace])
	if sdn.IsNotFound(err) {
		return nil // and with it went all that was in it
	}
	if err != nil {
		return err
	}
	defer ns.close()
	return ns.within(func(s *socket) error {
		err = d.seat.leave(ctx, s, ns, port)
		failpoint.Here("bind.unplug.left")
		return errors.Join(err, d.retire(s, ns, port))
	})
}

// retire retires the host end, if it is there and the port's.
func (d *vethDriver) retire(s *socket, ns namespace, port sdn.Port) error {
	old, err := s.link(0, HostName(port.ID))
	switch {
	case errors.Is(err, errNoLink):
		d.reaper.look(ns.path)
		return nil
	case err != nil:
		return err
	case !belongsTo(old, port.ID):
		d.log.Warn(
			"interface with a port's name is not its host end", "port", string(port.ID),
			"interface", old.name, "kind", old.kind, "alias", old.alias,
		)
		return nil
	}
	return d.reaper.retire(s, old, ns, port.ID)
}

// Connected looks at the host end, which is running while both ends are up.
func (d *vethDriver) Connected(_ context.Context, port sdn.Port) (connected bool, err error) {
	ns, err := d.host.openNamespace(port.VIF.Details[sdn.DetailNamespace])
	if sdn.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer ns.close()
	err = ns.within(func(s *socket) error {
		l, err := s.link(0, HostName(port.ID))
		if errors.Is(err, errNoLink) {
			return nil
		}
		connected = err == nil && belongsTo(l, port.ID) && l.flags&unix.IFF_RUNNING != 0
		return err
	})
	return connected, err
}

// belongsTo reports whether l is the port's host end. Where the making was killed before
// the alias was set, kind and group tell.
func belongsTo(l link, id sdn.ID) bool { return l.kind == "veth" && marked(l, id) }

// marked reports whether l was made for the port.
func marked(l link, id sdn.ID) bool {
	switch l.alias {
	case Alias(id), retiredAlias + string(id):
		return true
	case "":
		return l.group == groupPort
	}
	return false
}

// pair is a veth pair being plugged: near is the host end's side, far the container end's.
type pair struct {
	Interface
	conf      setup
	near, far namespace
	n, f      *socket
	reaper    *reaper
	seat      seat
	place     place
	kept      []netip.Prefix
	fresh     bool // this call made it
	stood     bool // it was there
}

// undoTime bounds what takes back a Plug that failed, whose own context may have ended.
const undoTime = 5 * time.Second

// plug runs on a visitor's thread and leaves it in the far namespace. The sockets are one in each.
func (p *pair) plug(ctx context.Context) (err error) {
	if p.n, err = p.near.socket(); err != nil {
		return err
	}
	defer p.n.close()
	if p.f, err = p.far.socket(); err != nil {
		return err
	}
	defer p.f.close()
	if p.place, err = p.seat.find(ctx, p.n, p.near, p.Interface, true); err != nil {
		return err
	}
	if err = p.connect(ctx); err != nil {
		err = errors.Join(p.explain(err), p.undo(ctx))
	}
	return err
}

// connect makes the pair and configures it.
func (p *pair) connect(ctx context.Context) error {
	if p.place.known {
		if _, err := p.n.index(HostName(p.Port.ID)); errors.Is(err, errNoLink) {
			if err := p.seat.unjoin(ctx, p.Port); err != nil {
				return err
			}
		}
	}
	flushed := false
	for range maxMakes {
		if err := ctx.Err(); err != nil {
			return err
		}
		ready, err := p.make(ctx)
		if ready {
			return p.configure(ctx)
		}
		if err != nil && (flushed || !errors.Is(err, unix.EXFULL) && !sdn.IsConflict(err)) {
			return err
		}
		// A port that was just unplugged may still hold the name or the place; and an old pair
		// that was put down may have its other end, with the same addresses and routes, in this
		// very container.
		if err := p.reaper.flush(p.near.path); err != nil {
			return err
		}
		flushed = true
	}
	return taken(p.near, HostName(p.Port.ID), "comes back whenever it is removed")
}

// make makes the pair, or finds it made. It is not ready, without an error, where a pair
// that stands elsewhere was put down: the next make may succeed. The error IsConflict
// where a name is taken, perhaps by a retired link.
func (p *pair) make(ctx context.Context) (ready bool, err error) {
	if err = p.create(); err == nil {
		failpoint.Here("bind.plug.created")
		p.fresh = true
		return true, nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	old, err := p.n.link(0, HostName(p.Port.ID))
	switch {
	case errors.Is(err, errNoLink):
		return false, taken(p.far, p.Name, "is in use")
	case err != nil:
		return false, err
	case !belongsTo(old, p.Port.ID):
		return false, taken(p.near, old.name, "belongs to something else")
	case old.group == groupDying:
		return false, taken(p.near, old.name, "is being removed")
	}
	if p.stood, err = p.stands(old); p.stood || err != nil {
		return p.stood, err
	}
	if err := p.seat.unjoin(ctx, p.Port); err != nil {
		return false, err
	}
	return false, p.reaper.retire(p.n, old, p.near, p.Port.ID)
}

// create makes the pair in one message, which does all or nothing. The host end is the
// main one: a peer cannot be put up or be given a master. Its MAC begins with fe, as
// libvirt's do, so that a bridge without a fixed MAC never takes it.
func (p *pair) create() error {
	hostMAC := slices.Clone(p.Port.MAC)
	if hostMAC[0] = 0xfe; bytes.Equal(hostMAC, p.Port.MAC) {
		hostMAC[0] = 0xfa // the bridge would keep frames to its own ports' MACs
	}
	var b batch
	b.add(
		"make veth pair "+HostName(p.Port.ID), unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		ifInfo(unix.AF_UNSPEC, 0, 0, 0),
	)
	b.text(unix.IFLA_IFNAME, HostName(p.Port.ID))
	b.attr(unix.IFLA_ADDRESS, hostMAC)
	p.place.on(&b)
	b.u32(unix.IFLA_GROUP, groupPort)
	p.mtu(&b)
	b.nest(unix.IFLA_LINKINFO, func() {
		b.attr(unix.IFLA_INFO_KIND, []byte("veth"))
		b.nest(unix.IFLA_INFO_DATA, func() {
			b.nest(vethInfoPeer, func() {
				b.buf = append(b.buf, ifInfo(unix.AF_UNSPEC, 0, 0, 0)...)
				b.text(unix.IFLA_IFNAME, p.Name)
				b.attr(unix.IFLA_ADDRESS, p.Port.MAC)
				b.u32(unix.IFLA_NET_NS_FD, uint32(p.far.fd))
				p.mtu(&b)
			})
		})
	})
	return p.n.do(&b)
}

func (p *pair) mtu(b *batch) {
	if p.MTU > 0 {
		b.u32(unix.IFLA_MTU, uint32(p.MTU))
	}
}

// stands reports whether the other end of old is where it is wanted, with its name and MAC.
func (p *pair) stands(old link) (bool, error) {
	same, err := p.near.same(p.far)
	if err != nil || same != old.peerHere {
		return false, err
	}
	if !same {
		id, err := p.n.nsid(p.far.fd)
		if err != nil || id != old.peerNSID {
			return false, err
		}
	}
	end, err := p.f.link(old.peer, "")
	if errors.Is(err, errNoLink) {
		return false, nil
	}
	return err == nil && end.name == p.Name && bytes.Equal(end.mac, p.Port.MAC), err
}

// undo takes back what a failed Plug has made. What stood before stays.
func (p *pair) undo(ctx context.Context) error {
	if p.stood {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	err := p.seat.leave(ctx, p.n, p.near, p.Port)
	if !p.fresh {
		return err
	}
	if l, gone := p.n.link(0, HostName(p.Port.ID)); gone == nil {
		err = errors.Join(err, p.reaper.retire(p.n, l, p.near, p.Port.ID))
	}
	return err
}

// configure finishes the pair; all of it may be repeated.
func (p *pair) configure(ctx context.Context) error {
	if err := p.configureHost(); err != nil {
		return err
	}
	failpoint.Here("bind.plug.hosted")
	if p.place.wholeSums {
		if err := sumsOff(p.f, p.Name); err != nil {
			return fmt.Errorf(
				"interface %s in %s: switch checksum offload off, which a switch in user space needs: %w",
				p.Name, p.far, err,
			)
		}
	}
	if err := p.configureFar(); err != nil {
		return err
	}
	if err := p.seat.join(ctx, p.Port, p.fresh); err != nil {
		return err
	}
	failpoint.Here("bind.plug.joined")
	return nil
}

// configureFar configures the container end, unless that is an engine's affair.
func (p *pair) configureFar() error {
	if p.Namespace == "" {
		return p.park()
	}
	var err error
	reap := func() error { return p.reaper.flush(p.near.path) }
	if p.kept, err = configureContainer(p.f, p.Name, p.Port.MAC, p.MTU, p.conf, reap); err != nil {
		return fmt.Errorf("interface %s in %s: %w", p.Name, p.far, err)
	}
	failpoint.Here("bind.plug.configured")
	// The host end was up first, so it got its carrier just now, and would drop frames until
	// the kernel's work queue has seen to that; to read the link does it immediately.
	_, err = p.n.link(0, HostName(p.Port.ID))
	return err
}

// configureHost gives the host end its mark, its place and its MTU, and puts it up.
func (p *pair) configureHost() error {
	index, err := p.n.index(HostName(p.Port.ID))
	if err != nil {
		return err
	}
	if !p.place.routed {
		if err := noLinkLocal(p.n, index); err != nil {
			return err
		}
	}
	var b batch
	// In the message that makes the pair the kernel ignores an alias.
	flags := p.place.flags()
	b.add("configure "+HostName(p.Port.ID), unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, flags, flags))
	b.text(unix.IFLA_IFALIAS, Alias(p.Port.ID))
	if !p.fresh {
		p.place.on(&b)
		b.u32(unix.IFLA_GROUP, groupPort)
		p.mtu(&b)
	}
	return p.n.do(&b)
}

// park leaves the container end to the engine. Only a pair that is found may need it: its
// MTU may be another now.
func (p *pair) park() error {
	if p.fresh || p.MTU == 0 {
		return nil
	}
	var b batch
	b.add("set the MTU of "+p.Name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
	b.text(unix.IFLA_IFNAME, p.Name)
	p.mtu(&b)
	return p.f.do(&b)
}

// explain puts a full bridge into the SDN's words.
func (p *pair) explain(err error) error {
	if errors.Is(err, unix.EXFULL) {
		return sdn.Exhausted(sdn.NoPorts, "network", "bridge %s in %s holds as many ports as a Linux bridge can (1023)",
			p.place.name, p.near)
	}
	return err
}

// taken says that a name cannot be had.
func taken(ns namespace, name, why string) error {
	return &sdn.Error{
		Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "interface", ID: name, Field: "name",
		Detail: fmt.Sprintf("the name %s in %s", why, ns),
	}
}
