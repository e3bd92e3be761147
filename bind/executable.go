//go:build linux

package bind

import (
	"context"
	"errors"
	"log/slog"

	"github.com/kuryr/kuryr/bind/vifexec"
	"github.com/kuryr/kuryr/sdn"
)

// executableSeat has an executable of the VIF type's name tell the switch of the host
// end, which is up and on nothing when it is called.
type executableSeat struct {
	dir vifexec.Dir
	log *slog.Logger
}

func (e executableSeat) find(_ context.Context, _ *socket, _ namespace, i Interface, _ bool) (place, error) {
	return place{routed: true}, e.dir.Check(i.Port)
}

func (e executableSeat) join(ctx context.Context, port sdn.Port, _ bool) error {
	return e.dir.Bind(ctx, port, HostName(port.ID))
}

// joined is always answered with yes: an executable cannot be asked, and who cannot be
// asked is not said to have failed.
func (executableSeat) joined(context.Context, sdn.Port) (bool, error) { return true, nil }

// leave only logs the executable's failure once the host end is gone. The port could
// otherwise not be deleted while the executable fails.
func (e executableSeat) leave(ctx context.Context, s *socket, _ namespace, port sdn.Port) error {
	err := e.unjoin(ctx, port)
	if err == nil {
		return nil
	}
	if _, gone := s.index(HostName(port.ID)); errors.Is(gone, errNoLink) {
		e.log.WarnContext(ctx, "executable did not unbind a removed interface",
			"port", string(port.ID), "vif_type", port.VIF.Type, "err", err)
		return nil
	}
	return err
}

func (e executableSeat) unjoin(ctx context.Context, port sdn.Port) error {
	err := e.dir.Unbind(ctx, port, HostName(port.ID))
	if sdn.IsUnsupported(err) {
		return nil // no executable can bind it, so none has
	}
	return err
}
