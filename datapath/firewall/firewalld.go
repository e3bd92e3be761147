//go:build linux

package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// trustedZone is the zone of firewalld's own whose target is ACCEPT. A zone of our own
// would need a change of the permanent configuration and a reload, in which all users'
// runtime changes are lost; an interface is added to this one at run time.
const trustedZone = "trusted"

const (
	firewalldName   = "org.fedoraproject.FirewallD1"
	firewalldZone   = firewalldName + ".zone"
	firewalldPolicy = firewalldName + ".policy"
)

// firewalld speaks to a running firewalld.
type firewalld struct {
	conn   *dbus.Conn
	object dbus.BusObject
}

// connectFirewalld returns nil where there is no system bus or no firewalld on it; it
// starts nothing. The caller closes what is returned.
func connectFirewalld(ctx context.Context) (*firewalld, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("connect to the system bus: %w", err)
		}
		return nil, nil // no bus, so nothing on it
	}
	var running bool
	err = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, firewalldName).Store(&running)
	if err != nil || !running {
		_ = conn.Close()
		if err != nil {
			return nil, fmt.Errorf("ask the system bus for firewalld: %w", err)
		}
		return nil, nil
	}
	return &firewalld{conn: conn, object: conn.Object(firewalldName, "/org/fedoraproject/FirewallD1")}, nil
}

func (f *firewalld) close() { _ = f.conn.Close() }

func (f *firewalld) call(ctx context.Context, method string, args ...any) *dbus.Call {
	return f.object.CallWithContext(ctx, method, dbus.FlagNoAutoStart, args...)
}

// zoneOf returns the zone an interface is in, empty for none.
func (f *firewalld) zoneOf(ctx context.Context, link string) (string, error) {
	var zone string
	if err := f.call(ctx, firewalldZone+".getZoneOfInterface", link).Store(&zone); err != nil {
		return "", fmt.Errorf("firewalld: zone of %s: %w", link, err)
	}
	return zone, nil
}

// admitsFrom reports whether a policy lets unsolicited packets go from other
// zones to zone. Answers and published ports pass anyway.
func (f *firewalld) admitsFrom(ctx context.Context, zone string) (bool, error) {
	var policies []string
	if err := f.call(ctx, firewalldPolicy+".getPolicies").Store(&policies); err != nil {
		return false, fmt.Errorf("firewalld: list the policies: %w", err)
	}
	for _, name := range policies {
		var settings map[string]dbus.Variant
		if err := f.call(ctx, firewalldPolicy+".getPolicySettings", name).Store(&settings); err != nil {
			return false, fmt.Errorf("firewalld: policy %s: %w", name, err)
		}
		target, _ := settings["target"].Value().(string)
		egress, _ := settings["egress_zones"].Value().([]string)
		ingress, _ := settings["ingress_zones"].Value().([]string)
		if target == "ACCEPT" && len(ingress) > 0 && (slices.Contains(egress, zone) || slices.Contains(egress, "ANY")) {
			return true, nil
		}
	}
	return false, nil
}

// refusal reports whether firewalld refused a call for this reason of its own, such as
// "ALREADY_ENABLED".
func refusal(err error, reason string) bool {
	var e dbus.Error
	if !errors.As(err, &e) || len(e.Body) == 0 {
		return false
	}
	text, _ := e.Body[0].(string)
	return strings.HasPrefix(text, reason)
}

// openZone puts our links into the trusted zone, as the wildcard they are. A zone the
// operator has given them is respected.
func (h *Host) openZone(ctx context.Context) (*Door, error) {
	f, err := connectFirewalld(ctx)
	if f == nil {
		return nil, err
	}
	defer f.close()
	d := &Door{Owner: OwnerFirewalld, Where: trustedZone, State: StateRefused}
	zone, err := f.zoneOf(ctx, h.link)
	switch {
	case err != nil:
		return d, err
	case zone == trustedZone:
		d.State = StateOpen
		return d, nil
	case zone != "":
		d.Where, d.State = zone, StateConflict
		return d, nil
	}
	r, err := h.load()
	if err != nil {
		return d, err
	}
	if r.Zone != trustedZone {
		r.Zone = trustedZone
		if err := h.save(r); err != nil {
			return d, err
		}
	}
	failpoint.Here("firewall.zone.recorded")
	err = f.call(ctx, firewalldZone+".addInterface", trustedZone, h.link).Err
	if err != nil && !refusal(err, "ALREADY_ENABLED") && !refusal(err, "ZONE_ALREADY_SET") {
		return d, fmt.Errorf("firewalld: add %s to zone %s: %w", h.link, trustedZone, err)
	}
	h.log.Info("door through a firewall opened", "owner", OwnerFirewalld, "zone", trustedZone)
	d.State = StateOpened
	return d, nil
}

// closeZone takes our links out of the zone to which we added them.
func (h *Host) closeZone(ctx context.Context) error {
	r, err := h.load()
	if err != nil || r.Zone == "" {
		return err
	}
	f, err := connectFirewalld(ctx)
	if err != nil {
		return err
	}
	if f != nil { // otherwise it has forgotten by itself, being a runtime change
		defer f.close()
		err := f.call(ctx, firewalldZone+".removeInterface", r.Zone, h.link).Err
		if err != nil && !refusal(err, "NOT_ENABLED") && !refusal(err, "UNKNOWN_INTERFACE") &&
			!refusal(err, "ZONE_CONFLICT") {
			return fmt.Errorf("firewalld: remove %s from zone %s: %w", h.link, r.Zone, err)
		}
		h.log.Info("door through a firewall closed", "owner", OwnerFirewalld, "zone", r.Zone)
	}
	failpoint.Here("firewall.closezone.removed")
	r.Zone = ""
	return h.save(r)
}
