package docker

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/sdn"
)

// awaitActive waits, where that is asked for, until the SDN says that a port's traffic flows.
func (d *Driver) awaitActive(ctx context.Context, port sdn.Port) error {
	if d.waitActive == 0 {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, d.waitActive)
	defer cancel()
	err := d.sdn.WaitPorts(within, []sdn.ID{port.ID}, sdn.PortActive)
	if err == nil {
		return nil
	}
	undo, cancelUndo := context.WithTimeout(context.WithoutCancel(ctx), rollback)
	defer cancelUndo()
	if left := d.unplug(undo, port); left != nil {
		d.log.ErrorContext(ctx, "an interface was left behind", "port", port.ID, "err", left)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return refuse("port %s was plugged and is not ACTIVE after %s", port.ID, d.waitActive)
	}
	return err
}
