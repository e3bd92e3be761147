package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// TagPrefix begins the tags of Kuryr.
const TagPrefix = "kuryr.docker."

// TagHost is the tag of a host's objects, by which it lists them.
const TagHost = "kuryr.docker.host="

// Tags that earlier versions keep state in. They are written on Kuryr's own objects only.
const (
	// Of a pool.
	TagGateway  = "kuryr.docker.gateway=" // the address that the engine took as its gateway
	TagAux      = "kuryr.docker.aux="     // an auxiliary address
	TagReleased = "kuryr.docker.released" // the engine released it; its last subnet deletes it

	// Of a port.
	TagFreed = "kuryr.docker.freed=" // an address that the engine released while others are in use

	// Of a network.
	TagCreating = "kuryr.docker.creating"  // CreateNetwork is not complete; it has no pools of ours
	TagDeleted  = "kuryr.docker.deleted"   // the engine deleted it
	TagRouter   = "kuryr.docker.router="   // its shared router
	TagExternal = "kuryr.docker.external=" // the external network of its own router
	TagInternal = "kuryr.docker.internal"  // it has no router and no gateway
	TagEngine   = "kuryr.docker.engine="   // the engine that listed it; also of a pool
	TagUsed     = "kuryr.docker.used"      // an endpoint was made on it before an engine listed it
)

// Tags of swarms.
const (
	// Of a network.
	TagSwarm      = "kuryr.docker.swarm"       // a manager allocated it; also of its subnets
	TagAllocated  = "kuryr.docker.allocated"   // the manager has not freed it
	TagAllocating = "kuryr.docker.allocating=" // the manager on this host has no answer yet
	TagNode       = "kuryr.docker.node="       // this host's engine has it
	TagLeaving    = "kuryr.docker.leaving="    // this host's engine deleted it

	TagHeld  = "kuryr.docker.held="  // of a port: a manager's life, in which it took the address
	TagLetGo = "kuryr.docker.let-go" // of a pool: a manager that asked for it again released it
)

// Tags of kuryr-libnetwork.
const (
	TagIDLower = "kuryr.net.uuid.lh:" // the first 32 characters of the engine's id
	TagIDUpper = "kuryr.net.uuid.uh:" // the characters after them
	TagPort    = "compute:kuryr"      // of a port that Kuryr made
	// TagExistingPort is on an existing port while an endpoint has it.
	TagExistingPort = "kuryr.port.existing"
	// TagExisting is on an existing network, with the first 12 characters of the engine's id.
	TagExisting = "kuryr.net.existing:"
	// TagExistingPool is on an existing subnet pool that an engine uses.
	TagExistingPool = "kuryr.subnetpool.existing"
)

// Tags of an existing port while an endpoint has it.
const (
	TagBorrower = "kuryr.docker.borrower=" // the installation whose endpoint has it
	TagSet      = "kuryr.docker.set="      // what is undone when it is detached: SetHost, SetOwner
	TagMAC      = "kuryr.docker.mac="      // its MAC before
)

// The values of TagSet.
const (
	SetHost  = "host"
	SetOwner = "owner"
)

// Tags that store options.
const (
	TagBinding   = "kuryr.docker.host_binding="  // of a network and its ports: api.OptHostBinding
	TagPublish   = "kuryr.docker.publish="       // of a network and its ports: api.OptPublish
	TagPublishAt = "kuryr.docker.publish_at="    // of a port: the floating IP that forwards to it
	TagNoGateway = "kuryr.docker.gateway.none"   // of a network: api.OptGateway
	TagIfname    = "kuryr.docker.ifname="        // of a port: api.OptIfname
	TagGuarded   = "kuryr.docker.port_security=" // of a port: api.OptPortSecurity, true or false
	TagExposed   = "kuryr.docker.exposed="       // of a port: exposed ports, such as 80/tcp
	TagGroup     = "kuryr.docker.group="         // of a network: a security group, by name or id
	TagFloating  = "kuryr.docker.floating="      // of a port: api.OptFloatingIP
)

// MaxTag is the length of the longest tag that every SDN keeps: that of Neutron before release 19.
const MaxTag = 60

// EngineName returns an engine's id as TagEngine has it. The longer ids of older engines become
// their beginning and a digest.
func EngineName(id string) string {
	const room = MaxTag - len(TagEngine)
	if len(id) <= room {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	end := "-" + hex.EncodeToString(sum[:8])
	return id[:room-len(end)] + end
}

// IDTags returns the tags by which kuryr-libnetwork finds an object of the engine's.
func IDTags(id string) []string {
	if len(id) <= 32 {
		return []string{TagIDLower + id}
	}
	return []string{TagIDLower + id[:32], TagIDUpper + id[32:min(len(id), 64)]}
}

// HasID reports whether tags have the engine's id. A short id is not the beginning of a longer one.
func HasID(tags []string, id string) bool {
	return HasAll(tags, IDTags(id)) && (len(id) > 32 || len(Values(tags, TagIDUpper)) == 0)
}

// TaggedID returns the engine's id in tags, "" if they have none.
func TaggedID(tags []string) string {
	lower, upper := Values(tags, TagIDLower), Values(tags, TagIDUpper)
	return strings.Join(append(lower[:min(1, len(lower))], upper[:min(1, len(upper))]...), "")
}

// ExistingTag returns the tag of an existing network that is the engine's network id.
func ExistingTag(id string) string { return TagExisting + id[:min(12, len(id))] }

// IDs returns the tags that are an SDN's id. By these kuryr-libnetwork relates subnets and pools.
func IDs(tags []string) []sdn.ID {
	var ids []sdn.ID
	for _, t := range tags {
		if uuid.Validate(t) == nil {
			ids = append(ids, sdn.ID(t))
		}
	}
	return ids
}

// Values returns what follows the prefix in each tag that has it.
func Values(tags []string, prefix string) []string {
	var values []string
	for _, t := range tags {
		if v, ok := strings.CutPrefix(t, prefix); ok {
			values = append(values, v)
		}
	}
	return values
}

// WithPrefix returns the tags that have the prefix.
func WithPrefix(tags []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return !strings.HasPrefix(t, prefix) })
}

// With returns tags and the tag, and whether it was missing.
func With(tags []string, tag string) ([]string, bool) {
	if slices.Contains(tags, tag) {
		return tags, false
	}
	return append(slices.Clone(tags), tag), true
}

// WithAll returns tags and those of more that they lack.
func WithAll(tags []string, more ...string) []string {
	for _, t := range more {
		tags, _ = With(tags, t)
	}
	return tags
}

// Without returns tags but for some.
func Without(tags []string, gone ...string) []string {
	return slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return slices.Contains(gone, t) })
}

// HasAll reports whether tags have all that are wanted.
func HasAll(tags, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(t string) bool { return !slices.Contains(tags, t) })
}

// UserTags returns the tags of an existing port that are its user's.
func UserTags(tags []string) []string {
	return slices.DeleteFunc(slices.Clone(tags), func(t string) bool {
		return t == TagExistingPort || strings.HasPrefix(t, TagPrefix) ||
			strings.HasPrefix(t, TagIDLower) || strings.HasPrefix(t, TagIDUpper)
	})
}

type optionTag struct {
	tag   string
	given bool
}

func givenTags(list ...optionTag) (tags []string) {
	for _, t := range list {
		if t.given {
			tags = append(tags, t.tag)
		}
	}
	return tags
}

// NetworkOptionTags returns the tags that store options of a network.
func NetworkOptionTags(n api.NetworkOptions) []string {
	tags := givenTags(
		optionTag{TagRouter + n.Router, n.Router != ""},
		optionTag{TagExternal + n.External, n.External != ""},
		optionTag{TagInternal, n.Internal},
		optionTag{TagNoGateway, n.NoGateway},
		optionTag{TagBinding + n.HostBinding.String(), n.HostBinding.IsValid()},
		optionTag{TagPublish + n.Publish, n.Publish != ""},
	)
	for _, g := range n.Groups {
		tags = append(tags, TagGroup+g)
	}
	return tags
}

// NetworkOptions returns the options that the tags of a network store.
func NetworkOptions(tags []string) (n api.NetworkOptions) {
	first := func(prefix string) string {
		for _, v := range Values(tags, prefix) {
			return v
		}
		return ""
	}
	n.Router, n.External, n.Publish = first(TagRouter), first(TagExternal), first(TagPublish)
	n.Internal, n.NoGateway = slices.Contains(tags, TagInternal), slices.Contains(tags, TagNoGateway)
	n.HostBinding, _ = netip.ParseAddr(first(TagBinding))
	n.Groups = Values(tags, TagGroup)
	return n
}

// EndpointOptionTags returns the tags that store options of an endpoint: Join does not have them,
// and some are undone when the port is detached.
func EndpointOptionTags(e api.EndpointOptions) []string {
	security := e.NoPortSecurity
	byFloatingIP := e.Publish == api.PublishFloatingIP
	given := e.FloatingIP != "" && (!byFloatingIP || e.FloatingIP != api.FloatingAuto)
	return givenTags(
		optionTag{TagIfname + e.Ifname, e.Ifname != ""},
		optionTag{TagGuarded + strconv.FormatBool(security != nil && !*security), security != nil},
		optionTag{TagFloating + e.FloatingIP, given && !byFloatingIP},
		optionTag{TagPublishAt + e.FloatingIP, given && byFloatingIP},
		optionTag{TagPublish + e.Publish, e.Publish != ""},
	)
}

// storedOptions are the options that only tags store. Subnets have the others.
var storedOptions = []struct{ tag, option string }{
	{TagRouter, api.OptRouter}, {TagExternal, api.OptExternal}, {TagGroup, api.OptGroups},
	{TagIfname, api.OptIfname}, {TagGuarded, api.OptPortSecurity},
	{TagFloating, api.OptFloatingIP}, {TagPublishAt, api.OptFloatingIP},
	{TagPublish, api.OptPublish}, {TagBinding, api.OptHostBinding},
}

// CheckStored refuses options whose tags an object lacks, because its SDN has no tags.
func CheckStored(wanted, tags []string) error {
	var options []string
	for _, o := range storedOptions {
		if !HasAll(tags, WithPrefix(wanted, o.tag)) {
			options = append(options, o.option)
		}
	}
	if options == nil {
		return nil
	}
	return api.Refuse("option %s: it is kept in tags, which this SDN does not have "+
		"(a Neutron has them with the extension standard-attr-tag)", strings.Join(options, " and "))
}
