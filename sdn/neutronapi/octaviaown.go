package neutronapi

import (
	"encoding/json"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// octaviasOwn are collections of Octavia's that there is never anything in here, by path, each with its members' and its own name in bodies.
var octaviasOwn = map[string][2]string{
	"/flavors": {"flavor", "flavors"}, "/flavorprofiles": {"flavorprofile", "flavorprofiles"}, "/availabilityzones": {"availability_zone", "availability_zones"},
	"/availabilityzoneprofiles": {"availability_zone_profile", "availability_zone_profiles"}, "/l7policies": {"l7policy", "l7policies"},
}

// providerAttributes are those of the only provider of load balancers.
var providerAttributes = []field{
	{name: "name", show: func(any) any { return backendName("") }},
	{name: "description", show: func(any) any { return "The SDN's own load balancers." }},
}

// serveOctaviasOwn adds what Octavia has for its operators and for HTTP: clients look through it, and find nothing.
func (s *server) serveOctaviasOwn() {
	for path, names := range octaviasOwn {
		s.serveEmpty(path, names)
	}
	s.read("/providers", func(w http.ResponseWriter, c *call) error {
		shown := appendObject(nil, providerAttributes, nil, c.view())
		writeJSON(w, http.StatusOK, map[string]any{"providers": []any{json.RawMessage(shown)}})
		return nil
	})
	for path, name := range map[string]string{"flavor_capabilities": "flavor_capabilities", "availability_zone_capabilities": "availability_zone_capabilities"} {
		s.read("/providers/{provider}/"+path, func(w http.ResponseWriter, c *call) error {
			if err := c.adminsOnly("get_" + name); err != nil {
				return err
			}
			if provider := c.PathValue("provider"); provider != backendName("") {
				return refuse(http.StatusBadRequest, "ProviderNotFound", "Provider '%s' was not found.", provider)
			}
			writeJSON(w, http.StatusOK, map[string]any{name: []any{}})
			return nil
		})
	}
}

// serveAmphorae adds Octavia's machines: there are none.
func (s *server) serveAmphorae() {
	s.serveEmpty("/octavia/amphorae", [2]string{"amphora", "amphorae"})
}

// serveEmpty adds a collection of nothing, into which nothing can be put.
func (s *server) serveEmpty(path string, names [2]string) {
	s.handle(path, map[string]handler{
		http.MethodGet: func(w http.ResponseWriter, _ *call) error {
			writeJSON(w, http.StatusOK, map[string]any{names[1]: []any{}})
			return nil
		},
		http.MethodPost: func(http.ResponseWriter, *call) error {
			return sdn.Unsupported(names[0], "there are none of them here")
		},
	})
	s.read(path+"/{id}", func(_ http.ResponseWriter, c *call) error { return sdn.NotFound(names[0], c.PathValue("id")) })
}
