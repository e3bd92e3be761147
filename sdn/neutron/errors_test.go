package neutron

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Finding 6: statuses mislead. These are Neutron's answers, as release 21 gives them.
func TestFinding06ErrorTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status            int
		kind, message     string
		path              string
		want              sdn.Kind
		reason            sdn.Reason
		field, noun, text string
	}{
		{500, "SubnetAllocationError", "Failed to allocate subnet: Insufficient prefix space to allocate subnet size /24.", "/subnets", sdn.KindExhausted, sdn.NoPrefixes, "", "subnet", "Insufficient prefix space"},
		{400, "SubnetPoolDeleteError", "Unable to delete subnet pool: Subnet pool has existing allocations.", "/subnetpools/x", sdn.KindConflict, sdn.InUse, "", "subnet pool", ""},
		{400, "InvalidInput", "Invalid input for operation: Requested subnet with cidr: 10.2.0.0/24 for network: n overlaps with another subnet.", "/subnets", sdn.KindConflict, sdn.Exists, "cidr", "subnet", "overlaps"},
		{400, "InvalidInput", "Invalid input for operation: Requested MTU is too big, maximum is 1442.", "/networks", sdn.KindInvalid, "", "mtu", "network", "maximum is 1442"},
		{400, "HTTPBadRequest", "Invalid input for gateway_ip. Reason: 'x' is not a valid IP address.", "/subnets", sdn.KindInvalid, "", "gateway", "subnet", ""},
		{400, "HTTPBadRequest", "Attribute 'tags' not allowed in POST", "/networks", sdn.KindUnsupported, "", "tags", "network", ""},
		{409, "NetworkInUse", "Unable to complete operation on network n. There are one or more ports still in use on the network.", "/networks/n", sdn.KindConflict, sdn.InUse, "", "network", ""},
		{409, "SubnetInUse", "Unable to complete operation on subnet s: One or more ports have an IP allocation from this subnet.", "/subnets/s", sdn.KindConflict, sdn.InUse, "", "subnet", ""},
		{409, "GatewayIpInUse", "Current gateway ip 10.0.0.1 already in use by port p. Unable to update.", "/subnets/s", sdn.KindConflict, sdn.InUse, "", "subnet", ""},
		{409, "OverQuota", "Quota exceeded for resources: ['network'].", "/networks", sdn.KindExhausted, sdn.NoQuota, "", "network", ""},
		{409, "IpAddressGenerationFailure", "No more IP addresses available on network n.", "/ports", sdn.KindExhausted, sdn.NoAddresses, "", "port", ""},
		{409, "IpAddressAlreadyAllocated", "IP address 10.0.0.5 already allocated in subnet s", "/ports", sdn.KindConflict, sdn.AddressInUse, "addresses", "port", ""},
		{409, "MacAddressInUse", "Unable to complete operation for network n. The mac address fa:16:3e:00:00:01 is in use.", "/ports", sdn.KindConflict, sdn.MACInUse, "mac", "port", ""},
		{400, "AllowedAddressPairExhausted", "The number of allowed address pair exceeds the maximum 10.", "/ports/p", sdn.KindExhausted, sdn.NoQuota, "allowed_pairs", "port", "the maximum 10"},
		{404, "NetworkNotFound", "Network n could not be found.", "/ports", sdn.KindNotFound, "", "", "network", ""},
		{404, "HTTPNotFound", "The resource could not be found.", "/trunks", sdn.KindUnsupported, "", "", "trunk", ""},
		{412, "RevisionNumberConstraintFailed", "Constrained to 3, but current revision is 5", "/networks/n", sdn.KindConflict, sdn.Stale, "", "network", ""},
		{403, "PolicyNotAuthorized", "(rule:create_network and (rule:create_network:shared)) is disallowed by policy", "/networks", sdn.KindDenied, "", "", "network", "disallowed by policy"},
		{500, "HTTPInternalServerError", "Request Failed: internal server error while processing your request.", "/networks", sdn.KindUnavailable, "", "", "Neutron", "500 Internal Server Error to POST of a network"},
		{503, "", "", "/networks", sdn.KindUnavailable, "", "", "Neutron", "503 Service Unavailable"},
		{501, "", "", "/networks", sdn.KindUnsupported, "", "", "network", ""},
	} {
		body := ""
		if c.kind != "" {
			body = neutronError(c.kind, c.message)
		}
		refused := &rejection{
			status: c.status, body: []byte(body), header: http.Header{"X-Openstack-Request-Id": {"req-7"}},
		}
		asked := &client{of: neutronService, now: time.Now}
		err := asked.translate(t.Context(), refused, http.MethodPost, c.path)
		var e *sdn.Error
		if !errors.As(err, &e) || e.Kind != c.want || e.Reason != c.reason || e.Field != c.field || e.Noun != c.noun || !strings.Contains(e.Error(), c.text) {
			t.Errorf("%d %s is %#v (%v)", c.status, c.kind, e, err)
		}
		if c.want != sdn.KindNotFound && !strings.Contains(err.Error(), "req-7") {
			t.Errorf("%v does not name the request", err)
		}
	}
}

// Bodies of what stands in front of Neutron are no reason to fail.
func TestFaultsOfOthers(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"":                          "",
		"<html>":                    "",
		`{"a": 1}`:                  "",
		`"text"`:                    "",
		`{"NeutronError": "plain"}`: "plain",
		`{"error": {"code": 401, "message": "m"}}`:                      "m",
		`{"message": "rate limit"}`:                                     "rate limit",
		`{"NeutronError": {"type": "T", "message": "m", "detail": ""}}`: "m",
	} {
		if got := parseFault([]byte(body)); got.Message != want {
			t.Errorf("%s says %q, want %q", body, got.Message, want)
		}
	}
}

func FuzzFault(f *testing.F) {
	f.Add([]byte(`{"NeutronError": {"type": "T", "message": "Some words. ", "detail": ""}}`))
	f.Add([]byte(`{"NeutronError": 7, "error": []}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		text := sentence(parseFault(body).Message)
		if len(text) > 410 || strings.ContainsAny(text, "\r\n") {
			t.Errorf("%q is no sentence", text)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "5": 5 * time.Second, "-5": 0, "soon": 0, "Sat, 21 Nov 2026 22:00:09 GMT": 9 * time.Second, "Sat, 21 Nov 2026 21:00:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

// What Octavia 11 says of what it does not take, and what of a load balancer that is.
func TestOctaviaSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		text   string
		want   meaning
	}{
		{400, "Validation failure: Invalid flavor_id.", meaning{sdn.KindInvalid, "", "flavor"}},
		{400, "The selected flavor is not allowed in this deployment: f", meaning{sdn.KindInvalid, "", "flavor"}},
		{400, "Validation failure: Invalid availability zone.", meaning{sdn.KindInvalid, "", "zone"}},
		{400, "The selected availability_zone is not allowed in this deployment: z", meaning{sdn.KindInvalid, "", "zone"}},
		{400, "Validation failure: CIDR 2001:db8::/32 IP version incompatible with VIP 10.0.0.9 IP version.", meaning{sdn.KindInvalid, "", "sources"}},
		{400, "Could not retrieve certificate: https://barbican/v1/containers/c", meaning{sdn.KindInvalid, "", "certificate"}},
		{400, "Invalid input for field/attribute delay. Value: '0'. Value should be greater or equal to 1", meaning{sdn.KindInvalid, "", "delay"}},
		{409, "Load Balancer l is immutable and cannot be updated.", meaning{sdn.KindPending, "", ""}},
		{403, "Quota has been met for resources: Load Balancer", meaning{sdn.KindExhausted, sdn.NoQuota, ""}},
	} {
		_, means := judgeOctavia(c.status, []byte(`{"faultcode": "Client", "faultstring": "`+c.text+`", "debuginfo": null}`))
		if means != c.want {
			t.Errorf("%d %q means %+v", c.status, c.text, means)
		}
	}
}
