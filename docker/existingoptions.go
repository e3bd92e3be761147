package docker

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// kuryr-libnetwork's options that name what is in the SDN already, given by -o or --ipam-opt.
const (
	optNetUUID   = "neutron.net.uuid"
	optNetName   = "neutron.net.name"
	optNetShared = "neutron.net.shared" // what the network must be; it is not changed

	optSubnet  = "neutron.subnet" // .uuid and .name follow
	optSubnet6 = "neutron.subnet.v6"
	optPool    = "neutron.pool"
	optPool6   = "neutron.pool.v6"
)

var existingNames = []string{optNetUUID, optNetName, optNetShared,
	optSubnet + ".uuid", optSubnet + ".name", optSubnet6 + ".uuid", optSubnet6 + ".name",
	optPool + ".uuid", optPool + ".name", optPool6 + ".uuid", optPool6 + ".name"}

// reference names an object of the SDN by its id or its name, and the option that does. The zero one names nothing.
type reference struct {
	option string
	id     sdn.ID
	name   string
}

func (r reference) given() bool { return r.option != "" }

// existingOptions are what a network was asked to be made of. By whether IPv6 where there is one of each.
type existingOptions struct {
	network      reference
	shared       *bool
	subnet, pool map[bool]reference
}

// given tells whether the network itself is to be one that exists.
func (e existingOptions) given() bool { return e.network.given() || len(e.subnet) > 0 }

// parseExisting reads the options among those of docker network create.
func parseExisting(generic map[string]json.RawMessage) (existingOptions, error) {
	texts := map[string]string{}
	for _, name := range existingNames {
		raw, ok := generic[name]
		if !ok {
			continue
		}
		var text string
		if err := unmarshal("Options."+optGeneric+"."+name, raw, &text); err != nil {
			return existingOptions{}, err
		}
		texts[name] = text
	}
	return existingOf("Options."+optGeneric, texts)
}

// existingOf reads the options, which stand in a field of the request.
func existingOf(field string, texts map[string]string) (e existingOptions, err error) {
	if e.network, err = referenceOf(field, texts, "neutron.net"); err != nil {
		return e, err
	}
	if text, ok := texts[optNetShared]; ok {
		shared, err := parseBool(text)
		if err != nil {
			return e, malformed(field+"."+optNetShared, "must be true or false, not %q", clip(text, 40))
		}
		e.shared = &shared
	}
	e.subnet, e.pool = map[bool]reference{}, map[bool]reference{}
	for _, of := range []struct {
		stem string
		v6   bool
		into map[bool]reference
	}{{optSubnet, false, e.subnet}, {optSubnet6, true, e.subnet}, {optPool, false, e.pool}, {optPool6, true, e.pool}} {
		named, err := referenceOf(field, texts, of.stem)
		if err != nil {
			return e, err
		}
		if named.given() {
			of.into[of.v6] = named
		}
	}
	return e, nil
}

// referenceOf reads what is named by id or by name; the id counts where both are.
func referenceOf(field string, texts map[string]string, stem string) (reference, error) {
	for _, ending := range []string{".uuid", ".name"} {
		text, ok := texts[stem+ending]
		if !ok {
			continue
		}
		bad := func(r rune) bool { return r < ' ' || r == 0x7f }
		if text == "" || len(text) > 255 || strings.ContainsFunc(text, bad) {
			return reference{}, malformed(field+"."+stem+ending, "must be 1 to 255 printable characters, not %q", clip(text, 100))
		}
		if ending == ".uuid" {
			if strings.ContainsAny(text, " ,/?#%&=") || len(text) > 64 {
				return reference{}, malformed(field+"."+stem+ending, "must be an id, not %q", clip(text, 100))
			}
			return reference{option: stem + ending, id: sdn.ID(text)}, nil
		}
		return reference{option: stem + ending, name: text}, nil
	}
	return reference{}, nil
}

// parseBool reads a truth value as kuryr-libnetwork does.
func parseBool(text string) (bool, error) {
	switch text = strings.ToLower(text); {
	case slices.Contains([]string{"yes", "on", "y"}, text):
		return true, nil
	case slices.Contains([]string{"no", "off", "n"}, text):
		return false, nil
	}
	return strconv.ParseBool(text)
}
