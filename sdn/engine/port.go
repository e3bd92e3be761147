package engine

import (
	"context"
	"errors"
	"iter"
	"net"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func (e *Engine) showPort(b Tx, r *PortRow) (sdn.Port, error) {
	e.fillMeta(&r.Meta)
	r.Status, r.VIF = sdn.PortDown, sdn.VIF{Type: sdn.VIFUnbound}
	down := IsDown(b, r)
	if r.Own {
		if !down {
			r.Status = sdn.PortActive
		}
		return r.Port, nil
	}
	if r.Host == "" {
		return r.Port, nil
	}
	domain, err := DomainOf(b, r.Network)
	if err != nil {
		return r.Port, err
	}
	if domain != "" {
		if r.VIF, err = e.vif(b, domain, r); err != nil {
			return r.Port, err
		}
		if !down && e.realm.HasPort(domain, r.ID) {
			r.Status = sdn.PortActive
		}
	}
	return r.Port, nil
}

// vif says how a plugged port is to be bound: on its network's bridge or, a subport, by a VLAN link
// where its parent's interface is.
func (e *Engine) vif(b Tx, domain sdn.ID, r *PortRow) (sdn.VIF, error) {
	if r.Trunk != "" {
		parent, err := ParentOf(b, r)
		if err != nil {
			return sdn.VIF{}, err
		}
		return sdn.VIF{Type: sdn.VIFVLAN, Details: map[string]string{sdn.DetailParentMAC: parent.MAC.String(), sdn.DetailVLAN: strconv.Itoa(r.VLAN)}}, nil
	}
	ns, bridge := e.realm.Location(domain, r.Network)
	return sdn.VIF{Type: sdn.VIFBridge, Details: map[string]string{sdn.DetailBridge: bridge, sdn.DetailNamespace: ns}}, nil
}

// EnsurePorts makes, finishes or adopts ports, all in one transaction, out of which those that fail are left.
func (e *Engine) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	return e.ensurePorts(ctx, specs, false)
}

// EnsureAllPorts is EnsurePorts, but the first port that fails undoes the transaction.
func (e *Engine) EnsureAllPorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	return e.ensurePorts(ctx, specs, true)
}

func (e *Engine) ensurePorts(ctx context.Context, specs []sdn.PortSpec, all bool) ([]sdn.Port, error) {
	ids := make([]sdn.ID, len(specs))
	out := make([]sdn.Port, len(specs))
	var failures []error
	err := e.update(ctx, func(t *tx) error {
		failures = nil
		clear(ids)
		for i, spec := range specs {
			r, err := t.ensurePort(spec)
			var refused *sdn.Error
			if !all && errors.As(err, &refused) && refused.Kind != sdn.KindUnavailable {
				if failures == nil {
					failures = make([]error, len(specs))
				}
				failures[i] = err
				continue
			}
			if err != nil {
				return err
			}
			ids[i] = r.ID
		}
		return nil
	})
	if err != nil && !sdn.IsUnavailable(err) {
		return nil, err
	}
	// Read again, so that the status is that after the kernel's work.
	shown := e.view(func(b Tx) error {
		for i, id := range ids {
			r, err := Ports.Get(b, id)
			if err != nil {
				return err
			}
			if r == nil {
				continue
			}
			if out[i], err = e.showPort(b, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err = errors.Join(err, shown); err != nil {
		return out, err
	}
	if failures != nil {
		return out, &sdn.BulkError{Errs: failures}
	}
	return out, nil
}

func (t *tx) ensurePort(spec sdn.PortSpec) (*PortRow, error) {
	if err := t.e.checkPort(spec); err != nil {
		return nil, err
	}
	r, err := Ports.ensured(t, spec.Base)
	if err != nil {
		return nil, err
	}
	if r != nil {
		return r, t.adoptPort(r, spec)
	}
	n, err := Networks.Need(t.Tx, spec.Network)
	if err != nil {
		return nil, err
	}
	if !n.External && t.e.limit >= 0 && n.Ports >= t.e.limit {
		return nil, sdn.Exhausted(sdn.NoPorts, "network", "it has %d ports, as many as a bridge holds: put further ports on another network", n.Ports)
	}
	if err := t.checkQuota(sdn.NounPort, spec.Project, counter(t.Tx, countKey(spec.Project, sdn.NounPort))+1); err != nil {
		return nil, err
	}
	if n.External && spec.Host != "" {
		return nil, errNoPlug
	}
	r = &PortRow{Port: sdn.Port{
		Meta: newMeta(spec.Base), Network: n.ID, MAC: spec.MAC, DeviceID: spec.DeviceID, DeviceOwner: spec.DeviceOwner, Host: spec.Host,
		NoPortSecurity: n.NoPortSecurity, AllowedPairs: spec.AllowedPairs, Profile: spec.Profile,
		Disabled: spec.Disabled,
	}}
	if spec.NoPortSecurity != nil {
		r.NoPortSecurity = *spec.NoPortSecurity
	}
	if err := t.checkPolicy(spec.QoSPolicy); err != nil {
		return nil, err
	}
	r.QoSPolicy = spec.QoSPolicy
	if err := t.checkFreeMAC(n.ID, spec.MAC, r.ID); err != nil {
		return nil, err
	}
	if r.Groups, err = t.groupsOf(spec, r.NoPortSecurity); err != nil {
		return nil, err
	}
	asked := spec.Addresses
	if spec.WithoutAddresses {
		asked = []sdn.Address{}
	}
	w, err := t.wishAddresses(n, asked, nil, r.ID, r.DeviceOwner)
	if err != nil {
		return nil, err
	}
	r.Addresses = w.addresses
	if r.MAC == nil {
		if r.MAC, err = t.newMAC(n.ID); err != nil {
			return nil, errors.Join(err, t.undo(w))
		}
	}
	return r, t.storePort(n, nil, r)
}

var errNoPlug = &sdn.Error{Kind: sdn.KindUnsupported, Noun: "port", Field: "host", Detail: "ports of an external network cannot be plugged"}

// storePort writes a port that is not the SDN's own and keeps its network's counters, and its
// network's own domain from the first plugged port on. old is what was there.
func (t *tx) storePort(n *NetworkRow, old, r *PortRow) error {
	had, bound := n.Ports, n.Bound
	if old == nil {
		n.Ports++
	} else if old.Host != "" {
		n.Bound--
	}
	if r.Host != "" {
		n.Bound++
	}
	if n.Ports != had || n.Bound != bound {
		if !n.Own && r.Host != "" && Routers.ID(t.Tx, "network", string(n.ID)) == "" {
			n.Own = true
		}
		if err := Networks.write(t, n); err != nil {
			return err
		}
	}
	return Ports.put(t, r)
}

func (t *tx) checkFreeMAC(network sdn.ID, mac net.HardwareAddr, port sdn.ID) error {
	if mac == nil {
		return nil
	}
	if holder := Ports.ID(t.Tx, "mac", macKey(network, mac)); holder != "" && holder != port {
		return sdn.Conflict(sdn.MACInUse, "port", "mac", "%v is another port's of the network", mac)
	}
	return nil
}

func (t *tx) adoptPort(r *PortRow, spec sdn.PortSpec) error {
	if spec.Network != "" && spec.Network != r.Network {
		return immutable("port", r.ID, "network", r.Network, spec.Network)
	}
	m := r.Meta
	named, err := adopt("port", &m, spec.Base)
	if err != nil {
		return err
	}
	c := sdn.PortPatch{MAC: spec.MAC}
	if spec.WithoutAddresses {
		c.Addresses = &[]sdn.Address{}
	} else if spec.Addresses != nil {
		c.Addresses = &spec.Addresses
	}
	if spec.DeviceID != "" {
		c.DeviceID = &spec.DeviceID
	}
	if spec.DeviceOwner != "" {
		c.DeviceOwner = &spec.DeviceOwner
	}
	if spec.Host != "" {
		c.Host = &spec.Host
	}
	if err := checkFollows(r, c.Host); err != nil {
		return err
	}
	if spec.Profile != nil {
		c.Profile = &spec.Profile
	}
	if spec.AllowedPairs != nil {
		c.AllowedPairs = &spec.AllowedPairs
	}
	c.NoPortSecurity = spec.NoPortSecurity
	if spec.WithoutGroups {
		c.Groups = &[]sdn.ID{}
	} else if spec.Groups != nil {
		c.Groups = &spec.Groups
	}
	if spec.QoSPolicy != "" {
		c.QoSPolicy = &spec.QoSPolicy
	}
	if spec.Disabled {
		c.Disabled = &spec.Disabled
	}
	return t.changePort(r, c, func(r *PortRow) bool { r.Meta = m; return named })
}

// changePort applies what a patch has of ports alone; also changes the row further, and tells
// whether it did. On an error nothing is changed.
func (t *tx) changePort(r *PortRow, c sdn.PortPatch, also func(*PortRow) bool) error {
	n, err := Networks.Need(t.Tx, r.Network)
	if err != nil {
		return err
	}
	old := *r
	if err := t.checkFreeMAC(n.ID, c.MAC, r.ID); err != nil {
		return err
	}
	if c.Host != nil && *c.Host != "" && n.External {
		return errNoPlug
	}
	groups, err := t.changedGroups(r, c)
	if err != nil {
		return err
	}
	if c.QoSPolicy != nil {
		if err := t.checkPolicy(*c.QoSPolicy); err != nil {
			return err
		}
	}
	var w wish
	if c.Addresses != nil {
		asked, owner := append([]sdn.Address{}, *c.Addresses...), r.DeviceOwner
		if c.DeviceOwner != nil {
			owner = *c.DeviceOwner
		}
		if w, err = t.wishAddresses(n, asked, r.Addresses, r.ID, owner); err != nil {
			return err
		}
		if err := t.checkLeft(r.ID, w.left); err != nil {
			return errors.Join(err, t.undo(w))
		}
		if err := t.giveBack(w.left); err != nil {
			return err
		}
	}
	changed := also(r)
	if c.Addresses != nil && !slices.Equal(w.addresses, r.Addresses) {
		r.Addresses, changed = w.addresses, true
	}
	if c.MAC != nil && !slices.Equal(c.MAC, r.MAC) {
		r.MAC, changed = c.MAC, true
	}
	for _, f := range []struct{ field, want *string }{{&r.DeviceID, c.DeviceID}, {&r.DeviceOwner, c.DeviceOwner}, {&r.Host, c.Host}} {
		if f.want != nil && *f.want != *f.field {
			*f.field, changed = *f.want, true
		}
	}
	if c.Profile != nil && !sdn.SameProfile(*c.Profile, r.Profile) {
		r.Profile, changed = *c.Profile, true
	}
	if c.AllowedPairs != nil && !slices.EqualFunc(*c.AllowedPairs, r.AllowedPairs, samePair) {
		r.AllowedPairs, changed = *c.AllowedPairs, true
	}
	if c.NoPortSecurity != nil && *c.NoPortSecurity != r.NoPortSecurity {
		r.NoPortSecurity, changed = *c.NoPortSecurity, true
	}
	if c.Disabled != nil && *c.Disabled != r.Disabled {
		r.Disabled, changed = *c.Disabled, true
	}
	if !slices.Equal(groups, r.Groups) {
		r.Groups, changed = groups, true
	}
	if c.QoSPolicy != nil && *c.QoSPolicy != r.QoSPolicy {
		r.QoSPolicy, changed = *c.QoSPolicy, true
	}
	if !changed {
		Ports.touch(t, r)
		return nil
	}
	if err := t.storePort(n, &old, r); err != nil || r.Host == old.Host {
		return err
	}
	return t.follow(r)
}

func samePair(a, b sdn.AllowedPair) bool { return a.Prefix == b.Prefix && slices.Equal(a.MAC, b.MAC) }

// checkLeft refuses to take an address away that something leads to.
func (t *tx) checkLeft(port sdn.ID, left []sdn.Address) error {
	for _, a := range left {
		if FloatingIPs.ID(t.Tx, "target", AddrKey(port, a.Addr)) != "" {
			return inUse("port", port, "a floating IP leads to %v", a.Addr)
		}
	}
	if len(left) == 0 {
		return nil
	}
	rows, err := Forwards.All(t.Tx, "port", string(port))
	if err != nil {
		return err
	}
	for _, f := range rows {
		if slices.ContainsFunc(left, func(a sdn.Address) bool { return a.Addr == f.Target.Addr }) {
			return inUse("port", port, "a port forwarding leads to %v", f.Target.Addr)
		}
	}
	return nil
}

// Port gets a port.
func (e *Engine) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	return get(ctx, e, Ports, id, e.showPort)
}

// FindPorts streams ports.
func (e *Engine) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	var byMAC, byAddress, bySubnet []scan
	if len(q.Networks) > 0 {
		for _, n := range q.Networks {
			for _, mac := range q.MACs {
				byMAC = append(byMAC, scan{index: "mac", unique: true, prefix: macKey(n, mac)})
			}
		}
	}
	for _, s := range q.Subnets {
		for _, a := range q.Addresses {
			byAddress = append(byAddress, scan{index: "address", unique: true, prefix: AddrKey(s, a)})
		}
		bySubnet = append(bySubnet, scan{index: "address", unique: true, prefix: string(s) + "\x00"})
	}
	scans, err := e.scansOf(ctx, Ports.Noun, q.Match, byAddress, byMAC, byEach("device", q.Devices), bySubnet,
		byPlace("group", q.Groups), byEach("network", q.Networks), byProject(q.Match))
	if err != nil {
		return broken[sdn.Port](err)
	}
	return search(ctx, e, Ports, scans, e.showPort, q.Matches)
}

// UpdatePort changes a port. An address that a floating IP or a port forwarding leads to cannot be taken away: InUse.
func (e *Engine) UpdatePort(ctx context.Context, id sdn.ID, change sdn.PortPatch) (out sdn.Port, err error) {
	if err := errors.Join(valid.Patch("port", change.Patch), e.checkDevice(change.DeviceID, change.DeviceOwner, change.Host), checkMAC("port", change.MAC)); err != nil {
		return out, err
	}
	if change.Profile != nil {
		if err := checkProfile(*change.Profile); err != nil {
			return sdn.Port{}, err
		}
	}
	if change.AllowedPairs != nil {
		if err := checkPairs(*change.AllowedPairs); err != nil {
			return out, err
		}
	}
	var groups []sdn.ID
	if change.Groups != nil {
		groups = *change.Groups
	}
	var policy sdn.ID
	if change.QoSPolicy != nil {
		policy = *change.QoSPolicy
	}
	if err := e.checkLacking(groups, policy); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := Ports.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if r.Own {
			return inUse("port", id, "it is the SDN's own (%s)", r.DeviceOwner)
		}
		m := r.Meta
		if err := errors.Join(Ports.patch(t, &m, change.Patch), checkFollows(r, change.Host)); err != nil {
			return err
		}
		return t.changePort(r, change, func(r *PortRow) bool { r.Meta = m; return true })
	})
	if err != nil {
		return out, err
	}
	return e.Port(ctx, id)
}

// DeletePorts deletes ports, all in one transaction, out of which those of the SDN's own are left.
func (e *Engine) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	var failures []error
	err := e.release(ctx, func(t *tx) error {
		failures = nil
		for i, id := range ids {
			err := t.deletePort(id, 0)
			if sdn.IsConflict(err) {
				if failures == nil {
					failures = make([]error, len(ids))
				}
				failures[i] = err
				continue
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && failures != nil {
		return &sdn.BulkError{Errs: failures}
	}
	return err
}

// DeletePort deletes a port if it is still at ifRevision.
func (e *Engine) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	return e.release(ctx, func(t *tx) error { return t.deletePort(id, ifRevision) })
}

// deletePort refuses before it changes anything.
func (t *tx) deletePort(id sdn.ID, ifRevision int64) error {
	r, err := Ports.Get(t.Tx, id)
	switch {
	case err != nil || r == nil:
		return err
	case r.Own:
		return inUse("port", id, "it is the SDN's own (%s)", r.DeviceOwner)
	case ifRevision != 0 && ifRevision != r.Revision:
		return stale("port", &r.Meta)
	}
	if err := t.checkNotInTrunk(r); err != nil {
		return err
	}
	return t.dropPort(r)
}

func (t *tx) dropPort(r *PortRow) error {
	if err := t.dropForwardsTo(r.ID); err != nil {
		return err
	}
	fips, err := FloatingIPs.All(t.Tx, "port", string(r.ID))
	if err != nil {
		return err
	}
	for _, f := range fips {
		dissociate(f)
		if err := FloatingIPs.put(t, f); err != nil {
			return err
		}
	}
	if err := t.giveBack(r.Addresses); err != nil {
		return err
	}
	n, err := Networks.Need(t.Tx, r.Network)
	if err != nil {
		return err
	}
	n.Ports--
	if r.Host != "" {
		n.Bound--
	}
	if err := Networks.write(t, n); err != nil {
		return err
	}
	return Ports.del(t, r.ID)
}

// WaitPorts returns when every port has the status. It is told of changes.
func (e *Engine) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) error {
	for {
		news := e.realm.News()
		missing := false
		for _, id := range ids {
			port, err := e.Port(ctx, id)
			if err != nil {
				return err
			}
			missing = missing || port.Status != status
		}
		if !missing {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
	}
}

// ownPort makes a port of the SDN's own with addresses as in PortSpec.
func (t *tx) ownPort(n *NetworkRow, owner string, device sdn.ID, asked []sdn.Address, project string) (*PortRow, error) {
	r := &PortRow{Own: true, Port: sdn.Port{
		Meta: newMeta(sdn.Base{Project: project}), Network: n.ID, DeviceID: string(device), DeviceOwner: owner, NoPortSecurity: true,
	}}
	w, err := t.wishAddresses(n, asked, nil, r.ID, owner)
	if err != nil {
		return nil, err
	}
	r.Addresses = w.addresses
	if r.MAC, err = t.newMAC(n.ID); err != nil {
		return nil, err
	}
	return r, Ports.put(t, r)
}

func (t *tx) dropOwnPort(id sdn.ID) error {
	r, err := Ports.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	if err := t.giveBack(r.Addresses); err != nil {
		return err
	}
	return Ports.del(t, r.ID)
}
