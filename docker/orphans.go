package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// SwarmEngine stands for the other nodes of the engine's swarm, which may have its networks.
const SwarmEngine = "swarm"

// Orphan is something that Kuryr keeps and that the engine which was asked does not have.
type Orphan struct {
	reconcile.Orphan
	Noun string // such as "network"
	// Name is the engine's id of a network or an endpoint, the addresses of a port, or a range.
	Name string
	ID   sdn.ID // in the SDN; "" if unknown
	Why  string // for people
	Keep string // why Run does not delete it; "" if it does
}

func (o Orphan) String() string { return o.Noun + " " + o.Name + ": " + o.Why }

// parts are the kinds that are not told of beside what they are a part of.
var parts = map[string]string{
	"hidden": "network", "network-tags": "tags", "plug": "interface", "publication": "publication",
	"floating": "floating IP",
}

// wholes are the kinds of which an owner is a part.
var wholes = map[string]string{"pool": "network", "address": "endpoint"}

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

// Orphans lists the engine and returns what it does not have, also what is kept for other engines.
func (d *Driver) Orphans(ctx context.Context) ([]Orphan, error) {
	list, err := d.database.Orphans(ctx)
	if err != nil {
		return nil, err
	}
	shared, err := d.sharedOrphans(ctx)
	return describe(append(list, shared...), d.database.Rows()), err
}

// Purge deletes what two lists of the engine do not have that are made now, if now is set. Without
// it Run deletes what is due. gone names an engine that is gone: Purge also deletes what that one
// had; reconcile.UnknownEngine stands for none, and SwarmEngine for the nodes of a swarm. What
// containers use stays, and what has just changed.
func (d *Driver) Purge(ctx context.Context, now bool, gone string) (purged []Orphan, err error) {
	rows := d.database.Rows()
	var deleted []reconcile.Orphan
	if now {
		deleted, err = d.database.DeleteOrphans(ctx, "")
	}
	if gone != "" && err == nil {
		var more []reconcile.Orphan
		if gone == SwarmEngine {
			more, err = d.purgeShared(ctx)
		} else {
			more, err = d.database.DeleteOrphans(ctx, identity.EngineName(gone))
		}
		deleted = append(deleted, more...)
	}
	return describe(deleted, rows), err
}

// sharedOrphans returns the networks of a swarm that this node has a row of and its engine does not
// have.
func (d *Driver) sharedOrphans(ctx context.Context) (orphans []reconcile.Orphan, err error) {
	var ids []string
	for name, text := range d.database.Rows() {
		id, ok := strings.CutPrefix(name, "network/")
		if ok && !engine.IsLocal(id) && readRow(text).Phase == reconcile.Wanted {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 || d.config.Engine == nil {
		return nil, nil
	}
	list, err := d.config.Engine.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		has := func(n engine.Network) bool { return n.ID == id }
		if list.IsShared(id) && !slices.ContainsFunc(list.Networks, has) {
			orphans = append(orphans, reconcile.Orphan{
				Kind: "network", Key: id, Engine: SwarmEngine, Kept: true, InUse: d.endpoints.InUse(id),
			})
		}
	}
	return orphans, nil
}

func (d *Driver) purgeShared(ctx context.Context) (purged []reconcile.Orphan, err error) {
	shared, err := d.sharedOrphans(ctx)
	for _, o := range shared {
		if !o.InUse {
			o.Err = d.networks.Delete(ctx, o.Key)
			purged = append(purged, o)
		}
	}
	return purged, err
}

func describe(list []reconcile.Orphan, rows map[string]json.RawMessage) (all []Orphan) {
	listed, folded := map[string]bool{}, map[string]bool{}
	for _, o := range list {
		listed[o.Kind+"/"+o.Key] = true
		for _, owner := range readRow(rows[o.Kind+"/"+o.Key]).Owners {
			kind, _, _ := strings.Cut(owner, "/")
			folded[owner] = folded[owner] || wholes[kind] == o.Kind
		}
	}
	for _, o := range list {
		r := readRow(rows[o.Kind+"/"+o.Key])
		noun, isPart := parts[o.Kind]
		isPart = isPart && (slices.ContainsFunc(r.Owners, func(owner string) bool { return listed[owner] }) ||
			o.Kind == "network-tags" && listed["network/"+o.Key])
		if isPart || folded[o.Kind+"/"+o.Key] {
			continue
		}
		d := Orphan{
			Orphan: o, Noun: cmp.Or(noun, o.Kind), Name: o.Key, ID: cmp.Or(r.Last.ID, r.Last.Port.ID),
			Why: "Docker does not have it", Keep: keep(o),
		}
		switch {
		case r.Spec.CIDR.IsValid():
			d.Name = r.Spec.CIDR.String()
		case o.Kind == "address" && len(r.Last.Port.Addresses) > 0:
			d.Name = identity.Addresses(r.Last.Port)
		}
		if o.Engine == "" && !o.Kept {
			d.Why += ", nor has any engine listed it"
		}
		all = append(all, d)
	}
	sortslice.Func(all, func(a, b Orphan) int {
		return cmp.Or(strings.Compare(a.Noun, b.Noun), strings.Compare(a.Name, b.Name))
	})
	return all
}

// keep returns why an orphan stays; "" if it does not.
func keep(o reconcile.Orphan) string {
	switch {
	case o.InUse && o.Kind == "endpoint":
		return "a container has its interface"
	case o.InUse:
		return "a container has an interface on it"
	case !o.Kept:
		return ""
	case o.Engine == SwarmEngine:
		return "other nodes of the swarm may have it"
	case o.Engine == "":
		return "no engine has listed it"
	}
	return "it is another engine's, or this one's before it lost its data"
}

// Running is an endpoint of a container that runs.
type Running struct {
	engine.Endpoint
	Port sdn.Port // the zero Port if Kuryr does not know the endpoint
}

// Running returns the endpoints of containers that run on Kuryr's networks, with the ports that
// these have by the rows, and the networks of Kuryr's driver that have no row or that the SDN has
// lost.
func (d *Driver) Running(ctx context.Context, list engine.List) ([]Running, []engine.Network) {
	rows := d.database.Rows()
	lost, err := d.lost(ctx, list, rows)
	if err != nil { // that the SDN is unavailable is told elsewhere
		d.log.DebugContext(ctx, "Docker's networks not compared with the SDN", "err", err)
	}
	return running(list, rows, lost)
}

// lost returns the engine's ids of networks that have rows, and that the SDN does not have.
func (d *Driver) lost(ctx context.Context, list engine.List, rows map[string]json.RawMessage) (map[string]bool, error) {
	lost, ids := map[string]bool{}, map[sdn.ID]string{}
	for _, n := range list.Networks {
		if id := readRow(rows["network/"+n.ID]).Last.ID; id != "" {
			ids[id] = n.ID
		}
	}
	if len(ids) == 0 {
		return lost, nil
	}
	query := sdn.NetworkQuery{Match: sdn.Match{IDs: slices.Collect(maps.Keys(ids))}}
	for n, err := range d.daemon.SDN.FindNetworks(ctx, query) {
		if err != nil {
			return nil, err
		}
		delete(ids, n.ID)
	}
	for _, id := range ids {
		lost[id] = true
	}
	return lost, nil
}

func running(
	list engine.List, rows map[string]json.RawMessage, lost map[string]bool,
) (all []Running, unknown []engine.Network) {
	ours := map[string]bool{}
	for _, n := range list.Networks {
		if !n.Ours {
			continue
		}
		_, local := rows["network/"+n.ID]
		_, shared := rows["share/"+n.ID] // a swarm's
		if ours[n.ID] = (local || shared) && !lost[n.ID]; !ours[n.ID] {
			unknown = append(unknown, n)
		}
	}
	for _, e := range list.Endpoints() {
		if ours[e.Network] {
			all = append(all, Running{e, readRow(rows["endpoint/"+e.ID]).Last.Port})
		}
	}
	return all, unknown
}
