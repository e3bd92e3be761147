//go:build linux

package router

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// Members' filters see the client as it is; a client's filter sees the VIP, which is what
// it sends to.
func TestBalancingThroughFilters(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	member := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	far := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	f.serve(member.ns, 8080)
	vip := netip.MustParseAddr("10.96.0.10")
	frontend := lb.Frontend{
		Key:       lb.Key{Addr: vip, Protocol: sdn.TCP, Port: 80},
		Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:8080")},
	}
	must(t, changeVIPs(t.Context(), f.f, f.d.ID, nil, []VIP{{Addr: vip}}))
	all := []lb.Frontend{frontend}
	must(t, changeFrontends(t.Context(), f.f, f.d.ID, nil, all, func() ([]lb.Frontend, error) { return all, nil }))
	from := func(a string) []securitygroup.Rule {
		r := ports(securitygroup.Ingress, unix.IPPROTO_TCP, 8080, 8080)
		r.Remote = netip.MustParsePrefix(a)
		return []securitygroup.Rule{r}
	}
	to := func(a string, port uint16) []securitygroup.Rule {
		r := ports(securitygroup.Egress, unix.IPPROTO_TCP, port, port)
		r.Remote = netip.MustParsePrefix(a)
		return []securitygroup.Rule{r}
	}
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&near, "client")
	f.join(&far, "client")
	for _, client := range []struct {
		c    container
		addr string
	}{{near, "10.0.0.6"}, {far, "10.0.1.7"}} {
		f.group("member", from(client.addr+"/32")...)
		f.join(&member, "member")
		f.expect("allowed from "+client.addr, client.c.ns, "tcp", "10.96.0.10:80", true)
		f.group("member", from("10.0.9.9/32")...)
		f.expect("allowed from another", client.c.ns, "tcp", "10.96.0.10:80", false)
		f.group("member", from(client.addr+"/32")...)
		f.group("client", slices.Concat(to("10.96.0.10/32", 80))...)
		f.expect("to the VIP", client.c.ns, "tcp", "10.96.0.10:80", true)
		f.group("client", anything(securitygroup.Egress)...)
	}
}
