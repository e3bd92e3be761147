package docker

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Orphan is something that Kuryr keeps and that no engine which was asked has.
type Orphan struct {
	reconcile.Orphan
	Noun string // such as "network"
	// Name is the engine's id of a network or an endpoint, the addresses of a port, or a range.
	Name string
	ID   sdn.ID // in the SDN; "" if unknown
}

func (o Orphan) String() string { return o.Noun + " " + o.Name + ": " + o.Why }

// parts are the kinds that are not told of beside what owns them.
var parts = map[string]string{
	"hidden": "network", "plug": "interface", "publication": "publication", "floating": "floating IP",
}

// storedRow is what status reads of a row of any kind.
type storedRow struct {
	Key    string
	Phase  reconcile.Phase
	Owners []string
	Spec   struct {
		CIDR netip.Prefix
	}
	Last struct {
		ID   sdn.ID
		Port sdn.Port
	}
}

func readRow(text json.RawMessage) (r storedRow) {
	// A row of a kind whose fields have other types is read as far as possible.
	_ = json.Unmarshal(text, &r)
	return r
}

// Compare makes Run compare with the engine, as after one of its events.
func (d *Driver) Compare() { d.database.Compare() }

// Orphans returns what the last list of the engine did not have, and what is kept for other engines.
func (d *Driver) Orphans() []Orphan { return describe(d.database.Orphans(), d.database.Rows()) }

// Purge deletes what two lists of the engine do not have that are made now, if now is set. Without
// it Run deletes what is due. engine names an engine that is gone: Purge also deletes what that one
// had; reconcile.UnknownEngine stands for none. What containers use stays, and what has just
// changed.
func (d *Driver) Purge(ctx context.Context, now bool, engine string) (purged []Orphan, err error) {
	rows := d.database.Rows()
	var names []string
	if now {
		names = append(names, "")
	}
	if engine != "" {
		names = append(names, identity.EngineName(engine))
	}
	for _, name := range names {
		deleted, err := d.database.DeleteOrphans(ctx, name)
		purged = append(purged, describe(deleted, rows)...)
		if err != nil {
			return purged, err
		}
	}
	return purged, nil
}

// describe adds what people know orphans by.
func describe(list []reconcile.Orphan, rows map[string]json.RawMessage) (all []Orphan) {
	listed := map[string]bool{}
	for _, o := range list {
		listed[o.Kind+"/"+o.Key] = true
	}
	for _, o := range list {
		r := readRow(rows[o.Kind+"/"+o.Key])
		noun, isPart := parts[o.Kind]
		if isPart && slices.ContainsFunc(r.Owners, func(owner string) bool { return listed[owner] }) {
			continue
		} else if !isPart {
			noun = o.Kind
		}
		d := Orphan{Orphan: o, Noun: noun, Name: o.Key, ID: r.Last.ID}
		switch {
		case r.Spec.CIDR.IsValid():
			d.Name = r.Spec.CIDR.String()
		case o.Kind == "address" && len(r.Last.Port.Addresses) > 0:
			d.Name = identity.Addresses(r.Last.Port)
		}
		if d.ID == "" {
			d.ID = r.Last.Port.ID
		}
		all = append(all, d)
	}
	slices.SortStableFunc(all, func(a, b Orphan) int { return strings.Compare(a.Noun, b.Noun) })
	return all
}
