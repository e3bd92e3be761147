package neutronapi

import (
	"net/http"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// extension is a part of Neutron's API that a client looks for before it uses it.
type extension struct {
	alias, name, description, updated string
	served                            func(sdn.Capabilities) bool // nil: always
}

// Extension is one in Neutron's JSON.
type Extension struct {
	Alias       string     `json:"alias"`
	Name        string     `json:"name"`
	Description string     `json:"description"`
	Updated     string     `json:"updated"`
	Links       []struct{} `json:"links"`
	// Capabilities are those of the SDN behind the API, in the extension "kuryr" alone.
	Capabilities *sdn.Capabilities `json:"capabilities,omitempty"`
}

// Kuryr is the alias of the extension that tells what no other does: the SDN's capabilities.
const Kuryr = "kuryr"

// sharing are the extensions that only a provider with AccessPolicies has.
var sharing = []string{"rbac-policies", "rbac-subnetpool", "rbac-security-groups", "rbac-address-group",
	"rbac-address-scope"}

// addressScope is the alias of the extension that only a provider with AddressScopes has.
const addressScope = "address-scope"

// prefixOperations is the alias of the extension that only a provider with PrefixRemoval has.
const prefixOperations = "subnetpool-prefix-ops"

// core are the extensions of what all nouns have in common, and of networks, subnets, subnet pools and ports. An alias stands here only if all of what it
// promises is kept; the tests ask for it.
var core = []extension{
	{Kuryr, "Kuryr", "Capabilities of the SDN that Kuryr serves.", "2026-11-22T00:00:00-00:00", nil},
	{"standard-attr-description", "standard-attr-description", "Objects have descriptions.", "2016-02-10T10:00:00-00:00", nil},
	{"standard-attr-revisions", "Resource revision numbers", "Objects have a number that changes with them.", "2016-04-11T10:00:00-00:00", nil},
	{"standard-attr-timestamp", "Resource timestamps", "Objects tell when they were made and changed.", "2016-09-12T10:00:00-00:00", nil},
	{"standard-attr-tag", "Tag support for resources with standard attribute", "Objects have tags.", "2017-01-01T00:00:00-00:00", sdn.Capabilities.HasTags},
	{"tag-creation", "Tag creation", "Several tags are added by one request.", "2024-10-11T00:00:00-00:00", sdn.Capabilities.HasTags},
	{"tag-ports-during-bulk-creation", "Tag Ports During Bulk Creation", "Ports have their tags from the beginning.", "2019-12-29T19:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.TagsAtCreate && c.HasTags() }},
	{"revision-if-match", "If-Match constraints based on revision_number", "A change can be made to depend on the revision.", "2016-12-11T00:00:00-00:00", nil},
	{"pagination", "Pagination support", "Lists are read page by page.", "2016-06-12T00:00:00-00:00", nil},
	{"sorting", "Sorting support", "Lists are sorted.", "2016-06-12T00:00:00-00:00", nil},
	{"project-id", "project_id field enabled", "Objects have a project_id.", "2016-09-09T09:09:09-09:09", nil},
	{"filter-validation", "Filter parameters validation", "A filter by what is no attribute is refused.", "2018-07-04T10:00:00-00:00", nil},
	{"empty-string-filtering", "Empty String Filtering Extension", "A filter may ask for the empty text.", "2018-05-01T10:00:00-00:00", nil},
	{"ip-substring-filtering", "IP address substring filtering", "Ports are found by a part of an address.", "2017-11-28T09:00:00-00:00", nil},
	{"net-mtu", "Network MTU", "Networks have an MTU.", "2015-03-25T10:00:00-00:00", nil},
	{"net-mtu-writable", "Network MTU (writable)", "A network's MTU can be set.", "2017-07-12T00:00:00-00:00", nil},
	{"external-net", "Neutron external network", "Networks can be external.", "2013-01-14T10:00:00-00:00", nil},
	{"provider", "Provider Network", "Networks have a place on a physical one.", "2012-09-07T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.Segments }},
	{"subnet_allocation", "Subnet Allocation", "Subnets are cut from subnet pools.", "2015-03-30T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.SubnetPools }},
	{"default-subnetpools", "Default Subnetpools", "A subnet is cut from the default subnet pool.",
		"2016-02-18T18:00:00-00:00", func(c sdn.Capabilities) bool { return c.SubnetPools }},
	{"subnet-service-types", "Subnet service types", "A subnet is for ports of some device owners.",
		"2016-03-15T18:00:00-00:00", func(c sdn.Capabilities) bool { return c.ServiceTypes }},
	{prefixOperations, "Subnet Pool Prefix Operations", "Prefixes are added and removed one by one.",
		"2019-02-08T10:00:00-00:00", nil},
	{"rbac-policies", "RBAC Policies", "Projects are given access to networks and QoS policies.",
		"2015-06-17T12:15:12-30:00", nil},
	{"rbac-subnetpool", "Add subnetpool type to RBAC", "Projects are given access to subnet pools.",
		"2020-02-20T00:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.SubnetPools }},
	{"rbac-security-groups", "Add security_group type to network RBAC", "Projects are given access to security groups.",
		"2018-05-04T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.SecurityGroups }},
	{"rbac-address-group", "Add address_group type to RBAC", "Projects are given access to address groups.",
		"2021-01-31T00:00:00-00:00", func(c sdn.Capabilities) bool { return c.AddressGroups }},
	{"qos-default", "QoS default policy", "A project's new networks have its default policy.",
		"2017-04-10T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.QoS }},
	{addressScope, "Address scope", "Subnet pools are in address scopes.", "2015-07-26T10:00:00-00:00", nil},
	{"rbac-address-scope", "Add address_scope type to RBAC", "Projects are given access to address scopes.",
		"2018-08-12T10:00:00-00:00", nil},
	{"port-security", "Port Security", "The guard of a port can be switched off.", "2012-07-23T10:00:00-00:00", nil},
	{"allowed-address-pairs", "Allowed Address Pairs", "A port may send as others.", "2013-07-23T10:00:00-00:00", nil},
	{"binding", "Port Binding", "A port tells how it is to be plugged.", "2014-02-03T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.HostBinding }},
	{"port-trusted-vif", "Port Trusted VIF", "Whether a port has a trusted interface.", "2024-07-09T10:00:00-00:00",
		func(c sdn.Capabilities) bool { return c.HostBinding }},
	{"quotas", "Quota management support", "Projects have quotas.", "2012-07-29T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.Quotas }},
	{"quota_details", "Quota details management support", "Quotas tell what is used.", "2017-02-10T10:00:00-00:00", func(c sdn.Capabilities) bool { return c.Quotas }},
}

// extensions are those that the provider makes true.
func (s *server) extensions() []Extension {
	can := s.p.Capabilities()
	all := []Extension{}
	for _, x := range slices.Concat(core, parts) {
		if x.served != nil && !x.served(can) {
			continue
		}
		if _, removes := s.p.(sdn.PrefixRemoval); x.alias == prefixOperations && !removes {
			continue
		}
		if _, scopes := s.p.(sdn.AddressScopes); x.alias == addressScope && !scopes {
			continue
		}
		if _, shares := s.p.(sdn.AccessPolicies); slices.Contains(sharing, x.alias) && !shares {
			continue
		}
		shown := Extension{Alias: x.alias, Name: x.name, Description: x.description, Updated: x.updated, Links: []struct{}{}}
		if x.alias == Kuryr {
			can.MaxTags = mostTags(can)
			shown.Capabilities = &can
		}
		all = append(all, shown)
	}
	return all
}

func (s *server) listExtensions(w http.ResponseWriter, c *call) error {
	view := view{fields: filled(c.URL.Query()["fields"])}
	out := []any{}
	for _, x := range s.extensions() {
		out = append(out, view.of(x))
	}
	writeJSON(w, http.StatusOK, map[string]any{"extensions": out})
	return nil
}

func (s *server) showExtension(w http.ResponseWriter, c *call) error {
	alias := c.PathValue("alias")
	for _, x := range s.extensions() {
		if x.Alias == alias {
			writeJSON(w, http.StatusOK, map[string]any{"extension": x})
			return nil
		}
	}
	return refuse(http.StatusNotFound, "HTTPNotFound", "Extension with alias %s does not exist", alias)
}
