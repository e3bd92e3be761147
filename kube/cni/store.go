package cni

import (
	"encoding/hex"
	"path/filepath"

	"github.com/kuryr/kuryr/internal/jsonstore"
)

// DefaultState is the folder of what is kept of containers beside the SDN.
const DefaultState = "/var/lib/kuryr/cni"

// RecordName returns the name of the record of a container's interface. It is readable and
// fit for a file.
func RecordName(container, iface string) string {
	return container + "-" + hex.EncodeToString([]byte(iface))
}

// OwedIn returns the store of pending DELs: kuryr-cni adds those that it could not pass to
// the daemon, and the daemon those that it could not pass to the SDN. The values are Calls
// by RecordName.
func OwedIn(state string) *jsonstore.Store { return jsonstore.Shared(filepath.Join(state, "owed")) }

// BoundIn returns the store of the interfaces bound by CNI_ARGS alone, by RecordName.
func BoundIn(state string) *jsonstore.Store { return jsonstore.Shared(filepath.Join(state, "bound")) }
