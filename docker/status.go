package docker

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/sdn"
)

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
