//go:build linux

package bind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// What x/sys does not name, from linux/rtnetlink.h, linux/net_namespace.h and linux/veth.h.
const (
	vethInfoPeer     = 1      // VETH_INFO_PEER
	extFilterNoStats = 8      // RTEXT_FILTER_SKIP_STATS
	netnsaNSID       = 1      // NETNSA_NSID
	netnsaFD         = 3      // NETNSA_FD
	addrGenModeNone  = 1      // IN6_ADDR_GEN_MODE_NONE
	attrTypeMask     = 0x3fff // NLA_TYPE_MASK
	sizeIfInfo       = 16
	sizeIfAddr       = 8
	sizeRtMsg        = 12
)

// A batch is rtnetlink messages (rtnetlink(7)) that go to the kernel in one sendmsg. The
// kernel handles them in order, and an error in one does not keep it from handling those
// after it.
type batch struct {
	buf   []byte
	start []int    // of each message in buf
	what  []string // each message does, for its error
}

// add begins a message with its fixed header; the attributes that follow belong to it.
func (b *batch) add(what string, kind, flags uint16, fixed []byte) {
	b.close()
	b.start, b.what = append(b.start, len(b.buf)), append(b.what, what)
	b.buf = append(b.buf, 0, 0, 0, 0) // the length, known later
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = append(b.buf, 0, 0, 0, 0, 0, 0, 0, 0) // sequence number, set when sent; port id, the kernel's
	b.buf = append(b.buf, fixed...)
}

func (b *batch) attr(kind uint16, value []byte) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(unix.SizeofRtAttr+len(value)))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = append(b.buf, value...)
	b.pad()
}

func (b *batch) u32(kind uint16, value uint32) {
	b.attr(kind, binary.NativeEndian.AppendUint32(nil, value))
}

func (b *batch) text(kind uint16, value string) { b.attr(kind, append([]byte(value), 0)) }

// nest puts what fill adds into one attribute.
func (b *batch) nest(kind uint16, fill func()) {
	at := len(b.buf)
	b.attr(kind, nil)
	fill()
	binary.NativeEndian.PutUint16(b.buf[at:], uint16(len(b.buf)-at))
}

func (b *batch) pad() {
	for len(b.buf)%unix.NLMSG_ALIGNTO != 0 {
		b.buf = append(b.buf, 0)
	}
}

// close writes the length of the last message.
func (b *batch) close() {
	if n := len(b.start); n > 0 {
		at := b.start[n-1]
		binary.NativeEndian.PutUint32(b.buf[at:], uint32(len(b.buf)-at))
	}
}

func ifInfo(family uint8, index int32, flags, change uint32) []byte {
	h := make([]byte, sizeIfInfo)
	h[0] = family
	binary.NativeEndian.PutUint32(h[4:], uint32(index))
	binary.NativeEndian.PutUint32(h[8:], flags)
	binary.NativeEndian.PutUint32(h[12:], change)
	return h
}

// socket is a route netlink socket. It works in the namespace it was opened in, from
// whatever thread, but for one user at a time. While it is open, so stays its namespace:
// it must not be kept.
type socket struct {
	fd  int
	seq uint32
	buf []byte // of answers
}

// openSocket opens a socket in the calling thread's namespace.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	// Both make answers better, neither is needed: kernels before 4.12 lack the first.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return &socket{fd: fd}, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// do sends the batch and returns the first error the kernel answered, which wraps its errno.
func (s *socket) do(b *batch) error {
	_, err := s.ask(b)
	return err
}

// ask is do for a batch of which one message is answered with an object: its message
// without the netlink header.
func (s *socket) ask(b *batch) (answer []byte, err error) { return s.askFor(b, 16<<10) }

// askFor is ask for an object of at most so many bytes.
func (s *socket) askFor(b *batch, room int) (answer []byte, err error) {
	b.close()
	first := s.seq + 1
	for i, at := range b.start {
		s.seq++
		binary.NativeEndian.PutUint32(b.buf[at+8:], s.seq)
		if i == len(b.start)-1 {
			// The others are answered only if they fail, and before it.
			flags := binary.NativeEndian.Uint16(b.buf[at+6:])
			binary.NativeEndian.PutUint16(b.buf[at+6:], flags|unix.NLM_F_ACK)
		}
	}
	err = s.exchange(b, room, func(m message) (done bool, err error) {
		switch {
		case m.seq-first >= uint32(len(b.start)): // left over from an earlier batch that failed half way
			return false, nil
		case m.kind != unix.NLMSG_ERROR:
			answer = slices.Clone(m.payload)
			return false, nil
		}
		if failure := ackError(m.payload, m.flags); failure != nil {
			return true, fmt.Errorf("%s: %w", b.what[m.seq-first], failure)
		}
		return m.seq == s.seq, nil
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// message is one of the kernel's answers. Its payload is good until the next is read.
type message struct {
	kind, flags uint16
	seq         uint32
	payload     []byte
}

// exchange sends the batch and gives take one answer after another, read into so many
// bytes, until it is done.
func (s *socket) exchange(b *batch, room int, take func(message) (done bool, err error)) error {
	if err := unix.Sendto(s.fd, b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("%s: send: %w", b.what[0], err)
	}
	if len(s.buf) < room {
		s.buf = make([]byte, room)
	}
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf[:room], 0)
		if err != nil {
			return fmt.Errorf("%s: receive: %w", b.what[0], err)
		}
		for rest := s.buf[:n]; len(rest) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(rest))
			if size < unix.SizeofNlMsghdr || size > len(rest) {
				return fmt.Errorf("%s: the kernel's answer is cut short", b.what[0])
			}
			m := message{
				kind: binary.NativeEndian.Uint16(rest[4:]), flags: binary.NativeEndian.Uint16(rest[6:]),
				seq:     binary.NativeEndian.Uint32(rest[8:]),
				payload: rest[unix.SizeofNlMsghdr:size],
			}
			rest = rest[min((size+3)&^3, len(rest)):]
			if done, err := take(m); done || err != nil {
				return err
			}
		}
	}
}

// ackError decodes struct nlmsgerr: an errno, the header of the message it is about, and
// the kernel's own words if any.
func ackError(payload []byte, flags uint16) error {
	if len(payload) < 4+unix.SizeofNlMsghdr {
		return errors.New("the kernel's answer is cut short")
	}
	code := int32(binary.NativeEndian.Uint32(payload))
	if code == 0 {
		return nil
	}
	errno := unix.Errno(-code)
	if flags&unix.NLM_F_ACK_TLVS != 0 {
		if words := attrs(payload[4+unix.SizeofNlMsghdr:])[unix.NLMSGERR_ATTR_MSG]; len(words) > 1 {
			return fmt.Errorf("%w (%s)", errno, words[:len(words)-1])
		}
	}
	return errno
}

// attrs splits a sequence of attributes; what is malformed ends it.
func attrs(b []byte) map[uint16][]byte {
	found := make(map[uint16][]byte)
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			break
		}
		found[binary.NativeEndian.Uint16(b[2:])&attrTypeMask] = b[unix.SizeofRtAttr:size]
		b = b[min((size+3)&^3, len(b)):]
	}
	return found
}

// link is what the kernel says of a link, as far as it matters here.
type link struct {
	index     int32
	flags     uint32
	name      string
	kind      string // "veth", …; "" for what has none
	alias     string
	group     uint32
	mtu       int
	mac       net.HardwareAddr
	master    int32 // the index of the bridge it is on; 0: none
	peer      int32 // a veth's other end's index
	peerNSID  int32 // the id that this namespace knows the other end's by
	peerHere  bool  // the other end is in this namespace
	operState uint8
	vlan      int // of a VLAN link
}

// errNoLink says that there is no link of the name or index asked for.
var errNoLink = unix.ENODEV

// link reads the link of this index, or if 0 of this name. The error is errNoLink where
// there is none. Since Linux 6.8 it also makes the link's carrier, where it has just
// changed, take effect before it answers.
func (s *socket) link(index int32, name string) (link, error) {
	var b batch
	b.add("read link "+name, unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, 0))
	if index == 0 {
		b.text(unix.IFLA_IFNAME, name)
	}
	b.u32(unix.IFLA_EXT_MASK, extFilterNoStats)
	answer, err := s.ask(&b)
	if err != nil {
		return link{}, err
	}
	return parseLink(answer)
}

func parseLink(b []byte) (link, error) {
	if len(b) < sizeIfInfo {
		return link{}, errors.New("link: the kernel's answer is cut short")
	}
	l := link{index: int32(binary.NativeEndian.Uint32(b[4:])), flags: binary.NativeEndian.Uint32(b[8:])}
	a := attrs(b[sizeIfInfo:])
	l.name, l.alias = cstring(a[unix.IFLA_IFNAME]), cstring(a[unix.IFLA_IFALIAS])
	l.group, l.mtu, l.peer = u32(a[unix.IFLA_GROUP]), int(u32(a[unix.IFLA_MTU])), int32(u32(a[unix.IFLA_LINK]))
	l.mac, l.master = slices.Clone(a[unix.IFLA_ADDRESS]), int32(u32(a[unix.IFLA_MASTER]))
	if state := a[unix.IFLA_OPERSTATE]; len(state) == 1 {
		l.operState = state[0]
	}
	nsid, elsewhere := a[unix.IFLA_LINK_NETNSID]
	l.peerNSID, l.peerHere = int32(u32(nsid)), !elsewhere
	info := attrs(a[unix.IFLA_LINKINFO])
	if l.kind = cstring(info[unix.IFLA_INFO_KIND]); l.kind == sdn.VIFVLAN {
		if id := attrs(info[unix.IFLA_INFO_DATA])[unix.IFLA_VLAN_ID]; len(id) == 2 {
			l.vlan = int(binary.NativeEndian.Uint16(id))
		}
	}
	return l, nil
}

// index gives the index of the link of this name; the error is errNoLink where there is none.
func (s *socket) index(name string) (int32, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	if err := unix.IoctlIfreq(s.fd, unix.SIOCGIFINDEX, req); err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	return int32(req.Uint32()), nil
}

// nsid is the id that the socket's namespace knows the namespace ns (an open file) by,
// negative where it knows none.
func (s *socket) nsid(ns int) (int32, error) {
	var b batch
	b.add("read namespace id", unix.RTM_GETNSID, 0, []byte{unix.AF_UNSPEC, 0, 0, 0})
	b.u32(netnsaFD, uint32(ns))
	answer, err := s.ask(&b)
	if err != nil {
		return 0, err
	}
	if len(answer) < 4 {
		return 0, errors.New("namespace id: the kernel's answer is cut short")
	}
	return int32(u32(attrs(answer[4:])[netnsaNSID])), nil
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func cstring(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}
