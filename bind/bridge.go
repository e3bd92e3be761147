//go:build linux

package bind

import (
	"context"
	"errors"
	"fmt"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// agentPrefix and a network's id begin the names of the bridges that Neutron's Linux
// bridge agent wires.
const agentPrefix = "brq"

// AgentBridge is the name of a network's bridge as Neutron's Linux bridge agent makes and
// looks for it: "brq" and the first 11 characters of the network's id.
func AgentBridge(network sdn.ID) string { return agentPrefix + network.Short() }

// bridgeSeat puts host ends on the Linux bridge that the VIF names. A VIF that names
// neither a bridge nor a namespace is of Neutron's Linux bridge agent, which finds a
// port's tap but leaves it, and the bridge if there is none yet, to the one that plugs the
// port.
type bridgeSeat struct{ alone }

func (bridgeSeat) find(_ context.Context, s *socket, ns namespace, i Interface, make bool) (place, error) {
	name := i.Port.VIF.Details[sdn.DetailBridge]
	ofAgent := name == "" && i.Port.VIF.Details[sdn.DetailNamespace] == "" && i.Port.Network != ""
	if ofAgent {
		name = AgentBridge(i.Port.Network)
	}
	if err := checkName("port", "vif.details."+sdn.DetailBridge, name); err != nil {
		return place{}, err
	}
	var index int32
	var err error
	if ofAgent {
		index, err = agentBridge(s, ns, name, make)
	} else {
		index, err = s.index(name)
	}
	if errors.Is(err, errNoLink) {
		return place{}, &sdn.Error{Kind: sdn.KindNotFound, Noun: "bridge", ID: name, Detail: "not found in " + ns.String()}
	}
	return place{bridge: index, name: name}, err
}

// agentBridge finds the bridge of Neutron's agent, or makes it if make is set. Unplug
// leaves it in place: the agent removes those that it has no use for.
func agentBridge(s *socket, ns namespace, name string, make bool) (int32, error) {
	l, err := s.link(0, name)
	if errors.Is(err, errNoLink) && make {
		// The agent or another port's Plug may be faster.
		if err = makeBridge(s, name, func(*batch) {}, func(*batch) {}); err == nil || errors.Is(err, unix.EEXIST) {
			l, err = s.link(0, name)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("bridge %s: %w", name, err)
	}
	if l.kind != "bridge" {
		return 0, taken(ns, name, "belongs to something that is no bridge")
	}
	if make && l.flags&unix.IFF_UP == 0 { // made now, by any process
		err = linkUp(s, l.index, name, "")
	}
	return l.index, err
}

// makeBridge makes a Linux bridge that forwards immediately: without the spanning tree
// protocol and the delay that belongs to it. The functions add to the link's and to the
// bridge's attributes.
func makeBridge(s *socket, name string, link, bridge func(*batch)) error {
	var b batch
	b.add("make bridge "+name, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
	b.text(unix.IFLA_IFNAME, name)
	link(&b)
	b.nest(unix.IFLA_LINKINFO, func() {
		b.attr(unix.IFLA_INFO_KIND, []byte("bridge"))
		b.nest(unix.IFLA_INFO_DATA, func() {
			b.u32(unix.IFLA_BR_FORWARD_DELAY, 0)
			b.u32(unix.IFLA_BR_STP_STATE, 0)
			bridge(&b)
		})
	})
	return s.do(&b)
}

// linkUp puts a bridge, or a link between two switches, up without an address of its own,
// and gives it an alias unless that is "".
func linkUp(s *socket, index int32, name, alias string) error {
	if err := noLinkLocal(s, index); err != nil {
		return err
	}
	var b batch
	b.add("put up "+name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, unix.IFF_UP, unix.IFF_UP))
	if alias != "" {
		b.text(unix.IFLA_IFALIAS, alias)
	}
	return s.do(&b)
}
