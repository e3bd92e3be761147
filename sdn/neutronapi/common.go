package neutronapi

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// list makes nil the empty list, as Neutron shows it.
func list[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// optional makes "" null.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func optionalAddr(a netip.Addr) *string {
	if !a.IsValid() {
		return nil
	}
	return optional(a.String())
}

// fixedIP is an address of a port.
type fixedIP struct {
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
}

// encodeAddresses shows addresses in Neutron's order, which is that of their text.
func encodeAddresses(addresses []sdn.Address) []fixedIP {
	out := make([]fixedIP, len(addresses))
	for i, a := range addresses {
		out[i] = fixedIP{SubnetID: string(a.Subnet), IPAddress: a.Addr.String()}
	}
	slices.SortFunc(out, func(a, b fixedIP) int {
		return cmp.Or(strings.Compare(a.IPAddress, b.IPAddress), strings.Compare(a.SubnetID, b.SubnetID))
	})
	return out
}

// route leads to a destination by a next hop.
type route struct {
	Destination string `json:"destination"`
	NextHop     string `json:"nexthop"`
}

func encodeRoutes(routes []sdn.HostRoute) []route {
	out := make([]route, len(routes))
	for i, r := range routes {
		out[i] = route{Destination: r.Destination.String(), NextHop: r.NextHop.String()}
	}
	return out
}

func family(a netip.Addr) int {
	if a.Is4() || a.Is4In6() {
		return 4
	}
	return 6
}

func addrTexts(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

func prefixTexts(prefixes []netip.Prefix) []string {
	out := make([]string, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.String()
	}
	return out
}

const active = "ACTIVE"

// status is what an object without a status of its own shows.
func status(up bool) string {
	if up {
		return active
	}
	return string(sdn.PortDown)
}
