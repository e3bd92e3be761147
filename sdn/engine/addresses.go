package engine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// wish is what a port is to have: addresses taken for it, and those it has to give back.
type wish struct {
	addresses []sdn.Address
	taken     []sdn.Address // of these, new ones, which are already out of the index
	left      []sdn.Address // had before, and not in addresses
}

// wishAddresses finds addresses for a port on network n. asked is as in PortSpec: nil is one of
// each family. have are the port's so far, of which as many as fit are kept. owner is its device
// owner. On an error nothing is taken.
func (t *tx) wishAddresses(
	n *NetworkRow, asked, have []sdn.Address, port sdn.ID, owner string,
) (w wish, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, t.undo(w))
			w = wish{}
		}
	}()
	spare := slices.Clone(have)
	keep := func(match func(sdn.Address) bool) (sdn.Address, bool) {
		i := slices.IndexFunc(spare, match)
		if i < 0 {
			return sdn.Address{}, false
		}
		a := spare[i]
		spare = slices.Delete(spare, i, i+1)
		return a, true
	}
	if asked == nil {
		w.addresses, w.taken, err = t.eachFamily(n, owner)
		w.left = spare
		return w, err
	}
	w.addresses = make([]sdn.Address, len(asked))
	// Addresses asked for by name go first: an element that takes any must not take one of them.
	for _, named := range []bool{true, false} {
		for i, a := range asked {
			if a.Addr.IsValid() != named {
				continue
			}
			field := fmt.Sprintf("addresses[%d]", i)
			s, err := t.subnetFor(n, a, field)
			if err != nil {
				return w, err
			}
			kept, ok := keep(func(h sdn.Address) bool { return h.Subnet == s.ID && (!named || h.Addr == a.Addr) })
			if ok {
				w.addresses[i] = kept
				continue
			}
			if !serves(s, owner) {
				return w, sdn.Invalid("port", field, "subnet %s is not for ports of the device owner %q", s.ID, owner)
			}
			got := sdn.Address{Subnet: s.ID, Addr: a.Addr}
			if named {
				err = t.claim(n, s, a.Addr, port, field)
			} else {
				got.Addr, err = t.takeAny(s)
			}
			if err != nil {
				return w, err
			}
			w.addresses[i] = got
			w.taken = append(w.taken, got)
			if slices.Contains(w.addresses[:i], got) {
				return w, sdn.Invalid("port", field, "%v is asked for twice", got.Addr)
			}
		}
	}
	w.left = spare
	return w, nil
}

// subnetFor finds the subnet of n that an element of addresses is about.
func (t *tx) subnetFor(n *NetworkRow, a sdn.Address, field string) (*subnetRow, error) {
	if a.Addr.IsValid() {
		if err := valid.Addr("port", field, a.Addr); err != nil {
			return nil, err
		}
	}
	if a.Subnet != "" {
		s, err := Subnets.Need(t.Tx, a.Subnet)
		if err != nil {
			return nil, err
		}
		switch {
		case s.Network != n.ID:
			return nil, sdn.Invalid("port", field, "subnet %s is not of network %s", a.Subnet, n.ID)
		case a.Addr.IsValid() && !s.CIDR.Contains(a.Addr):
			return nil, sdn.Invalid("port", field, "%v is not inside %v", a.Addr, s.CIDR)
		}
		return s, nil
	}
	if !a.Addr.IsValid() {
		return nil, sdn.Invalid("port", field, "names neither a subnet nor an address")
	}
	for _, id := range n.Subnets {
		s, err := Subnets.Need(t.Tx, id)
		if err != nil {
			return nil, err
		}
		if s.CIDR.Contains(a.Addr) {
			return s, nil
		}
	}
	return nil, sdn.Invalid("port", field, "no subnet of the network holds %v", a.Addr)
}

// serves reports whether ports of a device owner get addresses of a subnet. A router's interface
// is on any subnet: who adds it names the subnet.
func serves(s *subnetRow, owner string) bool {
	return len(s.ServiceTypes) == 0 || owner == sdn.OwnerRouterInterface || slices.Contains(s.ServiceTypes, owner)
}

// candidates returns the subnets that ports of a device owner get addresses of, first those that
// name the owner.
func (t *tx) candidates(n *NetworkRow, owner string) ([]*subnetRow, error) {
	var named, others []*subnetRow
	for _, id := range n.Subnets {
		s, err := Subnets.Need(t.Tx, id)
		switch {
		case err != nil:
			return nil, err
		case len(s.ServiceTypes) == 0:
			others = append(others, s)
		case serves(s, owner):
			named = append(named, s)
		}
	}
	if len(n.Subnets) > 0 && len(named)+len(others) == 0 {
		return nil, &sdn.Error{
			Kind: sdn.KindExhausted, Reason: sdn.NoAddresses, Noun: "network", Field: "device_owner",
			Detail: fmt.Sprintf("no subnet of %s is for ports of the device owner %q", n.ID, owner),
		}
	}
	return append(named, others...), nil
}

// eachFamily takes one address of each family the network has, from the first subnet of the family that has one.
func (t *tx) eachFamily(n *NetworkRow, owner string) (addresses, taken []sdn.Address, err error) {
	candidates, err := t.candidates(n, owner)
	if err != nil {
		return nil, nil, err
	}
	families, served := []int{}, map[int]bool{}
	for _, s := range candidates {
		f := family(s.CIDR.Addr())
		if !slices.Contains(families, f) {
			families = append(families, f)
		}
		if served[f] {
			continue
		}
		a, err := t.takeAny(s)
		if sdn.IsExhausted(err) {
			continue
		}
		if err != nil {
			return taken, taken, err
		}
		served[f] = true
		taken = append(taken, sdn.Address{Subnet: s.ID, Addr: a})
	}
	for _, f := range families {
		if !served[f] {
			return taken, taken, sdn.Exhausted(sdn.NoAddresses, "network", "no free IPv%d address in %s", map[int]int{32: 4, 128: 6}[f], n.ID)
		}
	}
	sortslice.Stable(taken, func(a, b sdn.Address) int { return family(a.Addr) - family(b.Addr) })
	return taken, taken, nil
}

func (t *tx) takeAny(s *subnetRow) (netip.Addr, error) {
	ad, err := openAddressing(t.Tx, &s.Subnet)
	if err != nil {
		return netip.Addr{}, err
	}
	take := ad.take
	if s.Network == t.e.external {
		take = func() (netip.Addr, bool, error) { return t.takeExternal(ad) }
	}
	a, ok, err := take()
	if err == nil && !ok {
		err = sdn.Exhausted(sdn.NoAddresses, "subnet", "no free address in %v", s.CIDR)
	}
	return a, err
}

// claim takes one named address for a port on n. That of a subnet's gateway is had by who asks for
// it, which a port that is to become a router's leg does; on an external network it is the host
// that answers at it.
func (t *tx) claim(n *NetworkRow, s *subnetRow, a netip.Addr, port sdn.ID, field string) error {
	if !usable(s.CIDR).contains(a) {
		return sdn.Invalid("port", field, "%v is the network or broadcast address of %v", a, s.CIDR)
	}
	if holder := Ports.ID(t.Tx, "address", AddrKey(s.ID, a)); holder != "" && holder != port {
		return sdn.Conflict(sdn.AddressInUse, "port", field, "%v is another port's", a)
	}
	switch {
	case a == s.Gateway && n.External:
		return sdn.Conflict(sdn.AddressInUse, "port", field, "%v is the gateway of its subnet", a)
	case slices.Contains(s.Reserved, a):
		return sdn.Conflict(sdn.AddressInUse, "port", field, "%v is reserved in its subnet", a)
	}
	ad, err := openAddressing(t.Tx, &s.Subnet)
	if err != nil {
		return err
	}
	if err := ad.claim(a); errors.Is(err, errNotFree) {
		// Not another port's, as the index says, so it was taken a moment ago for this one.
		return sdn.Invalid("port", field, "%v is asked for twice", a)
	} else if err != nil {
		return err
	}
	return nil
}

// giveBack returns addresses to their subnets.
func (t *tx) giveBack(addresses []sdn.Address) error {
	for _, a := range addresses {
		s, err := Subnets.Need(t.Tx, a.Subnet)
		if err != nil {
			return err
		}
		ad, err := openAddressing(t.Tx, &s.Subnet)
		if err != nil {
			return err
		}
		if err := ad.release(a.Addr); err != nil {
			return err
		}
	}
	return nil
}

// undo gives back what a wish took.
func (t *tx) undo(w wish) error { return t.giveBack(w.taken) }

// newMAC makes a MAC that is unique in its network, as Neutron does: fa:16:3e and three random bytes.
func (t *tx) newMAC(network sdn.ID) (net.HardwareAddr, error) {
	for range 64 {
		mac := net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, 0}
		if _, err := rand.Read(mac[3:]); err != nil {
			return nil, err
		}
		if Ports.ID(t.Tx, "mac", macKey(network, mac)) == "" {
			return mac, nil
		}
	}
	return nil, sdn.Exhausted(sdn.NoPorts, "network", "no free MAC was found")
}
