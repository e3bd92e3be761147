//go:build linux

package router

import (
	"crypto/sha256"
	"net"
	"net/netip"
)

const (
	shortID = 11 // what an interface name of 15 characters leaves beside a prefix

	tapPrefix    = "tap"
	bridgePrefix = "br-"
	uplinkPrefix = "kr" // the host's end of an uplink
	dyingPrefix  = "kx" // the same, after its router went
	uplinkName   = "up0"

	aliasNetwork = "kuryr:network:"
	aliasRouter  = "kuryr:router:"
	aliasUplink  = "kuryr:uplink:"
	aliasDying   = "kuryr:dying:"
	aliasTrunk   = "kuryr:trunk:" // and the parent's id, of a subport's link

	// protocol marks our routes and proxy neighbours (rtm_protocol, NDA_PROTOCOL). It is not
	// in iproute2's rt_protos.
	protocol = 75
)

// Our ends of an uplink are told apart by fixed link-local addresses, so a router's
// default route needs no discovery.
var (
	hostLinkLocal   = netip.MustParsePrefix("fe80::1/64")
	routerLinkLocal = netip.MustParsePrefix("fe80::2/64")
)

// TapName is the name of a port's host end.
func TapName(port string) string { return tapPrefix + short(port) }

// BridgeName is the name of a network's bridge.
func BridgeName(network string) string { return bridgePrefix + short(network) }

// UplinkName is the name of a router's link in the host's namespace.
func UplinkName(router string) string { return uplinkPrefix + short(router) }

func short(id string) string { return id[:min(shortID, len(id))] }

// stableMAC derives a locally administered unicast MAC, so that a gateway keeps its own
// over re-creation and migration.
func stableMAC(id string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("kuryr bridge " + id))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&0xfc | 0x02
	return mac
}

// linkLocal is the EUI-64 link-local address of a MAC (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80, 8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3],
		14: mac[4], 15: mac[5],
	})
}
