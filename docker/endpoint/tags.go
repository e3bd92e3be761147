package endpoint

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/internal/sortslice"
)

// tags are those of an endpoint's port.
func (s *Service) tags(id string, e Spec) []string {
	tags := append(identity.IDTags(id), identity.TagPort, s.Names.HostTag())
	if e.Binding.IsValid() {
		tags = append(tags, identity.TagBinding+e.Binding.String())
	}
	return slices.Concat(tags, identity.EndpointOptionTags(e.options()), exposedTags(e.Exposed))
}

// maxExposed is how many ranges of exposed ports tags have: Neutron has 50 tags on a port.
const maxExposed = 32

// exposedTags are the tags of exposed ports. Those beyond maxExposed are left out.
func exposedTags(ports []api.ExposedPort) []string {
	var tags []string
	for _, r := range exposedRanges(ports) {
		if len(tags) < maxExposed {
			tags = append(tags, identity.TagExposed+r.String())
		}
	}
	return tags
}

// exposedRange is neighbouring exposed ports of a protocol.
type exposedRange struct {
	first api.ExposedPort
	last  uint16
}

// String returns a text such as 80/tcp or 8000-8009/udp.
func (r exposedRange) String() string {
	name := ipproto.Name(r.first.Proto)
	if r.first.Port == r.last {
		return fmt.Sprintf("%d/%s", r.last, name)
	}
	return fmt.Sprintf("%d-%d/%s", r.first.Port, r.last, name)
}

func exposedRanges(ports []api.ExposedPort) []exposedRange {
	ports = slices.Clone(ports)
	sortslice.Func(ports, func(a, b api.ExposedPort) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	var ranges []exposedRange
	for _, p := range ports {
		n := len(ranges) - 1
		if n >= 0 && ranges[n].first.Proto == p.Proto && p.Port-ranges[n].last <= 1 {
			ranges[n].last = p.Port
			continue
		}
		ranges = append(ranges, exposedRange{p, p.Port})
	}
	return ranges
}

// Exposed returns the exposed ports in the tags of a port, such as 80/tcp and 8000-8009/udp.
func Exposed(tags []string) []string { return identity.Values(tags, identity.TagExposed) }
