//go:build linux

// Package hostports keeps transport ports of the host for those who publish them, so that
// publishing never takes a port from a program that answers there, and no program takes
// one that is published.
//
// It owns one bound socket for each port that it keeps, in the network namespace of the
// process, and nothing on disk: what must be kept after a restart, its user tells it
// again. Nothing listens at these sockets: a connection that was not translated is reset.
// It must not know of Docker, or of what a port leads to.
package hostports

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"
)

// What Reserve answers for a port that it cannot keep.
var (
	// ErrHeld says that another owner has the port.
	ErrHeld = errors.New("another endpoint has published it")
	// ErrInUse says that a program of this host has the port; Users tells which.
	ErrInUse = errors.New("a program of this host uses it")
	// ErrNoAddress says that the host does not have the address.
	ErrNoAddress = errors.New("cannot assign requested address: the host does not have it")
	// ErrNoFiles says that the process, or the machine, may have no more files open.
	ErrNoFiles = errors.New(
		"kuryr may open no more files: each published port is one; raise its limit (LimitNOFILE of " +
			"its service)",
	)
)

// heldError is an ErrHeld that says more.
type heldError string

func (e heldError) Error() string { return string(e) }

// Is makes it an ErrHeld.
func (e heldError) Is(target error) bool { return target == ErrHeld }

// Port is a transport port of one address of the host, or of all of a family's (0.0.0.0 or ::).
type Port struct {
	Protocol sdn.Protocol
	Address  netip.AddrPort
}

// overlaps reports whether one socket cannot have p where another has q, as bind(2) sees it.
func (p Port) overlaps(q Port) bool {
	a, b := p.Address.Addr(), q.Address.Addr()
	return p.slot() == q.slot() && (a == b || a.IsUnspecified() || b.IsUnspecified())
}

// slot is what ports that can overlap have in common.
type slot struct {
	protocol sdn.Protocol
	six      bool
	port     uint16
}

func (p Port) slot() slot { return slot{p.Protocol, p.Address.Addr().Is6(), p.Address.Port()} }

// Holder keeps ports. The zero Holder is ready; all methods may be called concurrently from
// many goroutines.
type Holder struct {
	mu     sync.Mutex
	bySlot map[slot][]*held
	owners map[string]map[Port]*held
}

// held is a port that is kept.
type held struct {
	port  Port
	owner string
	fd    int // less than 0: the kernel has no sockets of the protocol or family, so no program can take it
}

// Reserve keeps a port for an owner, who may have it already. The errors are those above.
func (h *Holder) Reserve(owner string, p Port) error { return h.reserve(owner, p, false) }

// Restore is Reserve for what the owner is known to have: another owner who has just got
// it, not knowing that, loses it. The host need not have the address yet.
func (h *Holder) Restore(owner string, p Port) error { return h.reserve(owner, p, true) }

func (h *Holder) reserve(owner string, p Port, restore bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var others []*held
	for _, other := range h.bySlot[p.slot()] {
		if !other.port.overlaps(p) {
			continue
		}
		if other.port == p && other.owner == owner {
			return nil
		}
		if other.owner == owner {
			return heldError("this endpoint has published it already")
		}
		if !restore {
			return ErrHeld
		}
		others = append(others, other)
	}
	for _, other := range others {
		h.drop(other)
	}
	fd, err := bind(p, restore)
	if err != nil {
		return err
	}
	if h.owners == nil {
		h.bySlot, h.owners = map[slot][]*held{}, map[string]map[Port]*held{}
	}
	if h.owners[owner] == nil {
		h.owners[owner] = map[Port]*held{}
	}
	kept := &held{p, owner, fd}
	h.owners[owner][p] = kept
	h.bySlot[p.slot()] = append(h.bySlot[p.slot()], kept)
	return nil
}

// Release gives ports of an owner back; what he does not have is fine.
func (h *Holder) Release(owner string, ports ...Port) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range ports {
		if kept := h.owners[owner][p]; kept != nil {
			h.drop(kept)
		}
	}
}

// ReleaseAll gives all ports of an owner back.
func (h *Holder) ReleaseAll(owner string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kept := range h.owners[owner] {
		h.drop(kept)
	}
}

// Retain gives all ports of an owner back but these.
func (h *Holder) Retain(owner string, ports ...Port) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keep := make(map[Port]bool, len(ports))
	for _, p := range ports {
		keep[p] = true
	}
	for p, kept := range h.owners[owner] {
		if !keep[p] {
			h.drop(kept)
		}
	}
}

// Close gives everything back.
func (h *Holder) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ports := range h.owners {
		for _, kept := range ports {
			h.drop(kept)
		}
	}
}

func (h *Holder) drop(kept *held) {
	if kept.fd >= 0 {
		_ = unix.Close(kept.fd)
	}
	delete(h.owners[kept.owner], kept.port)
	if len(h.owners[kept.owner]) == 0 {
		delete(h.owners, kept.owner)
	}
	s := kept.port.slot()
	rest := h.bySlot[s][:0]
	for _, other := range h.bySlot[s] {
		if other != kept {
			rest = append(rest, other)
		}
	}
	h.bySlot[s] = rest
	if len(rest) == 0 {
		delete(h.bySlot, s)
	}
}

// explain puts what the kernel said into the errors above.
func explain(p Port, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return ErrInUse
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return ErrNoAddress
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return ErrNoFiles
	case errors.Is(err, unix.EINVAL) && p.Address.Addr().IsLinkLocalUnicast():
		return fmt.Errorf("%w: a link-local address belongs to a link", ErrNoAddress)
	}
	return err
}
