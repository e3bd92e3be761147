package engine

import (
	"hash/fnv"

	"github.com/kuryr/kuryr/sdn"
)

// The host translates what it publishes to a router's one uplink address, where a port can lead to
// one container only. Port 80 of 198.51.100.1 and port 80 of 127.0.0.1 may lead to two: so each
// forwarding of the host has ports of its own on the uplink, the external ones unless another
// forwarding through the router has them.

const lastPort = 65535

// chooseVia gives a forwarding of the host its ports on the router's uplink. The caller writes r.
func (t *tx) chooseVia(r *ForwardRow, field string) error {
	if t.viaTaken(r, int(r.External.First)) < 0 {
		r.Via = r.External.First
		return nil
	}
	// The search begins where few others begin, so that it is short however many there are.
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Meta.ID))
	choices := lastPort - r.Width() + 1
	start := int(h.Sum32() % uint32(choices))
	for step := 0; step < choices; {
		first := 1 + (start+step)%choices
		taken := t.viaTaken(r, first)
		if taken < 0 {
			r.Via = uint16(first)
			return nil
		}
		step += taken - first + 1
	}
	return sdn.Exhausted(sdn.NoPorts, "port forwarding", "%s.external: the router's uplink has no %d free ports in a row", field, r.Width())
}

// viaTaken is the last port taken on the router's uplink of those that r would have from first on;
// less than 0 where all are free.
func (t *tx) viaTaken(r *ForwardRow, first int) int {
	for port := first + r.Width() - 1; port >= first; port-- {
		if Forwards.ID(t.Tx, "via", viaKey(r.Router, r.Protocol, r.Address, port)) != "" {
			return port
		}
	}
	return -1
}

// addVia is the migration to schema 2: before it the host's forwardings had the external ports on
// the uplink too, and it had no address but the unspecified.
func addVia(b Tx) error {
	var rows []*ForwardRow
	err := Forwards.Each(b, func(r *ForwardRow) error {
		if r.Address.IsUnspecified() {
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range rows {
		old := *r
		r.Via = r.External.First
		if err := Forwards.replace(b, &old, r); err != nil {
			return err
		}
	}
	return nil
}
