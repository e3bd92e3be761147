//go:build linux

package securitygroup

import (
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// Profiles are what a filter knows of some ports, without what their groups are: the
// hashes of their profiles by the links' names, since numbers are each table's own.
type Profiles map[string]string

// Profiles reads what is known of the ports with these links.
func (f *Filter) Profiles(taps []string) (Profiles, error) {
	have, err := f.readElements(setPorts, judges(Egress, false))
	if err != nil {
		return nil, err
	}
	hashes, numbers := map[string]string{}, map[string]string{}
	for _, e := range have {
		if e.Set == setPorts {
			numbers[e.Key] = e.Value
		} else {
			hashes[e.Key], _ = profileIn(e.GoTo)
		}
	}
	known := Profiles{}
	for _, tap := range taps {
		name := (Port{Tap: tap}).name()
		if number, filtered := numbers[name]; filtered {
			known[name] = hashes[number]
		}
	}
	return known, nil
}

// Expect has ports filtered that come from another namespace, until ChangePorts says what
// they are. A profile that is not known here lets nothing pass.
func (f *Filter) Expect(ports Profiles) error {
	if len(ports) == 0 {
		return nil
	}
	exists, err := filter.Exists(f.conn)
	if err != nil {
		return err
	}
	if !exists {
		if err := f.create(); err != nil {
			return err
		}
	}
	have, err := f.readElements(judges(Egress, false))
	if err != nil {
		return err
	}
	numbers := map[string]string{}
	for _, e := range have {
		hash, _ := profileIn(e.GoTo)
		numbers[hash] = e.Key
	}
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		e := nft.Element{Set: setPorts, Key: name, Value: string(nft.Word(unknownProfile))}
		if number, known := numbers[ports[name]]; known {
			e.Value = number
		}
		t := f.begin()
		t.AddElements(filter, []nft.Element{e})
		if err := t.commit(); err != nil && !errors.Is(err, unix.EEXIST) { // then more is known of it already
			return err
		}
	}
	return nil
}

// Probe reports what the kernel can do, by making all of it. It is for a temporary namespace.
func (f *Filter) Probe() Support {
	kind, one := uint8(8), Group{ID: "probe"}
	for _, d := range directions {
		one.Rules = append(one.Rules,
			Rule{ID: "udp", Direction: d, Protocol: unix.IPPROTO_UDP, First: 1, Last: 2,
				RemoteGroup: "probe"},
			Rule{ID: "icmp", Direction: d, Protocol: unix.IPPROTO_ICMP, ICMPType: &kind,
				RemoteSet: "probe"},
			Rule{ID: "IPv6", Direction: d, IPv6: true})
	}
	state := State{Ports: []Port{{Tap: "tapprobe", Groups: []string{"probe"}}},
		Groups: []Group{one}, Sets: []Set{{ID: "probe"}}}
	can := func() bool { return f.Reconcile(state, false, func(_, _, _ string) {}) == nil }
	s := Support{Groups: can()}
	state.Ports[0].Limits = Limits{IngressKbps: 1, EgressKbps: 1, DSCP: 1}
	s.Limits = s.Groups && can()
	return s
}
