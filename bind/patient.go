//go:build linux

package bind

import (
	"context"
	"fmt"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// DefaultPatience is for who has no setting. OVN's controller wires a port in less than a
// second, unless very many come at once.
const DefaultPatience = 10 * time.Second

// Patient is a Binder for engines that start what is in a container as soon as its
// interface is there, as Kubernetes does with a pod.
type Patient struct {
	*Binder
	// Patience bounds a Plug's wait for the SDN; with 0 it does not wait.
	Patience time.Duration
}

// Plug is Binder.Plug, and returns when the SDN has wired the port on this host. Where
// nobody tells when that is (Binder.Wait IsUnsupported), as with the embedded SDN, which
// wires ports before they are plugged, it is the same. The port stays plugged where the
// wait fails: errors are those of Wait, and context.DeadlineExceeded after Patience.
func (p Patient) Plug(ctx context.Context, i Interface) (Result, error) {
	r, err := p.Binder.Plug(ctx, i)
	if err != nil || p.Patience == 0 {
		return r, err
	}
	within, cancel := context.WithTimeout(ctx, p.Patience)
	defer cancel()
	err = p.Wait(within, i.Port)
	switch {
	case err == nil, sdn.IsUnsupported(err):
		return r, nil
	case ctx.Err() == nil && within.Err() != nil:
		return r, fmt.Errorf(
			"port %s is plugged, and the SDN's controller on this host has not wired it after %s: %w",
			i.Port.ID, p.Patience, context.DeadlineExceeded,
		)
	}
	return r, fmt.Errorf("wait for port %s: %w", i.Port.ID, err)
}
