package raven

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// What a Service costs the API server and the SDN is bounded, whatever comes in what order: where all is there when Raven begins, an object that is made, its status, and one value for the SDN, and
// the same of one that comes later. Where endpoints come behind their Services, the SDN is told of each of the two at most, and a cache that is behind what Raven has written itself makes it no more.
func TestFirstLoadCosts(t *testing.T) {
	t.Parallel()
	const services = 30
	c := newServing(t, nil)
	service := func(i int) { c.service(fmt.Sprint("web", i), nil, fmt.Sprintf("10.96.1.%d", i)) }
	endpoints := func(i int) {
		c.slice(fmt.Sprint("web-", i), fmt.Sprint("web", i), 8080, fmt.Sprintf("10.128.0.%d", i+1))
	}
	for i := range services {
		endpoints(i)
		service(i)
	}
	c.start()
	spent := func(what string, n, told int, do func()) {
		t.Helper()
		calls, asked := maps.Clone(c.faults.calls), c.faults.asked["ApplyLoadBalancer"]
		do()
		c.settle()
		for verb, now := range c.faults.calls {
			least, most := 0, 0
			switch verb {
			case "create KuryrLoadBalancer":
				least, most = n, n
			case "status KuryrLoadBalancer": // the number of members has one of its own where it comes later
				least, most = n, told
			}
			if is := now - calls[verb]; strings.HasSuffix(verb, "LoadBalancer") && (is < least || is > most) {
				t.Errorf("%s: %d times %q, want from %d to %d", what, is, verb, least, most)
			}
		}
		if is := c.faults.asked["ApplyLoadBalancer"] - asked; is < n || is > told {
			t.Errorf("%s: the SDN was told %d load balancers, want from %d to %d", what, is, n, told)
		}
	}
	spent("the first load", services, services, func() {})
	spent("one more", 1, 1, func() {
		endpoints(services)
		service(services)
	})
	spent("endpoints behind their Services", services, 2*services, func() {
		for i := range services {
			service(100 + i)
		}
		c.take(4 * services) // until some of them are made, and not all
		for i := range services {
			endpoints(100 + i)
		}
	})
	c.wholeServices()
}
