package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// Tags that remember what an engine told and no field of the SDN has room for. They are written on our own objects only.
const (
	tagGateway  = "kuryr.docker.gateway="  // on a pool: the address the engine took for its gateway
	tagAux      = "kuryr.docker.aux="      // on a pool: an auxiliary address
	tagReleased = "kuryr.docker.released"  // on a pool: the engine has released it, it goes with its last subnet
	tagFreed    = "kuryr.docker.freed="    // on a port still in use: an address that the engine has released
	tagCreating = "kuryr.docker.creating"  // on a network without pools of ours: CreateNetwork has not come to its end
	tagDeleted  = "kuryr.docker.deleted"   // on a network: the engine has deleted it
	tagRouter   = "kuryr.docker.router="   // on a network: the shared router it is on
	tagExternal = "kuryr.docker.external=" // on a network: the external network that its own router has its gateway on
	tagInternal = "kuryr.docker.internal"  // on a network: it has no way out
	tagEngine   = "kuryr.docker.engine="   // on a network or pool: the engine that was seen to have it
	tagUsed     = "kuryr.docker.used"      // on a network: an endpoint was made on it before an engine was seen to have it

	// Of swarms.
	tagSwarm      = "kuryr.docker.swarm"       // on a network and its subnets: a manager allocated it
	tagAllocated  = "kuryr.docker.allocated"   // on a network: the manager has not freed it
	tagAllocating = "kuryr.docker.allocating=" // on a network: the manager on this host is not told of it yet
	tagNode       = "kuryr.docker.node="       // on a network: this host's engine has it
	tagLeaving    = "kuryr.docker.leaving="    // on a network: this host's engine has deleted it
	tagHeld       = "kuryr.docker.held="       // on a port: a manager has its address; in which of its lives it took it
	tagLetGo      = "kuryr.docker.let-go"      // on a pool: a manager that asked again for it has released it

	tagIDLower = "kuryr.net.uuid.lh:"  // kuryr-libnetwork's: the first 32 characters of the engine's id
	tagIDUpper = "kuryr.net.uuid.uh:"  // kuryr-libnetwork's: the characters after
	tagPort    = "compute:kuryr"       // kuryr-libnetwork's: a port made by Kuryr
	tagLent    = "kuryr.port.existing" // kuryr-libnetwork's: a port that its user made, while an endpoint has it

	tagPrefix = "kuryr.docker." // of all that are not kuryr-libnetwork's

	// Of ports that are lent.
	tagBorrower = "kuryr.docker.borrower=" // the installation whose endpoint has it
	tagSet      = "kuryr.docker.set="      // what has to be undone: setHost, setOwner
	tagMAC      = "kuryr.docker.mac="      // the MAC that it had
	// kuryr-libnetwork's, on a network that was there before: the first 12 characters of the engine's id.
	tagExisting = "kuryr.net.existing:"
	// kuryr-libnetwork's, on a subnet pool of the user's.
	tagExistingPool = "kuryr.subnetpool.existing"
)

// Tags of what options asked for.
const (
	tagBinding   = "kuryr.docker.host_binding="  // on a network and its ports: where ports are published that name no address of the host
	tagPublish   = "kuryr.docker.publish="       // on a network and its ports: how ports are published
	tagPublishAt = "kuryr.docker.publish_at="    // on a port: the floating IP that is to forward to it
	tagNoGateway = "kuryr.docker.gateway.none"   // on a network: its ranges have no gateway, and it has no router
	tagIfname    = "kuryr.docker.ifname="        // on a port: the name its interface is to have in the container
	tagGuarded   = "kuryr.docker.port_security=" // on a port: whether its user asked for it to be guarded
	tagExposed   = "kuryr.docker.exposed="       // on a port: what its container exposes, such as 80/tcp
	tagGroup     = "kuryr.docker.group="         // on a network: a security group of its endpoints, by name or id
	tagFloating  = "kuryr.docker.floating="      // on a port: the floating IP that its user asked for: auto, an address or an id
)

// maxTag is as long as a tag may be that every SDN is to keep: Neutron before release 19 takes no longer ones.
const maxTag = 60

// engineName is an engine's id as tags name it. Of the ids of older engines, which are longer than a tag has room for, it is the beginning and a digest.
func engineName(id string) string {
	const room = maxTag - len(tagEngine)
	if len(id) <= room {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	end := "-" + hex.EncodeToString(sum[:8])
	return id[:room-len(end)] + end
}

// idTags are the tags by which kuryr-libnetwork finds an object of the engine's.
func idTags(id string) []string {
	if len(id) <= 32 {
		return []string{tagIDLower + id}
	}
	return []string{tagIDLower + id[:32], tagIDUpper + id[32:min(len(id), 64)]}
}

// existingTag is the tag by which kuryr-libnetwork knows that a network was there before the engine's.
func existingTag(id string) string { return tagExisting + id[:min(12, len(id))] }

// idTag is the first of the tags that is nothing but an SDN's id, "" if none is: kuryr-libnetwork's way of saying that a subnet
// belongs to a pool, or a pool to a subnet.
func idTag(tags []string) sdn.ID {
	for _, id := range tagIDs(tags) {
		return id
	}
	return ""
}

// tagIDs are all of the tags that are nothing but an SDN's id.
func tagIDs(tags []string) []sdn.ID {
	var ids []sdn.ID
	for _, t := range tags {
		if uuid.Validate(t) == nil {
			ids = append(ids, sdn.ID(t))
		}
	}
	return ids
}

// tagValues gives what follows the prefix in each tag that has it.
func tagValues(tags []string, prefix string) []string {
	var values []string
	for _, t := range tags {
		if v, ok := strings.CutPrefix(t, prefix); ok {
			values = append(values, v)
		}
	}
	return values
}

// withTag adds a tag to a copy of tags and tells whether it was missing.
func withTag(tags []string, tag string) ([]string, bool) {
	if slices.Contains(tags, tag) {
		return tags, false
	}
	return append(slices.Clone(tags), tag), true
}

// hasAll tells whether all that are wanted are among tags.
func hasAll(tags, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(t string) bool { return !slices.Contains(tags, t) })
}

// optionTag is a tag that stores an option, if the option is given.
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

// networkOptionTags are the tags that store options of a network.
func networkOptionTags(n api.NetworkOptions) []string {
	tags := givenTags(
		optionTag{tagRouter + n.Router, n.Router != ""},
		optionTag{tagExternal + n.External, n.External != ""},
		optionTag{tagInternal, n.Internal},
		optionTag{tagNoGateway, n.NoGateway},
		optionTag{tagBinding + n.HostBinding.String(), n.HostBinding.IsValid()},
		optionTag{tagPublish + n.Publish, n.Publish != ""},
	)
	for _, g := range n.Groups {
		tags = append(tags, tagGroup+g)
	}
	return tags
}

// taggedOptions are the options that only tags store. Of other options, subnets tell.
var taggedOptions = []struct{ tag, option string }{
	{tagRouter, api.OptRouter}, {tagExternal, api.OptExternal}, {tagGroup, api.OptGroups},
	{tagIfname, api.OptIfname}, {tagGuarded, api.OptPortSecurity},
	{tagFloating, api.OptFloatingIP}, {tagPublishAt, api.OptFloatingIP},
	{tagPublish, api.OptPublish}, {tagBinding, api.OptHostBinding},
}

// checkStored refuses options whose tags an object lacks, because its SDN has no tags.
func checkStored(wanted, tags []string) error {
	var options []string
	for _, o := range taggedOptions {
		if !hasAll(tags, tagsWith(wanted, o.tag)) {
			options = append(options, o.option)
		}
	}
	if options == nil {
		return nil
	}
	return refuse("option %s: it is kept in tags, which this SDN does not have "+
		"(a Neutron has them with the extension standard-attr-tag)", strings.Join(options, " and "))
}

// endpointOptionTags are the tags that store options of an endpoint: Join does not have them, and
// some are undone when the port is detached.
func endpointOptionTags(e api.EndpointOptions) []string {
	security := e.NoPortSecurity
	byFloatingIP := e.Publish == api.PublishFloatingIP
	given := e.FloatingIP != "" && (!byFloatingIP || e.FloatingIP != api.FloatingAuto)
	return givenTags(
		optionTag{tagIfname + e.Ifname, e.Ifname != ""},
		optionTag{tagGuarded + strconv.FormatBool(security != nil && !*security), security != nil},
		optionTag{tagFloating + e.FloatingIP, given && !byFloatingIP},
		optionTag{tagPublishAt + e.FloatingIP, given && byFloatingIP},
		optionTag{tagPublish + e.Publish, e.Publish != ""},
	)
}
