//go:build linux

package trace

import (
	"encoding/hex"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// recorded are messages of the kernel's (testdata/steps.hex, by TestRecord): an ARP
// request, a datagram that leaves by a router, and one that anti-spoofing drops.
func recorded(t testing.TB) []netlink.Message {
	t.Helper()
	data, err := os.ReadFile("testdata/steps.hex")
	if err != nil {
		t.Fatal(err)
	}
	var out []netlink.Message
	for line := range strings.Lines(string(data)) {
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, netlink.Message{Header: netlink.Header{Type: messageTrace}, Data: b})
	}
	return out
}

func TestParseStep(t *testing.T) {
	t.Parallel()
	var places []string
	var last step
	arp, datagrams := 0, 0
	for _, m := range recorded(t) {
		s, ok, err := parseStep(m)
		if err != nil || !ok {
			t.Fatalf("%x: %v", m.Data, err)
		}
		if text, ok := s.resolves(); ok && text == "ARP" {
			arp++
		}
		if p, ok := s.packet(); ok {
			datagrams++
			if p.dst != netip.MustParseAddr("198.51.100.2") || p.protocol != unix.IPPROTO_UDP {
				t.Errorf("packet %+v", p)
			}
			if _, port, ok := p.ports(); !ok || port != 9 {
				t.Errorf("port %d", port)
			}
		}
		if !strings.HasPrefix(s.table, tablePrefix) {
			places = append(places, s.place())
		}
		last = s
	}
	for _, want := range []string{
		"bridge kuryr arp_source, handle 25", "bridge kuryr prerouting, handle 19",
		"inet kuryr forward, policy", "inet kuryr postrouting, handle 21",
	} {
		if !slices.Contains(places, want) {
			t.Errorf("%q is not among %q", want, places)
		}
	}
	if arp == 0 || datagrams == 0 {
		t.Errorf("%d ARP requests, %d datagrams", arp, datagrams)
	}
	if last.verdict != verdictDrop || last.policy || last.place() != "bridge kuryr ip4_source, handle 31" {
		t.Errorf("the last step is %+v", last)
	}
}

func TestParseStepRefuses(t *testing.T) {
	t.Parallel()
	if _, ok, err := parseStep(netlink.Message{Header: netlink.Header{Type: netlink.Done}}); ok || err != nil {
		t.Errorf("another type: %v, %v", ok, err)
	}
	for _, data := range [][]byte{nil, {1, 0, 0}, {1, 0, 0, 0, 9, 0}, {1, 0, 0, 0, 5, 0, 6, 0, 1, 0, 0, 0}} {
		if _, ok, err := parseStep(netlink.Message{
			Header: netlink.Header{Type: messageTrace}, Data: data,
		}); ok || err == nil {
			t.Errorf("%x: %v, %v", data, ok, err)
		}
	}
}

func FuzzParseStep(f *testing.F) {
	for _, m := range recorded(f) {
		f.Add(m.Data)
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		s, _, _ := parseStep(netlink.Message{Header: netlink.Header{Type: messageTrace}, Data: data})
		_, _ = s.packet()
		_, _ = s.resolves()
		_ = s.place()
	})
}

// ip4 puts an IPv4 header before a transport header.
func ip4(protocol byte, src, dst string, transport ...byte) []byte {
	b := make([]byte, 20, 20+len(transport))
	b[0], b[8], b[9] = 0x45, 64, protocol
	b[2], b[3] = byte((20+len(transport))>>8), byte(20+len(transport))
	copy(b[12:], netip.MustParseAddr(src).AsSlice())
	copy(b[16:], netip.MustParseAddr(dst).AsSlice())
	return append(b, transport...)
}

func TestClassify(t *testing.T) {
	t.Parallel()
	token := [tokenLen]byte{0xca, 0xfe, 0, 0xff, 5, 6, 7}
	tcp := func(flags byte, seq, ack []byte) []byte {
		b := append([]byte{0x80, 0, 0, 80}, seq...)
		return append(append(b, ack...), 5<<4, flags, 0, 0, 0, 0, 0, 0)
	}
	none := make([]byte, 4)
	seq, next := token[:4], []byte{0xca, 0xfe, 1, 0}
	echo := func(kind byte) []byte { return append([]byte{kind, 0, 0, 0, 5, 6, 0, 1}, token[:]...) }
	udp := append([]byte{0x80, 0, 0, 53, 0, 24, 0, 0}, token[:]...)
	back := []byte{0, 53, 0x80, 0, 0, 9, 0, 0, 'x'}
	quote := func(kind, code byte, inner []byte) []byte {
		return append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, inner...)
	}
	called := map[ends]bool{{netip.MustParseAddrPort("10.0.0.1:32768"), netip.MustParseAddrPort("10.0.0.2:53")}: true}
	const here, there = "10.0.0.1", "10.0.0.2"
	for _, tc := range []struct {
		name     string
		protocol uint8
		packet   []byte
		kind     kind
		text     string
	}{
		{"SYN", unix.IPPROTO_TCP, ip4(6, here, there, tcp(tcpSYN, seq, none)...), request, ""},
		{"another SYN", unix.IPPROTO_TCP, ip4(6, here, there, tcp(tcpSYN, none, none)...), nothing, ""},
		{"SYN-ACK", unix.IPPROTO_TCP, ip4(6, there, here, tcp(tcpSYN|tcpACK, none, next)...), answer, "SYN-ACK"},
		{"RST", unix.IPPROTO_TCP, ip4(6, there, here, tcp(tcpRST|tcpACK, none, next)...), answer, reset},
		{"RST of another", unix.IPPROTO_TCP, ip4(6, there, here, tcp(tcpRST|tcpACK, none, seq)...), nothing, ""},
		{"short TCP", unix.IPPROTO_TCP, ip4(6, here, there, 1, 2, 3), nothing, ""},
		{"datagram", unix.IPPROTO_UDP, ip4(17, here, there, udp...), request, ""},
		{"its answer", unix.IPPROTO_UDP, ip4(17, there, here, back...), answer, "datagram"},
		{"another's", unix.IPPROTO_UDP, ip4(17, "10.0.0.3", here, back...), nothing, ""},
		{"echo", unix.IPPROTO_ICMP, ip4(1, here, there, echo(8)...), request, ""},
		{"echo reply", unix.IPPROTO_ICMP, ip4(1, there, here, echo(0)...), answer, "echo reply"},
		{"another's echo", unix.IPPROTO_ICMP, ip4(1, here, there, 8, 0, 0, 0, 5, 6, 0, 1, 9), nothing, ""},
		{
			"error about UDP", unix.IPPROTO_UDP,
			ip4(1, there, here, quote(3, 3, ip4(17, here, there, udp...))...), refusal, portUnreachable,
		},
		{
			"error about TCP, cut short", unix.IPPROTO_TCP,
			ip4(1, there, here, quote(3, 13, ip4(6, here, there, tcp(tcpSYN, seq, none)...)[:28])...),
			refusal, "forbidden by an administrator",
		},
		{
			"error of an unknown code", unix.IPPROTO_TCP,
			ip4(1, there, here, quote(3, 99, ip4(6, here, there, tcp(tcpSYN, seq, none)...))...), refusal,
			"ICMP error, type 3, code 99",
		},
		{
			"error about another", unix.IPPROTO_TCP,
			ip4(1, there, here, quote(3, 1, ip4(6, here, there, tcp(tcpSYN, none, none)...))...), nothing,
			"",
		},
	} {
		p := probe{
			Flow: Flow{
				Protocol: tc.protocol, Src: netip.MustParseAddr(here), Dst: netip.MustParseAddr(there),
			},
			token: token,
		}
		pkt, ok := parsePacket(tc.packet)
		if !ok {
			t.Errorf("%s: not parsed", tc.name)
			continue
		}
		if k, text := p.classify(pkt, called); k != tc.kind || text != tc.text {
			t.Errorf("%s: kind %d %q, want %d %q", tc.name, k, text, tc.kind, tc.text)
		}
	}
}

func TestParsePacketRefuses(t *testing.T) {
	t.Parallel()
	fragment := ip4(17, "10.0.0.1", "10.0.0.2", make([]byte, 8)...)
	fragment[7] = 9
	short := ip4(17, "10.0.0.1", "10.0.0.2")
	short[0] = 0x4f
	for _, b := range [][]byte{nil, {0x45}, {0x60, 0}, fragment, short, make([]byte, 60)} {
		if p, ok := parsePacket(b); ok {
			t.Errorf("%x: %+v", b, p)
		}
	}
}

func FuzzPacket(f *testing.F) {
	f.Add(
		ip4(
			1, "10.0.0.1", "10.0.0.2",
			append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, ip4(17, "10.0.0.2", "10.0.0.1", 1, 2, 3, 4)...)...,
		),
		byte(17),
	)
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 8, 58, 64}, make([]byte, 50)...), byte(1))
	f.Fuzz(func(_ *testing.T, data []byte, protocol byte) {
		if pkt, ok := parsePacket(data); ok {
			p := probe{Flow: Flow{Protocol: protocol, Src: pkt.src, Dst: pkt.dst}}
			_, _ = p.classify(pkt, map[ends]bool{})
		}
	})
}

func TestRuleText(t *testing.T) {
	t.Parallel()
	const listing = `table ip filter { # handle 1
	chain DOCKER-USER { # handle 5
		ip daddr 192.0.2.1 counter packets 0 bytes 0 drop # handle 35
		counter packets 3 bytes 180 return comment "# handle 3" # handle 6
	}
}
`
	for handle, want := range map[uint64]string{
		35: "ip daddr 192.0.2.1 counter packets 0 bytes 0 drop",
		6:  `counter packets 3 bytes 180 return comment "# handle 3"`, 3: "", 7: "",
	} {
		if got := ruleText(listing, handle); got != want {
			t.Errorf("handle %d: %q, want %q", handle, got, want)
		}
	}
}

// What the kernel would count over a header with its checksum in it is nothing.
func TestChecksum(t *testing.T) {
	t.Parallel()
	s := sender{probe: probe{
		Flow: Flow{
			Protocol: unix.IPPROTO_ICMP, Src: netip.MustParseAddr("10.0.0.1"),
			Dst: netip.MustParseAddr("10.0.0.2"),
		},
		token: [tokenLen]byte{1, 2, 3},
	}}
	if sum := checksum(s.bytes()); sum != 0 {
		t.Errorf("checksum of a packet with its checksum: %#x", sum)
	}
	if sum := checksum([]byte{0x12, 0x34, 0x56}); sum != ^uint16(0x6834) {
		t.Errorf("odd length: %#x", sum)
	}
}
