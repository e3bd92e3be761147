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

// Fabric makes domains, guards ports and forwards addresses in the kernel. It keeps no
// state but what it can read back from there, which subports wait for their parents'
// taps, and what domains balance.
type Fabric struct {
	config   Config
	log      *slog.Logger
	hostNS   netns.NsHandle
	host     table
	ipv4Only bool // the kernel has no IPv6

	gate      sync.RWMutex   // held for reading by a change, for writing by what compares everything
	domains   keymutex.Mutex // one change at a time per domain
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
func New(c Config) (*Fabric, error) {
	if c.Namespaces == nil {
		return nil, errors.New("fabric: no namespace store")
	}
	if c.Uplink4.IsValid() && !c.Uplink4.Addr().Is4() || c.Uplink6.IsValid() && !c.Uplink6.Addr().Is6() {
		return nil, fmt.Errorf("fabric: uplink ranges %s and %s: want IPv4 and IPv6", c.Uplink4, c.Uplink6)
	}
	path := c.HostNS
	if path == "" {
		path = "/proc/thread-self/ns/net"
	}
	host, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("fabric: host namespace: %w", err)
	}
	f := &Fabric{
		config: c, log: c.Logger, hostNS: host, host: hostTable(c.Uplink4, c.Uplink6),
		ipv4Only: kernelLacksIPv6(), legs: vlanKind, watch: tapWatch{news: make(chan struct{}, 1)},
	}
	if f.log == nil {
		f.log = slog.Default()
	}
	go supports() // which takes a moment the first time, and nobody shall wait for it then
	return f, nil
}

// Close waits for links that are still being deleted. The kernel keeps all else.
func (f *Fabric) Close() error {
	f.watch.close()
	f.balancers.close()
	f.collector.Wait()
	f.pool.keep(func(nsKey) bool { return false })
	return f.hostNS.Close()
}

// Location says where a port's host end goes: the file of the domain's namespace and the
// name of the network's bridge. It is a function of the names alone.
func (f *Fabric) Location(domain, network string) (nsPath, bridge string) {
	return f.config.Namespaces.Path(domain), BridgeName(network)
}

// UplinkMTU is the MTU in bytes of the link that the host's default route (IPv4 before
// IPv6) leaves by; 1500 if there is none.
func (f *Fabric) UplinkMTU(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	host, err := f.openHost()
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

func (f *Fabric) openHost() (*space, error) {
	fd, err := unix.FcntlInt(uintptr(f.hostNS), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("host namespace: %w", err)
	}
	return f.pool.openSpace(netns.NsHandle(fd))
}

// openDomain returns nil if the domain has no namespace.
func (f *Fabric) openDomain(id string) (*space, error) {
	ns, err := f.config.Namespaces.Handle(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return f.pool.openSpace(ns)
}

// lock waits for the domains' locks, however long, and returns what releases them.
func (f *Fabric) lock(domains ...string) (unlock func()) {
	unlock, _ = f.domains.LockAll(context.Background(), domains...) // never ends without them
	return unlock
}
