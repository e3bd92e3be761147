//go:build linux

package main

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/internal/sortslice"
)

// loadBalancer is one with what Octavia's API tells of its parts.
type loadBalancer struct {
	api.LoadBalancer
	Doors []door `json:"kuryr:listeners,omitempty"`
}

// door is a listener with its pool.
type door struct {
	api.Listener
	Pool    *api.Pool        `json:"pool"`
	Members []api.PoolMember `json:"members"`
}

var loadBalancerResource = &resource[loadBalancer]{
	names: api.Resource[loadBalancer](api.LoadBalancers), title: "load balancer",
	common: func(l loadBalancer) api.Common {
		c := api.Common{ID: l.ID, Name: l.Name, Description: l.Description, ProjectID: l.ProjectID, Tags: l.Tags, Revision: l.Revision}
		c.CreatedAt, c.UpdatedAt = api.Value(l.CreatedAt), api.Value(l.UpdatedAt)
		return c
	},
	filters: []string{"vip_address", "vip_subnet_id", "vip_port_id"},
	list: []table.Column[loadBalancer]{
		{Name: "vips", Value: func(l loadBalancer) string { return lines(vips(l)) }},
		{Name: "listeners", Value: func(l loadBalancer) string { return strconv.Itoa(len(l.Listeners)) }},
		{Name: "status", Value: func(l loadBalancer) string { return l.ProvisioningStatus }},
	},
	show: []table.Column[loadBalancer]{
		{Name: "subnet", Value: func(l loadBalancer) string { return l.VIPSubnetID }},
		{Name: "port", Value: func(l loadBalancer) string { return l.VIPPortID }},
		{Name: "provider", Value: func(l loadBalancer) string { return l.Provider }},
		{Name: "leads", Value: func(l loadBalancer) string { return linesOf(l.Doors, door.String) }},
	},
	fill: func(ctx context.Context, c *api.Client, l *loadBalancer) error {
		for _, ref := range l.Listeners {
			d, err := openDoor(ctx, c, ref.ID)
			if err != nil {
				return err
			}
			l.Doors = append(l.Doors, d)
		}
		return nil
	},
}

func vips(l loadBalancer) []string {
	list := []string{l.VIPAddress}
	for _, v := range l.AdditionalVIPs {
		list = append(list, v.IPAddress)
	}
	return list
}

func openDoor(ctx context.Context, c *api.Client, id string) (d door, err error) {
	if d.Listener, err = api.Get(ctx, c, api.Listeners, id); err != nil || d.DefaultPoolID == nil {
		return d, err
	}
	pool, err := api.Get(ctx, c, api.Pools, *d.DefaultPoolID)
	if err != nil {
		return d, err
	}
	d.Pool = &pool
	d.Members, err = c.PoolMembers(ctx, pool.ID)
	sortslice.Func(d.Members, func(a, b api.PoolMember) int {
		at, _ := netip.ParseAddr(a.Address)
		than, _ := netip.ParseAddr(b.Address)
		return cmp.Or(at.Compare(than), cmp.Compare(a.ProtocolPort, b.ProtocolPort))
	})
	return d, err
}

// String is such as "tcp 80 to 10.0.0.5:8080, 10.0.0.6:8080 drained, for 192.0.2.0/24".
func (d door) String() string {
	words := strings.ToLower(d.Protocol) + " " + strconv.Itoa(int(d.ProtocolPort)) + " to "
	var to []string
	for _, m := range d.Members {
		member := net.JoinHostPort(m.Address, strconv.Itoa(int(m.ProtocolPort)))
		switch m.Weight {
		case 0:
			member += " drained"
		case 1:
		default:
			member += " weight " + strconv.Itoa(m.Weight)
		}
		to = append(to, member)
	}
	if len(to) == 0 {
		to = []string{"nobody: it is refused"}
	}
	words += strings.Join(to, ", ")
	if len(d.AllowedCIDRs) > 0 {
		words += ", for " + strings.Join(d.AllowedCIDRs, " ")
	}
	return words
}
