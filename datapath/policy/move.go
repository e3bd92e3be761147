//go:build linux

package policy

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Profiles are what a filter knows of some ports, without what their groups are.
type Profiles []element

// Profiles reads what is known of the ports with these links.
func (f *Filter) Profiles(taps []string) (Profiles, error) {
	names := map[string]bool{}
	for _, tap := range taps {
		names[(Port{Tap: tap}).name()] = true
	}
	have, err := f.readElements(setPorts)
	return slices.DeleteFunc(have, func(e element) bool { return !names[e.key] }), err
}

// Expect has ports filtered that come from another namespace, until UpdatePorts says what they are. A profile that is not known here lets nothing pass.
func (f *Filter) Expect(ports Profiles) error {
	if len(ports) == 0 {
		return nil
	}
	exists, err := f.exists()
	if err != nil {
		return err
	}
	if !exists {
		if err := f.create(); err != nil {
			return err
		}
	}
	for _, e := range ports {
		t := &transaction{conn: f.conn}
		if err := t.add([]element{e}); err != nil {
			return err
		}
		if err := t.commit(); err != nil && !errors.Is(err, unix.EEXIST) { // then more is known of it already
			return err
		}
	}
	return nil
}

// Probe tells what the kernel can do, by making all of it. It is for a namespace that is thrown away.
func (f *Filter) Probe() Support {
	kind, one := uint8(8), Group{ID: "probe"}
	for _, d := range directions {
		one.Rules = append(one.Rules, Rule{ID: "udp", Direction: d, Protocol: unix.IPPROTO_UDP, First: 1, Last: 2, RemoteGroup: "probe"},
			Rule{ID: "icmp", Direction: d, Protocol: unix.IPPROTO_ICMP, ICMPType: &kind, RemoteSet: "probe"}, Rule{ID: "IPv6", Direction: d, IPv6: true})
	}
	state := State{Ports: []Port{{Tap: "tapprobe", Groups: []string{"probe"}}}, Groups: []Group{one}, Sets: []Set{{ID: "probe"}}}
	can := func() bool { return f.Reconcile(state, false, func(_, _, _ string) {}) == nil }
	s := Support{Groups: can()}
	state.Ports[0].Limits = Limits{IngressKbps: 1, EgressKbps: 1, DSCP: 1}
	s.Limits = s.Groups && can()
	return s
}
