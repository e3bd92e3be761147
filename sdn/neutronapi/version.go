package neutronapi

import "net/http"

// versions answers at the root, to everybody, which versions of the API there are.
func versions(w http.ResponseWriter, c *call) error {
	writeJSON(w, http.StatusOK, map[string]any{"versions": []any{map[string]any{
		"id": "v2.0", "status": "CURRENT", "links": []link{{"self", c.scheme() + "://" + c.Host + "/v2.0/"}},
	}}})
	return nil
}

// resources answers what is below /v2.0/, by Neutron's words.
func resources(w http.ResponseWriter, c *call) error {
	all := []any{}
	for _, r := range [][2]string{
		{"network", "networks"}, {"subnet", "subnets"}, {"subnetpool", "subnetpools"}, {"port", "ports"},
	} {
		all = append(all, map[string]any{"name": r[0], "collection": r[1], "links": []link{{"self", c.scheme() + "://" + c.Host + "/v2.0/" + r[1]}}})
	}
	writeJSON(w, http.StatusOK, map[string]any{"resources": all})
	return nil
}
