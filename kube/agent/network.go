//go:build linux

package agent

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// The kinds of the Keys that a Network makes. Their names begin with container/interface.
const (
	kindPort    = "cni-port"
	kindPolicy  = "cni-qos"
	kindPublish = "cni-publish"
)

// HostPorts keeps ports of the host for those that publish them (hostports.Holder).
type HostPorts interface {
	Reserve(owner string, p hostports.Port) error
	Restore(owner string, p hostports.Port) error
	ReleaseAll(owner string)
}

// NetworkConfig is what a Network needs.
type NetworkConfig struct {
	Provider  sdn.Provider
	Host      string       // this machine's name in the SDN
	HostPorts HostPorts    // of published ports; nil keeps none
	Logger    *slog.Logger // nil: slog.Default
}

// Network is the Source of containers on a named network of an SDN, without Kubernetes. It keeps no
// state: a port's device in the SDN is its attachment.
type Network struct {
	sdn   sdn.Provider
	host  string
	ports HostPorts
	log   *slog.Logger
}

// NewNetwork makes the Source of an SDN's networks.
func NewNetwork(c NetworkConfig) *Network {
	n := &Network{sdn: c.Provider, host: c.Host, ports: c.HostPorts, log: c.Logger}
	if n.log == nil {
		n.log = slog.Default()
	}
	if n.ports == nil {
		n.ports = &hostports.Holder{}
	}
	return n
}

var (
	_ Source    = (*Network)(nil)
	_ Prober    = (*Network)(nil)
	_ Recoverer = (*Network)(nil)
	_ Lister    = (*Network)(nil)
)

// devicePrefix begins the device of a container's port: cni/NETWORK/CONTAINER/INTERFACE. No part has a
// '/' in it.
const devicePrefix = "cni/"

func device(a Attachment) string {
	return devicePrefix + a.Network + "/" + a.Container + "/" + a.Interface
}

// ofDevice reads what device made.
func ofDevice(text string) (Attachment, bool) {
	rest, ok := strings.CutPrefix(text, devicePrefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return Attachment{}, false
	}
	return Attachment{Network: parts[0], Container: parts[1], Interface: parts[2]}, true
}

func (n *Network) key(kind string, a Attachment) sdn.Key {
	return sdn.Key{Owner: n.sdn.Installation(), Kind: kind, Name: a.Container + "/" + a.Interface}
}

// Allocate implements Source. The SDN allocates when the intent is stored.
func (n *Network) Allocate(context.Context, Attachment) (*Allocation, error) { return nil, nil }

// Free implements Source.
func (n *Network) Free(Intent) {}

// RowOf implements Source. The SDN may have a port of any attachment.
func (n *Network) RowOf(a Attachment) (key string, ok bool) { return a.Key(), true }

// Ensure implements Source. It creates, finds or attaches the port.
func (n *Network) Ensure(ctx context.Context, i Intent) (Wiring, error) {
	a := i.Attachment
	network, err := n.network(ctx, a)
	if err != nil {
		return Wiring{}, reconcile.Refused(err)
	}
	if err := n.grantable(a.Want); err != nil {
		return Wiring{}, reconcile.Refused(err)
	}
	var port sdn.Port
	if a.Want.Port != "" {
		port, err = n.borrow(ctx, a)
	} else {
		port, err = n.make(ctx, a, network)
	}
	if err != nil {
		return Wiring{}, err
	}
	failpoint.Here("agent.network.port")
	w, err := n.wiring(ctx, port)
	if err == nil {
		err = n.asWanted(a, w, network.ID)
	}
	if err == nil && a.Want.Bandwidth != (sdn.Limits{}) {
		w.Port, err = n.limit(ctx, a, port)
	}
	if err == nil && len(a.Want.Published) > 0 {
		err = n.publish(ctx, a, port)
	}
	return w, err
}

// grantable refuses what the SDN cannot do, before anything is made.
func (n *Network) grantable(w Want) error {
	can := n.sdn.Capabilities()
	switch {
	case len(w.MAC) > 0 && w.Port == "" && !can.ChooseMAC:
		return sdn.Unsupported("port", "this SDN does not let a MAC be chosen (mac)")
	case len(w.IPs) > 0 && w.Port == "" && !can.ChooseAddress:
		return sdn.Unsupported("port", "this SDN does not let an address be chosen (ips)")
	case w.Bandwidth != (sdn.Limits{}) && !can.QoS:
		return sdn.Unsupported("port", "this SDN cannot limit what a port sends and receives (bandwidth)")
	case w.Bandwidth != (sdn.Limits{}) && w.Port != "":
		return sdn.Unsupported("port", "the limits of a port that is named (PORT_UUID) are its owner's (bandwidth)")
	case len(w.Published) > 0 && (!can.Forwards || !can.HostAddresses || can.ExternalNetwork == ""):
		return sdn.Unsupported("port", "this SDN cannot publish ports at the host's addresses (portMappings)")
	}
	return nil
}

// make ensures the port of the attachment's Key.
func (n *Network) make(ctx context.Context, a Attachment, network sdn.Network) (sdn.Port, error) {
	spec := sdn.PortSpec{
		Base: sdn.Base{Key: n.key(kindPort, a), Name: a.Container}, Network: network.ID, MAC: a.Want.MAC,
		DeviceID: device(a), DeviceOwner: sdn.OwnerContainer,
	}
	if a.Pod != nil {
		spec.Name = a.Pod.Namespace + "/" + a.Pod.Name
	}
	if n.sdn.Capabilities().HostBinding {
		spec.Host = n.host
	}
	for _, text := range a.Want.IPs {
		addr, err := address(text)
		if err != nil {
			return sdn.Port{}, err
		}
		spec.Addresses = append(spec.Addresses, sdn.Address{Addr: addr})
	}
	ports, err := n.sdn.EnsurePorts(ctx, []sdn.PortSpec{spec})
	if err != nil {
		return sdn.Port{}, err
	}
	return ports[0], nil
}

// limit limits the port's traffic by a policy of its own. The port is created before the policy and
// deleted after it, so that it leads to all that was created for it.
func (n *Network) limit(ctx context.Context, a Attachment, port sdn.Port) (sdn.Port, error) {
	policy, err := n.sdn.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{
		Base: sdn.Base{Key: n.key(kindPolicy, a), Name: a.Container}, Limits: a.Want.Bandwidth,
	})
	if err != nil {
		return port, err
	}
	failpoint.Here("agent.network.policy")
	if port.QoSPolicy == policy.ID {
		return port, nil
	}
	return n.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{QoSPolicy: &policy.ID})
}

// address reads an address with or without its subnet's length.
func address(text string) (netip.Addr, error) {
	bare, _, _ := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(bare)
	if err != nil {
		return addr, sdn.Invalid("port", "ips", "%q is no IP address", text)
	}
	return addr, nil
}

// borrow attaches an existing port that is unused. It stays its owner's, and Release restores it.
func (n *Network) borrow(ctx context.Context, a Attachment) (sdn.Port, error) {
	port, err := n.sdn.Port(ctx, a.Want.Port)
	if err != nil {
		return port, reconcile.Refused(err)
	}
	mine := device(a)
	if port.DeviceID == mine && (port.Host == n.host || port.Host == "" || !n.sdn.Capabilities().HostBinding) {
		return port, nil
	}
	if port.DeviceID != "" || port.Host != "" && port.Host != n.host {
		return port, sdn.Conflict(sdn.InUse, "port "+string(port.ID), "PORT_UUID",
			"something else uses it (device %q, host %q)", port.DeviceID, port.Host)
	}
	owner := sdn.OwnerContainer
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}, DeviceID: &mine, DeviceOwner: &owner}
	if n.sdn.Capabilities().HostBinding {
		patch.Host = &n.host
	}
	return n.sdn.UpdatePort(ctx, port.ID, patch)
}

// asWanted compares what there is, which may be of an earlier call, with what is asked for now.
func (n *Network) asWanted(a Attachment, w Wiring, network sdn.ID) error {
	// A named port determines the network, unless the network is named too.
	if named := a.Want.Port != "" && a.Want.Network == ""; w.Port.Network != network && !named {
		return sdn.Conflict(sdn.Immutable, "port "+string(w.Port.ID), "network",
			"it is on network %s, not %s", w.Port.Network, network)
	}
	if w.Port.Host != n.host && n.sdn.Capabilities().HostBinding {
		return sdn.Conflict(sdn.InUse, "port "+string(w.Port.ID), "host", "host %q has a container of this id", w.Port.Host)
	}
	if len(a.Want.MAC) > 0 && a.Want.MAC.String() != w.Port.MAC.String() {
		return sdn.Conflict(sdn.Immutable, "port "+string(w.Port.ID), "mac", "it has %s, not %s", w.Port.MAC, a.Want.MAC)
	}
	for _, text := range a.Want.IPs {
		addr, err := address(text)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(w.Port.Addresses, func(has sdn.Address) bool { return has.Addr == addr })
		if at < 0 {
			return sdn.Conflict(sdn.Immutable, "port "+string(w.Port.ID), "ips", "it does not have %s", addr)
		}
		want, err := netip.ParsePrefix(text)
		for _, s := range w.Subnets {
			if err == nil && s.ID == w.Port.Addresses[at].Subnet && s.CIDR.Bits() != want.Bits() {
				return sdn.Invalid("port", "ips", "%s: the subnet of this address is %s", text, s.CIDR)
			}
		}
	}
	return nil
}

// network finds the attachment's network: by id if the name has the form of one, otherwise by name,
// which must be unique.
func (n *Network) network(ctx context.Context, a Attachment) (sdn.Network, error) {
	return sdn.NetworkByName(ctx, n.sdn, "network", cmp.Or(a.Want.Network, a.Network))
}

// wiring is all that plugging the port takes.
func (n *Network) wiring(ctx context.Context, port sdn.Port) (Wiring, error) {
	network, err := n.sdn.Network(ctx, port.Network)
	if err != nil {
		return Wiring{}, err
	}
	subnets, err := sdn.All(n.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{port.Network}}))
	return Wiring{Port: port, MTU: network.MTU, Subnets: subnets}, err
}

// Ready reports whether the SDN answers and has the network.
func (n *Network) Ready(ctx context.Context, network, wanted string) error {
	_, err := n.network(ctx, Attachment{Network: network, Want: Want{Network: wanted}})
	return err
}
