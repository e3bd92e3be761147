//go:build linux

package bind

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// tapSeat leaves host ends up and on nothing: an agent of the SDN (networking-calico's,
// for one) finds them by their name and routes to them.
type tapSeat struct{ alone }

func (tapSeat) find(context.Context, *socket, namespace, Interface, bool) (place, error) {
	return place{routed: true}, nil
}

// noopDriver makes nothing: the interface is another's to make.
type noopDriver struct{}

// Plug answers with what was asked for.
func (noopDriver) Plug(_ context.Context, i Interface) (Result, error) {
	return Result{Name: i.Name, MAC: slices.Clone(i.Port.MAC), MTU: i.MTU, Namespace: i.Namespace}, nil
}

// Unplug has nothing to remove.
func (noopDriver) Unplug(context.Context, sdn.Port) error { return nil }

// Connected is true: it is unknown, and what a container may have must stay.
func (noopDriver) Connected(context.Context, sdn.Port) (bool, error) { return true, nil }
