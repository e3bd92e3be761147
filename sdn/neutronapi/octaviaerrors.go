package neutronapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// fault is a refusal in Octavia's JSON.
type fault struct {
	Code   string  `json:"faultcode"` // "Client", or "Server" where it is not the request's
	String string  `json:"faultstring"`
	Debug  *string `json:"debuginfo"` // never: what is behind it is for the log
}

func faultOf(e *Error) fault {
	code := "Client"
	if e.Status >= http.StatusInternalServerError {
		code = "Server"
	}
	return fault{Code: code, String: e.Error()}
}

// balancerAttributes are Octavia's names of the contract's fields, by their last part, where they are others.
var balancerAttributes = map[string]string{
	"vips": "vip_address", "groups": "vip_sg_ids", "backend": "provider", "flavor": "flavor_id", "project": "project_id", "port": "protocol_port", "sources": "allowed_cidrs",
	"client_timeout": "timeout_client_data", "member_timeout": "timeout_member_data", "pool": "default_pool", "algorithm": "lb_algorithm", "affinity": "session_persistence",
	"timeout": "session_persistence", "client_ip": "session_persistence", "health": "healthmonitor", "addr": "address", "subnet": "subnet_id", "drain": "weight", "proxy_protocol": "protocol",
	"without_pool": "default_pool", "interval": "delay", "rise": "max_retries", "fall": "max_retries_down", "path": "url_path", "disabled": "admin_state_up", "zone": "availability_zone",
	"connect_timeout": "timeout_member_connect", "inspect_timeout": "timeout_tcp_inspect", "forwarded_for": "insert_headers", "certificate": "default_tls_container_ref",
}

// balancerAttribute is Octavia's name of a field such as "listeners[0].pool.members[2].addr".
func balancerAttribute(field string) string {
	parent, last := "", field
	if at := strings.LastIndexByte(field, '.'); at >= 0 {
		parent, last = field[:at], field[at+1:]
	}
	last, _, _ = strings.Cut(last, "[")
	switch {
	case last == "timeout" && strings.HasSuffix(parent, "health"):
		return last
	case strings.HasPrefix(parent, "vips"):
		return "vip_" + balancerAttribute(last)
	}
	if name, ok := balancerAttributes[last]; ok {
		return name
	}
	return last
}

// balancerNouns are Octavia's words for what errors name.
var balancerNouns = map[string]string{"load balancer": "Load Balancer", "loadbalancer": "Load Balancer", "listener": "Listener", "pool": "Pool", "member": "Member",
	"health monitor": "HealthMonitor", "subnet": "Subnet", "network": "Network", "port": "Port", "flavor": "Flavor"}

// encodeFault is EncodeError in Octavia's words and statuses.
func encodeFault(err error) *Error {
	out := *EncodeError(err)
	var refusal *Error
	var e *sdn.Error
	if errors.As(err, &refusal) || !errors.As(err, &e) {
		if rest, ok := strings.CutPrefix(out.Message, "Invalid input for "); ok {
			out.Message = invalidAttribute + strings.TrimPrefix(rest, "field/attribute ")
		}
		return &out
	}
	noun := balancerNouns[e.Noun]
	if noun == "" {
		noun = e.Noun
	}
	said := saidOf(e)
	switch e.Kind {
	case sdn.KindNotFound:
		out.Message = noun + " " + e.ID + " not found."
	case sdn.KindInvalid:
		out.Status, out.Message = http.StatusBadRequest, "Validation failure: "+said
		if e.Field != "" {
			out.Message = invalidAttribute + strings.Replace(said, ": ", ". Reason: ", 1)
		}
	case sdn.KindDenied:
		out.Message = "Policy does not allow this request to be performed: " + said
	case sdn.KindUnsupported:
		out.Status, out.Type = http.StatusNotImplemented, "ProviderUnsupportedOptionError"
		out.Message = "Provider '" + backendName("") + "' does not support a requested option: " + said
	case sdn.KindPending:
		out.Type, out.Message = "ImmutableObject", noun+" "+e.ID+" is immutable and cannot be updated."
	case sdn.KindExhausted:
		if e.Reason == sdn.NoQuota {
			out.Status, out.Type, out.Message = http.StatusForbidden, "QuotaException", "Quota has been met for resources: "+said
		}
		if e.Reason == sdn.NoAddresses {
			out.Message = "No more IP addresses available: " + said
		}
	case sdn.KindConflict:
		switch e.Reason {
		case sdn.AddressInUse:
			out.Status, out.Message = http.StatusConflict, "The VIP's address is already allocated in subnet: "+said
		case sdn.Stale:
		case sdn.InUse:
			out.Status, out.Message = http.StatusConflict, noun+" "+e.ID+" is in use and cannot be modified: "+said
		case sdn.Exists:
			out.Status, out.Message = http.StatusConflict, "Already used: "+said
		case sdn.Immutable:
			out.Status, out.Message = http.StatusConflict, "It cannot be changed: "+said
		}
	}
	return &out
}

// invalidAttribute is what Octavia's refusals of an attribute begin with, and its clients look for.
const invalidAttribute = "Invalid input for field/attribute "

// saidOf is what an error says, the attribute that it is about first.
func saidOf(e *sdn.Error) string {
	if e.Field == "" {
		return e.Error()
	}
	rest := *e
	rest.Noun, rest.ID, rest.Field = "", "", ""
	said := balancerAttribute(e.Field) + ": " + strings.TrimRight(rest.Error(), ".")
	if e.Field != balancerAttribute(e.Field) && strings.ContainsAny(e.Field, "[.") {
		said += " (" + e.Field + ")"
	}
	return said
}
