package neutrontest

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"os"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// Trunked is a provider with one trunk, and with what Neutron does to a port that becomes a subport.
type Trunked struct {
	sdn.Provider

	mu    sync.Mutex
	trunk sdn.Trunk
	next  int
	path  string
}

// WithTrunk returns p with a trunk on a port.
func WithTrunk(p sdn.Provider, parent sdn.ID) *Trunked {
	trunk := sdn.Trunk{Meta: sdn.Meta{ID: "trunk"}, Parent: parent}
	return &Trunked{Provider: p, trunk: trunk, next: 100}
}

// OpenTrunk is WithTrunk with subports that are kept in a file, for a process after this one.
func OpenTrunk(p sdn.Provider, parent sdn.ID, path string) (*Trunked, error) {
	t := WithTrunk(p, parent)
	t.path = path
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &t.trunk.Subports)
	}
	t.next += len(text) // no VLAN of before
	return t, err
}

// keep writes the subports to the file, if there is one.
func (p *Trunked) keep() error {
	if p.path == "" {
		return nil
	}
	text, err := json.Marshal(p.trunk.Subports)
	if err == nil {
		err = os.WriteFile(p.path, text, 0o600)
	}
	return err
}

// EnsurePorts takes the VNIC type that says that no agent plugs a port.
func (p *Trunked) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	plain := slices.Clone(specs)
	for i := range plain {
		if plain[i].VNICType == sdn.VNICBaremetal {
			plain[i].VNICType = sdn.VNICNormal
		}
	}
	return p.Provider.EnsurePorts(ctx, plain)
}

// Trunk gives the trunk.
func (p *Trunked) Trunk(_ context.Context, id sdn.ID) (sdn.Trunk, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id != p.trunk.ID {
		return sdn.Trunk{}, sdn.NotFound("trunk", id)
	}
	t := p.trunk
	t.Subports = slices.Clone(t.Subports)
	return t, nil
}

// FindTrunks finds the trunk by its parent.
func (p *Trunked) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	return func(yield func(sdn.Trunk, error) bool) {
		if t, err := p.Trunk(ctx, "trunk"); q.Matches(t) {
			yield(t, err)
		}
	}
}

// AttachSubports attaches ports without a device, and writes into their device owner.
func (p *Trunked) AttachSubports(ctx context.Context, trunk sdn.ID, subports []sdn.Subport) ([]sdn.Subport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if trunk != p.trunk.ID {
		return nil, sdn.NotFound("trunk", trunk)
	}
	all := slices.Clone(subports)
	for i, s := range all {
		if at := p.at(s.Port); at >= 0 {
			all[i] = p.trunk.Subports[at]
			continue
		}
		port, err := p.Provider.Port(ctx, s.Port)
		if err != nil {
			return nil, err
		}
		if port.DeviceID != "" {
			return nil, sdn.Conflict(sdn.InUse, "port", "device_id", "port %s has device %s", s.Port, port.DeviceID)
		}
		owner := sdn.OwnerSubport
		if _, err := p.Provider.UpdatePort(ctx, s.Port, sdn.PortPatch{DeviceOwner: &owner}); err != nil {
			return nil, err
		}
		p.next++
		all[i].VLAN = p.next
		p.trunk.Subports = append(p.trunk.Subports, all[i])
	}
	return all, p.keep()
}

func (p *Trunked) at(port sdn.ID) int {
	return slices.IndexFunc(p.trunk.Subports, func(s sdn.Subport) bool { return s.Port == port })
}

// DetachSubports detaches ports, and blanks their device owner.
func (p *Trunked) DetachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ports {
		at := p.at(id)
		if trunk != p.trunk.ID || at < 0 {
			continue
		}
		none := ""
		if _, err := p.Provider.UpdatePort(ctx, id, sdn.PortPatch{DeviceOwner: &none}); err != nil && !sdn.IsNotFound(err) {
			return err
		}
		p.trunk.Subports = slices.Delete(p.trunk.Subports, at, at+1)
	}
	return p.keep()
}

// DeletePort refuses a subport.
func (p *Trunked) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	if err := p.free(id); err != nil {
		return err
	}
	return p.Provider.DeletePort(ctx, id, ifRevision)
}

// DeletePorts refuses subports.
func (p *Trunked) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	for _, id := range ids {
		if err := p.free(id); err != nil {
			return err
		}
	}
	return p.Provider.DeletePorts(ctx, ids)
}

func (p *Trunked) free(id sdn.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at(id) >= 0 {
		return sdn.Conflict(sdn.InUse, "port", "", "port %s is a subport", id)
	}
	return nil
}
