//go:build linux

package router

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// nftBuffer holds the acknowledgements of the largest transaction; the default buffer
// overflows at some hundred messages.
const nftBuffer = 16 << 20

// nsKey is a namespace's identity; it is not given to another while a socket is open in it.
type nsKey struct{ dev, ino uint64 }

func keyOf(ns netns.NsHandle) (nsKey, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return nsKey{}, fmt.Errorf("identify namespace: %w", err)
	}
	return nsKey{st.Dev, st.Ino}, nil
}

// pool keeps nftables sockets open. Closing one makes the kernel free, under the lock
// that every transaction takes, what earlier transactions deleted: some milliseconds, in
// which no port can be added anywhere.
type pool struct {
	mu   sync.Mutex
	free map[nsKey][]*nftables.Conn
}

func (p *pool) get(ns netns.NsHandle, key nsKey) (*nftables.Conn, error) {
	p.mu.Lock()
	if list := p.free[key]; len(list) > 0 {
		c := list[len(list)-1]
		p.free[key] = list[:len(list)-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	return connect(ns)
}

// connect opens an nftables socket in a namespace.
func connect(ns netns.NsHandle) (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)), nftables.AsLasting(),
		nftables.WithSockOptions(func(c *mdnetlink.Conn) error {
			return errors.Join(c.SetReadBuffer(nftBuffer), c.SetWriteBuffer(nftBuffer))
		}))
	if err != nil {
		return nil, fmt.Errorf("nftables socket: %w", err)
	}
	return c, nil
}

// put takes a connection back that has nothing queued and no answer outstanding.
func (p *pool) put(key nsKey, c *nftables.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == nil {
		p.free = map[nsKey][]*nftables.Conn{}
	}
	p.free[key] = append(p.free[key], c)
}

// keep closes the sockets of all namespaces but those for which wanted is true: an open
// socket keeps a namespace alive.
func (p *pool) keep(wanted func(nsKey) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, list := range p.free {
		if wanted(key) {
			continue
		}
		delete(p.free, key)
		go func() {
			for _, c := range list {
				_ = c.CloseLasting()
			}
		}()
	}
}
