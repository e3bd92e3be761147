//go:build linux

package router

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netns"
)

// connects has a client connect from a port, of its kernel's choice where that is 0, and
// end the connection by a reset, which leaves the port free. The error is the kernel's.
func (b *balanced) connects(from netns.NsHandle, port int, to netip.AddrPort, limit time.Duration) (err error) {
	b.t.Helper()
	nstest.Do(b.t, from, func() {
		var c net.Conn
		d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{Port: port}}
		if c, err = d.Dial("tcp", to.String()); err == nil {
			must(b.t, c.(*net.TCPConn).SetLinger(0))
			must(b.t, c.Close())
		}
	})
	return err
}

// tellAndWait tells, and waits until what was sent before is forgotten, which is done
// behind the change. Nothing says when.
func (b *balanced) tellAndWait() {
	b.t.Helper()
	b.tell()
	time.Sleep(500 * time.Millisecond)
}

// Who called a VIP that was not there yet, and was not answered, gets through from the
// same port when it is.
func TestVIPCalledBefore(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	froms := map[string]netns.NsHandle{"a container": b.client.ns, "the host": b.host}
	var list []netip.AddrPort
	for _, addr := range []netip.Addr{b.vip4, b.vip6} {
		list = append(list, netip.AddrPortFrom(addr, b.service))
	}
	for name, from := range froms {
		for _, to := range list {
			if err := b.connects(from, 20000, to, 200*time.Millisecond); err == nil || strings.Contains(err.Error(), "refused") {
				t.Errorf("%s calls %s, which is not there: %v", name, to, err)
			}
		}
	}
	b.tellAndWait()
	for name, from := range froms {
		for _, to := range list {
			for range 3 {
				if err := b.connects(from, 20000, to, nstest.Limit); err != nil {
					t.Errorf("%s calls %s: %v", name, to, err)
				}
			}
		}
	}
}

// Few source ports, used again and again, find their way by any VIP, by endpoints that
// VIPs share and past two translations, though each VIP was called before it was there.
func TestVIPsByFewPorts(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	nstest.Do(t, b.host, func() {
		must(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("1024 1100"), 0))
	})
	var endpoints []netip.AddrPort
	for port := 6443; port < 6447; port++ {
		b.serve(b.neighbour, port)
		endpoints = append(endpoints, netip.AddrPortFrom(netip.MustParseAddr(neighbourAddr4), uint16(port)))
	}
	b.frontends, b.vips = nil, nil
	var list []netip.AddrPort
	for i, addr := 0, b.vip4; i < 8; i, addr = i+1, addr.Next() {
		b.vips = append(b.vips, VIP{addr, b.d.Bridges[2].Network})
		b.frontends = append(b.frontends, lb.Frontend{
			Key: lb.Key{Addr: addr, Protocol: sdn.TCP, Port: b.service}, Endpoints: endpoints[i%3 : i%3+2],
		})
		list = append(list, netip.AddrPortFrom(addr, b.service))
	}
	for _, to := range list {
		for range 10 {
			if b.connects(b.host, 0, to, 5*time.Millisecond) == nil {
				t.Errorf("%s answers, and is not there", to)
			}
		}
	}
	b.tellAndWait()
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for n := range 300 {
				to := list[(client+n)%len(list)]
				if err := b.connects(b.host, 0, to, nstest.Limit); err != nil {
					t.Errorf("connection %d: %v", n, err)
				}
			}
		})
	}
	clients.Wait()
}
