package docker

import (
	"encoding/json"

	"github.com/kuryr/kuryr/docker/engine"
)

// Running returns the endpoints of containers that run on Kuryr's networks, with the ports that
// these have by the rows, and the networks of Kuryr's driver that have no row.
func (d *Driver) Running(list engine.List) ([]Running, []engine.Network) {
	return running(list, d.database.Rows())
}

func running(list engine.List, rows map[string]json.RawMessage) (all []Running, unknown []engine.Network) {
	ours := map[string]bool{}
	for _, n := range list.Networks {
		if !n.Ours {
			continue
		}
		_, known := rows["network/"+n.ID]
		if ours[n.ID] = known; !known {
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
