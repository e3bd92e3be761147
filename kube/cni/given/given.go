//go:build linux

// Package given binds the port that CNI_ARGS describes whole (PORT_UUID, PORT_TYPE, IPV4, GW, …), without asking any SDN: the first of the three ways of the
// flat-mode design.
//
// It owns a record for each interface that it has bound, written before anything is plugged, so that whoever is killed leaves nothing unknown. kuryr-cni uses it
// where no daemon runs, and the daemon for ports that its Source does not know. It must not be used for a port that the SDN can be asked about: that knows better.
package given

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// Binder is what is used of bind.Binder.
type Binder interface {
	Plug(ctx context.Context, i bind.Interface) (bind.Result, error)
	Unplug(ctx context.Context, port sdn.Port) error
	State(ctx context.Context, port sdn.Port) (bind.State, error)
}

// Bound is the record of an interface.
type Bound struct {
	Container string
	Interface string
	Namespace string
	Network   string // the conflist's name
	Port      sdn.Port
	MTU       int
	Subnets   []sdn.Subnet
	// KeptRoutes are what binding found (bind.Result). They are not recorded.
	KeptRoutes []netip.Prefix `json:"-"`
}

// Folder has the records, and binds.
type Folder struct {
	records *jsonstore.Store
	binder  Binder
}

// In is the folder in kuryr-cni's and the daemon's state.
func In(state string, b Binder) *Folder {
	return &Folder{cni.BoundIn(state), b}
}

// Find gives what the interface has, and whether it has anything.
func (f *Folder) Find(container, iface string) (Bound, bool, error) {
	return jsonstore.Get[Bound](f.records, cni.RecordName(container, iface))
}

// All are the records there are.
func (f *Folder) All() ([]Bound, error) {
	all, err := jsonstore.Load[Bound](f.records)
	var list []Bound
	for _, b := range all {
		list = append(list, b)
	}
	return list, err
}

// Bind plugs the port that the arguments say. It is BindPort of what they describe.
// UnsupportedField names a field that asks for more.
func (f *Folder) Bind(ctx context.Context, c cni.Call, conf cni.Config, a cni.Args) (Bound, error) {
	if field := conf.Beyond(); field != "" {
		return Bound{}, cni.UnsupportedField.Errorf("%s: a port that CNI_ARGS describe is bound as it is", field)
	}
	return f.BindPort(ctx, newBound(c, conf.Name, a))
}

// BindPort plugs a port that is known whole. Repeated it finds what is there. What fails leaves nothing behind. A container that had the port before has it no more: its DEL may
// come late. Errors: IsConflict where the interface has another port; Plug's.
func (f *Folder) BindPort(ctx context.Context, b Bound) (Bound, error) {
	name := cni.RecordName(b.Container, b.Interface)
	before, there, err := jsonstore.Get[Bound](f.records, name)
	if err != nil {
		return Bound{}, err
	}
	if there && before.Port.ID != b.Port.ID {
		return Bound{}, sdn.Conflict(sdn.Exists, "interface "+b.Interface, "PORT_UUID", "it has port %s", before.Port.ID)
	}
	if b.Port.MAC == nil {
		// The interface's own: chosen once, and kept for who asks again.
		if b.Port.MAC = before.Port.MAC; b.Port.MAC == nil {
			b.Port.MAC = randomMAC()
		}
	}
	if err := f.records.Put(name, b); err != nil {
		return Bound{}, err
	}
	failpoint.Here("given.bind.recorded")
	if err := f.forget(b.Port.ID, name); err != nil {
		return Bound{}, err
	}
	r, err := f.binder.Plug(ctx, bind.Interface{
		Port: b.Port, MTU: b.MTU, Subnets: b.Subnets, Namespace: b.Namespace, Name: b.Interface,
	})
	if err != nil {
		ctx = context.WithoutCancel(ctx)
		if undo := f.binder.Unplug(ctx, b.Port); undo == nil {
			_ = f.records.Delete(name) // the error told is the one that has the cause
		}
		return Bound{}, err
	}
	b.KeptRoutes = r.KeptRoutes
	failpoint.Here("given.bind.plugged")
	return b, nil
}

// Unbind takes the interface away, and tells whether there was one.
func (f *Folder) Unbind(ctx context.Context, container, iface string) (bool, error) {
	b, there, err := f.Find(container, iface)
	if err != nil || !there {
		return false, err
	}
	if err := f.binder.Unplug(ctx, b.Port); err != nil {
		return true, err
	}
	failpoint.Here("given.unbind.unplugged")
	return true, f.records.Delete(cni.RecordName(container, iface))
}

// Forget is for who has given the port to a container otherwise and is about to plug it: who had it has it no more, so that a late DEL leaves the new interface alone.
func (f *Folder) Forget(port sdn.ID) error { return f.forget(port, "") }

// forget drops the records of a port but the one of this name. What cannot be read names no port.
func (f *Folder) forget(port sdn.ID, but string) error {
	all, _ := jsonstore.Load[Bound](f.records)
	var errs []error
	for name, b := range all {
		if b.Port.ID == port && name != but {
			errs = append(errs, f.records.Delete(name))
		}
	}
	return errors.Join(errs...)
}

// newBound makes a port and its subnets of the arguments.
func newBound(c cni.Call, network string, a cni.Args) Bound {
	b := Bound{
		Container: c.Container, Interface: c.Interface, Namespace: c.Namespace, Network: network, MTU: a.MTU,
		Port: sdn.Port{Meta: sdn.Meta{ID: sdn.ID(a.Port), Foreign: true}, MAC: a.MAC, DeviceID: c.Container, VIF: sdn.VIF{Type: a.PortType}},
	}
	for _, p := range a.Addresses() {
		id := sdn.ID(p.Masked().String()) // nobody else needs to know it
		b.Subnets = append(b.Subnets, sdn.Subnet{Meta: sdn.Meta{ID: id}, CIDR: p.Masked(), Gateway: a.Gateway(p.Addr())})
		b.Port.Addresses = append(b.Port.Addresses, sdn.Address{Subnet: id, Addr: p.Addr()})
	}
	return b
}

// Plugged is what CNI is told.
func (b Bound) Plugged() cni.Plugged {
	return cni.Plugged{
		Port: b.Port, MTU: b.MTU, Subnets: b.Subnets, Host: bind.HostName(b.Port.ID),
		Name: b.Interface, Namespace: b.Namespace, KeptRoutes: b.KeptRoutes,
	}
}

// Matches tells whether a port is as the arguments say, which name the one that is not.
func Matches(port sdn.Port, subnets []sdn.Subnet, a cni.Args) error {
	has := map[netip.Prefix]netip.Addr{} // gateway by address
	for _, at := range port.Addresses {
		for _, s := range subnets {
			if s.ID == at.Subnet {
				has[netip.PrefixFrom(at.Addr, s.CIDR.Bits())] = s.Gateway
			}
		}
	}
	for _, p := range a.Addresses() {
		gateway, there := has[p]
		if !there {
			return sdn.Conflict(sdn.Immutable, "port "+a.Port, "CNI_ARGS", "it does not have the address %s", p)
		}
		if gw := a.Gateway(p.Addr()); gw.IsValid() && gw != gateway {
			return sdn.Conflict(sdn.Immutable, "port "+a.Port, "CNI_ARGS", "the gateway of %s is %s, not GW %s", p, gateway, gw)
		}
	}
	if a.MAC != nil && a.MAC.String() != port.MAC.String() {
		return sdn.Conflict(sdn.Immutable, "port "+a.Port, "CNI_ARGS", "its MAC is %s, not %s", port.MAC, a.MAC)
	}
	return nil
}

// randomMAC is unicast and locally administered.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}
