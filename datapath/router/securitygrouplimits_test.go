//go:build linux

package router

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
)

// TestLimits sends more at once than a limit's burst lets pass, in either direction, and
// looks for the mark of what is sent.
func TestLimits(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	ctx := context.Background()
	limited, other := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
		f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	const count, size = 400, 1000
	const burst = 2 << 16 / (size + 50) // what passes at once of a limit with the least burst
	used := false                       // the bursts are used up
	// arrive counts how many of the datagrams come that one port sends to the other.
	arrive := func(from, to container, host string, port uint16, limit bool) int {
		t.Helper()
		if !limit {
			f.meets(from.ns, host) // so that the neighbours are known
		}
		there := netip.AddrPortFrom(netip.MustParseAddr(host), port)
		in := f.datagrams(to, there)
		defer in.Close()
		must(t, in.SetReadBuffer(8<<20))
		out := f.datagrams(
			from,
			netip.AddrPortFrom(
				map[bool]netip.Addr{
					true: netip.IPv4Unspecified(), false: netip.IPv6Unspecified(),
				}[there.Addr().Is4()],
				port,
			),
		)
		defer out.Close()
		for range count {
			_, err := out.WriteToUDPAddrPort(make([]byte, size), there)
			must(t, err)
		}
		enough := count * 3 / 4
		if limit {
			enough = burst * 3 / 4
		}
		n, b := 0, make([]byte, size)
		for n < count {
			wait := patience
			switch wanted := !limit || !used; {
			case wanted && n == 0:
				wait = nstest.Limit
			case wanted && n < enough:
				wait = time.Second // all were sent
			}
			_ = in.SetReadDeadline(time.Now().Add(wait))
			if _, _, err := in.ReadFromUDPAddrPort(b); err != nil {
				break
			}
			n++
		}
		return n
	}
	expect := func(what string, ingress, egress bool) {
		t.Helper()
		for i, hosts := range [][2]string{{"10.0.0.5", "10.0.1.7"}, {"fd00:a::5", "fd00:b::7"}} {
			for direction, limit := range map[string]bool{"ingress": ingress, "egress": egress} {
				from, to, host := other, limited, hosts[0]
				if direction == "egress" {
					from, to, host = limited, other, hosts[1]
				}
				if i == 1 && limit {
					continue // the burst is one, for both families, and is used up
				}
				n := arrive(from, to, host, uint16(1000+i), limit)
				for range 3 { // a busy machine may lose some
					if !limit && n < count*3/4 {
						n = arrive(from, to, host, uint16(1000+i), limit)
					}
				}
				if limit && (n < burst*3/4 && !used || n > burst*3/2) || !limit && n < count*3/4 {
					t.Errorf("%s, %s: of %d datagrams to %s %d came", what, direction, count, host, n)
				}
			}
		}
	}
	was := limited.port
	limit := func(l securitygroup.Limits, groups ...string) {
		t.Helper()
		now := was
		now.Limits, now.Groups = l, groups
		must(t, changePorts(ctx, f.f, f.d.ID, []Port{was}, []Port{now}))
		was = now
	}
	expect("no limits", false, false)
	limit(securitygroup.Limits{EgressKbps: 16})
	expect("limit of what is sent", false, true)
	limit(securitygroup.Limits{IngressKbps: 16})
	expect("limit of what is received", true, false)
	f.group("any", append(anything(securitygroup.Egress), anything(securitygroup.Ingress)...)...)
	limit(securitygroup.Limits{IngressKbps: 16, EgressKbps: 16}, "any")
	expect("both, with groups", true, true)
	state := State{
		Shapes: []Shape{f.d}, Ports: map[string][]Port{f.d.ID: {was, other.port}},
		Groups: []securitygroup.Group{f.groups["any"]},
	}
	for _, damage := range []string{"true", "nft flush ruleset",
		"nft flush map bridge kuryr_policy limits_out; nft flush map bridge kuryr_policy limits_in",
		"nft flush chain bridge kuryr_policy limit_out-" + TapName(was.ID) +
			"; nft flush chain bridge kuryr_policy limit_in-" + TapName(was.ID)} {
		f.sh(f.router(f.d.ID), damage)
		report, err := f.f.Reconcile(ctx, state)
		must(t, err)
		if (len(report.Changed) == 0) != (damage == "true") {
			t.Errorf("%s: changed: %v", damage, report.Changed)
		}
		if used = true; damage != "true" {
			expect(damage, true, true)
		}
	}
	limit(securitygroup.Limits{}, "any")
	expect("no limits, with groups", false, false)
	if out := f.sh(
		f.router(f.d.ID), "nft list table bridge kuryr_policy",
	); strings.Contains(out, "limit_out-") || strings.Contains(out, "too much") {
		t.Errorf("left: %s", out)
	}

	// marks, of ports with groups and without
	f.sh(
		other.ns,
		"nft 'add table inet t; add chain inet t in { type filter hook input priority 0; }; add "+
			"rule inet t in ip dscp 46 counter; add rule inet t in ip6 dscp 46 counter; add rule inet "+
			"t in counter'",
	)
	for _, groups := range [][]string{nil, {"any"}} {
		limit(securitygroup.Limits{DSCP: 46}, groups...)
		for i, host := range []string{"10.0.1.7", "fd00:b::7"} {
			f.expect("marked", limited.ns, "ping", host, true)
			out := f.sh(other.ns, "nft list table inet t")
			if m := regexp.MustCompile(
				`dscp ef counter packets (\d+)`,
			).FindAllStringSubmatch(out, -1); len(m) != 2 || m[i][1] == "0" {
				t.Errorf("%v: nothing with the mark came: %s", groups, out)
			}
		}
	}
	f.serve(other.ns, 80)
	f.expect("marked TCP, whose sums must be right", limited.ns, "tcp", "10.0.1.7:80", true)
	limit(securitygroup.Limits{})
	bad := was
	bad.Limits.DSCP = 64
	if err := changePorts(ctx, f.f, f.d.ID, nil, []Port{bad}); err == nil {
		t.Error("a mark of seven bits")
	}
}
