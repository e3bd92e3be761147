package neutron

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// octaviaSays are what Octavia's refusals mean, by what is in their text: they have no types, and their statuses mislead.
var octaviaSays = []struct {
	status int
	text   *regexp.Regexp
	means  meaning
}{
	{http.StatusForbidden, regexp.MustCompile(`Quota has been met`), meaning{sdn.KindExhausted, sdn.NoQuota, ""}},
	{http.StatusConflict, regexp.MustCompile(`is immutable and cannot be updated|Invalid state \S+ of loadbalancer`), meaning{sdn.KindPending, "", ""}},
	{http.StatusConflict, regexp.MustCompile(`(?i)\bvip\b|\bIP address\b.*\b(in use|allocated)`), meaning{sdn.KindConflict, sdn.AddressInUse, "vips[0].addr"}},
	{http.StatusConflict, regexp.MustCompile(`in use`), meaning{sdn.KindConflict, sdn.InUse, ""}},
	{http.StatusBadRequest, regexp.MustCompile(`(?i)has children|existing (listeners|pools)`), meaning{sdn.KindConflict, sdn.InUse, ""}},
	{http.StatusBadRequest, regexp.MustCompile(`(Subnet|Network|Port|Flavor|Availability Zone) \S+ (not found|could not be found)`), meaning{sdn.KindNotFound, "", ""}},
	{http.StatusBadRequest, regexp.MustCompile(`Provider .* is not enabled`), meaning{sdn.KindUnsupported, "", "backend"}},
	{http.StatusBadRequest, regexp.MustCompile(`Invalid flavor_id|selected flavor is not allowed`), meaning{sdn.KindInvalid, "", "flavor"}},
	{http.StatusBadRequest, regexp.MustCompile(`Invalid availability.zone|selected availability_zone is not allowed`), meaning{sdn.KindInvalid, "", "zone"}},
	{http.StatusBadRequest, regexp.MustCompile(`IP version incompatible with VIP`), meaning{sdn.KindInvalid, "", "sources"}},
	{http.StatusBadRequest, regexp.MustCompile(`Could not retrieve certificate|PKCS12`), meaning{sdn.KindInvalid, "", "certificate"}},
	{http.StatusNotImplemented, regexp.MustCompile(`Provider .* was not found`), meaning{sdn.KindUnsupported, "", "backend"}},
	{http.StatusNotImplemented, regexp.MustCompile(`allowed_cidrs`), meaning{sdn.KindUnsupported, "", "sources"}},
	{http.StatusNotImplemented, regexp.MustCompile(`algorithm`), meaning{sdn.KindUnsupported, "", "algorithm"}},
	{http.StatusNotImplemented, regexp.MustCompile(`(?i)health`), meaning{sdn.KindUnsupported, "", "health"}},
	{http.StatusNotImplemented, regexp.MustCompile(`Subnet is required|monitor options`), meaning{sdn.KindUnsupported, "", "members"}},
	{http.StatusNotImplemented, regexp.MustCompile(`protocol`), meaning{sdn.KindUnsupported, "", "protocol"}},
	// Drivers that make the VIP's port themselves pass on what Neutron said of it.
	{http.StatusInternalServerError, regexp.MustCompile(`already allocated in subnet`), meaning{sdn.KindConflict, sdn.AddressInUse, "vips[0].addr"}},
	{http.StatusInternalServerError, regexp.MustCompile(`No more IP addresses available`), meaning{sdn.KindExhausted, sdn.NoAddresses, "vips"}},
	{http.StatusInternalServerError, regexp.MustCompile(`not a valid IP for the specified subnet`), meaning{sdn.KindInvalid, "", "vips[0].addr"}},
	{http.StatusInternalServerError, regexp.MustCompile(`Quota exceeded for resources`), meaning{sdn.KindExhausted, sdn.NoQuota, ""}},
}

// invalidAttribute finds what a 400 is about: "Invalid input for field/attribute name. Value: …".
var invalidAttribute = regexp.MustCompile(`Invalid input for field/attribute (\w+)`)

// absentNoun finds what a refusal does not find.
var absentNoun = regexp.MustCompile(`^([A-Z]\w+(?: [A-Z]\w+)*) \S+ (?:not found|could not be found)`)

// judgeOctavia reads a refusal. A 404 that is not Octavia's own is a proxy's that does not reach it.
func judgeOctavia(status int, body []byte) (fault, meaning) {
	var said struct {
		Text string `json:"faultstring"`
	}
	_ = json.Unmarshal(body, &said)
	f := fault{Message: said.Text}
	if said.Text == "" {
		f = parseFault(body)
	}
	for _, s := range octaviaSays {
		if s.status == status && s.text.MatchString(f.Message) {
			if m := absentNoun.FindStringSubmatch(f.Message); m != nil && s.means.kind == sdn.KindNotFound {
				f.Type = strings.ReplaceAll(m[1], " ", "") + "NotFound" // for who names the noun
			}
			return f, s.means
		}
	}
	switch status {
	case http.StatusNotFound:
		if said.Text == "" {
			return f, meaning{kind: sdn.KindUnavailable}
		}
		return f, meaning{kind: sdn.KindNotFound}
	case http.StatusConflict:
		return f, meaning{sdn.KindConflict, sdn.Exists, ""}
	case http.StatusForbidden:
		return f, meaning{kind: sdn.KindDenied}
	case http.StatusBadRequest:
		field := ""
		if m := invalidAttribute.FindStringSubmatch(f.Message); m != nil {
			field = m[1]
		}
		return f, meaning{kind: sdn.KindInvalid, field: field}
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return f, meaning{kind: sdn.KindUnsupported}
	case http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong:
		return f, meaning{kind: sdn.KindInvalid}
	}
	return f, meaning{kind: sdn.KindUnavailable}
}
