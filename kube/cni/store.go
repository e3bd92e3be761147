package cni

import (
	"encoding/hex"
	"path/filepath"

	"github.com/kuryr/kuryr/internal/jsonstore"
)

// DefaultState is the folder of what kuryr-cni and the daemon both keep.
const DefaultState = "/var/lib/kuryr/cni"

// RecordName returns the name of the record of a container's interface. It is readable and
// fit for a file.
func RecordName(container, iface string) string {
	return container + "-" + hex.EncodeToString([]byte(iface))
}

// PendingDELs returns the store of the DELs that kuryr-cni could not pass to the daemon: Calls
// by RecordName. The daemon makes them rows of its table.
func PendingDELs(state string) *jsonstore.Store {
	return jsonstore.Shared(filepath.Join(state, "owed"))
}

// StaticBindings returns the store of package static.
func StaticBindings(state string) *jsonstore.Store {
	return jsonstore.Shared(filepath.Join(state, "bound"))
}
