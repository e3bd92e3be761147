package endpoint

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// Publication is a port of the host that a proxy publishes.
type Publication struct {
	Endpoint string // the engine's id
	Port     sdn.ID
	portproxy.Forward
}

// Publications returns what proxies publish, from the rows of a database (reconcile.Store.Rows).
func Publications(rows map[string]json.RawMessage) []Publication {
	var list []Publication
	for name, text := range rows {
		id, ok := strings.CutPrefix(name, "publication/")
		var r struct {
			Spec PublicationSpec `json:"spec"`
			Last PublicationLast `json:"last"`
		}
		if !ok || json.Unmarshal(text, &r) != nil {
			continue
		}
		for _, f := range r.Last.Proxied {
			list = append(list, Publication{id, r.Spec.Port, f})
		}
	}
	sortslice.Func(list, func(a, b Publication) int {
		return cmp.Or(strings.Compare(a.Endpoint, b.Endpoint), a.Listen.Compare(b.Listen))
	})
	return list
}
