//go:build linux

// Package static binds ports without an SDN: the port that CNI_ARGS describes completely
// (PORT_UUID, PORT_TYPE, IPV4, GW, …), and the port of a pod that the Kubernetes API describes.
//
// It owns a record of each interface that it has bound, stored before the interface is plugged, so
// that a kill at any point leaves no unknown interface. kuryr-cni uses it if no daemon runs, and
// the daemon for ports that its Source does not know. It must not be used for a port that an SDN
// can be asked about.
//
// The records are files of package jsonstore, and not rows of the daemon's table (package
// reconcile). One process at a time has that table open, while kuryr-cni writes a record without a
// daemon, and a daemon that is started later reads it. The table is also of one boot of the
// machine. A record outlives the boot: nothing else has the port, and a switch such as Open vSwitch
// keeps it until the container runtime's DEL.
package static

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"

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

// Binding is the record of an interface.
type Binding struct {
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

// Bindings has the records, and binds.
type Bindings struct {
	records *jsonstore.Store
	binder  Binder
}

// In returns the bindings in the state of kuryr-cni and the daemon.
func In(state string, b Binder) *Bindings {
	return &Bindings{cni.StaticBindings(state), b}
}

// Find returns the binding of an interface, and reports whether it has one.
func (s *Bindings) Find(container, iface string) (Binding, bool, error) {
	return jsonstore.Get[Binding](s.records, cni.RecordName(container, iface))
}

// All returns all bindings.
func (s *Bindings) All() ([]Binding, error) {
	all, err := jsonstore.Load[Binding](s.records)
	return slices.Collect(maps.Values(all)), err
}

// Bind plugs the port that the arguments describe, as BindPort does. A configuration that asks for
// more is UnsupportedField.
func (s *Bindings) Bind(ctx context.Context, c cni.Call, conf cni.Config, a cni.Args) (Binding, error) {
	if field := conf.Beyond(); field != "" {
		return Binding{}, cni.UnsupportedField.Errorf("%s: a port that CNI_ARGS describe is bound as it is", field)
	}
	return s.BindPort(ctx, newBinding(c, conf.Name, a))
}

// BindPort plugs a port. It is idempotent, and leaves nothing if it fails. A container that had the
// port before no longer has it: its DEL may come late. Errors: IsConflict if the interface has
// another port; those of Plug.
func (s *Bindings) BindPort(ctx context.Context, b Binding) (Binding, error) {
	name := cni.RecordName(b.Container, b.Interface)
	before, there, err := jsonstore.Get[Binding](s.records, name)
	if err != nil {
		return Binding{}, err
	}
	if there && before.Port.ID != b.Port.ID {
		return Binding{}, sdn.Conflict(sdn.Exists, "interface "+b.Interface, "PORT_UUID", "it has port %s", before.Port.ID)
	}
	if b.Port.MAC == nil {
		b.Port.MAC = before.Port.MAC
	}
	if b.Port.MAC == nil {
		b.Port.MAC = randomMAC()
	}
	if err := s.records.Put(name, b); err != nil {
		return Binding{}, err
	}
	failpoint.Here("static.bind.recorded")
	if err := s.forget(b.Port.ID, name); err != nil {
		return Binding{}, err
	}
	r, err := s.binder.Plug(ctx, bind.Interface{
		Port: b.Port, MTU: b.MTU, Subnets: b.Subnets, Namespace: b.Namespace, Name: b.Interface,
	})
	if err != nil {
		ctx = context.WithoutCancel(ctx)
		if undo := s.binder.Unplug(ctx, b.Port); undo == nil {
			_ = s.records.Delete(name) // the caller needs the first error
		}
		return Binding{}, err
	}
	b.KeptRoutes = r.KeptRoutes
	failpoint.Here("static.bind.plugged")
	return b, nil
}

// Unbind unplugs the interface, and reports whether there was one.
func (s *Bindings) Unbind(ctx context.Context, container, iface string) (bool, error) {
	b, there, err := s.Find(container, iface)
	if err != nil || !there {
		return false, err
	}
	if err := s.binder.Unplug(ctx, b.Port); err != nil {
		return true, err
	}
	failpoint.Here("static.unbind.unplugged")
	return true, s.records.Delete(cni.RecordName(container, iface))
}

// Forget deletes the records of a port before it is plugged for another container, so that a late
// DEL leaves the new interface alone.
func (s *Bindings) Forget(port sdn.ID) error { return s.forget(port, "") }

// forget deletes the records of a port, except the one of this name. An unreadable record names no
// port.
func (s *Bindings) forget(port sdn.ID, but string) error {
	all, _ := jsonstore.Load[Binding](s.records)
	var errs []error
	for name, b := range all {
		if b.Port.ID == port && name != but {
			errs = append(errs, s.records.Delete(name))
		}
	}
	return errors.Join(errs...)
}

// newBinding makes a port and its subnets of the arguments.
func newBinding(c cni.Call, network string, a cni.Args) Binding {
	b := Binding{
		Container: c.Container, Interface: c.Interface, Namespace: c.Namespace, Network: network, MTU: a.MTU,
		Port: sdn.Port{
			Meta: sdn.Meta{ID: sdn.ID(a.Port), Foreign: true}, MAC: a.MAC, DeviceID: c.Container,
			VIF: sdn.VIF{Type: a.PortType},
		},
	}
	for _, p := range a.Addresses() {
		id := sdn.ID(p.Masked().String()) // it joins the subnet and the address only
		b.Subnets = append(b.Subnets, sdn.Subnet{Meta: sdn.Meta{ID: id}, CIDR: p.Masked(), Gateway: a.Gateway(p.Addr())})
		b.Port.Addresses = append(b.Port.Addresses, sdn.Address{Subnet: id, Addr: p.Addr()})
	}
	return b
}

// Plugged returns what CNI answers.
func (b Binding) Plugged() cni.Plugged {
	return cni.Plugged{
		Port: b.Port, MTU: b.MTU, Subnets: b.Subnets, Host: bind.HostName(b.Port.ID),
		Name: b.Interface, Namespace: b.Namespace, KeptRoutes: b.KeptRoutes,
	}
}

// Matches compares a port with the arguments. The error names the argument that differs.
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
