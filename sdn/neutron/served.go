package neutron

import (
	"context"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// kuryrAlias is the extension that Kuryr's own REST API lists and no Neutron has: its document tells the Capabilities of the provider that is served.
const kuryrAlias = "kuryr"

// askKuryr asks for the Capabilities of the provider that is served, nil where it is a Neutron that serves.
func askKuryr(ctx context.Context, c *client, aliases map[string]bool) (*sdn.Capabilities, error) {
	if !aliases[kuryrAlias] {
		return nil, nil
	}
	var answer struct {
		Extension struct {
			Capabilities *sdn.Capabilities `json:"capabilities"`
		} `json:"extension"`
	}
	if err := c.send(ctx, http.MethodGet, "/extensions/"+kuryrAlias, 0, nil, &answer); err != nil {
		return nil, err
	}
	return answer.Extension.Capabilities, nil
}

// served gives what is known of the provider behind Kuryr's REST API, nil where it is a Neutron that serves.
func (e *extensions) served() *sdn.Capabilities {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kuryr
}

// tagsAtCreate tells whether the body that makes an object may have its tags.
func (e *extensions) tagsAtCreate() bool {
	can := e.served()
	return can != nil && can.TagsAtCreate
}

// reservedAttribute is where Kuryr's API has a subnet's reserved addresses, which to a Neutron are holes in the allocation pools.
const reservedAttribute = "kuryr:reserved_addresses"

// keepsReserved tells whether a subnet's reserved addresses are kept as such.
func (e *extensions) keepsReserved() bool {
	can := e.served()
	return can != nil && can.KeepReserved
}

// hostAddresses tells whether floating IPs may be the host's own addresses, and of IPv6.
func (e *extensions) hostAddresses() (host, v6 bool) {
	can := e.served()
	return can != nil && can.HostAddresses, can != nil && can.FloatingIPv6
}

// servedBulk is how many ports Kuryr's API is asked for at once at the most: its bodies are bounded, and a port's may be of some kilobytes.
const servedBulk = 250

// bulk is how many ports one request may ask for at the most.
func (e *extensions) bulk() int {
	if can := e.served(); can != nil {
		return max(min(can.MaxBulk, servedBulk), 1)
	}
	return bulkSize
}

// throughREST is what of a provider's Capabilities is left when it is served by Kuryr's REST API and asked by this provider.
func throughREST(can sdn.Capabilities) sdn.Capabilities {
	can.WatchPorts = false // this one asks
	can.Ordered = false    // a search in several requests puts their answers one after another
	can.LoadBalancer = balancersThroughREST(can.LoadBalancer)
	can.MaxBulk = min(can.MaxBulk, servedBulk)
	return can
}

// balancersThroughREST is the same of its load balancers: neither does this provider move pools, nor can Octavia's API say that a family of VIPs comes or goes, or whose a
// listener is.
func balancersThroughREST(can sdn.LoadBalancerCapabilities) sdn.LoadBalancerCapabilities {
	can.FreePools, can.ChangeFamilies, can.PartTags = false, false, false
	return can
}
