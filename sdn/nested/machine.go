package nested

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// maxRaces is how often something is changed anew because another was faster.
const maxRaces = 20

// lock waits for its turn at the machine's own port.
func (p *Provider) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// machine is the port of the virtual machine that this is, as it was found first.
func (p *Provider) machine(ctx context.Context) (sdn.Port, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return sdn.Port{}, err
	}
	defer unlock()
	return p.find(ctx)
}

// find is machine for who has the turn.
func (p *Provider) find(ctx context.Context) (sdn.Port, error) {
	if p.own.ID != "" {
		return p.own, nil
	}
	macs, err := p.macs()
	if err != nil {
		return sdn.Port{}, fmt.Errorf("interfaces of this machine: %w", sdn.OfHost(err))
	}
	var found []sdn.Port
	for port, err := range p.Provider.FindPorts(ctx, sdn.PortQuery{MACs: macs}) {
		if err != nil {
			return sdn.Port{}, err
		}
		// A container's interface that an engine has not taken yet is this machine's too.
		if !slices.ContainsFunc(port.Tags, func(t string) bool { return strings.HasPrefix(t, tagNested) }) {
			found = append(found, port)
		}
	}
	switch len(found) {
	case 1:
		p.own = found[0]
		return p.own, nil
	case 0:
		return sdn.Port{}, &sdn.Error{Kind: sdn.KindNotFound, Noun: "port",
			Detail: fmt.Sprintf("no port that can be seen in the SDN has a MAC of this virtual machine (%s)", list(macs))}
	}
	return sdn.Port{}, sdn.Conflict(sdn.Exists, "port", "mac", "%d ports of the SDN have MACs of this virtual machine (%s): bind.link_interface must say which interface is meant",
		len(found), list(macs))
}

func list(macs []net.HardwareAddr) string {
	var texts []string
	for _, m := range macs {
		texts = append(texts, m.String())
	}
	return strings.Join(texts, ", ")
}

// trunk is the trunk of the machine's port.
func (p *Provider) trunk(ctx context.Context) (sdn.ID, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if p.on != "" {
		return p.on, nil
	}
	own, err := p.find(ctx)
	if err != nil {
		return "", err
	}
	t, there, err := sdn.First(p.FindTrunks(ctx, sdn.TrunkQuery{Parents: []sdn.ID{own.ID}}))
	if err == nil && !there {
		err = &sdn.Error{Kind: sdn.KindNotFound, Noun: "trunk", Detail: fmt.Sprintf("port %s, which is this virtual machine's own, has none: nested VLANs need one", own.ID)}
	}
	if err == nil {
		p.on = t.ID
	}
	return p.on, err
}

// lost forgets the machine's port and trunk where an error says that they are not there any more, and gives the error back.
func (p *Provider) lost(ctx context.Context, err error) error {
	if sdn.IsNotFound(err) {
		if unlock, cannot := p.lock(ctx); cannot == nil {
			p.own, p.on = sdn.Port{}, ""
			unlock()
		}
	}
	return err
}

// pairs are what a port sends as. Its own addresses are written with their length, else OVN would take it for a virtual port, and what is for its MAC
// to either port.
func pairs(port sdn.Port) []sdn.AllowedPair {
	var all []sdn.AllowedPair
	for _, a := range port.Addresses {
		all = append(all, sdn.AllowedPair{Prefix: netip.PrefixFrom(a.Addr, a.Addr.BitLen()), MAC: port.MAC, Length: true})
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

// exchange changes what the machine's port may send as, and loses nothing of what others do to that at the same time.
func (p *Provider) exchange(ctx context.Context, drop, add []sdn.AllowedPair) error {
	return p.lost(ctx, p.exchangeNow(ctx, drop, add))
}

// exchangeNow writes at the revision of what is known of the machine's port, which saves reading it: where another has changed it since, the SDN refuses. That
// nothing has to be changed is not said without reading it.
func (p *Provider) exchangeNow(ctx context.Context, drop, add []sdn.AllowedPair) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	known := p.own.ID != ""
	if _, err := p.find(ctx); err != nil {
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
		now, err := p.Provider.UpdatePort(ctx, p.own.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: p.own.Revision}, AllowedPairs: &want})
		if err == nil {
			p.own = now
			return nil
		}
		if sdn.ReasonOf(err) != sdn.Stale || n == maxRaces {
			return err
		}
		if err := p.readOwn(ctx); err != nil {
			return err
		}
		n, known = n+1, false
	}
}

// readOwn reads the machine's port, for who has the turn.
func (p *Provider) readOwn(ctx context.Context) error {
	now, err := p.Provider.Port(ctx, p.own.ID)
	if err == nil {
		p.own = now
	}
	return err
}

// ownNow is the machine's port as it is now.
func (p *Provider) ownNow(ctx context.Context) (sdn.Port, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return sdn.Port{}, err
	}
	defer unlock()
	if _, err = p.find(ctx); err == nil {
		err = p.readOwn(ctx)
	}
	return p.own, err
}

// exchanged are the pairs without those to drop and with those to add, and whether that is another set.
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
