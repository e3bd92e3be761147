package neutronapi

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Common is what every object shows.
type Common struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	TenantID    string   `json:"tenant_id"` // the older name of ProjectID
	Tags        []string `json:"tags"`
	Revision    int64    `json:"revision_number"`
	CreatedAt   string   `json:"created_at"` // UTC, to the second
	UpdatedAt   string   `json:"updated_at"`
}

// Key is the Key that the description carries; zero where it carries none.
func (c Common) Key() sdn.Key {
	key, _ := sdn.ParseKey(c.Description)
	return key
}

func encodeMeta(m sdn.Meta) Common {
	description := m.Description
	if !m.Key.IsZero() {
		description = m.Key.String()
	}
	return Common{
		ID: string(m.ID), Name: m.Name, Description: description, ProjectID: m.Project, TenantID: m.Project,
		Tags: list(m.Tags), Revision: m.Revision, CreatedAt: timestamp(m.Created), UpdatedAt: timestamp(m.Updated),
	}
}

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

// Value is what an optional field holds, "" for null.
func Value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// FixedIP is an address of a port.
type FixedIP struct {
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
}

// encodeAddresses shows addresses in Neutron's order, which is that of their text.
func encodeAddresses(addresses []sdn.Address) []FixedIP {
	out := make([]FixedIP, len(addresses))
	for i, a := range addresses {
		out[i] = FixedIP{SubnetID: string(a.Subnet), IPAddress: a.Addr.String()}
	}
	slices.SortFunc(out, func(a, b FixedIP) int {
		return cmp.Or(strings.Compare(a.IPAddress, b.IPAddress), strings.Compare(a.SubnetID, b.SubnetID))
	})
	return out
}

// Route leads to a destination by a next hop.
type Route struct {
	Destination string `json:"destination"`
	NextHop     string `json:"nexthop"`
}

func encodeRoutes(routes []sdn.HostRoute) []Route {
	out := make([]Route, len(routes))
	for i, r := range routes {
		out[i] = Route{Destination: r.Destination.String(), NextHop: r.NextHop.String()}
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
