package neutron

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// pairRaces is how often the machine's port is changed again because another program was faster.
const pairRaces = 20

// lock keeps calls that find or change the machine's own port apart.
func (p *Nested) lock(ctx context.Context) (unlock func(), err error) {
	return p.locks.lock(ctx, "machine")
}

// machine returns the port of the virtual machine that Kuryr runs in, read again if now is true.
func (p *Nested) machine(ctx context.Context, now bool) (sdn.Port, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return sdn.Port{}, err
	}
	defer unlock()
	if err = p.findOwn(ctx); err == nil && now {
		err = p.readOwn(ctx)
	}
	return p.own, err
}

// findOwn finds the machine's port once. The caller has the lock.
func (p *Nested) findOwn(ctx context.Context) error {
	if p.own.ID != "" {
		return nil
	}
	macs, err := p.macs()
	if err != nil {
		return fmt.Errorf("interfaces of this machine: %w", sdn.OfHost(err))
	}
	var found []sdn.Port
	for port, err := range p.Provider.FindPorts(ctx, sdn.PortQuery{MACs: macs}) {
		if err != nil {
			return err
		}
		// A container's interface that no engine has taken yet is the machine's too.
		isNested := func(t string) bool { return strings.HasPrefix(t, tagNested) }
		if !slices.ContainsFunc(port.Tags, isNested) {
			found = append(found, port)
		}
	}
	switch len(found) {
	case 1:
		p.own = found[0]
		return nil
	case 0:
		return &sdn.Error{Kind: sdn.KindNotFound, Noun: "port", Detail: fmt.Sprintf(
			"no port that can be seen in the SDN has a MAC of this virtual machine (%s)",
			strings.Join(texts(macs), ", "))}
	}
	return sdn.Conflict(sdn.Exists, "port", "mac", "%d ports of the SDN have MACs of this "+
		"virtual machine (%s): bind.link_interface must say which interface is meant",
		len(found), strings.Join(texts(macs), ", "))
}

// readOwn reads the machine's port. The caller has the lock.
func (p *Nested) readOwn(ctx context.Context) error {
	now, err := p.Provider.Port(ctx, p.own.ID)
	if err == nil {
		p.own = now
	}
	return err
}

// trunk returns the trunk of the machine's port, which it finds once.
func (p *Nested) trunk(ctx context.Context) (sdn.ID, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if p.ownTrunk != "" {
		return p.ownTrunk, nil
	}
	if err := p.findOwn(ctx); err != nil {
		return "", err
	}
	q := sdn.TrunkQuery{Parents: []sdn.ID{p.own.ID}}
	t, found, err := sdn.First(p.FindTrunks(ctx, q))
	if err == nil && !found {
		err = &sdn.Error{Kind: sdn.KindNotFound, Noun: "trunk", Detail: fmt.Sprintf("port %s, "+
			"which is this virtual machine's own, has none: nested VLANs need one", p.own.ID)}
	}
	if err == nil {
		p.ownTrunk = t.ID
	}
	return p.ownTrunk, err
}

// lost forgets the machine's port and trunk if an error says that one is absent. It returns err.
func (p *Nested) lost(ctx context.Context, err error) error {
	if sdn.IsNotFound(err) {
		if unlock, failed := p.lock(ctx); failed == nil {
			p.own, p.ownTrunk = sdn.Port{}, ""
			unlock()
		}
	}
	return err
}

// sentBy returns what a port sends as. Its own addresses are written with their length: else OVN
// would take it for a virtual port, and send what is for its MAC to either port.
func sentBy(port sdn.Port) []sdn.AllowedPair {
	var all []sdn.AllowedPair
	for _, a := range port.Addresses {
		all = append(all, sdn.AllowedPair{
			Prefix: netip.PrefixFrom(a.Addr, a.Addr.BitLen()), MAC: port.MAC, Length: true,
		})
	}
	for _, a := range port.AllowedPairs {
		if a.MAC == nil {
			a.MAC = port.MAC
		}
		all = append(all, a)
	}
	return all
}

// hasPair ignores Length and the bits beyond a prefix's length: an older Kuryr wrote
// neither.
func hasPair(all []sdn.AllowedPair, a sdn.AllowedPair) bool {
	return slices.ContainsFunc(all, func(b sdn.AllowedPair) bool {
		return a.Prefix.Masked() == b.Prefix.Masked() && bytes.Equal(a.MAC, b.MAC)
	})
}

// exchange changes what the machine's port may send as, and keeps what others change of that.
func (p *Nested) exchange(ctx context.Context, drop, add []sdn.AllowedPair) error {
	return p.lost(ctx, p.exchangeNow(ctx, drop, add))
}

// exchangeNow writes at the revision of the machine's port as it is known, which saves a read: if
// another changed it since, the SDN refuses. It reads the port before it reports that nothing
// differs.
func (p *Nested) exchangeNow(ctx context.Context, drop, add []sdn.AllowedPair) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	known := p.own.ID != ""
	if err := p.findOwn(ctx); err != nil {
		return err
	}
	for n := 1; ; {
		want, differs := exchanged(p.own.AllowedPairs, drop, add)
		if p.own.NoPortSecurity { // nothing is filtered, and Neutron has no pairs then
			differs = false
		}
		if known && (!differs || p.own.Revision == 0) {
			if err := p.readOwn(ctx); err != nil {
				return err
			}
			known = false
			continue
		}
		if !differs {
			return nil
		}
		now, err := p.Provider.UpdatePort(ctx, p.own.ID, sdn.PortPatch{
			Patch: sdn.Patch{IfRevision: p.own.Revision}, AllowedPairs: &want,
		})
		if err == nil {
			p.own = now
			return nil
		}
		if sdn.ReasonOf(err) != sdn.Stale || n == pairRaces {
			return err
		}
		if err := p.readOwn(ctx); err != nil {
			return err
		}
		n, known = n+1, false
	}
}

// exchanged returns the pairs without those of drop and with those of add, and reports whether
// they differ from has.
func exchanged(has, drop, add []sdn.AllowedPair) (want []sdn.AllowedPair, differs bool) {
	want = []sdn.AllowedPair{}
	for _, a := range has {
		if hasPair(drop, a) && !hasPair(add, a) {
			differs = true
			continue
		}
		want = append(want, a)
	}
	for _, a := range add {
		if !hasPair(want, a) {
			want, differs = append(want, a), true
		}
	}
	return want, differs
}
