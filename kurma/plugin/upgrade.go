//go:build linux

package plugin

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// Versions before the intent store had the entry of each generation in
// State/NETWORK/generations/GENERATION.json, and the record of its container in the bundle.
const generationsDir = "generations"

// unread returns the entries of such a version that importFiles did not understand.
func (p *Pod) unread(network string) []string {
	found, _ := filepath.Glob(filepath.Join(p.networkDir(network), generationsDir, "*.json"))
	return found
}

// importFiles makes rows of these files, and removes them.
func (p *Pod) importFiles() error {
	found, err := filepath.Glob(filepath.Join(p.cfg.State, "*", generationsDir, "*.json"))
	if err != nil {
		return err
	}
	var rows []reconcile.Row[spec, record]
	var done []string
	for _, path := range found {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n, err := parseEntry(raw)
		if err != nil {
			p.log.Error("network entry not understood", "file", path, "err", err)
			continue
		}
		r := reconcile.Row[spec, record]{
			Object: reconcile.Object{Key: keyOf(refOf(n))}, Phase: reconcile.Wanted, Done: true,
			Spec: spec{string(raw)},
		}
		state := filepath.Join(p.bundle(refOf(n)).dir, "state.json")
		if text, err := os.ReadFile(state); err == nil && json.Unmarshal(text, &r.Last) != nil {
			r.Last = record{} // another container is started
		}
		rows, done = append(rows, r), append(done, path, state)
	}
	if err := p.plugins.Import(context.Background(), rows); err != nil {
		return err
	}
	for _, path := range done {
		_ = os.Remove(path)
		_ = os.Remove(filepath.Dir(path)) // if it was the last one
	}
	return nil
}
