package engine

import (
	"bytes"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// Plugged reports whether a port is the kernel's business.
func (r *PortRow) Plugged() bool { return !r.Own && r.Host != "" }

// place is where a port is in an index by what may concern the kernel: under what is plugged or
// under what is not, by network.
func (r *PortRow) place(of sdn.ID) string {
	if r.Plugged() {
		return key(string(of), pluggedPlace, string(r.Network))
	}
	return key(string(of), "0", string(r.Network))
}

const pluggedPlace = "1"

// NetworksWith returns the networks of the plugged ports that an index has for id.
func NetworksWith(b Tx, index string, id sdn.ID) (networks []sdn.ID) {
	prefix := []byte(key(string(id), pluggedPlace, ""))
	for from := prefix; ; {
		network, found := pluggedNetwork(b, Ports.indexTable(index), prefix, from)
		if !found {
			return networks
		}
		networks = append(networks, sdn.ID(network))
		from = append(append(bytes.Clone(prefix), network...), 1) // behind the network's ports
	}
}

// pluggedNetwork returns the network of the first key that is not below from and starts with prefix.
func pluggedNetwork(b Tx, table string, prefix, from []byte) (network []byte, found bool) {
	for k := range b.Seek(table, from) {
		if !bytes.HasPrefix(k, prefix) {
			break
		}
		network, _, _ = bytes.Cut(k[len(prefix):], []byte{0})
		return network, true
	}
	return nil, false
}

// PluggedWith returns the networks and ids of the plugged ports that an index has for id. Their rows are not read.
func PluggedWith(b Tx, index string, id sdn.ID) iter.Seq2[sdn.ID, sdn.ID] {
	return func(yield func(network, port sdn.ID) bool) {
		prefix := key(string(id), pluggedPlace, "")
		for k := range with(b, Ports.indexTable(index), prefix) {
			network, port, _ := bytes.Cut(k[len(prefix):], []byte{0})
			if !yield(sdn.ID(network), sdn.ID(port)) {
				return
			}
		}
	}
}

// AnyPlugged reports whether an index has a plugged port for id.
func AnyPlugged(b Tx, index string, id sdn.ID) bool {
	return Ports.any(b, index, key(string(id), pluggedPlace))
}
