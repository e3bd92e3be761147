package dockertest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Hosts is an SDN of several hosts, made of the embedded one, which serves one host: it keeps the
// hosts of ports itself.
type Hosts struct {
	sdn.Provider
	host  string // of the embedded SDN
	mu    sync.Mutex
	hosts map[sdn.ID]string
}

// NewHosts returns a Hosts on the embedded SDN of a host.
func NewHosts(p sdn.Provider, host string) *Hosts {
	return &Hosts{Provider: p, host: host, hosts: map[sdn.ID]string{}}
}

func (h *Hosts) show(p sdn.Port) sdn.Port {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.Host != "" {
		p.Host = h.hosts[p.ID]
	}
	return p
}

func (h *Hosts) note(id sdn.ID, host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hosts[id] = host
}

// EnsurePorts implements sdn.Provider, for one port at a time.
func (h *Hosts) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	host := specs[0].Host
	specs = slices.Clone(specs)
	if host != "" {
		specs[0].Host = h.host
	}
	ports, err := h.Provider.EnsurePorts(ctx, specs)
	if err != nil {
		return nil, err
	}
	h.note(ports[0].ID, host)
	return []sdn.Port{h.show(ports[0])}, nil
}

// UpdatePort implements sdn.Provider.
func (h *Hosts) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	host := patch.Host
	if host != nil && *host != "" {
		patch.Host = &h.host
	}
	p, err := h.Provider.UpdatePort(ctx, id, patch)
	if err == nil && host != nil {
		h.note(id, *host)
	}
	return h.show(p), err
}

// Port implements sdn.Provider.
func (h *Hosts) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	p, err := h.Provider.Port(ctx, id)
	return h.show(p), err
}

// FindPorts implements sdn.Provider.
func (h *Hosts) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	hosts := q.Hosts
	q.Hosts = nil
	return func(yield func(sdn.Port, error) bool) {
		for p, err := range h.Provider.FindPorts(ctx, q) {
			p = h.show(p)
			if (err != nil || hosts == nil || slices.Contains(hosts, p.Host)) && !yield(p, err) {
				return
			}
		}
	}
}

// CopyDatabase copies the folder of a database as a kill of its process leaves it, and returns the
// path of the copy. The process may have the database open: a commit during the copy is in it whole
// or not at all.
func CopyDatabase(t testing.TB, path string) string {
	t.Helper()
	folder := t.TempDir()
	of := os.DirFS(filepath.Dir(path))
	files, err := fs.ReadDir(of, ".")
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		var text, before []byte
		for err = nil; err == nil; before = text {
			if text, err = fs.ReadFile(of, file.Name()); before != nil && bytes.Equal(text, before) {
				break
			}
		}
		if err := errors.Join(err, os.WriteFile(filepath.Join(folder, file.Name()), text, 0o600)); err != nil {
			t.Error(err)
		}
	}
	return filepath.Join(folder, filepath.Base(path))
}
