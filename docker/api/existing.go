package api

import (
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// The options of kuryr-libnetwork that name existing objects of the SDN, in -o or --ipam-opt. Each
// Stem is followed by .uuid or .name.
const (
	OptNetUUID   = "neutron.net.uuid"
	OptNetName   = "neutron.net.name"
	OptNetShared = "neutron.net.shared"

	StemSubnet  = "neutron.subnet"
	StemSubnet6 = "neutron.subnet.v6"
	StemPool    = "neutron.pool"
	StemPool6   = "neutron.pool.v6"
)

// ExistingOptions are the keys of all options in Existing.
var ExistingOptions = []string{
	OptNetUUID, OptNetName, OptNetShared,
	StemSubnet + ".uuid", StemSubnet + ".name", StemSubnet6 + ".uuid", StemSubnet6 + ".name",
	StemPool + ".uuid", StemPool + ".name", StemPool6 + ".uuid", StemPool6 + ".name",
}

// Existing are the existing objects of the SDN that a network uses. The zero value uses none.
type Existing struct {
	// Network is OptNetUUID or OptNetName.
	Network Reference
	// Shared is OptNetShared: whether Network must be shared, and whether a new network is shared.
	// Besides the forms of strconv.ParseBool it is yes, on, y, no, off or n. nil: either.
	Shared *bool
	// Subnet and Pool are those of each Stem, by whether it is of IPv6.
	Subnet, Pool map[bool]Reference
}

// Given reports whether the network itself is an existing one.
func (e Existing) Given() bool { return e.Network.Given() || len(e.Subnet) > 0 }

// Reference names an object of the SDN by its id or its name. The zero value names none.
type Reference struct {
	Option string // the key of the option
	ID     sdn.ID // 1 to 64 printable characters, none of them " ,/?#%&="; wins over Name
	Name   string // 1 to 255 printable characters
}

// Only returns the one object that has the name of a reference. Otherwise it is refused.
func Only[T any](found []T, named Reference, noun string) (one T, _ error) {
	switch len(found) {
	case 0:
		return one, Refuse("option %s: there is no %s %s", named.Option, noun, Clip(named.Name, 100))
	case 1:
		return found[0], nil
	}
	return one, Refuse("option %s: %d %ss are named %s: name it by its id",
		named.Option, len(found), noun, Clip(named.Name, 100))
}

// Given reports whether r names an object.
func (r Reference) Given() bool { return r.Option != "" }

func (d *decoder) existing(field string, texts map[string]string) (e Existing) {
	e.Network = d.reference(field, texts, "neutron.net")
	if text, ok := texts[OptNetShared]; ok {
		shared, err := parseBool(text)
		d.check(err == nil, field+"."+OptNetShared, "must be true or false, not %q", Clip(text, 40))
		e.Shared = &shared
	}
	e.Subnet, e.Pool = d.references(field, texts, StemSubnet), d.references(field, texts, StemPool)
	return e
}

func (d *decoder) references(
	field string, texts map[string]string, stem string,
) map[bool]Reference {
	list := map[bool]Reference{}
	for _, v6 := range []bool{false, true} {
		if v6 {
			stem += ".v6"
		}
		if r := d.reference(field, texts, stem); r.Given() {
			list[v6] = r
		}
	}
	return list
}

func (d *decoder) reference(field string, texts map[string]string, stem string) Reference {
	for _, option := range []string{stem + ".uuid", stem + ".name"} {
		text, ok := texts[option]
		if !ok {
			continue
		}
		field := field + "." + option
		d.check(isText(text), field, "must be 1 to 255 printable characters, not %q", Clip(text, 100))
		if option == stem+".name" {
			return Reference{Option: option, Name: text}
		}
		d.check(len(text) <= 64 && !strings.ContainsAny(text, " ,/?#%&="), field,
			"must be an id, not %q", Clip(text, 100))
		return Reference{Option: option, ID: sdn.ID(text)}
	}
	return Reference{}
}

// parseBool parses a boolean as kuryr-libnetwork does.
func parseBool(text string) (bool, error) {
	switch text = strings.ToLower(text); text {
	case "yes", "on", "y":
		return true, nil
	case "no", "off", "n":
		return false, nil
	}
	return strconv.ParseBool(text)
}
