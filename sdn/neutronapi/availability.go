package neutronapi

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// availability is how full a network is, in Neutron's JSON.
type availability struct {
	NetworkID   string               `json:"network_id"`
	NetworkName string               `json:"network_name"`
	ProjectID   string               `json:"project_id"`
	TenantID    string               `json:"tenant_id"`
	TotalIPs    int64                `json:"total_ips"`
	UsedIPs     int64                `json:"used_ips"`
	Subnets     []subnetAvailability `json:"subnet_ip_availability"`
}

// subnetAvailability is how full a subnet is.
type subnetAvailability struct {
	SubnetID   string `json:"subnet_id"`
	SubnetName string `json:"subnet_name"`
	CIDR       string `json:"cidr"`
	IPVersion  int    `json:"ip_version"`
	TotalIPs   int64  `json:"total_ips"`
	UsedIPs    int64  `json:"used_ips"`
}

// fullness is a network with how full it is.
type fullness struct {
	network sdn.Network
	shown   availability
}

// serveAvailability adds how full networks are, which administrators alone are told, as with Neutron: to others no network is there.
func (s *server) serveAvailability() {
	t := &table{
		member: "network_ip_availability", collection: "network_ip_availabilities", path: "network-ip-availabilities", title: "network",
		meta: via(func(f *fullness) sdn.Meta { return sdn.Meta{ID: f.network.ID} }),
		fields: []field{
			{name: "network_id", show: via(func(f *fullness) any { return f.shown.NetworkID })},
			{name: "network_name", show: via(func(f *fullness) any { return f.shown.NetworkName })},
			{name: "project_id", show: via(func(f *fullness) any { return f.shown.ProjectID })},
			{name: "tenant_id", show: via(func(f *fullness) any { return f.shown.TenantID })},
			{name: "total_ips", show: via(func(f *fullness) any { return f.shown.TotalIPs })},
			{name: "used_ips", show: via(func(f *fullness) any { return f.shown.UsedIPs })},
			{name: "subnet_ip_availability", show: via(func(f *fullness) any { return list(f.shown.Subnets) })},
		},
		get: got(func(ctx context.Context, id sdn.ID) (fullness, error) {
			network, err := s.p.Network(ctx, id)
			if err != nil {
				return fullness{}, err
			}
			return s.fill(ctx, network, nil)
		}),
		find: sought(func(ctx context.Context, f *filter) iter.Seq2[fullness, error] {
			q := sdn.NetworkQuery{Match: sdn.Match{After: f.after, IDs: f.ids("network_id"), Names: f.texts("network_name"), Projects: f.projects()}}
			f.named = len(q.IDs) > 0
			versions := f.texts("ip_version") // of the subnets that are counted
			return func(yield func(fullness, error) bool) {
				for network, err := range s.p.FindNetworks(ctx, q) {
					if err != nil {
						yield(fullness{}, err)
						return
					}
					out, err := s.fill(ctx, network, versions)
					if err == nil && len(versions) > 0 && len(out.shown.Subnets) == 0 {
						continue
					}
					if !yield(out, err) {
						return
					}
				}
			}
		}),
	}
	s.serve(t.resource())
}

// fill counts a network's addresses, subnet by subnet, of all or of some versions of IP.
func (s *server) fill(ctx context.Context, network sdn.Network, versions []string) (fullness, error) {
	out := fullness{network, availability{NetworkID: string(network.ID), NetworkName: network.Name, ProjectID: network.Project, TenantID: network.Project, Subnets: []subnetAvailability{}}}
	for _, id := range network.Subnets {
		subnet, err := s.p.Subnet(ctx, id)
		if sdn.IsNotFound(err) {
			continue // deleted meanwhile
		}
		if err != nil {
			return out, err
		}
		if version := strconv.Itoa(family(subnet.CIDR.Addr())); len(versions) > 0 && !slices.Contains(versions, version) {
			continue
		}
		usage, err := s.p.SubnetUsage(ctx, id)
		if err != nil {
			return out, err
		}
		out.shown.TotalIPs += min(usage.Total, math.MaxInt64-out.shown.TotalIPs)
		out.shown.UsedIPs += usage.Used
		out.shown.Subnets = append(out.shown.Subnets, subnetAvailability{
			SubnetID: string(id), SubnetName: subnet.Name, CIDR: subnet.CIDR.String(), IPVersion: family(subnet.CIDR.Addr()), TotalIPs: usage.Total, UsedIPs: usage.Used,
		})
	}
	return out, nil
}
