package engine

import "github.com/kuryr/kuryr/sdn"

// IsDown reports whether a port passes nothing: it is off, or its network is, or the router whose interface
// it is.
func IsDown(b Tx, r *PortRow) bool {
	return r.Disabled || NetworkDown(b, r.Network) || r.Own && RouterDown(b, sdn.ID(r.DeviceID))
}

// NetworkDown reports whether a network is off.
func NetworkDown(b Tx, id sdn.ID) bool { return Networks.ID(b, "down", string(id)) != "" }

// RouterDown reports whether a router is off.
func RouterDown(b Tx, id sdn.ID) bool { return Routers.ID(b, "down", string(id)) != "" }

// UplinkDown reports whether a router that has a gateway is without its way out: the router is off, or the
// gateway's network.
func UplinkDown(b Tx, id sdn.ID) (bool, error) {
	if RouterDown(b, id) {
		return true, nil
	}
	if !anyWith(b, Networks.indexTable("down"), "") {
		return false, nil
	}
	r, err := Routers.Get(b, id)
	return r != nil && r.Gateway != nil && NetworkDown(b, r.Gateway.Network), err
}
