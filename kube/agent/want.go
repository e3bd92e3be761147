//go:build linux

package agent

import (
	"cmp"
	"net"
	"net/netip"
	"strings"

	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// attachment returns what a call asks for. It does not repeat the checks of Call.Validate.
func attachment(c cni.Call, conf cni.Config, args cni.Args) (Attachment, error) {
	a := Attachment{Container: c.Container, Interface: c.Interface, Namespace: c.Namespace, Network: conf.Name}
	if args.PodNamespace != "" && args.PodName != "" { // other callers than Kubernetes send one of them, or none
		a.Pod = &Pod{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID}
	}
	a.Want = Want{Network: conf.Network, Port: sdn.ID(args.Port), MAC: args.MAC}
	if text := cmp.Or(conf.Runtime.MAC, conf.Args.CNI.MAC); text != "" {
		mac, err := net.ParseMAC(text)
		if err != nil {
			return a, cni.BadConfig.Errorf("runtimeConfig.mac: %v", err)
		}
		if a.Want.MAC != nil && a.Want.MAC.String() != mac.String() {
			return a, cni.BadConfig.Errorf("runtimeConfig.mac: is %s, and MAC in CNI_ARGS %s", mac, a.Want.MAC)
		}
		a.Want.MAC = mac
	}
	for _, list := range [][]string{conf.Runtime.IPs, conf.Args.CNI.IPs, args.IP} {
		if len(list) > 0 {
			a.Want.IPs = list
			break
		}
	}
	if b := conf.Runtime.Bandwidth; b != nil {
		a.Want.Bandwidth = sdn.Limits{
			IngressKbps: kilo(b.IngressRate), IngressBurst: kilo(b.IngressBurst),
			EgressKbps: kilo(b.EgressRate), EgressBurst: kilo(b.EgressBurst),
		}
	}
	a.Want.Published = published(conf.Runtime.PortMappings)
	return a, nil
}

// kilo is a number of bits in thousands, rounded up so that no limit becomes none.
func kilo(bits int64) int64 { return (bits + 999) / 1000 }

var protocols = map[string]sdn.Protocol{"": sdn.TCP, "tcp": sdn.TCP, "udp": sdn.UDP, "sctp": sdn.SCTP}

// published are the mappings that name a port of the host; the others publish nothing.
func published(mappings []cni.PortMapping) []Published {
	var list []Published
	for _, m := range mappings {
		if m.HostPort == 0 {
			continue
		}
		host, _ := netip.ParseAddr(m.HostIP) // "" is every one
		if host.IsValid() && host.IsUnspecified() && host.Is4() {
			host = netip.Addr{} // as container engines mean it
		}
		list = append(list, Published{
			HostIP: host, HostPort: uint16(m.HostPort), Port: uint16(m.ContainerPort),
			Protocol: protocols[strings.ToLower(m.Protocol)],
		})
	}
	return list
}
