//go:build linux

package router

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// proxy is a proxy neighbour entry of ours: the host answers for a floating address on
// one of its links.
type proxy struct {
	link int
	addr netip.Addr
}

const ndaProtocol = 12 // NDA_PROTOCOL (linux/neighbour.h), by which our entries are told from others'

func (p proxy) String() string { return p.addr.String() + " on link " + strconv.Itoa(p.link) }

// proxies lists our proxy neighbour entries.
func (s *space) proxies() ([]proxy, error) {
	return dump(func() ([]proxy, error) {
		req := s.request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		req.AddData(&netlink.Ndmsg{Flags: netlink.NTF_PROXY})
		answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
		if err != nil {
			return nil, fmt.Errorf("list proxy neighbours: %w", err)
		}
		var list []proxy
		for _, answer := range answers {
			attrs, err := nl.ParseRouteAttr(answer[unix.SizeofNdMsg:])
			if err != nil {
				return nil, fmt.Errorf("list proxy neighbours: %w", err)
			}
			p := proxy{link: int(nl.NativeEndian().Uint32(answer[4:8]))}
			ours := false
			for _, a := range attrs {
				switch a.Attr.Type {
				case unix.NDA_DST:
					p.addr, _ = netip.AddrFromSlice(a.Value)
				case ndaProtocol:
					ours = len(a.Value) == 1 && a.Value[0] == protocol
				}
			}
			if ours {
				list = append(list, p)
			}
		}
		return list, nil
	})
}

func (s *space) changeProxy(kind, flags int, p proxy) error {
	family := uint8(unix.AF_INET6)
	if p.addr.Is4() {
		family = unix.AF_INET
	}
	req := s.request(kind, flags|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: family, Index: uint32(p.link), State: unix.NUD_PERMANENT, Flags: netlink.NTF_PROXY})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, p.addr.AsSlice()))
	if kind == unix.RTM_NEWNEIGH {
		req.AddData(nl.NewRtAttr(ndaProtocol, []byte{protocol}))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// convergeProxies announces floating addresses on the links whose subnets hold them. An
// address of no subnet of the host is routed to it by others.
func (k *Kernel) convergeProxies(r *run, host *space, u *Uplink, c *claims) error {
	if len(u.Floating) == 0 {
		return nil
	}
	addrs := r.hostAddrs
	if addrs == nil {
		var err error
		if addrs, err = host.addrs(); err != nil {
			return err
		}
	}
	have, err := host.proxies()
	if err != nil {
		return err
	}
	for _, fl := range u.Floating {
		for _, link := range slices.Sorted(maps.Keys(addrs)) {
			if !slices.ContainsFunc(addrs[link], func(text string) bool {
				p, err := netip.ParsePrefix(text)
				return err == nil && p.Contains(fl.External) && !p.IsSingleIP()
			}) {
				continue
			}
			p := proxy{link, fl.External}
			c.proxies = append(c.proxies, p)
			if slices.Contains(have, p) {
				continue
			}
			err := r.mend("proxy neighbour "+p.String(), "present", "", func() error {
				return host.changeProxy(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, p)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// dropProxy no longer answers for an address; entries of others stay.
func (k *Kernel) dropProxy(r *run, host *space, a netip.Addr) error {
	have, err := host.proxies()
	if err != nil {
		return err
	}
	for _, p := range have {
		if p.addr == a {
			if err := ignore(host.changeProxy(unix.RTM_DELNEIGH, 0, p), unix.ENOENT); err != nil {
				return fmt.Errorf("proxy neighbour %s: %w", p, err)
			}
		}
	}
	return nil
}
