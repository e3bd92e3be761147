//go:build linux

package router

import (
	"fmt"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

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
	free map[nsKey][]*nft.Conn
}

func (p *pool) get(ns netns.NsHandle, key nsKey) (*nft.Conn, error) {
	p.mu.Lock()
	if list := p.free[key]; len(list) > 0 {
		c := list[len(list)-1]
		p.free[key] = list[:len(list)-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	return nft.Dial(int(ns))
}

// put takes a connection back that has nothing queued and no answer outstanding.
func (p *pool) put(key nsKey, c *nft.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == nil {
		p.free = map[nsKey][]*nft.Conn{}
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
				_ = c.Close()
			}
		}()
	}
}
