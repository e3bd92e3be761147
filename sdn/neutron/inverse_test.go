package neutron

import (
	"errors"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutronapi"
)

// What package neutronapi makes of an error of the contract's, this package makes an error of the same meaning of: kind, reason and field.
func TestErrorsThroughTheAPI(t *testing.T) {
	t.Parallel()
	errs := []error{
		sdn.Unsupported("trunk", "there are none"), sdn.Unavailable(errors.New("gone"), "store", "asleep"), &sdn.Error{Kind: sdn.KindDenied, Noun: "network", Detail: "built in"},
		&sdn.Error{Kind: sdn.KindPending, Noun: "port", RetryAfter: time.Second}, sdn.Invalid("router", "", "nonsense"),
	}
	for _, noun := range []string{
		"network", "subnet", "subnet pool", "port", "router", "floating IP", "security group", "security group rule", "address group", "trunk", "QoS policy", "port forwarding", "odd thing",
	} {
		errs = append(errs, sdn.NotFound(noun, "x"))
		for _, reason := range []sdn.Reason{sdn.Exists, sdn.AddressInUse, sdn.MACInUse, sdn.InUse, sdn.Stale, sdn.Immutable} {
			errs = append(errs, sdn.Conflict(reason, noun, "", "stands in the way"))
		}
		for _, reason := range []sdn.Reason{sdn.NoAddresses, sdn.NoPrefixes, sdn.NoPorts, sdn.NoQuota, sdn.NoVLANs, sdn.NoSpace} {
			errs = append(errs, sdn.Exhausted(reason, noun, "there is no more"))
		}
		for field := range fieldsOfContract() {
			errs = append(errs, sdn.Invalid(noun, field, "is wrong"), sdn.Conflict(sdn.Immutable, noun, field, "cannot become that"),
				sdn.Conflict(sdn.Exists, noun, field, "is another's"), &sdn.Error{Kind: sdn.KindUnsupported, Noun: noun, Field: field, Detail: "not here"},
				&sdn.Error{Kind: sdn.KindDenied, Noun: noun, Field: field, Detail: "not yours"})
		}
	}
	for _, want := range errs {
		answer := neutronapi.EncodeError(want)
		kind, reason, field := classify(answer.Status, fault{Type: answer.Type, Message: answer.Message, neutron: true})
		got := &sdn.Error{Kind: kind, Reason: reason, Field: field}
		var w *sdn.Error
		errors.As(want, &w)
		// Neutron tells of these with one field only, and of a gateway's with none.
		sameField := got.Field == w.Field || w.Field == "" || answer.Type == "IllegalSubnetPoolPrefixBounds"
		if got.Kind != w.Kind || got.Reason != w.Reason || !sameField {
			t.Errorf("%+v is answered %d %s %q, which is read as %s %s %q", *w, answer.Status, answer.Type, answer.Message, kind, reason, field)
		}
		if w.Kind == sdn.KindNotFound && notFoundNoun(answer.Type) != w.Noun && w.Noun != "odd thing" && w.Noun != "port forwarding" {
			t.Errorf("%+v is answered %s, which is read as of %q", *w, answer.Type, notFoundNoun(answer.Type))
		}
	}
}

// fieldsOfContract are the names that fields of the contract have.
func fieldsOfContract() map[string]bool {
	all := map[string]bool{"mtu": true, "name": true, "description": true, "device_id": true, "target": true, "routes": true, "vlan": true, "parent": true, "rules": true}
	for _, field := range fields {
		all[field] = true
	}
	return all
}
