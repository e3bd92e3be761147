//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/datapath/trace"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// balanced is an error where the destination is a load balancer's: which member a packet is led to is decided on its way, so there is no one end to listen at. It
// tells where the packet may be led, or that it is refused.
func (t *tracer) balanced(ctx context.Context, router string, dst netip.Addr, f trace.Flow) error {
	vip := t.vip(router, dst)
	if vip == "" {
		return nil
	}
	all, err := api.List(ctx, t.client.SDN(), loadBalancerResource.names, url.Values{"vip_port_id": {vip}})
	if err != nil || len(all) == 0 {
		return err
	}
	if err := loadBalancerResource.fill(ctx, t.client.SDN(), &all[0]); err != nil {
		return err
	}
	return leads(dst, f, all[0])
}

// vip is the port of the VIP that has the address on the router, or to which a floating IP with the address leads; "" for none.
func (t *tracer) vip(router string, dst netip.Addr) string {
	behind := map[string]bool{} // subnets
	for _, r := range t.objects.Routers {
		for _, i := range r.Interfaces {
			behind[i.SubnetID] = behind[i.SubnetID] || r.ID == router
		}
	}
	for _, p := range t.objects.Ports {
		if p.DeviceOwner != sdn.OwnerLoadBalancer {
			continue
		}
		for _, a := range p.FixedIPs {
			if a.IPAddress == dst.String() && behind[a.SubnetID] {
				return p.ID
			}
		}
		for _, fip := range t.objects.FloatingIPs {
			if api.Value(fip.PortID) == p.ID && fip.FloatingIPAddress == dst.String() {
				return p.ID
			}
		}
	}
	return ""
}

func leads(dst netip.Addr, f trace.Flow, l loadBalancer) error {
	name := l.Name
	if name == "" {
		name = l.ID
	}
	protocol := map[uint8]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP"}[f.Protocol]
	for _, d := range l.Doors {
		if d.Protocol != protocol || d.ProtocolPort != f.Port {
			continue
		}
		return fmt.Errorf("%s is an address of the load balancer %s, which leads %s: trace to a member", dst, name, d)
	}
	if protocol == "" {
		return fmt.Errorf("%s is an address of the load balancer %s, which leads by port: name one, such as :80/tcp", dst, name)
	}
	return fmt.Errorf("%s is an address of the load balancer %s, which has no listener at %s %d: it is refused", dst, name, strings.ToLower(protocol), f.Port)
}
