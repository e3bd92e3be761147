package cni

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Args are what CNI_ARGS can say.
type Args struct {
	IgnoreUnknown bool // CNI's own: what is not in this table is passed over

	PodNamespace, PodName, PodUID string // K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID
	InfraContainer                string // K8S_POD_INFRA_CONTAINER_ID

	Port     string       // PORT_UUID: the SDN's port to be bound
	PortType string       // PORT_TYPE: its VIF type, such as ovs, midonet
	IPv4     netip.Prefix // IPV4, with the subnet's length
	IPv6     netip.Prefix // IPV6, with the subnet's length
	GW       []netip.Addr // GW: at most one of each family
	MAC      net.HardwareAddr
	MTU      int // bytes; 0: the kernel's default

	IP []string // IP, as CNI's conventions have it: an address that is asked for
}

// Given tells whether the arguments alone say what is to be bound: the minimum is PORT_UUID, PORT_TYPE and an address.
func (a Args) Given() bool {
	return a.Port != "" && a.PortType != "" && (a.IPv4.IsValid() || a.IPv6.IsValid())
}

// Addresses are IPV4 and IPV6, those that there are.
func (a Args) Addresses() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range []netip.Prefix{a.IPv4, a.IPv6} {
		if p.IsValid() {
			list = append(list, p)
		}
	}
	return list
}

// Gateway is the gateway of the address's family; invalid: there is none.
func (a Args) Gateway(of netip.Addr) netip.Addr {
	for _, gw := range a.GW {
		if gw.Is4() == of.Is4() {
			return gw
		}
	}
	return netip.Addr{}
}

// maxMTU is the largest of an interface, in bytes; the least is IPv4's (RFC 791).
const minMTU, maxMTU = 68, 65535

// flatMode are the arguments that the flat-mode design separates by ','.
var flatMode = []string{"PORT_UUID", "PORT_TYPE", "IPV4", "IPV6", "GW", "MAC", "MTU"}

// splitArgs separates the arguments by ';', and those of the flat-mode design among
// themselves by ',' too: a value of another argument may contain one.
func splitArgs(text string) (parts []string) {
	for part := range strings.SplitSeq(text, ";") {
		pieces := strings.Split(part, ",")
		flat := func(piece string) bool {
			name, _, _ := strings.Cut(strings.TrimSpace(piece), "=")
			return name == "" || slices.Contains(flatMode, name)
		}
		if slices.ContainsFunc(pieces, func(piece string) bool { return !flat(piece) }) {
			pieces = []string{part}
		}
		parts = append(parts, pieces...)
	}
	return parts
}

// ParseArgs reads CNI_ARGS: NAME=VALUE, separated as splitArgs says. Errors are
// BadEnvironment and name the argument.
func ParseArgs(text string) (Args, error) {
	var a Args
	seen := map[string]bool{}
	var unknown string
	for _, part := range splitArgs(text) {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		if !ok || name == "" {
			return Args{}, BadEnvironment.Errorf("CNI_ARGS: %q is not of the form NAME=VALUE", part)
		}
		if seen[name] && name != "GW" && name != "IP" {
			return Args{}, BadEnvironment.Errorf("CNI_ARGS: %s: %v", name, errTwice)
		}
		seen[name] = true
		known, err := a.set(name, value)
		if err != nil {
			return Args{}, BadEnvironment.Errorf("CNI_ARGS: %s: %v", name, err)
		}
		if !known && unknown == "" {
			unknown = name
		}
	}
	if unknown != "" && !a.IgnoreUnknown {
		return Args{}, BadEnvironment.Errorf("CNI_ARGS: %s: is no argument that Kuryr knows; IgnoreUnknown=1 has it passed over", unknown)
	}
	return a, a.consistent()
}

// set takes one argument. An empty value is none.
func (a *Args) set(name, value string) (known bool, err error) {
	words := map[string]*string{
		"K8S_POD_NAMESPACE": &a.PodNamespace, "K8S_POD_NAME": &a.PodName, "K8S_POD_UID": &a.PodUID, "K8S_POD_INFRA_CONTAINER_ID": &a.InfraContainer,
		"PORT_UUID": &a.Port, "PORT_TYPE": &a.PortType,
	}
	if to, is := words[name]; is {
		if *to = value; strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) || len(value) > 253 {
			return true, fmt.Errorf("%q is no name", value)
		}
		return true, nil
	}
	switch name {
	case "IgnoreUnknown":
		if a.IgnoreUnknown, err = strconv.ParseBool(value); err != nil {
			return true, fmt.Errorf("%q is neither 1 nor 0", value)
		}
		return true, nil
	case "IPV4", "IPV6", "GW", "IP", "MAC", "MTU":
	default:
		return false, nil
	}
	if value == "" {
		return true, nil
	}
	switch name {
	case "IPV4":
		a.IPv4, err = parsePrefix(value, true)
	case "IPV6":
		a.IPv6, err = parsePrefix(value, false)
	case "GW":
		err = a.gateway(value)
	case "IP":
		if err = checkAddress(value); err == nil {
			a.IP = append(a.IP, value)
		}
	case "MAC":
		a.MAC, err = parseMAC(value)
	case "MTU":
		a.MTU, err = strconv.Atoi(value)
		if err != nil || a.MTU < minMTU || a.MTU > maxMTU {
			err = fmt.Errorf("%q is no MTU: from %d to %d bytes", value, minMTU, maxMTU)
		}
	}
	return true, err
}

// parsePrefix reads an address with its subnet's length.
func parsePrefix(text string, is4 bool) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4() != is4 || p.Addr().Zone() != "" || p.Addr().Is4In6() {
		family := map[bool]string{true: "an IPv4 address, such as 10.0.0.15/16", false: "an IPv6 address, such as fd00::15/64"}[is4]
		return netip.Prefix{}, fmt.Errorf("%q is not %s", text, family)
	}
	return p, nil
}

// checkAddress wants an address, with or without a length.
func checkAddress(text string) error {
	bare, _, _ := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(bare)
	if err == nil && bare != text {
		_, err = netip.ParsePrefix(text)
	}
	if err != nil || addr.Zone() != "" {
		return fmt.Errorf("%q is no IP address", text)
	}
	return nil
}

func (a *Args) gateway(value string) error {
	gw, err := netip.ParseAddr(value)
	if err != nil || gw.Zone() != "" || gw.IsUnspecified() {
		return fmt.Errorf("%q is no IP address", value)
	}
	if a.Gateway(gw).IsValid() {
		return fmt.Errorf("%s: %w for its family", value, errTwice)
	}
	a.GW = append(a.GW, gw)
	return nil
}

// consistent checks what several arguments say together.
func (a Args) consistent() error {
	for _, gw := range a.GW {
		if gw.Is4() && !a.IPv4.IsValid() || gw.Is6() && !a.IPv6.IsValid() {
			return BadEnvironment.Errorf("CNI_ARGS: GW: %s has no address of its family beside it (IPV4, IPV6)", gw)
		}
	}
	if a.Port == "" {
		for name, given := range map[string]bool{"IPV4": a.IPv4.IsValid(), "IPV6": a.IPv6.IsValid(), "PORT_TYPE": a.PortType != "", "MTU": a.MTU != 0} {
			if given {
				return BadEnvironment.Errorf("CNI_ARGS: PORT_UUID: is missing, and %s is of a port; an address without one is asked for by IP", name)
			}
		}
	}
	return nil
}
