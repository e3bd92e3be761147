//go:build linux

package hostport

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// Table is what leads the ports. The zero Table is ready, and takes over at its first
// change what an earlier process has left. All methods may be called concurrently from many
// goroutines, each in the host's network namespace.
type Table struct {
	mu     sync.Mutex
	ports  hostports.Holder
	owners map[string][]Mapping
	known  bool // the kernel has the owners' mappings and no others
}

// Restore makes the kernel lead exactly these ports, by their owners. A port that a
// program has taken since is led all the same; the error says so.
func (t *Table) Restore(owners map[string][]Mapping) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ports.Close()
	t.owners = map[string][]Mapping{}
	var errs []error
	for owner, list := range owners {
		for _, m := range list {
			if err := m.check(); err != nil {
				errs = append(errs, err)
				continue
			}
			if err := t.ports.Restore(owner, m.held()); err != nil {
				errs = append(errs, explain(m, err))
			}
			t.owners[owner] = append(t.owners[owner], m)
		}
	}
	return errors.Join(append(errs, t.replace())...)
}

// Set leads exactly these ports for an owner; none removes what it has. It is in the
// kernel when Set returns, and all or nothing of it. Errors: IsConflict for a port that
// another owner or a program of the host has; IsInvalid, naming the field.
func (t *Table) Set(owner string, list []Mapping) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.owners[owner]
	if t.known && slices.Equal(before, list) {
		return nil
	}
	if err := t.reserve(owner, before, list); err != nil {
		return err
	}
	t.put(owner, list)
	if err := t.write(before, list); err != nil {
		t.put(owner, before)
		t.known = false
		t.release(owner, list, before)
		return err
	}
	t.release(owner, before, list)
	return nil
}

// Close lets go of the host's ports. The kernel leads them on, for the next process.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ports.Close()
}

func (m Mapping) held() hostports.Port {
	return hostports.Port{Protocol: m.Protocol, Address: netip.AddrPortFrom(m.face(), m.Port)}
}

func (t *Table) put(owner string, list []Mapping) {
	if t.owners == nil {
		t.owners = map[string][]Mapping{}
	}
	t.owners[owner] = slices.Clone(list)
	if len(list) == 0 {
		delete(t.owners, owner)
	}
}

// reserve keeps the ports of a list beside those that the owner has.
func (t *Table) reserve(owner string, before, list []Mapping) error {
	for i, m := range list {
		err := m.check()
		if err == nil {
			if err = t.ports.Reserve(owner, m.held()); err != nil {
				err = explain(m, err)
			}
		}
		if err != nil {
			t.release(owner, list[:i], before)
			return err
		}
	}
	return nil
}

// release gives back those of a list that are not in another.
func (t *Table) release(owner string, list, but []Mapping) {
	keep := map[hostports.Port]bool{}
	for _, m := range but {
		keep[m.held()] = true
	}
	for _, m := range list {
		if !keep[m.held()] {
			t.ports.Release(owner, m.held())
		}
	}
}

func explain(m Mapping, err error) error {
	at := fmt.Sprintf("%s %s", ipproto.Name(m.Protocol), netip.AddrPortFrom(m.face(), m.Port))
	if errors.Is(err, hostports.ErrHeld) || errors.Is(err, hostports.ErrInUse) {
		return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "host port", ID: at, Field: "hostPort", Err: err}
	}
	return fmt.Errorf("host port %s: %w", at, err)
}

// write changes the kernel from one list to another. Where the table is not as it was left
// it is made again, with all that must be in it.
func (t *Table) write(remove, add []Mapping) error {
	if t.known && len(t.owners) > 0 && change(remove, add) == nil {
		return forget(slices.Concat(remove, add))
	}
	if err := t.replace(); err != nil {
		return err
	}
	return forget(slices.Concat(remove, add))
}

func (t *Table) replace() error {
	var all []Mapping
	for _, owner := range slices.Sorted(maps.Keys(t.owners)) {
		all = append(all, t.owners[owner]...)
	}
	err := replace(all)
	t.known = err == nil
	return err
}
