//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Kernel makes routers, guards ports and forwards addresses in the kernel. It keeps no
// state but what it can read back from there, which subports wait for their parents'
// taps, and what routers balance.
type Kernel struct {
	options  Options
	log      *slog.Logger
	hostNS   netns.NsHandle
	host     table
	ipv4Only bool // the kernel has no IPv6

	gate      sync.RWMutex   // held for reading by a change, for writing by what compares everything
	routers   keymutex.Mutex // one change at a time per router
	places    places
	pool      pool
	leftovers leftovers
	legs      legKind
	trunks    trunks
	watch     tapWatch
	balancers balancers
	reach     sync.Mutex  // between asking whether a range is free in the host and taking it
	hostReady atomic.Bool // the host's table was seen complete by this process
	collector sync.WaitGroup
}

// New opens the host's namespace. It changes nothing in the kernel.
func New(c Options) (*Kernel, error) {
	if c.Namespaces == nil {
		return nil, errors.New("router: no namespace store")
	}
	if c.Uplink4.IsValid() && !c.Uplink4.Addr().Is4() || c.Uplink6.IsValid() && !c.Uplink6.Addr().Is6() {
		return nil, fmt.Errorf("router: uplink ranges %s and %s: want IPv4 and IPv6", c.Uplink4, c.Uplink6)
	}
	path := c.HostNS
	if path == "" {
		path = "/proc/thread-self/ns/net"
	}
	host, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("router: host namespace: %w", err)
	}
	f := &Kernel{
		options: c, log: c.Logger, hostNS: host, host: hostTable(c.Uplink4, c.Uplink6),
		ipv4Only: kernelLacksIPv6(), legs: vlanKind, watch: tapWatch{news: make(chan struct{}, 1)},
	}
	if f.log == nil {
		f.log = slog.Default()
	}
	go supports() // which takes a moment the first time, and nobody shall wait for it then
	return f, nil
}

// Close waits for links that are still being deleted. The kernel keeps all else.
func (k *Kernel) Close() error {
	k.watch.close()
	k.balancers.close()
	k.collector.Wait()
	k.pool.keep(func(nsKey) bool { return false })
	return k.hostNS.Close()
}

// Location says where a port's host end goes: the file of the router's namespace and the
// name of the network's bridge. It is a function of the names alone.
func (k *Kernel) Location(router, network string) (nsPath, bridge string) {
	return k.options.Namespaces.Path(router), BridgeName(network)
}

// UplinkMTU is the MTU in bytes of the link that the host's default route (IPv4 before
// IPv6) leaves by; 1500 if there is none.
func (k *Kernel) UplinkMTU(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	host, err := k.openHost()
	if err != nil {
		return 0, err
	}
	defer host.close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) { return host.rt.RouteList(nil, family) })
		if err != nil {
			return 0, fmt.Errorf("list routes: %w", err)
		}
		routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return !isDefault(r) || r.LinkIndex == 0 })
		if len(routes) == 0 {
			continue
		}
		best := slices.MinFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
		link, err := host.rt.LinkByIndex(best.LinkIndex)
		if err != nil {
			return 0, fmt.Errorf("default route's link: %w", err)
		}
		return link.Attrs().MTU, nil
	}
	return defaultMTU, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

func (k *Kernel) openHost() (*space, error) {
	fd, err := unix.FcntlInt(uintptr(k.hostNS), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("host namespace: %w", err)
	}
	return k.pool.openSpace(netns.NsHandle(fd))
}

// openRouter returns nil if the router has no namespace.
func (k *Kernel) openRouter(id string) (*space, error) {
	ns, err := k.options.Namespaces.Handle(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return k.pool.openSpace(ns)
}

// lock waits for the routers' locks, however long, and returns what releases them.
func (k *Kernel) lock(routers ...string) (unlock func()) {
	unlock, _ = k.routers.LockAll(context.Background(), routers...) // never ends without them
	return unlock
}
