//go:build linux

package lb

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"os"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// sctp is a packet of RFC 9260: the common header (section 3.1), and a chunk INIT or INIT
// ACK (3.3.2, 3.3.3), which are alike but for their type.
func sctp(from, to uint16, tag uint32, chunk byte) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	b = append(binary.BigEndian.AppendUint32(b, tag), 0, 0, 0, 0)
	b = append(b, chunk, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7)
	binary.LittleEndian.PutUint32(b[8:], checksum(b))
	return b
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// An association begins by a frontend, as most kernels have no sockets for the rest: its
// first packet comes to the endpoint, at its port, from the client, and the answer comes
// from the frontend.
func TestSCTP(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed"); err != nil {
		t.Skip("this kernel does not track SCTP:", err)
	}
	w := newWorld(t)
	w.restore()
	const initiate, accept = 1, 2
	for i, network := range []string{"ip4:132", "ip6:132"} {
		endpoint := w.packets("b", network)
		w.set(to(key([]string{"0.0.0.0", "::"}[i], sdn.SCTP), "b"), to(key([]string{vip4, vip6}[i], sdn.SCTP), "b"))
		for j, addr := range []string{[]string{vip4, vip6}[i], []string{node4, node6}[i]} {
			client := uint16(5000 + j) // two of one client's port to one endpoint would differ in the source that it sees
			out := w.packets("out", network)
			got, from := passes(t, out, endpoint, sctp(client, 80, 0, initiate), addr)
			if to := binary.BigEndian.Uint16(got[2:]); to != 8080 || from != addrs["out"][i] {
				t.Errorf("%s: it came to port %d from %s; want 8080 and %s", addr, to, from, addrs["out"][i])
			}
			got, from = passes(t, endpoint, out, sctp(8080, client, 0x01020304, accept), addrs["out"][i])
			if port := binary.BigEndian.Uint16(got); port != 80 || from != addr {
				t.Errorf("%s: the answer is from %s, port %d; want port 80", addr, from, port)
			}
		}
	}
	w.whole()
}

// packets is a raw socket in a namespace.
func (w *world) packets(in, network string) (c *net.IPConn) {
	w.t.Helper()
	var err error
	nstest.Do(w.t, w.ns[in], func() { c, err = net.ListenIP(network, nil) })
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	return c
}

// passes sends a packet until it comes, whole, and says from whom.
func passes(t *testing.T, from, at *net.IPConn, packet []byte, to string) (got []byte, sender string) {
	t.Helper()
	got = make([]byte, 128)
	if !nstest.Repeat(nstest.Limit, func() {
		if _, err := from.WriteToIP(packet, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			t.Error(err)
		}
	}, func(until time.Time) bool {
		_ = at.SetReadDeadline(until)
		n, a, err := at.ReadFromIP(got)
		if err != nil {
			return false
		}
		sum := binary.LittleEndian.Uint32(got[8:])
		clear(got[8:12])
		if n != len(packet) || sum != checksum(got[:n]) {
			t.Errorf("%d bytes came to %s, with the checksum %#x; want %d, with their own", n, to, sum, len(packet))
		}
		sender = a.String()
		return true
	}) {
		t.Errorf("nothing came to %s", to)
	}
	return got, sender
}
