package neutronapi

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// LoadBalancing is the path below which the API of load balancers has an address of its own, for a catalogue of services: some of its clients ask for quotas where
// Neutron has its own. Without it the API is served beside Neutron's, below /v2.0/lbaas and /v2/lbaas.
const LoadBalancing = "/load-balancer"

// The newest version of Octavia's API that is served: that of VIPs of both families, and where VIPs have security groups that of these.
const newestVersion, groupsVersion = 26, 29

// octavia makes the server of the API of load balancers, Octavia v2 (https://docs.openstack.org/api-ref/load-balancer/v2/). It is there while the provider has any.
func (s *server) octavia() *server {
	all := *s
	all.mux, all.faults, all.nouns = http.NewServeMux(), true, "/"
	all.mounts = []string{"/v2.0/lbaas", "/v2/lbaas", LoadBalancing + "/v2.0/lbaas", LoadBalancing + "/v2/lbaas"}
	all.serve(all.loadBalancers().resource())
	all.serve(all.listeners().resource())
	all.serve(all.pools().resource())
	all.serve(all.healthMonitors().resource())
	all.serveMembers()
	all.serveBalancerStatus()
	all.handle(applyPath, map[string]handler{http.MethodPut: all.applyBalancer})
	all.serveBalancerQuotas()
	all.serveOctaviasOwn()

	below := all
	below.mounts = []string{LoadBalancing + "/v2.0", LoadBalancing + "/v2"}
	below.serveBalancerQuotas()
	below.serveAmphorae()

	for _, path := range []string{LoadBalancing, LoadBalancing + "/{$}"} {
		all.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { balancerVersions(w, &call{Request: r, server: &all}) })
	}
	all.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { all.answer(w, r, noPath) })

	gate := all
	gate.mux = http.NewServeMux()
	gate.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if len(s.p.Capabilities().LoadBalancer.Protocols) == 0 {
			gate.answer(w, r, noPath)
			return
		}
		all.mux.ServeHTTP(w, r)
	})
	return &gate
}

// ofOctavia tells whether a path is of the API of load balancers.
func ofOctavia(path string) bool {
	return slices.ContainsFunc([]string{LoadBalancing, "/v2.0/lbaas", "/v2/lbaas"}, func(at string) bool { return path == at || strings.HasPrefix(path, at+"/") })
}

// balancerVersions answers, to everybody, which versions there are: clients look in it for what they may ask for.
func balancerVersions(w http.ResponseWriter, c *call) {
	newest := newestVersion
	if c.server.p.Capabilities().LoadBalancer.Groups {
		newest = groupsVersion
	}
	self := []link{{"self", c.scheme() + "://" + c.Host + LoadBalancing + "/v2"}}
	versions := make([]any, newest+1)
	for minor := range versions {
		status := "SUPPORTED"
		if minor == newest {
			status = "CURRENT"
		}
		versions[minor] = map[string]any{"id": "v2." + strconv.Itoa(minor), "status": status, "links": self}
	}
	writeJSON(w, http.StatusOK, map[string]any{"versions": versions})
}

// splitSort reads sort=name:asc,id:desc, as Octavia has it. Where no direction is said it is asc.
func splitSort(q url.Values) {
	for one := range strings.SplitSeq(strings.Join(q["sort"], ","), ",") {
		key, dir, _ := strings.Cut(one, ":")
		if key == "" {
			continue
		}
		q.Add("sort_key", key)
		q.Add("sort_dir", cmp.Or(dir, "asc"))
	}
	q.Del("sort")
}
