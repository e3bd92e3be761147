//go:build linux

package bind

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// maxMakes is how often the pair is made before giving up: once, once more after an old one was put down, and once more after the
// tombstones have gone.
const maxMakes = 3

// bridgeDriver plugs ports whose VIF is a Linux bridge: a veth pair with its host end on the bridge.
type bridgeDriver struct {
	host   *host
	graves *graveyard
	log    *slog.Logger
}

// Plug makes the pair in one message, the host end on the bridge and the container end in its namespace, and configures both.
func (d *bridgeDriver) Plug(ctx context.Context, i Interface) (Result, error) {
	var conf setup
	if i.Namespace != "" {
		var err error
		if conf, err = newSetup(i.Port, i.Subnets); err != nil {
			return Result{}, err
		}
	}
	bridge := i.Port.VIF.Details[sdn.DetailBridge]
	if err := checkName("port", "vif.details."+sdn.DetailBridge, bridge); err != nil {
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

	p := &pair{Interface: i, conf: conf, near: near, far: far, graves: d.graves}
	if err := visit(func() error { return p.plug(ctx, bridge) }); err != nil {
		return Result{}, err
	}
	d.graves.look(near.path)
	return Result{HostName: HostName(i.Port.ID), Name: i.Name, MAC: slices.Clone(i.Port.MAC), MTU: p.MTU, Namespace: i.Namespace}, nil
}

// Unplug makes the host end a tombstone; its other end goes with it.
func (d *bridgeDriver) Unplug(_ context.Context, port sdn.Port) error {
	ns, err := d.host.openNamespace(port.VIF.Details[sdn.DetailNamespace])
	if sdn.IsNotFound(err) {
		return nil // and with it went all that was in it
	}
	if err != nil {
		return err
	}
	defer ns.close()
	return visit(func() error {
		s, err := ns.socket()
		if err != nil {
			return err
		}
		defer s.close()
		old, err := s.link(0, HostName(port.ID))
		switch {
		case errors.Is(err, errNoLink):
			d.graves.look(ns.path)
			return nil
		case err != nil:
			return err
		case !belongsTo(old, port.ID):
			d.log.Warn("interface has a port's name but is not its host end: left alone", "port", string(port.ID), "interface", old.name, "kind", old.kind, "alias", old.alias)
			return nil
		}
		return d.graves.bury(s, old, ns, port.ID)
	})
}

// Connected looks at the host end, which is running while both ends are up.
func (d *bridgeDriver) Connected(_ context.Context, port sdn.Port) (connected bool, err error) {
	ns, err := d.host.openNamespace(port.VIF.Details[sdn.DetailNamespace])
	if sdn.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer ns.close()
	err = visit(func() error {
		s, err := ns.socket()
		if err != nil {
			return err
		}
		defer s.close()
		l, err := s.link(0, HostName(port.ID))
		if errors.Is(err, errNoLink) {
			return nil
		}
		connected = err == nil && belongsTo(l, port.ID) && l.flags&unix.IFF_RUNNING != 0
		return err
	})
	return connected, err
}

// belongsTo tells whether l is the port's host end. Where the making was killed before the alias was set, kind and group tell.
func belongsTo(l link, id sdn.ID) bool {
	if l.kind != "veth" {
		return false
	}
	switch l.alias {
	case Alias(id), graveAlias + string(id):
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
	graves    *graveyard
	bridge    int32 // index
	fresh     bool  // this call made it
}

// plug runs on a visitor's thread and leaves it in the far namespace.
func (p *pair) plug(ctx context.Context, bridge string) (err error) {
	if p.n, err = p.near.socket(); err != nil {
		return err
	}
	defer p.n.close()
	if p.f, err = p.far.socket(); err != nil {
		return err
	}
	defer p.f.close()
	p.bridge, err = p.n.index(bridge)
	if errors.Is(err, errNoLink) {
		return &sdn.Error{Kind: sdn.KindNotFound, Noun: "bridge", ID: bridge, Detail: "not found in " + p.near.String()}
	}
	if err != nil {
		return err
	}
	settled := false
	for range maxMakes {
		if err := ctx.Err(); err != nil {
			return err
		}
		ready, err := p.make()
		if ready {
			return p.configure()
		}
		if err != nil && (settled || !errors.Is(err, unix.EXFULL) && !sdn.IsConflict(err)) {
			return p.explain(err)
		}
		// What was unplugged just now may still hold the name or the place; and an old pair that was put down may have its other end,
		// with the same addresses and routes, in this very container.
		if err := p.graves.settle(p.near.path); err != nil {
			return err
		}
		settled = true
	}
	return p.taken(p.near, HostName(p.Port.ID), "comes back whenever it is removed")
}

// make makes the pair, or finds it made. It is not ready, without an error, where a pair that stands elsewhere was put down: the
// next make may succeed. The error IsConflict where a name is taken, perhaps by a tombstone.
func (p *pair) make() (ready bool, err error) {
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
		return false, p.taken(p.far, p.Name, "is in use")
	case err != nil:
		return false, err
	case !belongsTo(old, p.Port.ID):
		return false, p.taken(p.near, old.name, "belongs to something else")
	case old.group == groupDying:
		return false, p.taken(p.near, old.name, "is being removed")
	}
	if ready, err = p.stands(old); ready || err != nil {
		return ready, err
	}
	return false, p.graves.bury(p.n, old, p.near, p.Port.ID)
}

// create makes the pair in one message, which does all or nothing. The host end is the main one: a peer cannot be put up or
// be given a master. Its MAC begins with fe, as libvirt's do, so that a bridge without a fixed MAC never takes it.
func (p *pair) create() error {
	hostMAC := slices.Clone(p.Port.MAC)
	if hostMAC[0] = 0xfe; bytes.Equal(hostMAC, p.Port.MAC) {
		hostMAC[0] = 0xfa // the bridge would keep frames to its own ports' MACs
	}
	var b batch
	b.add("make veth pair "+HostName(p.Port.ID), unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
	b.text(unix.IFLA_IFNAME, HostName(p.Port.ID))
	b.attr(unix.IFLA_ADDRESS, hostMAC)
	b.u32(unix.IFLA_MASTER, uint32(p.bridge))
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

// stands tells whether the other end of old is where it is wanted, with its name and MAC.
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

// configure finishes the pair; all of it may be repeated. A pair that this call made and cannot finish is put down again.
func (p *pair) configure() (err error) {
	defer func() {
		if err == nil || !p.fresh {
			err = p.explain(err)
			return
		}
		if l, gone := p.n.link(0, HostName(p.Port.ID)); gone == nil {
			gone = p.graves.bury(p.n, l, p.near, p.Port.ID)
			err = errors.Join(err, gone)
		}
		err = p.explain(err)
	}()
	if err := p.configureHost(); err != nil {
		return err
	}
	failpoint.Here("bind.plug.hosted")
	if p.Namespace == "" {
		return p.park()
	}
	if err := configureContainer(p.f, p.Name, p.Port.MAC, p.MTU, p.conf); err != nil {
		return fmt.Errorf("interface %s in %s: %w", p.Name, p.far, err)
	}
	failpoint.Here("bind.plug.configured")
	// The host end was up first, so it got its carrier just now, and would drop frames until the kernel's work queue has seen to that;
	// to read the link does it at once.
	_, err = p.n.link(0, HostName(p.Port.ID))
	return err
}

// configureHost gives the host end its mark, its place and its MTU, and puts it up.
func (p *pair) configureHost() error {
	index, err := p.n.index(HostName(p.Port.ID))
	if err != nil {
		return err
	}
	if err := noLinkLocal(p.n, index); err != nil {
		return err
	}
	var b batch
	// In the message that makes the pair the kernel ignores an alias. The host end is a bridge's port and speaks for nobody: without
	// NOARP it would itself listen to ARP in frames to the bridge group (01:80:c2:00:00:0x), which no filter of bridges sees.
	const flags = unix.IFF_UP | unix.IFF_NOARP
	b.add("configure "+HostName(p.Port.ID), unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, flags, flags))
	b.text(unix.IFLA_IFALIAS, Alias(p.Port.ID))
	if !p.fresh {
		b.u32(unix.IFLA_MASTER, uint32(p.bridge))
		b.u32(unix.IFLA_GROUP, groupPort)
		p.mtu(&b)
	}
	return p.n.do(&b)
}

// park leaves the container end to the engine. Only a pair that is found may need it: its MTU may be another now.
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
			p.Port.VIF.Details[sdn.DetailBridge], p.near)
	}
	return err
}

// taken says that a name cannot be had.
func (p *pair) taken(ns namespace, name, why string) error {
	return &sdn.Error{
		Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "interface", ID: name, Field: "name",
		Detail: fmt.Sprintf("the name %s in %s", why, ns),
	}
}
