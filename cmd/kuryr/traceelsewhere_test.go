//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/sdn"
)

// Where the SDN is elsewhere a trace tells what the node knows, says who knows the rest, and never that a packet has got there.
func TestTraceElsewhere(t *testing.T) {
	t.Parallel()
	pod := func(id, name, address, address6, network string) admin.PodPort {
		return admin.PodPort{
			ID: id, Pod: name, Interface: "eth0", MAC: "fa:16:3e:00:00:0" + id[len(id)-1:], Addresses: []string{address, address6}, Network: network, VIF: sdn.VIFOVS,
			Ranges: []string{"10.128.0.0/16", "fd00:10::/64"}, Gateways: []string{"10.128.0.1", "fd00:10::1"}, Groups: []string{"g1"},
		}
	}
	other := pod("cccccccc-0000-4000-8000-000000000003", "blue/c", "10.129.0.4", "fd00:10:0:1::4", "n2")
	other.Ranges, other.Groups = []string{"10.129.0.0/16", "fd00:10:0:1::/64"}, nil
	broken := pod("dddddddd-0000-4000-8000-000000000004", "default/broken", "10.128.0.9", "fd00:10::9", "n1")
	broken.Wrong = "its interface is absent"
	pods := admin.Pods{Node: "node1", Ports: []admin.PodPort{
		pod("aaaaaaaa-0000-4000-8000-000000000001", "default/a", "10.128.0.2", "fd00:10::2", "n1"), pod("bbbbbbbb-0000-4000-8000-000000000002", "default/b", "10.128.0.3", "fd00:10::3", "n1"), other, broken,
	}}
	for _, row := range []struct {
		from, to string
		six      bool
		says     []string // in the plan and the verdict
		refused  string
	}{
		{from: "default/a", to: "default/b:5432/tcp", says: []string{
			"TCP from 10.128.0.2 to 10.128.0.3:5432", "security groups g1", "tapaaaaaaaa-00", "stays in the network n1", "pod default/b",
			`ovn-trace --ct new neutron-n1 'inport == "aaaaaaaa-0000-4000-8000-000000000001" && eth.src == fa:16:3e:00:00:01 && eth.dst == fa:16:3e:00:00:02 && ip4.src == 10.128.0.2 && ip4.dst == 10.128.0.3 && ip.ttl == 64 && tcp.dst == 5432'`,
		}},
		{from: "default/a", to: "blue/c", says: []string{"the gateway 10.128.0.1, the router of network n1", "without security groups", "eth.dst == MAC-OF-10.128.0.1", "icmp4.type == 8"}},
		{from: "default/a", to: "8.8.8.8:53/udp", says: []string{"UDP from 10.128.0.2 to 8.8.8.8:53", "the gateway 10.128.0.1", "udp.dst == 53"}},
		{from: "10.128.0.2", to: "default/b", six: true, says: []string{"ICMP echo from fd00:10::2 to fd00:10::3", "ip6.src == fd00:10::2", "icmp6.type == 128"}},
		{from: "default/broken", to: "default/b", says: []string{"would be stopped at 2: its interface is absent"}},
		{from: "default/nobody", to: "default/b", refused: `there is no pod "default/nobody"`},
		{from: "default/a", to: "default/nobody", refused: "give its address"},
		{from: "default/a", to: "host", refused: "give the address"},
	} {
		to, err := parseTarget(row.to)
		if err != nil {
			t.Fatal(err)
		}
		o := traceOptions{}
		if row.six {
			o.family = 6
		}
		report, err := traceElsewhere(pods, row.from, to, o)
		if row.refused != "" || err != nil {
			if err == nil || row.refused == "" || !strings.Contains(err.Error(), row.refused) {
				t.Errorf("%s to %s: %v, want %q", row.from, row.to, err, row.refused)
			}
			continue
		}
		if report.Reached {
			t.Errorf("%s to %s: it is said to get there", row.from, row.to)
		}
		text := report.Packet + "\n" + report.Verdict
		for _, h := range report.Plan {
			text += "\n" + h.Where + " " + h.Device + " " + h.What
		}
		for _, says := range row.says {
			if !strings.Contains(text, says) {
				t.Errorf("%s to %s does not say %q:\n%s", row.from, row.to, says, text)
			}
		}
	}
}
