//go:build linux

package bind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// dump sends the one message of b, which asks for a list, and gives each of its messages
// without the netlink header.
func (s *socket) dump(b *batch) (list [][]byte, err error) {
	b.close()
	s.seq++
	binary.NativeEndian.PutUint32(b.buf[8:], s.seq)
	binary.NativeEndian.PutUint16(b.buf[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	err = s.exchange(b, 64<<10, func(m message) (done bool, err error) {
		switch {
		case m.seq != s.seq: // left over from an earlier batch that failed half way
		case m.kind == unix.NLMSG_DONE:
			if failed := int32(u32(m.payload)); failed < 0 {
				return true, fmt.Errorf("%s: %w", b.what[0], unix.Errno(-failed))
			}
			return true, nil
		case m.kind == unix.NLMSG_ERROR:
			if err = ackError(m.payload, m.flags); err == nil {
				err = errors.New("the kernel answers a list with nothing")
			}
			return true, fmt.Errorf("%s: %w", b.what[0], err)
		default:
			list = append(list, slices.Clone(m.payload))
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// links lists the links of a namespace that the socket's knows by an id, of its own if
// nsid is negative, and of one kind if that is not "".
func (s *socket) links(nsid int32, kind string) ([]link, error) {
	var b batch
	b.add("list links", unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
	b.u32(unix.IFLA_EXT_MASK, extFilterNoStats)
	if nsid >= 0 {
		b.u32(unix.IFLA_TARGET_NETNSID, uint32(nsid))
	}
	if kind != "" {
		b.nest(unix.IFLA_LINKINFO, func() { b.attr(unix.IFLA_INFO_KIND, []byte(kind)) })
	}
	list, err := s.dump(&b)
	if err != nil {
		return nil, err
	}
	links := make([]link, 0, len(list))
	for _, m := range list {
		l, err := parseLink(m)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

// routed reads the namespace's main routing table: the destinations with a route through
// the link of this index, and those with one through another, with its index.
func (s *socket) routed(index int32) (here map[netip.Prefix]bool, others map[netip.Prefix]int32, err error) {
	var b batch
	b.add("list routes", unix.RTM_GETROUTE, 0, make([]byte, sizeRtMsg)) // of every family
	list, err := s.dump(&b)
	if err != nil {
		return nil, nil, err
	}
	here, others = make(map[netip.Prefix]bool), make(map[netip.Prefix]int32)
	for _, m := range list {
		if len(m) < sizeRtMsg || m[4] != unix.RT_TABLE_MAIN {
			continue
		}
		var to netip.Addr
		switch m[0] {
		case unix.AF_INET:
			to = netip.IPv4Unspecified()
		case unix.AF_INET6:
			to = netip.IPv6Unspecified()
		default: // multicast routes
			continue
		}
		a := attrs(m[sizeRtMsg:])
		if dst, ok := netip.AddrFromSlice(a[unix.RTA_DST]); ok {
			to = dst
		}
		if by := int32(u32(a[unix.RTA_OIF])); by == index {
			here[netip.PrefixFrom(to, int(m[1]))] = true
		} else {
			others[netip.PrefixFrom(to, int(m[1]))] = by
		}
	}
	return here, others, nil
}

// nsids lists the ids by which the socket's namespace knows others that live: those that
// a link of it was moved to, and those that it was told of (know).
func (s *socket) nsids() ([]int32, error) {
	var b batch
	b.add("list namespace ids", unix.RTM_GETNSID, 0, []byte{unix.AF_UNSPEC, 0, 0, 0})
	list, err := s.dump(&b)
	if err != nil {
		return nil, err
	}
	var ids []int32
	for _, m := range list {
		if len(m) >= 4 {
			ids = append(ids, int32(u32(attrs(m[4:])[netnsaNSID])))
		}
	}
	return ids, nil
}

// know gives the namespace ns (an open file) an id in the socket's, where it has none.
func (s *socket) know(ns int) error {
	if id, err := s.nsid(ns); err != nil || id >= 0 {
		return err
	}
	var b batch
	b.add("give a namespace an id", unix.RTM_NEWNSID, 0, []byte{unix.AF_UNSPEC, 0, 0, 0})
	b.u32(netnsaNSID, ^uint32(0)) // the kernel chooses
	b.u32(netnsaFD, uint32(ns))
	if err := s.do(&b); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
