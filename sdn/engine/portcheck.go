package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// checkPort checks what can be said without the store.
func (e *Engine) checkPort(spec sdn.PortSpec) error {
	if err := valid.Base("port", spec.Base); err != nil {
		return err
	}
	if err := e.checkDevice(&spec.DeviceID, &spec.DeviceOwner, &spec.Host); err != nil {
		return err
	}
	if err := checkMAC("port", spec.MAC); err != nil {
		return err
	}
	switch {
	case spec.WithoutAddresses && spec.Addresses != nil:
		return sdn.Invalid("port", "addresses", "must be nil for a port without addresses")
	case spec.WithoutGroups && spec.Groups != nil:
		return sdn.Invalid("port", "groups", "must be nil for a port without groups")
	}
	if err := e.checkLacking(spec.Groups, spec.QoSPolicy); err != nil {
		return err
	}
	if err := lacking("port", "vnic_type", spec.VNICType != sdn.VNICNormal, "has virtual interfaces only"); err != nil {
		return err
	}
	if err := checkProfile(spec.Profile); err != nil {
		return err
	}
	return checkPairs(spec.AllowedPairs)
}

// checkLacking refuses what ports of the embedded SDN cannot have.
func (e *Engine) checkLacking(groups []sdn.ID, policy sdn.ID) error {
	can := e.realm.Supports()
	return errors.Join(
		lacking("port", "groups", len(groups) > 0 && !can.Groups, "has no security groups on this machine: its kernel cannot filter for them"),
		lacking("port", "qos_policy", policy != "" && !can.Limits, "has no bandwidth limits on this machine: its kernel cannot keep them"),
	)
}

// mostProfile is how many entries a profile may have: it is there for a few facts about hardware.
const mostProfile = 64

func checkProfile(profile map[string]json.RawMessage) error {
	if len(profile) > mostProfile {
		return sdn.Invalid("port", "profile", "has %d entries; at most %d fit", len(profile), mostProfile)
	}
	for name, value := range profile {
		if err := valid.Text("port", "profile", name); err != nil {
			return err
		}
		if !json.Valid(value) || !utf8.Valid(value) {
			return sdn.Invalid("port", "profile."+name, "%q is not JSON", value)
		}
		if err := valid.Text("port", "profile."+name, sdn.ProfileText(value)); err != nil {
			return err
		}
	}
	return nil
}

func checkPairs(pairs []sdn.AllowedPair) error {
	for i, pair := range pairs {
		if err := valid.Prefix("port", fmt.Sprintf("allowed_pairs[%d]", i), pair.Prefix.Masked()); err != nil {
			return err
		}
		if err := checkMAC("port", pair.MAC); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) checkDevice(id, owner, host *string) error {
	if id != nil {
		if err := valid.Text("port", "device_id", *id); err != nil {
			return err
		}
	}
	if owner != nil {
		if err := valid.Text("port", "device_owner", *owner); err != nil {
			return err
		}
		if contains([]string{sdn.OwnerRouterInterface, sdn.OwnerRouterGateway, sdn.OwnerFloatingIP}, *owner) {
			return sdn.Invalid("port", "device_owner", "%s is for ports of the SDN's own", *owner)
		}
	}
	if host != nil && *host != "" && *host != e.host {
		return sdn.Invalid("port", "host", "this SDN serves %q only, not %q", e.host, *host)
	}
	return nil
}
