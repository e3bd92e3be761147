//go:build linux

package bind

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

const (
	hostPrefix      = "tap" // Neutron's; its agents find ports by it
	containerPrefix = "t_c" // kuryr-libnetwork's
	retiredPrefix   = "dead"
	portAlias       = "kuryr:port:"
	retiredAlias    = "kuryr:dead:"
	maxAlias        = 255 // bytes (IFALIASZ less its end)
)

// Link groups (IFLA_GROUP) that tell our links from others' and living from dying. Any
// number will do that is not in use otherwise: these are "kury" and "kurx".
const (
	groupPort  uint32 = 0x6b757279
	groupDying uint32 = 0x6b757278
)

// HostName is the name of a port's host end: "tap" and the first 11 characters of the port's id.
func HostName(id sdn.ID) string { return hostPrefix + id.Short() }

// ContainerName is the name of a port's container end while it waits for an engine that
// moves and renames it: "t_c" and the first 11 characters of the port's id.
func ContainerName(id sdn.ID) string { return containerPrefix + id.Short() }

// Alias is the link alias (ifalias) of a port's host end: it holds the whole id, which
// the name cannot.
func Alias(id sdn.ID) string { return portAlias + string(id) }

// PortOf gives the id of the port whose host end carries this alias; false for any other
// alias, a retired link's among them.
func PortOf(alias string) (sdn.ID, bool) {
	id, ok := strings.CutPrefix(alias, portAlias)
	return sdn.ID(id), ok && id != ""
}

// retiredName is unique in a namespace, because the index is, and frees the port's own name
// for the next Plug.
func retiredName(index int32) string { return retiredPrefix + strconv.Itoa(int(index)) }

// checkName returns an error that IsInvalid for a name that the kernel would refuse
// (dev_valid_name in net/core/dev.c) or take for a template ("eth%d").
func checkName(noun, field, name string) error {
	switch {
	case name == "":
		return sdn.Invalid(noun, field, "an interface name must not be empty")
	case len(name) >= unix.IFNAMSIZ:
		return sdn.Invalid(noun, field, "interface name %q has %d bytes; at most %d fit", name, len(name), unix.IFNAMSIZ-1)
	case name == "." || name == ".." || name == "lo":
		return sdn.Invalid(noun, field, "%q cannot be the name of a port's interface", name)
	case strings.ContainsAny(name, "/:%") ||
		strings.ContainsFunc(
			name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) },
		):
		return sdn.Invalid(
			noun, field,
			"interface name %q holds a character that none may have ('/', ':', '%%', space or unprintable)",
			name,
		)
	}
	return nil
}
