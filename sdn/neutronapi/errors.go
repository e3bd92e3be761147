package neutronapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Error is an answer that is not a success: the body's NeutronError and the status it came with.
type Error struct {
	Status  int    `json:"-"`
	Type    string `json:"type"`
	Message string `json:"message"`
	Detail  string `json:"detail"`

	retryAfter time.Duration // what the SDN asks to wait, 0 where it does not say
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the API answers %d %s", e.Status, http.StatusText(e.Status))
	}
	return e.Message
}

type errorBody struct {
	NeutronError *Error `json:"NeutronError"`
}

// attributes are Neutron's names of the contract's fields, where they are others.
var attributes = map[string]string{
	"gateway": "gateway_ip", "ranges": "allocation_pools", "nameservers": "dns_nameservers", "addresses": "fixed_ips", "mac": "mac_address",
	"project": "project_id", "prefix_len": "prefixlen", "default_len": "default_prefixlen", "min_len": "min_prefixlen", "max_len": "max_prefixlen",
	"host": "binding:host_id", "profile": "binding:profile", "vnic_type": "binding:vnic_type", "groups": "security_groups", "external": "router:external",
	"segment": "provider:network_type", "default": "is_default", "mode": "ipv6_address_mode", "no_dhcp": "enable_dhcp",
	"pool": "subnetpool_id", "scope": "address_scope_id", "network": "network_id",
	"allowed_pairs": "allowed_address_pairs", "qos_policy": "qos_policy_id", "stateless": "stateful", "no_port_security": "port_security_enabled", "disabled": "admin_state_up",
}

var index = regexp.MustCompile(`[\[.].*$`)

// attributeOf is Neutron's name of a field of the contract, of which the position in a list is left out.
func attributeOf(field string) string {
	field = index.ReplaceAllString(field, "")
	if name, ok := attributes[field]; ok {
		return name
	}
	return field
}

// fieldOf is the contract's name of an attribute of Neutron's.
func fieldOf(attribute string) string {
	for field, name := range attributes {
		if name == attribute {
			return field
		}
	}
	return attribute
}

// EncodeError is what is answered for an error: a refusal of this package is as it is, one of a provider's is told in Neutron's words, so that package
// neutron reads the same out of them. An error that is neither is not shown: it may tell of others.
func EncodeError(err error) *Error {
	var refusal *Error
	if errors.As(err, &refusal) {
		return refusal
	}
	var e *sdn.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &Error{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailable", Message: "The SDN has not answered in the time there was."}
	default:
		return &Error{Status: http.StatusInternalServerError, Type: "HTTPInternalServerError", Message: "Request Failed: internal server error while processing your request."}
	}
	status, kind := typeOf(e)
	return &Error{Status: status, Type: kind, Message: messageOf(e), retryAfter: sdn.RetryAfterOf(err)}
}

// messageOf is what an error says. The attribute that it is about comes first, in the words in which Neutron says so and its clients look for it.
func messageOf(e *sdn.Error) string {
	if e.Field == "" || ofSubportMTU(e) {
		return e.Error()
	}
	rest := *e
	rest.Noun, rest.ID, rest.Field = "", "", ""
	reason := strings.TrimRight(rest.Error(), ".")
	if position := index.FindString(e.Field); position != "" {
		reason = position + ": " + reason
	}
	if e.Reason == sdn.Exists && e.Field == "cidr" {
		reason = "the range overlaps with another subnet: " + reason
	}
	if e.Kind == sdn.KindUnsupported {
		return "Attribute '" + attributeOf(e.Field) + "' is not supported: " + reason
	}
	return "Invalid input for " + attributeOf(e.Field) + ". Reason: " + reason + "."
}

func (s *server) writeError(w http.ResponseWriter, e *Error) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.retryAfter.Seconds()))))
	}
	if s.faults {
		writeJSON(w, e.Status, faultOf(e))
		return
	}
	writeJSON(w, e.Status, errorBody{NeutronError: e})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "the answer could not be encoded", http.StatusInternalServerError)
		return
	}
	writeData(w, status, data)
}

// writeData answers with encoded JSON.
func writeData(w http.ResponseWriter, status int, data []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}
