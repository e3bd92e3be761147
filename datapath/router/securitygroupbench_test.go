//go:build linux

package router

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

// manyRules are so many that match nothing, and one that lets IPv4 in.
func manyRules(n int) []securitygroup.Rule {
	list := anything(securitygroup.Egress)
	for i := range n - 1 {
		list = append(list, securitygroup.Rule{Direction: securitygroup.Ingress, Protocol: unix.IPPROTO_TCP,
			First: uint16(20000 + i), Last: uint16(20000 + i),
			Remote: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)})
	}
	return append(list, securitygroup.Rule{Direction: securitygroup.Ingress})
}

// stateful is what connection tracking would do at the least, in the inet family and with
// br_netfilter.
const stateful = "nft 'add table inet t; add chain inet t f { type filter hook forward " +
	"priority 0; }; add rule inet t f ct state established,related accept'"

// BenchmarkFilterThroughput sends between two ports of a network over a TCP connection
// ("stream") and as small datagrams, in turns without a filter, with a hundred rules, and
// with connection tracking by br_netfilter instead; and gives the medians of the turns'
// ratios to no filter, of bytes that came by the processor's time: both ends are in this
// process, and what the kernel does for them is in its account. Beside others' work that
// tells a difference of some hundredths, which the clock on the wall does not.
func BenchmarkFilterThroughput(b *testing.B) {
	for _, kind := range []string{"stream", "datagrams"} {
		b.Run(kind, func(b *testing.B) {
			f := newFiltered(b)
			server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
				f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
			f.group("many", manyRules(100)...)
			var got atomic.Int64
			out, size := f.pour(kind, client, server, &got)
			var rates []float64
			send := func() float64 {
				begin, used, before, block := time.Now(), cpuTime(b), got.Load(), make([]byte, size)
				for time.Since(begin) < 100*time.Millisecond {
					_, err := out.Write(block)
					must(b, err)
				}
				bytes := float64(got.Load() - before)
				rates = append(rates, bytes/time.Since(begin).Seconds())
				return bytes / (cpuTime(b) - used).Seconds()
			}
			send()
			var ours, others []float64
			for b.Loop() {
				first := send()
				f.join(&server, "many")
				f.join(&client, "many")
				with := send()
				f.join(&server)
				f.join(&client)
				none := (first + send()) / 2
				f.sh(f.router(f.d.ID), "sysctl -qw net.bridge.bridge-nf-call-iptables=1; "+stateful)
				other := send()
				f.sh(f.router(f.d.ID), "sysctl -qw net.bridge.bridge-nf-call-iptables=0; nft delete table inet t")
				ours, others = append(ours, with/none), append(others, other/none)
			}
			if median(rates) == 0 {
				b.Fatal("nothing comes")
			}
			b.ReportMetric(median(ours), "x/none")
			b.ReportMetric(median(others), "br_netfilter/none")
			b.ReportMetric(median(rates)*8/1e9, "Gbit/s")
		})
	}
}

// counted is a reader whose bytes are counted.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// pour opens what one port sends to another by, whose end takes all of it and counts; and
// says how much is best sent at once.
func (f *filtered) pour(kind string, from, to container, got *atomic.Int64) (io.Writer, int) {
	f.t.Helper()
	if kind == "stream" {
		c := f.converse(from.ns, to.ns, "10.0.0.5:80")
		_ = c.in.SetDeadline(time.Time{})
		_ = c.out.SetDeadline(time.Time{})
		go func() { _, _ = io.Copy(io.Discard, counted{c.in, got}) }()
		return c.out, 1 << 18
	}
	in := f.datagrams(to, netip.MustParseAddrPort("10.0.0.5:80"))
	go func() { _, _ = io.Copy(io.Discard, counted{in, got}) }()
	var out net.Conn
	var err error
	nstest.Do(f.t, from.ns, func() { out, err = net.Dial("udp", "10.0.0.5:80") })
	must(f.t, err)
	f.t.Cleanup(func() { _ = out.Close() })
	return out, 64
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// BenchmarkFilterRule changes one rule of a group that so many ports have.
func BenchmarkFilterRule(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("ports=%d", n), func(b *testing.B) {
			f := newFiltered(b)
			f.group("many", manyRules(10)...)
			f.crowd(n, "many")
			i := 0
			for b.Loop() {
				i++
				f.group(
					"many",
					append(manyRules(9), securitygroup.Rule{
						Direction: securitygroup.Ingress, Protocol: unix.IPPROTO_UDP, First: uint16(i%60000 + 1),
						Last: 65535,
					})...,
				)
			}
		})
	}
}

// BenchmarkFilterMember adds and removes a port of a remote group that so many ports have.
func BenchmarkFilterMember(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("ports=%d", n), func(b *testing.B) {
			f := newFiltered(b)
			f.group(
				"many",
				append(
					anything(securitygroup.Egress),
					bothFamilies(securitygroup.Rule{Direction: securitygroup.Ingress, RemoteGroup: "many"})...,
				)...,
			)
			f.crowd(n, "many")
			one := benchPorts(f.d.Bridges[0].Network, 1)
			one[0].Groups = []string{"many"}
			one[0].Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00:a::f:5")}
			one[0].Addrs[0] = netip.MustParseAddr("10.9.0.5")
			for b.Loop() {
				must(b, changePorts(context.Background(), f.f, f.d.ID, nil, one))
				must(b, changePorts(context.Background(), f.f, f.d.ID, one, nil))
			}
		})
	}
}

// crowd tells the kernel of so many ports with a group.
func (f *filtered) crowd(n int, group string) {
	f.t.Helper()
	list := benchPorts(f.d.Bridges[0].Network, n)
	for i := range list {
		list[i].Groups = []string{group}
	}
	must(f.t, changePorts(context.Background(), f.f, f.d.ID, nil, list))
}

// BenchmarkFilterConnect opens and closes a connection, without a filter and with a hundred rules.
func BenchmarkFilterConnect(b *testing.B) {
	for _, rules := range []int{0, 100} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			f := newFiltered(b)
			server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
				f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
			f.serve(server.ns, 80)
			if rules > 0 {
				f.group("many", manyRules(rules)...)
				f.join(&server, "many")
				f.join(&client, "many")
			}
			for b.Loop() {
				if f.answer(client.ns, "tcp", net.JoinHostPort("10.0.0.5", "80"), nstest.Limit) == "" {
					b.Fatal("no connection")
				}
			}
		})
	}
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
