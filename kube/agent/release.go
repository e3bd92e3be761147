//go:build linux

package agent

import (
	"context"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Find looks for the port with the attachment's device.
func (n *Network) Find(ctx context.Context, a Attachment) (Wiring, error) {
	port, there, err := n.port(ctx, a)
	if err != nil {
		return Wiring{}, err
	}
	if !there {
		return Wiring{}, sdn.NotFound("port", device(a))
	}
	return n.wiring(ctx, port)
}

// Leave implements Source.
func (n *Network) Leave(ctx context.Context, i Intent) (Wiring, error) {
	return n.Find(ctx, i.Attachment)
}

func (n *Network) port(ctx context.Context, a Attachment) (sdn.Port, bool, error) {
	return sdn.First(n.sdn.FindPorts(ctx, n.here(sdn.PortQuery{Devices: []string{device(a)}})))
}

// here makes a query one of ports on this host.
func (n *Network) here(q sdn.PortQuery) sdn.PortQuery {
	if n.sdn.Capabilities().HostBinding {
		q.Hosts = []string{n.host}
	}
	return q
}

// Release deletes what was created for the port, and then the port, or restores an existing one. While
// anything is left the port exists. Without the port it returns reconcile.ErrAbsent.
func (n *Network) Release(ctx context.Context, _ reconcile.Object, i Intent) error {
	a := i.Attachment
	port, there, err := n.port(ctx, a)
	if err != nil {
		return err
	}
	if !there {
		return reconcile.ErrAbsent
	}
	if err := n.unpublish(ctx, a); err != nil {
		return err
	}
	failpoint.Here("agent.network.unpublished")
	if err := n.unlimit(ctx, a, port); err != nil {
		return err
	}
	failpoint.Here("agent.network.unlimited")
	return n.letGo(ctx, port)
}

// unlimit deletes the port's policy, if it has one of ours.
func (n *Network) unlimit(ctx context.Context, a Attachment, port sdn.Port) error {
	if !n.sdn.Capabilities().QoS {
		return nil
	}
	ours := sdn.QoSPolicyQuery{Match: sdn.Match{Keys: []sdn.Key{n.key(kindPolicy, a)}}}
	for policy, err := range n.sdn.FindQoSPolicies(ctx, ours) {
		if err != nil {
			return err
		}
		if none := sdn.ID(""); port.QoSPolicy == policy.ID {
			if _, err := n.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{QoSPolicy: &none}); err != nil && !sdn.IsNotFound(err) {
				return err
			}
		}
		if err := n.sdn.DeleteQoSPolicy(ctx, policy.ID); err != nil && !sdn.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// letGo deletes a port of this installation, and restores an existing one.
func (n *Network) letGo(ctx context.Context, port sdn.Port) error {
	if port.Key.Kind == kindPort && port.Key.Owner == n.sdn.Installation() {
		return n.sdn.DeletePorts(ctx, []sdn.ID{port.ID})
	}
	none := ""
	patch := sdn.PortPatch{DeviceID: &none, DeviceOwner: &none}
	if n.sdn.Capabilities().HostBinding {
		patch.Host = &none
	}
	_, err := n.sdn.UpdatePort(ctx, port.ID, patch)
	if sdn.IsNotFound(err) {
		return nil
	}
	return err
}

// Attachments are the ports of this host whose device is a container's.
func (n *Network) Attachments(ctx context.Context) ([]Attachment, error) {
	var all []Attachment
	for port, err := range n.sdn.FindPorts(ctx, n.here(sdn.PortQuery{DeviceOwners: []string{sdn.OwnerContainer}})) {
		if err != nil {
			return nil, err
		}
		if a, ok := ofDevice(port.DeviceID); ok {
			all = append(all, a)
		}
	}
	return all, nil
}

// Recover keeps the host's ports that containers have published since before.
func (n *Network) Recover(ctx context.Context) error {
	// An SDN in another process tells its capabilities with its first answer.
	if err := n.sdn.Ping(ctx); err != nil {
		return err
	}
	if !n.sdn.Capabilities().HostAddresses {
		return nil
	}
	there, err := n.Attachments(ctx)
	if err != nil {
		return err
	}
	for _, a := range there {
		if err := n.restore(ctx, a); err != nil {
			return err
		}
	}
	return nil
}
