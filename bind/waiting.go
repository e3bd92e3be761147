//go:build linux

package bind

import (
	"context"
	"fmt"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// DefaultTimeout is for who has no setting. OVN's controller wires a port in less than a
// second, unless very many come concurrently.
const DefaultTimeout = 10 * time.Second

// Waiting is a Binder for engines that start what is in a container as soon as its
// interface is there, as Kubernetes does with a pod.
type Waiting struct {
	*Binder
	// Timeout bounds a Plug's wait for the SDN; with 0 it does not wait.
	Timeout time.Duration
}

// Plug is Binder.Plug, and returns when the SDN has wired the port on this host. Where
// no program tells when that is (Binder.Wait IsUnsupported), as with the embedded SDN, which
// wires ports before they are plugged, it is the same. The port stays plugged where the
// wait fails: errors are those of Wait, and context.DeadlineExceeded after Timeout.
func (p Waiting) Plug(ctx context.Context, i Interface) (Result, error) {
	r, err := p.Binder.Plug(ctx, i)
	if err != nil || p.Timeout == 0 {
		return r, err
	}
	within, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	err = p.Wait(within, i.Port)
	switch {
	case err == nil, sdn.IsUnsupported(err):
		return r, nil
	case ctx.Err() == nil && within.Err() != nil:
		return r, fmt.Errorf(
			"port %s is plugged, and the SDN's controller on this host has not wired it after %s: %w",
			i.Port.ID, p.Timeout, context.DeadlineExceeded,
		)
	}
	return r, fmt.Errorf("wait for port %s: %w", i.Port.ID, err)
}
