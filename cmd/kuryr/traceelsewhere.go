//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/datapath/trace"
	"github.com/kuryr/kuryr/sdn"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// podsElsewhere are the ports of a cluster's node whose SDN is not on this machine: there is the node's daemon, and no socket of an embedded SDN's.
func (a *app) podsElsewhere(c *cobra.Command) (pods admin.Pods, there bool, err error) {
	cfg, err := a.load(c)
	if err != nil || a.socket != "" {
		return pods, false, err
	}
	daemon, there := podDaemon(cfg)
	if _, err := os.Stat(cfg.Admin.Socket); !there || err == nil {
		return pods, false, nil
	}
	pods, err = daemon.Pods(c.Context())
	if err != nil {
		err = fmt.Errorf("the node's daemon does not tell its pods: %w", err)
	}
	return pods, true, err
}

// traceElsewhere tells what a node knows of a packet's way where the SDN is elsewhere: as far as the node's switch, and who knows the rest.
func traceElsewhere(pods admin.Pods, from string, to target, o traceOptions) (traceReport, error) {
	report := traceReport{To: to.text, Differences: []string{}, Findings: []admin.Finding{}}
	src := findPodPort(pods, from)
	if src == nil {
		return report, fmt.Errorf("there is no pod %q (namespace/name) with a port on this node", from)
	}
	if to.host {
		return report, errors.New("host: the SDN is not on this machine: give the address that the packet is to go to")
	}
	dst := findPodPort(pods, to.name)
	if to.addr.IsValid() {
		dst = findPodPort(pods, to.addr.String())
	} else if dst == nil {
		return report, fmt.Errorf("there is no pod %q on this node: give its address (kubectl get pods -o wide)", to.name)
	}
	a, b, err := podAddresses(*src, dst, to.addr, o.family)
	if err != nil {
		return report, err
	}
	report.From = portName(*src)
	kind := map[uint8]string{unix.IPPROTO_ICMP: "ICMP echo", unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP"}[to.protocol]
	report.Packet = fmt.Sprintf("%s from %s to %s", kind, a, b)
	if to.port != 0 {
		report.Packet = fmt.Sprintf("%s from %s to %s", kind, a, netip.AddrPortFrom(b, to.port))
	}
	hop := func(where, device, format string, args ...any) {
		report.Plan = append(report.Plan, trace.Hop{Where: where, Device: device, What: fmt.Sprintf(format, args...)})
	}
	hop(report.From, src.Interface, "port %s (%s, %s) of network %s", src.ID, src.MAC, strings.Join(src.Addresses, ", "), src.Network)
	if src.Wrong != "" {
		hop("node "+pods.Node, "", "%s", src.Wrong)
		report.Plan[len(report.Plan)-1].Stop = true
		report.Verdict, report.Reached = planVerdict(report.Plan)
		return report, nil
	}
	hop("node "+pods.Node, hostEnd(src.ID), "plugged as %s, %s", src.VIF, groupsText(*src))
	near := slices.ContainsFunc(src.Ranges, func(r string) bool { p, err := netip.ParsePrefix(r); return err == nil && p.Contains(b) })
	at := slices.IndexFunc(src.Gateways, func(g string) bool { ip, err := netip.ParseAddr(g); return err == nil && ip.Is4() == b.Is4() })
	gateway := ""
	switch {
	case near:
		hop("the SDN", "", "stays in the network %s", src.Network)
	case at >= 0:
		gateway = src.Gateways[at]
		hop("the SDN", "", "goes to the gateway %s, the router of network %s", gateway, src.Network)
	default:
		hop("the SDN", "", "the network %s has no gateway of this family", src.Network)
		report.Plan[len(report.Plan)-1].Stop = true
	}
	if dst != nil {
		hop(portName(*dst), hostEnd(dst.ID), "port %s of network %s on this node, %s", dst.ID, dst.Network, groupsText(*dst))
	}
	if report.Verdict, report.Reached = planVerdict(report.Plan); report.Reached {
		report.Verdict, report.Reached = "not known here: "+whoKnows(*src, dst, near, gateway, a, b, to), false
	}
	return report, nil
}

// findPodPort is the port of a word: a pod's namespace/name, a port's id, or an address that one port has.
func findPodPort(pods admin.Pods, word string) *admin.PodPort {
	for i := range pods.Ports {
		if p := &pods.Ports[i]; word != "" && (p.Pod == word || p.ID == word || slices.Contains(p.Addresses, word)) {
			return p
		}
	}
	return nil
}

// podAddresses are where the packet comes from and goes to: of the family that is asked for, or the first that both ends have.
func podAddresses(src admin.PodPort, dst *admin.PodPort, addr netip.Addr, family int) (a, b netip.Addr, err error) {
	to := []netip.Addr{addr}
	if !addr.IsValid() {
		to = parsed(dst.Addresses)
	}
	for _, b := range to {
		for _, a := range parsed(src.Addresses) {
			if a.Is4() == b.Is4() && (family == 0 || a.Is4() == (family == 4)) {
				return a, b, nil
			}
		}
	}
	return a, b, fmt.Errorf("%s has no address of the family of its packet", portName(src))
}

func parsed(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

func portName(p admin.PodPort) string {
	if p.Pod != "" {
		return "pod " + p.Pod
	}
	return "port " + p.ID
}

// hostEnd is the name of a port's interface on the node's side.
func hostEnd(id string) string { return "tap" + id[:min(len(id), 11)] }

func groupsText(p admin.PodPort) string {
	if len(p.Groups) == 0 {
		return "without security groups"
	}
	return "security groups " + strings.Join(p.Groups, ", ")
}

// whoKnows says where the rest is known, with the command that asks OVN where the port is of its switch.
func whoKnows(src admin.PodPort, dst *admin.PodPort, near bool, gateway string, a, b netip.Addr, to target) string {
	text := "what the groups' rules and routers do with the packet, the SDN alone knows"
	if src.VIF != sdn.VIFOVS {
		return text
	}
	mac, family := "MAC-OF-"+b.String(), "ip4"
	if b.Is6() {
		family = "ip6"
	}
	switch {
	case near && dst != nil:
		mac = dst.MAC
	case !near:
		mac = "MAC-OF-" + gateway
	}
	match := []string{
		fmt.Sprintf("inport == %q", src.ID), "eth.src == " + src.MAC, "eth.dst == " + mac,
		fmt.Sprintf("%s.src == %s", family, a), fmt.Sprintf("%s.dst == %s", family, b), "ip.ttl == 64",
	}
	switch {
	case to.protocol == unix.IPPROTO_TCP:
		match = append(match, fmt.Sprintf("tcp.dst == %d", to.port))
	case to.protocol == unix.IPPROTO_UDP:
		match = append(match, fmt.Sprintf("udp.dst == %d", to.port))
	case b.Is6():
		match = append(match, "icmp6.type == 128")
	default:
		match = append(match, "icmp4.type == 8")
	}
	return text + "; with Neutron on OVN ask it where its databases are: ovn-trace --ct new neutron-" + src.Network + " '" + strings.Join(match, " && ") + "'"
}
