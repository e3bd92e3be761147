package docker

import (
	"slices"
	"strings"
)

// Tags that remember what an engine told and no field of the SDN has room for. They are written on our own objects only.
const (
	tagGateway  = "kuryr.docker.gateway=" // on a pool: the address the engine took for its gateway
	tagAux      = "kuryr.docker.aux="     // on a pool: an auxiliary address
	tagReleased = "kuryr.docker.released" // on a pool: the engine has released it, it goes with its last subnet
	tagFreed    = "kuryr.docker.freed="   // on a port still in use: an address that the engine has released
	tagCreating = "kuryr.docker.creating" // on a network without pools of ours: CreateNetwork has not come to its end
	tagDeleted  = "kuryr.docker.deleted"  // on a network: the engine has deleted it
	tagRouter   = "kuryr.docker.router="  // on a network: the shared router it is on
	tagInternal = "kuryr.docker.internal" // on a network: it has no way out
	tagIDLower  = "kuryr.net.uuid.lh:"    // kuryr-libnetwork's: the first 32 characters of the engine's id
	tagIDUpper  = "kuryr.net.uuid.uh:"    // kuryr-libnetwork's: the characters after
	tagPort     = "compute:kuryr"         // kuryr-libnetwork's: a port made by Kuryr
)

// idTags are the tags by which kuryr-libnetwork finds an object of the engine's.
func idTags(id string) []string {
	if len(id) <= 32 {
		return []string{tagIDLower + id}
	}
	return []string{tagIDLower + id[:32], tagIDUpper + id[32:min(len(id), 64)]}
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
