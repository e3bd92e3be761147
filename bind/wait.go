//go:build linux

package bind

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/bind/ovsdb"
	"github.com/kuryr/kuryr/sdn"
)

// Waiter is a Driver that can tell when the SDN has wired a port on this host.
type Waiter interface {
	// Wait is as Binder.Wait says.
	Wait(ctx context.Context, port sdn.Port) error
}

// installed is the external id that OVN's controller sets when the port's flows are in the switch.
const installed = "ovn-installed"

// Wait returns when the SDN has wired a plugged port on this host, or with the context's
// error: give it a deadline. It asks this host alone, so it costs the SDN nothing. The
// error IsNotFound for a port that is not plugged, IsUnavailable where the switch cannot
// use the interface or its database is unavailable, IsUnsupported where no program of
// this host tells: of Open vSwitch only OVN's controller does.
func (b *Binder) Wait(ctx context.Context, port sdn.Port) error {
	d, err := b.driver(port)
	if err != nil {
		return err
	}
	w, ok := d.(Waiter)
	if !ok {
		return sdn.Unsupported("port", "the driver of VIF type %q cannot tell when a port is wired", port.VIF.Type)
	}
	return w.Wait(ctx, port)
}

// ovsDriver is a vethDriver that can wait.
type ovsDriver struct {
	vethDriver
	ovs *ovsSeat
}

// Wait follows the interface's row in the switch's database.
func (d *ovsDriver) Wait(ctx context.Context, port sdn.Port) error {
	conn, err := ovsdb.Dial(ctx, d.ovs.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	got, err := conn.Transact(ctx, ovsdb.Select("Open_vSwitch", nil, "external_ids"))
	if err != nil {
		return err
	}
	if len(got[0].Rows) == 0 || got[0].Rows[0].Map("external_ids")["ovn-remote"] == "" {
		return sdn.Unsupported(
			"port",
			"no OVN controller uses Open vSwitch here, and no other program tells when a port is wired",
		)
	}
	name := []ovsdb.Condition{ovsdb.Equals("name", uplink(port))}
	if err := conn.Watch(ctx, "Interface", name, "external_ids", "error"); err != nil {
		return err
	}
	for {
		if got, err = conn.Transact(ctx, ovsdb.Select("Interface", name, "external_ids", "error")); err != nil {
			return err
		}
		if len(got[0].Rows) == 0 || got[0].Rows[0].Map("external_ids")["iface-id"] != string(port.ID) {
			return sdn.NotFound("interface", uplink(port))
		}
		row := got[0].Rows[0]
		if fault := row.Text("error"); fault != "" {
			return sdn.Unavailable(
				sdn.OfHost(errors.New(fault)), "port "+string(port.ID),
				"Open vSwitch cannot use its interface %s", uplink(port),
			)
		}
		if row.Map("external_ids")[installed] == "true" {
			return nil
		}
		if err := conn.Changed(ctx); err != nil {
			return err
		}
	}
}
