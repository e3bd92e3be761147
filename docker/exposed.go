package docker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// maxExposed is how many ranges of exposed ports are remembered: an SDN has room for 50 tags on a port (Neutron).
const maxExposed = 32

// exposedTags are the tags that remember what a container exposes: "80/tcp", and neighbours as one range, "8000-8009/udp". Those
// beyond what an SDN has room for are left out.
func exposedTags(ports []api.ExposedPort) []string {
	ports = slices.Clone(ports)
	slices.SortFunc(ports, func(a, b api.ExposedPort) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	var tags []string
	for i := 0; i < len(ports) && len(tags) < maxExposed; {
		first, last := ports[i], ports[i].Port
		for i++; i < len(ports) && ports[i].Proto == first.Proto && ports[i].Port-last <= 1; i++ {
			last = ports[i].Port
		}
		tags = append(tags, identity.TagExposed+exposedRange(first.Port, last)+"/"+ipproto.Name(first.Proto))
	}
	return tags
}

// Exposed gives what the tags of a port remember that its container exposes, such as 80/tcp and 8000-8009/udp.
func Exposed(tags []string) []string { return identity.Values(tags, identity.TagExposed) }

func exposedRange(first, last uint16) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// exposes gives a port's tags with those of what Join tells, which knows of more exposed ports than CreateEndpoint, and whether
// that changes them. Where Join tells of none, nothing changes.
func exposes(port sdn.Port, ports []api.ExposedPort) (tags []string, changed bool) {
	wanted := exposedTags(ports)
	others := slices.DeleteFunc(slices.Clone(port.Tags), func(t string) bool { return strings.HasPrefix(t, identity.TagExposed) })
	if len(wanted) == 0 || len(others)+len(wanted) == len(port.Tags) && identity.HasAll(port.Tags, wanted) {
		return port.Tags, false
	}
	return append(others, wanted...), true
}
