package neutronapi

import (
	"net/http"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// answerType is how an error is told: by a status, and by the name of Neutron's exception, which its clients decide by.
type answerType struct {
	status int
	name   string
}

// conflicts are the types of conflicts that follow from what is in conflict. Package neutron reads them the same way.
var conflicts = map[sdn.Reason]map[string]answerType{
	sdn.Exists: {
		"target": {409, "FloatingIPPortAlreadyAssociated"}, "rules": {409, "SecurityGroupRuleExists"}, "vlan": {409, "DuplicateSubPort"},
		"parent": {409, "TrunkPortInUse"}, "prefixes": {409, "AddressScopePrefixConflict"},
		"default": {409, "QoSPolicyDefaultAlreadyExists"}, "": {409, "Conflict"},
	},
	sdn.AddressInUse: {"": {409, "IpAddressAlreadyAllocated"}},
	sdn.MACInUse:     {"": {409, "MacAddressInUse"}},
	sdn.InUse: {
		"target": {409, "PortHasBindingFloatingIP"}, "groups": {400, "PortSecurityAndIPRequiredForSecurityGroups"}, "gateway": {409, "GatewayIpInUse"}, "": {409, "InUse"},
		"prefixes": {400, "IllegalSubnetPoolPrefixUpdate"}, "scope": {409, "NetworkAddressScopeAffinityError"},
	},
	sdn.Stale:     {"": {412, "RevisionNumberConstraintFailed"}},
	sdn.Immutable: {"prefixes": {400, "IllegalSubnetPoolPrefixUpdate"}, "": {409, "ImmutableAttribute"}},
}

// invalids are the types of invalid input that have one of their own, by noun and field.
var invalids = map[string]string{
	"SubnetPool default_len": "IllegalSubnetPoolPrefixBounds", "SubnetPool min_len": "IllegalSubnetPoolPrefixBounds", "SubnetPool max_len": "IllegalSubnetPoolPrefixBounds",
	"Port addresses": "InvalidIpForNetwork", "Router routes": "InvalidRoutes",
}

// exhaustions are the types of what there is no more of. Neutron itself has none for the last three.
var exhaustions = map[sdn.Reason]answerType{
	sdn.NoAddresses: {409, "IpAddressGenerationFailure"}, sdn.NoPrefixes: {500, "SubnetAllocationError"}, sdn.NoQuota: {409, "OverQuota"},
	sdn.NoPorts: {409, "PortsExhausted"}, sdn.NoVLANs: {409, "VLANsExhausted"}, sdn.NoSpace: {507, "SpaceExhausted"},
}

// nounTypes are the names that the exceptions of a noun begin with, where they are not the noun's.
var nounTypes = map[string]string{"floatingip": "FloatingIP", "qospolicy": "QosPolicy", "subnetpool": "SubnetPool", "securitygroup": "SecurityGroup",
	"securitygrouprule": "SecurityGroupRule", "addressgroup": "AddressGroup", "portforwarding": "PortForwarding",
	"loadbalancer": "LoadBalancer",
	"rbacpolicy":   "RbacPolicy", "addressscope": "AddressScope"}

// nounType is the name that the exceptions of a noun begin with.
func nounType(noun string) string {
	noun = strings.NewReplacer(" ", "", "_", "", "-", "").Replace(strings.ToLower(noun))
	if name, ok := nounTypes[noun]; ok {
		return name
	}
	if noun == "" {
		return ""
	}
	return strings.ToUpper(noun[:1]) + noun[1:]
}

// ofSubportMTU tells a subport whose packets its parent cannot carry, which Neutron has as a conflict.
func ofSubportMTU(e *sdn.Error) bool {
	return e.Kind == sdn.KindInvalid && nounType(e.Noun) == "Trunk" && strings.HasSuffix(e.Field, ".mtu")
}

// typeOf is the inverse of what package neutron makes of an answer.
func typeOf(e *sdn.Error) (status int, name string) {
	switch e.Kind {
	case sdn.KindNotFound:
		return http.StatusNotFound, nounType(e.Noun) + "NotFound"
	case sdn.KindInvalid:
		if ofSubportMTU(e) {
			return http.StatusConflict, "SubPortMtuGreaterThanTrunkPortMtu"
		}
		if name, ok := invalids[nounType(e.Noun)+" "+index.ReplaceAllString(e.Field, "")]; ok {
			return http.StatusBadRequest, name
		}
		return http.StatusBadRequest, "InvalidInput"
	case sdn.KindDenied:
		return http.StatusForbidden, "PolicyNotAuthorized"
	case sdn.KindConflict:
		t := conflictType(e)
		return t.status, t.name
	case sdn.KindExhausted:
		if e.Reason == sdn.NoAddresses && e.Field == "device_owner" {
			return http.StatusConflict, "IpAddressGenerationFailureNoMatchingSubnet"
		}
		if e.Reason == sdn.NoQuota && e.Field == "default_quota" {
			return http.StatusConflict, "SubnetPoolQuotaExceeded"
		}
		if t, ok := exhaustions[e.Reason]; ok {
			return t.status, t.name
		}
		return http.StatusConflict, "ResourceExhausted"
	case sdn.KindUnsupported:
		if e.Field != "" {
			return http.StatusBadRequest, "HTTPBadRequest"
		}
		return http.StatusNotImplemented, "HTTPNotImplemented"
	case sdn.KindPending:
		return http.StatusConflict, "ResourcePending"
	case sdn.KindUnavailable:
		return http.StatusServiceUnavailable, "ServiceUnavailable"
	}
	return http.StatusInternalServerError, "HTTPInternalServerError"
}

func conflictType(e *sdn.Error) answerType {
	field := index.ReplaceAllString(e.Field, "")
	types := conflicts[e.Reason]
	if t, ok := types[field]; ok && field != "" {
		return t
	}
	switch noun := nounType(e.Noun); {
	case e.Reason == sdn.Exists && noun == "Trunk" && strings.HasSuffix(e.Field, ".vlan"):
		return types["vlan"]
	case e.Reason == sdn.Exists && noun == "Trunk" && strings.HasSuffix(e.Field, ".port"):
		return types["parent"]
	case e.Reason == sdn.Exists && noun == "Subnet" && field == "cidr":
		return answerType{http.StatusBadRequest, "InvalidInput"}
	case e.Reason == sdn.InUse && noun == "SubnetPool":
		return answerType{http.StatusBadRequest, "SubnetPoolDeleteError"}
	case e.Reason == sdn.InUse && noun == "Port":
		return answerType{http.StatusConflict, "ServicePortInUse"}
	case e.Reason == sdn.InUse:
		return answerType{http.StatusConflict, noun + "InUse"}
	}
	if t, ok := types[""]; ok {
		return t
	}
	return answerType{http.StatusConflict, "Conflict"}
}
