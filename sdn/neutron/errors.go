package neutron

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/kuryr/kuryr/sdn"
)

// meaning is what an error of Neutron's means. HTTP statuses mislead: an exhausted subnet
// pool is a 500, one in use a 400.
type meaning struct {
	kind   sdn.Kind
	reason sdn.Reason
	field  string
}

// meanings are Neutron's error types whose meaning follows neither from their status nor
// from the end of their name.
var meanings = map[string]meaning{
	"IpAddressAlreadyAllocated":                  {sdn.KindConflict, sdn.AddressInUse, "addresses"},
	"IpAddressInUse":                             {sdn.KindConflict, sdn.AddressInUse, "addresses"},
	"MacAddressInUse":                            {sdn.KindConflict, sdn.MACInUse, "mac"},
	"FloatingIPPortAlreadyAssociated":            {sdn.KindConflict, sdn.Exists, "target"},
	"SecurityGroupRuleExists":                    {sdn.KindConflict, sdn.Exists, "rules"},
	"DuplicateSubPort":                           {sdn.KindConflict, sdn.Exists, "vlan"},
	"TrunkPortInUse":                             {sdn.KindConflict, sdn.Exists, "parent"},
	"ParentPortInUse":                            {sdn.KindConflict, sdn.Exists, "parent"},
	"SubnetPoolDeleteError":                      {sdn.KindConflict, sdn.InUse, ""},
	"RevisionNumberConstraintFailed":             {sdn.KindConflict, sdn.Stale, ""},
	"NeutronDbObjectDuplicateEntry":              {sdn.KindConflict, sdn.Stale, ""}, // another call is at the same
	"GatewayConflictWithAllocationPools":         {sdn.KindInvalid, "", "gateway"},
	"QoSPolicyDefaultAlreadyExists":              {sdn.KindConflict, sdn.Exists, "default"},
	"NetworkAddressScopeAffinityError":           {sdn.KindConflict, sdn.InUse, "scope"},
	"AddressScopePrefixConflict":                 {sdn.KindConflict, sdn.Exists, "prefixes"},
	"NetworkSubnetPoolAffinityError":             {sdn.KindInvalid, "", "pool"},
	"IllegalSubnetPoolPrefixUpdate":              {sdn.KindConflict, sdn.Immutable, "prefixes"},
	"IllegalSubnetPoolPrefixBounds":              {sdn.KindInvalid, "", "default_len"},
	"MinPrefixSubnetAllocationError":             {sdn.KindInvalid, "", "prefix_len"},
	"MaxPrefixSubnetAllocationError":             {sdn.KindInvalid, "", "prefix_len"},
	"SubnetPoolQuotaExceeded":                    {sdn.KindExhausted, sdn.NoQuota, "default_quota"},
	"OverQuota":                                  {sdn.KindExhausted, sdn.NoQuota, ""},
	"AllowedAddressPairExhausted":                {sdn.KindExhausted, sdn.NoQuota, "allowed_pairs"},
	"IpAddressGenerationFailure":                 {sdn.KindExhausted, sdn.NoAddresses, ""},
	"IpAddressGenerationFailureNoMatchingSubnet": {sdn.KindExhausted, sdn.NoAddresses, "device_owner"},
	"ExternalIpAddressExhausted":                 {sdn.KindExhausted, sdn.NoAddresses, ""},
	"SubnetAllocationError":                      {sdn.KindExhausted, sdn.NoPrefixes, ""},
	"InvalidAllocationPool":                      {sdn.KindInvalid, "", "ranges"},
	"OutOfBoundsAllocationPool":                  {sdn.KindInvalid, "", "ranges"},
	"OverlappingAllocationPools":                 {sdn.KindInvalid, "", "ranges"},
	"InvalidIpForNetwork":                        {sdn.KindInvalid, "", "addresses"},
	"InvalidIpForSubnet":                         {sdn.KindInvalid, "", "addresses"},
	"AllocationOnAutoAddressSubnet":              {sdn.KindInvalid, "", "addresses"},
	"PortHasBindingFloatingIP":                   {sdn.KindConflict, sdn.InUse, "target"},
	"PortHasPortForwarding":                      {sdn.KindConflict, sdn.InUse, "target"},
	"InvalidRoutes":                              {sdn.KindInvalid, "", "routes"},
	"RoutesExhausted":                            {sdn.KindInvalid, "", "routes"},
	"QosRuleNotSupported":                        {sdn.KindUnsupported, "", "limits"},
	"QosRuleNotSupportedByNetwork":               {sdn.KindUnsupported, "", "limits"},
	"PortSecurityAndIPRequiredForSecurityGroups": {sdn.KindConflict, sdn.InUse, "groups"},

	// What Neutron has no words for, in those of package neutronapi.
	"ImmutableAttribute": {sdn.KindConflict, sdn.Immutable, ""},
	"PortsExhausted":     {sdn.KindExhausted, sdn.NoPorts, ""},
	"VLANsExhausted":     {sdn.KindExhausted, sdn.NoVLANs, ""},
	"SpaceExhausted":     {sdn.KindExhausted, sdn.NoSpace, ""},
	"ResourcePending":    {sdn.KindPending, "", ""},
}

// fields are the names of the contract's fields, by Neutron's attributes, if they differ.
var fields = map[string]string{
	"cidr": "cidr", "gateway_ip": "gateway", "allocation_pools": "ranges", "dns_nameservers": "nameservers", "fixed_ips": "addresses",
	"mac_address": "mac", "tenant_id": "project", "project_id": "project", "prefixlen": "prefix_len", "default_prefixlen": "default_len",
	"min_prefixlen": "min_len", "max_prefixlen": "max_len", "binding:host_id": "host", "binding:profile": "profile", "security_groups": "groups",
	"router:external": "external", "provider:network_type": "segment", "provider:physical_network": "segment", "provider:segmentation_id": "segment",
	"ipv6_address_mode": "mode", "ipv6_ra_mode": "mode", "enable_dhcp": "no_dhcp", "subnetpool_id": "pool", "network_id": "network",
	"allowed_address_pairs": "allowed_pairs", "qos_policy_id": "qos_policy", "port_security_enabled": "no_port_security", "admin_state_up": "disabled",
}

var (
	invalidInput = regexp.MustCompile(`^Invalid input for ([\w:-]+)\.`)
	notAllowed   = regexp.MustCompile(`(?:Attribute|attribute\(s\)) '([\w:-]+)'`)
)

// fault is an error body, in the forms of Neutron and of what stands in front of it.
type fault struct {
	Type    string
	Message string
	neutron bool // the body is one of Neutron's
}

func parseFault(body []byte) fault {
	var shapes struct {
		Neutron  json.RawMessage `json:"NeutronError"`
		Keystone json.RawMessage `json:"error"`
		Message  string          `json:"message"`
	}
	if json.Unmarshal(body, &shapes) != nil {
		return fault{}
	}
	for i, raw := range []json.RawMessage{shapes.Neutron, shapes.Keystone} {
		var structured struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		}
		var plain string
		if len(raw) == 0 {
			continue
		}
		if json.Unmarshal(raw, &structured) == nil {
			return fault{Type: structured.Type, Message: structured.Message, neutron: i == 0}
		}
		if json.Unmarshal(raw, &plain) == nil {
			return fault{Message: plain}
		}
	}
	return fault{Message: shapes.Message}
}

// A rejection is an answer that refuses a request.
type rejection struct {
	status int
	header http.Header
	body   []byte
}

// Error is that of the status.
func (r *rejection) Error() string {
	return fmt.Sprintf("%d %s", r.status, http.StatusText(r.status))
}

// judgeNeutron reads a refusal by Neutron.
func judgeNeutron(status int, body []byte) (fault, meaning) {
	f := parseFault(body)
	var m meaning
	m.kind, m.reason, m.field = classify(status, f)
	return f, m
}

// translate returns the error of package sdn for that of a request.
func (c *client) translate(ctx context.Context, err error, verb, path string) error {
	if err == nil {
		return nil
	}
	noun, id := subject(path)
	var refused *rejection
	if !errors.As(err, &refused) {
		return c.unanswered(ctx, err, verb, noun)
	}
	f, m := c.of.judge(refused.status, refused.body)
	e := &sdn.Error{Noun: noun, ID: id, Kind: m.kind, Reason: m.reason, Field: m.field}
	e.Detail = sentence(f.Message)
	if e.Kind == sdn.KindUnavailable {
		e.Noun, e.ID = c.who(), ""
		e.Detail = fmt.Sprintf("it answers %v to %s of %s", refused, verb, withArticle(noun))
		if f.Message != "" {
			e.Detail += ": " + sentence(f.Message)
		}
		e.RetryAfter = retryAfter(refused.header, c.now())
	}
	if e.Kind == sdn.KindNotFound && f.Type != "" {
		// What is not there may be another noun than the one of the path: the network of a port.
		if other := notFoundNoun(f.Type); other != "" && other != noun {
			e.Noun, e.ID = other, ""
		}
	}
	if e.Detail == "" && e.Kind != sdn.KindNotFound {
		e.Detail = fmt.Sprintf("it answers %v", refused)
	}
	if request := refused.header.Get("X-Openstack-Request-Id"); request != "" && e.Detail != "" && len(request) < 64 {
		e.Detail += " (" + request + ")"
	}
	return e
}

// classify decides by the error's type if there is one, otherwise by the status.
func classify(status int, f fault) (sdn.Kind, sdn.Reason, string) {
	field := ""
	if m := invalidInput.FindStringSubmatch(f.Message); m != nil && m[1] != "operation" {
		field = fieldOf(m[1])
	} else if strings.Contains(f.Message, "MTU") {
		field = "mtu"
	}
	if m, ok := meanings[f.Type]; ok {
		return m.kind, m.reason, cmp.Or(m.field, field)
	}
	switch {
	case status == http.StatusPreconditionFailed:
		return sdn.KindConflict, sdn.Stale, ""
	case status == http.StatusNotFound && (!f.neutron || f.Type == ""):
		// Neutron has not answered, but a proxy that does not reach it: nothing is known of the object.
		return sdn.KindUnavailable, "", ""
	case status == http.StatusNotFound && f.Type == "HTTPNotFound":
		// There is no such path. For an absent object of a known noun there is another error type.
		return sdn.KindUnsupported, "", ""
	case status == http.StatusNotFound:
		return sdn.KindNotFound, "", ""
	case status == http.StatusConflict && strings.Contains(f.Type, "InUse"):
		return sdn.KindConflict, sdn.InUse, ""
	case status == http.StatusConflict:
		return sdn.KindConflict, sdn.Exists, field
	case status == http.StatusForbidden:
		return sdn.KindDenied, "", field
	case status == http.StatusBadRequest && strings.Contains(f.Message, "overlaps with another subnet"):
		return sdn.KindConflict, sdn.Exists, "cidr"
	case status == http.StatusBadRequest:
		if m := notAllowed.FindStringSubmatch(f.Message); m != nil {
			return sdn.KindUnsupported, "", fieldOf(m[1])
		}
		return sdn.KindInvalid, "", field
	case status == http.StatusNotImplemented, status == http.StatusMethodNotAllowed:
		return sdn.KindUnsupported, "", ""
	case status == http.StatusRequestEntityTooLarge, status == http.StatusRequestURITooLong:
		return sdn.KindInvalid, "", ""
	}
	return sdn.KindUnavailable, "", ""
}

func fieldOf(attribute string) string { return cmp.Or(fields[attribute], attribute) }

// unanswered is the error of a request without a whole answer. It has no query of a URL,
// which may be long.
func (c *client) unanswered(ctx context.Context, err error, verb, noun string) error {
	var broken *url.Error
	if errors.As(err, &broken) {
		err = broken.Err
	}
	switch {
	case ctx.Err() != nil:
		return sdn.Unavailable(context.Cause(ctx), c.who(), "it has not answered %s of %s in the time there was", verb, withArticle(noun))
	case errors.Is(err, context.DeadlineExceeded):
		return sdn.Unavailable(err, c.who(), "it has not answered %s of %s within %v", verb, withArticle(noun), c.timeout)
	}
	if wrong := certificates(err); wrong != "" {
		return sdn.Unavailable(err, c.who(), "%s", wrong)
	}
	return sdn.Unavailable(err, c.who(), "it cannot be reached, or broke off, at %s of %s", verb, withArticle(noun))
}

func withArticle(noun string) string {
	if strings.ContainsAny(noun[:min(1, len(noun))], "aeiou") {
		return "an " + noun
	}
	return "a " + noun
}

// certificates names the certificate that made TLS fail, and its settings; "" if none
// did.
func certificates(err error) string {
	var unknown x509.UnknownAuthorityError
	var alert *net.OpError
	switch {
	case errors.As(err, &unknown):
		return "its certificate is of nobody that is trusted (neutron.ca_file, or cacert, says who is)"
	case errors.As(err, &alert) && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate"):
		return "it does not take this host's certificate (neutron.cert_file and neutron.key_file, or cert and key)"
	}
	return ""
}

// keystoneError translates an authentication's error. It never shows what was sent.
func keystoneError(err error, where string, auth gophercloud.AuthOptions) error {
	var contract *sdn.Error
	if err == nil || errors.As(err, &contract) {
		return err
	}
	var refused gophercloud.ErrUnexpectedResponseCode
	if errors.As(err, &refused) {
		switch {
		case refused.Actual == http.StatusUnauthorized, refused.Actual == http.StatusForbidden, refused.Actual == http.StatusNotFound && keystones(refused.Body):
			// Keystone answers 404 for an unknown application credential or token. Its message may have
			// the token.
			return &sdn.Error{Kind: sdn.KindDenied, Noun: "Keystone", Detail: fmt.Sprintf("at %s refuses the credentials (%d), %s", where, refused.Actual, credentials(auth))}
		case refused.Actual == http.StatusNotFound:
			return sdn.Invalid("configuration", "auth.url", "%s (auth_url) is no Keystone's: it has no identity API version 3", where)
		case refused.Actual == http.StatusBadRequest:
			return sdn.Invalid("configuration", "auth", "Keystone at %s does not take the credentials: %s", where, sentence(parseFault(refused.Body).Message))
		}
		return &sdn.Error{Kind: sdn.KindUnavailable, Noun: "Keystone", Detail: fmt.Sprintf("at %s answers %d", where, refused.Actual), RetryAfter: retryAfter(refused.ResponseHeader, time.Now())}
	}
	var broken *url.Error
	if errors.As(err, &broken) {
		if wrong := certificates(err); wrong != "" {
			return sdn.Unavailable(broken.Err, "Keystone", "at %s: %s", where, wrong)
		}
		return sdn.Unavailable(broken.Err, "Keystone", "at %s cannot be reached", where)
	}
	return sdn.Unavailable(err, "Keystone", "at %s gives no session", where)
}

// keystones reports whether a 404 is Keystone's answer about an unknown object. For an
// unknown path Keystone answers with a page, and other services have other forms.
func keystones(body []byte) bool {
	var said struct {
		Error struct {
			Code           int
			Title, Message string
		}
	}
	return json.Unmarshal(body, &said) == nil && said.Error.Code == http.StatusNotFound && said.Error.Title != "" && said.Error.Message != ""
}

// retryAfter reads the header, which is seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(v); err == nil {
		return max(date.Sub(now), 0)
	}
	return 0
}

// sentence returns Neutron's message in the form of the contract's errors: one line, no
// capital, no full stop.
func sentence(message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if len(message) > 400 {
		message = strings.ToValidUTF8(message[:400], "") + "…"
	}
	message = strings.TrimRight(message, ". ")
	if message != "" && message[0] >= 'A' && message[0] <= 'Z' && (len(message) == 1 || message[1] < 'A' || message[1] > 'Z') {
		message = string(message[0]+'a'-'A') + message[1:]
	}
	return message
}

// titles are the nouns of paths in errors.
var titles = map[string]string{
	"networks": "network", "subnets": "subnet", "subnetpools": "subnet pool", "ports": "port", "trunks": "trunk", "routers": "router",
	"floatingips": "floating IP", "security-groups": "security group", "security-group-rules": "security group rule",
	"loadbalancers": "load balancer", "listeners": "listener", "pools": "pool", "healthmonitors": "health monitor", "providers": "provider",
	"address-groups": "address group", "qos": "QoS policy", "quotas": "quota", "extensions": "extension", "network-ip-availabilities": "availability",
}

// subject returns the noun of a path, and the id of the object if the path has one.
func subject(path string) (noun, id string) {
	path, _, _ = strings.Cut(strings.TrimPrefix(path, "/"), "?")
	parts := strings.Split(path, "/")
	noun = cmp.Or(titles[parts[0]], parts[0])
	if parts[0] == "qos" {
		parts = parts[1:]
	}
	if len(parts) > 1 {
		id = parts[1]
	}
	return noun, id
}

// notFoundNoun returns the noun of an error type such as "SubnetPoolNotFound".
func notFoundNoun(kind string) string {
	name, ok := strings.CutSuffix(kind, "NotFound")
	if !ok {
		return ""
	}
	for _, title := range titles {
		if strings.EqualFold(strings.ReplaceAll(title, " ", ""), name) {
			return title
		}
	}
	return ""
}

// ignoreAbsent returns nil for an error that says that an object is absent.
func ignoreAbsent(err error) error {
	if sdn.IsNotFound(err) {
		return nil
	}
	return err
}

// immutable is the conflict of a field that cannot be changed.
func immutable(noun, id, field string, have, want any) error {
	return &sdn.Error{
		Kind: sdn.KindConflict, Reason: sdn.Immutable, Noun: noun, ID: id, Field: field,
		Detail: fmt.Sprintf("is %v and cannot become %v", have, want),
	}
}

// stale is the conflict of an object that is at another revision.
func stale(noun string, m *meta) error {
	return &sdn.Error{
		Kind: sdn.KindConflict, Reason: sdn.Stale, Noun: noun, ID: m.ID,
		Detail: fmt.Sprintf("it is at revision %d", m.Revision),
	}
}

// reField names another field in an error: Neutron's attribute means another field of this noun.
func reField(err error, field string) error {
	var e *sdn.Error
	if errors.As(err, &e) {
		named := *e
		named.Field = field
		return &named
	}
	return err
}

// inField names the field of an invalid request if Neutron did not.
func inField(err error, field string) error {
	if sdn.IsInvalid(err) && sdn.FieldOf(err) == "" {
		return reField(err, field)
	}
	return err
}
