package raven

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// detailTrunk is the key among a port's VIF details that tells which trunk it is to leave
// before it is deleted, should its pool not tell any more.
const detailTrunk = "trunk_id"

// machine is a node that is a virtual machine of the SDN. Nothing of it is remembered: it
// is found anew for each batch of ports, and so is never of before.
type machine struct {
	trunk sdn.ID // "": the node is none
	port  sdn.Port
}

// isNested tells whether the node is a virtual machine whose pods' ports are subports:
// its label says it, else the configuration.
func (r *Raven) isNested(n *corev1.Node) (bool, error) {
	switch label := n.Labels[v1.LabelNested]; label {
	case "":
		return r.cfg.Nested == v1.NestedVLAN, nil
	case v1.NestedVLAN, v1.NestedNone:
		return label == v1.NestedVLAN, nil
	default:
		return false, sdn.Invalid("node", "metadata.labels."+v1.LabelNested, "want %s or %s, not %q", v1.NestedVLAN, v1.NestedNone, label)
	}
}

// machineOf finds a nested node's own port by the node's internal addresses, and its
// trunk by that. What is not there IsNotFound.
func (r *Raven) machineOf(ctx context.Context, n *corev1.Node) (m machine, err error) {
	if !r.SDN.Capabilities().HasTags() {
		return m, sdn.Unsupported("node", "%s is nested, and this SDN has no tags, by which subports are found again", n.Name)
	}
	if len(r.cfg.NodeSubnets) == 0 {
		return m, sdn.Invalid("node", "controller.worker_nodes_subnets", "is needed for nested nodes such as %s: it names the subnets that their own ports are on", n.Name)
	}
	q := sdn.PortQuery{}
	for _, s := range r.cfg.NodeSubnets {
		q.Subnets = append(q.Subnets, sdn.ID(s))
	}
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			q.Addresses = append(q.Addresses, addr)
		}
	}
	if len(q.Addresses) == 0 {
		return m, &sdn.Error{Kind: sdn.KindNotFound, Noun: "node", ID: n.Name, Detail: "it tells no address yet (InternalIP), by which its own port is found"}
	}
	err = r.Call(ctx, func(ctx context.Context) error {
		ports, err := sdn.All(r.SDN.FindPorts(ctx, q))
		switch {
		case err != nil:
			return err
		case len(ports) == 0:
			return &sdn.Error{Kind: sdn.KindNotFound, Noun: "port", Detail: fmt.Sprintf("no port on controller.worker_nodes_subnets has an address of the node %s (%v): nested nodes need one", n.Name, q.Addresses)}
		case len(ports) > 1:
			return sdn.Conflict(sdn.Exists, "port", "addresses", "%d ports on controller.worker_nodes_subnets have addresses of the node %s (%v)", len(ports), n.Name, q.Addresses)
		}
		m.port = ports[0]
		trunk, there, err := sdn.First(r.SDN.FindTrunks(ctx, sdn.TrunkQuery{Parents: []sdn.ID{m.port.ID}}))
		if err == nil && !there {
			err = &sdn.Error{Kind: sdn.KindNotFound, Noun: "trunk", Detail: fmt.Sprintf("port %s, which is the own one of the node %s, has none: nested nodes need one", m.port.ID, n.Name)}
		}
		m.trunk = trunk.ID
		return err
	})
	return m, err
}

// misplaced tells, without asking the SDN, whether the pool's ports are in a trunk and
// its node is no virtual machine any more, or the other way round.
func (w *poolWork) misplaced() bool {
	if w.node == nil || len(w.ports) == 0 {
		return false
	}
	nested, err := w.isNested(w.node)
	return err == nil && nested != (w.pool.Spec.Trunk != "")
}

// nest finds the trunk that ports of this pool are to be in, and has the pool say it. A
// pool that has ports elsewhere goes first, and is made again.
func (w *poolWork) nest(ctx context.Context) error {
	if w.machine.trunk != "" {
		return nil // it was found in this look
	}
	nested, err := w.isNested(w.node)
	if err != nil {
		return err
	}
	var m machine
	if nested {
		if m, err = w.machineOf(ctx, w.node); err != nil {
			return err
		}
	}
	spec := &w.pool.Spec
	switch {
	case spec.Trunk == string(m.trunk):
	case spec.Trunk == "" && len(w.ports)+len(w.pool.Status.Pending) == 0:
		status := w.pool.Status
		spec.Trunk = string(m.trunk)
		err := w.Client.Update(ctx, w.pool)
		w.pool.Status = status
		if err != nil {
			spec.Trunk = ""
			return err
		}
	default:
		return w.displaced(ctx, m.trunk)
	}
	w.machine = m
	return nil
}

// displaced has a pool go whose node's ports are to be in another trunk than the pool's
// are, or in none; then it is made again. No pod loses its port by that, nor a node its
// own while its pods have theirs: whoever edited a setting by mistake edits it back, and
// ports are made again. Free ports go at once. The version that is told is the one that
// was read, which may be of before the trunk was written.
func (w *poolWork) displaced(ctx context.Context, trunk sdn.ID) error {
	has := w.pool.Spec.Trunk
	if used, err := w.nodeIsUsed(ctx); err != nil {
		return err
	} else if used {
		var errs []error
		for _, p := range w.ports { // no other pod gets one of them
			if !w.pool.Spec.ForNode {
				errs = append(errs, w.giveUp(ctx, p))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return core.Waiting(fmt.Sprintf("the node's trunk is %q by now, and that of the pool's ports %q: no port is made until the node's pods have gone (drain it)", trunk, has))
	}
	if err := w.Client.Delete(ctx, w.pool, client.Preconditions{UID: &w.pool.UID, ResourceVersion: &w.pool.ResourceVersion}); client.IgnoreNotFound(err) != nil {
		return err
	}
	w.Warn(w.pool, core.EventRefused, "Pool", "the node's trunk is %q by now, and that of the pool's ports %q: they go before others are made", trunk, has)
	return core.Waiting("it is being deleted")
}

// nodeIsUsed tells whether a pod has a port of this pool, or, where the pool is the
// node's own, of any on the node.
func (w *poolWork) nodeIsUsed(ctx context.Context) (bool, error) {
	if !w.pool.Spec.ForNode {
		return slices.ContainsFunc(w.ports, func(p *v1.KuryrPort) bool { return p.Status.Pod != nil }), nil
	}
	pools, err := w.PoolsOn(ctx, w.pool.Spec.Node)
	if err != nil {
		return false, err
	}
	for i := range pools {
		ports, err := w.PortsOf(ctx, pools[i].Name)
		if err != nil || slices.ContainsFunc(ports, func(p v1.KuryrPort) bool { return p.Status.Pod != nil }) {
			return true, err
		}
	}
	return false, nil
}

// inTrunk has a port be asked for as the SDN takes it for a subport: bound to no host,
// and without a device. Its pool is found by a tag instead.
func (w *poolWork) inTrunk(spec *sdn.PortSpec) {
	spec.Host, spec.DeviceID, spec.DeviceOwner = "", "", ""
	spec.Tags = append(slices.Clone(spec.Tags), w.name)
}

// join makes the ports of a batch subports of the node's trunk, by one call, and has each
// say how the node plugs it. failed are those that are not there. On an error none is
// attached that was not before, and as their keys stay pending they are found again;
// where the trunk has no VLAN left they are taken back, and have failed.
func (w *poolWork) join(ctx context.Context, ports []sdn.Port, failed []error) error {
	if w.machine.trunk == "" {
		return nil
	}
	var joining []sdn.Subport
	var at []int // in ports
	for i := range ports {
		if failed[i] == nil {
			joining, at = append(joining, sdn.Subport{Port: ports[i].ID}), append(at, i)
		}
	}
	if len(joining) == 0 {
		return nil
	}
	joined, err := w.attach(ctx, w.machine.trunk, joining...)
	if sdn.ReasonOf(err) == sdn.NoVLANs {
		var ids []sdn.ID
		for _, i := range at {
			ids, failed[i] = append(ids, ports[i].ID), err
		}
		return w.Call(ctx, func(ctx context.Context) error { return w.erase(ctx, ids) })
	}
	if err != nil {
		return err
	}
	for n, i := range at {
		ports[i].VIF = w.vifOf(joined[n].VLAN)
	}
	return nil
}

// rejoin has a port be a subport of the node's trunk, if it was taken out, and say how the node plugs it.
func (w *poolWork) rejoin(ctx context.Context, port *sdn.Port) error {
	if w.pool.Spec.Trunk == "" {
		return nil
	}
	if err := w.nest(ctx); err != nil {
		return err
	}
	joined, err := w.attach(ctx, w.machine.trunk, sdn.Subport{Port: port.ID})
	if err == nil {
		port.VIF = w.vifOf(joined[0].VLAN)
	}
	return err
}

// attach is AttachSubports. The trunk itself, in the SDN, is what VLANs are chosen by.
func (w *poolWork) attach(ctx context.Context, trunk sdn.ID, ports ...sdn.Subport) (joined []sdn.Subport, err error) {
	err = w.Call(ctx, func(ctx context.Context) (err error) {
		joined, err = w.SDN.AttachSubports(ctx, trunk, ports)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subports of trunk %s: %w", trunk, err)
	}
	return joined, nil
}

// vifOf tells a node how it plugs a subport of its trunk.
func (w *poolWork) vifOf(vlan int) sdn.VIF {
	return sdn.VIF{Type: sdn.VIFVLAN, Details: map[string]string{
		sdn.DetailVLAN: strconv.Itoa(vlan), sdn.DetailParentMAC: w.machine.port.MAC.String(), detailTrunk: string(w.machine.trunk),
	}}
}

// erase deletes ports in the SDN, which lets none go that is in a trunk: they leave it
// first. It may be repeated, whatever of it is done.
func (w *poolWork) erase(ctx context.Context, ids []sdn.ID) error {
	if trunk := w.trunk(); trunk != "" {
		if err := w.SDN.DetachSubports(ctx, trunk, ids); err != nil && !sdn.IsNotFound(err) {
			return err
		}
	}
	return w.SDN.DeletePorts(ctx, ids)
}

// trunk is the one that the pool's ports are in; "" is none. Of a pool that is gone its ports tell it.
func (w *poolWork) trunk() sdn.ID {
	if w.pool.Spec.Trunk != "" {
		return sdn.ID(w.pool.Spec.Trunk)
	}
	for _, p := range w.ports {
		if id := p.Spec.VIF.Details[detailTrunk]; p.Spec.VIF.Type == sdn.VIFVLAN && id != "" {
			return sdn.ID(id)
		}
	}
	return ""
}

// auditTrunk has the pool's ports that the SDN has be in the trunk, each with the VLAN
// that its object says: what was taken out there by hand comes back. Where a port has
// another VLAN by now its object says that.
func (w *poolWork) auditTrunk(ctx context.Context, there map[sdn.ID]bool) error {
	if w.pool.Spec.Trunk == "" {
		return nil
	}
	if err := w.nest(ctx); err != nil { // the node may have another
		return err
	}
	var ports []*v1.KuryrPort
	var wanted []sdn.Subport
	for _, p := range w.ports {
		if vlan, err := strconv.Atoi(p.Spec.VIF.Details[sdn.DetailVLAN]); err == nil && there[sdn.ID(p.Spec.ID)] && p.DeletionTimestamp.IsZero() {
			ports, wanted = append(ports, p), append(wanted, sdn.Subport{Port: sdn.ID(p.Spec.ID), VLAN: vlan})
		}
	}
	if len(ports) == 0 {
		return nil
	}
	is, err := w.reattach(ctx, wanted)
	if err != nil {
		return err
	}
	var errs []error
	for i, p := range ports {
		if is[i].VLAN == wanted[i].VLAN {
			continue
		}
		w.Warn(p, core.EventFailed, "Audit", "the port has VLAN %d in its trunk, no more %d: a pod that runs with it is cut off until it is made anew", is[i].VLAN, wanted[i].VLAN)
		errs = append(errs, w.respec(ctx, p, func() { p.Spec.VIF.Details[sdn.DetailVLAN] = strconv.Itoa(is[i].VLAN) }))
	}
	return errors.Join(errs...)
}

// reattach has ports be in the trunk, each with the VLAN that is wanted, or another where
// somebody else has that by now: one such port holds up no other.
func (w *poolWork) reattach(ctx context.Context, wanted []sdn.Subport) ([]sdn.Subport, error) {
	is, err := w.attach(ctx, w.trunk(), wanted...)
	if sdn.ReasonOf(err) != sdn.Exists {
		return is, err
	}
	is = nil
	for _, s := range wanted {
		one, err := w.attach(ctx, w.trunk(), s)
		if sdn.ReasonOf(err) == sdn.Exists {
			one, err = w.attach(ctx, w.trunk(), sdn.Subport{Port: s.Port})
		}
		if err != nil {
			return nil, err
		}
		is = append(is, one...)
	}
	return is, nil
}
