//go:build linux

package fabric

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/policy"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// filtered is a router with two networks, with ports whose groups the tests change.
type filtered struct {
	*world
	d         Domain
	revisions int64
	groups    map[string]policy.Group
}

func newFiltered(t testing.TB) *filtered {
	t.Helper()
	if s := (&Fabric{}).Supports(); !s.Groups {
		t.Skip("this kernel cannot filter ports")
	}
	f := &filtered{world: newWorld(t), groups: map[string]policy.Group{}}
	f.d = Domain{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24", "fd00:a::1/64"), bridge("10.0.1.1/24", "fd00:b::1/64")}, Uplink: uplink("100.64.0.2", "fd00:6b75::2")}
	f.apply(f.d)
	return f
}

// group makes a group have exactly these rules.
func (f *filtered) group(id string, rules ...policy.Rule) {
	f.t.Helper()
	f.revisions++
	for i := range rules {
		rules[i].ID = fmt.Sprintf("%d-%d", f.revisions, i)
	}
	g := policy.Group{ID: id, Revision: f.revisions, Rules: rules}
	f.groups[id] = g
	must(f.t, f.f.UpdateGroups(context.Background(), f.d.ID, []policy.Group{g}, nil))
}

func (f *filtered) set(id string, prefixes ...string) {
	f.t.Helper()
	f.revisions++
	s := policy.Set{ID: id, Revision: f.revisions}
	for _, p := range prefixes {
		s.Prefixes = append(s.Prefixes, netip.MustParsePrefix(p))
	}
	must(f.t, f.f.UpdateGroups(context.Background(), f.d.ID, nil, []policy.Set{s}))
}

// join gives a port these groups.
func (f *filtered) join(c *container, groups ...string) {
	f.t.Helper()
	now := c.port
	now.Groups = groups
	must(f.t, f.f.UpdatePorts(context.Background(), f.d.ID, []Port{c.port}, []Port{now}))
	c.port = now
}

// both gives a rule for each family.
func bothFamilies(r policy.Rule) []policy.Rule {
	six := r
	six.IPv6 = true
	return []policy.Rule{r, six}
}

// anything lets a port send what it likes, as Neutron's default rules do.
func anything(d policy.Direction) []policy.Rule { return bothFamilies(policy.Rule{Direction: d}) }

func ports(d policy.Direction, protocol uint8, first, last uint16) policy.Rule {
	return policy.Rule{Direction: d, Protocol: protocol, First: first, Last: last}
}

// line is a connection that is written to and read from.
type line struct {
	t       testing.TB
	out, in net.Conn
}

// converse opens a TCP connection.
func (f *filtered) converse(from netns.NsHandle, to netns.NsHandle, address string) line {
	f.t.Helper()
	l := line{t: f.t}
	var err error
	var listener net.Listener
	nstest.Do(f.t, to, func() { listener, err = net.Listen("tcp", address) })
	must(f.t, err)
	defer listener.Close()
	nstest.Do(f.t, from, func() { l.out, err = net.DialTimeout("tcp", address, 2*time.Second) })
	must(f.t, err)
	l.in, err = listener.Accept()
	must(f.t, err)
	f.t.Cleanup(func() { _ = l.out.Close(); _ = l.in.Close() })
	return l
}

// says tells whether a byte gets from one end to the other.
func says(from, to net.Conn) bool {
	_ = from.SetDeadline(time.Now().Add(time.Second))
	_ = to.SetDeadline(time.Now().Add(time.Second))
	if _, err := from.Write([]byte("!")); err != nil {
		return false
	}
	b := make([]byte, 1)
	n, _ := to.Read(b)
	return n == 1
}

// expect checks TCP and UDP to a server's port.
func (f *filtered) expect(what string, from netns.NsHandle, network, addr string, want bool) {
	f.t.Helper()
	if got := f.call(from, network, addr) != ""; got != want {
		f.t.Errorf("%s: %s to %s: %v, want %v", what, network, addr, got, want)
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	f.group("web", append(anything(policy.Egress), bothFamilies(ports(policy.Ingress, unix.IPPROTO_TCP, 80, 81))...)...)
	f.group("client", anything(policy.Egress)...)
	server, client, far := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"), f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6"), f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.6", "fd00:b::6")
	free := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.7", "fd00:a::7")
	for _, port := range []int{80, 82} {
		f.serve(server.ns, port)
		f.serve(client.ns, port)
		f.serve(free.ns, port)
		f.serve(f.neighbour, port)
	}
	f.join(&server, "web")
	f.join(&client, "client")
	f.join(&far, "client")
	if testing.Verbose() {
		t.Log(f.sh(f.domain(f.d.ID), "nft list table bridge kuryr_policy"))
	}
	for _, from := range []container{client, far, free} {
		for _, to := range []string{"10.0.0.5", "[fd00:a::5]"} {
			f.expect("allowed port", from.ns, "tcp", to+":80", true)
			f.expect("another port", from.ns, "tcp", to+":82", false)
			f.expect("another protocol", from.ns, "udp", to+":80", false)
		}
		f.reaches(from.ns, "10.0.0.5", false)
	}
	for _, to := range []string{"10.0.0.6", "[fd00:a::6]"} {
		f.expect("no ingress rule", server.ns, "tcp", to+":80", false)
		f.expect("no ingress rule", free.ns, "udp", to+":80", false)
	}
	for _, to := range []string{"10.0.0.7", "[fd00:a::7]", neighbourAddr4, "[" + neighbourAddr6 + "]"} {
		for _, port := range []string{":80", ":82"} {
			f.expect("port without filter", server.ns, "tcp", to+port, true)
			f.expect("port without filter", client.ns, "udp", to+port, true)
		}
		f.reaches(client.ns, strings.Trim(to, "[]"), true)
	}
	f.reaches(client.ns, "10.0.0.1", true)
	f.reaches(client.ns, "fd00:a::1", true)
}
