package docker

import (
	"encoding/json"
	"errors"
	"testing"
)

// fuzzDecode feeds a decoder: it must never panic, and every error must be one that is answered 4xx.
func fuzzDecode[T any, P interface {
	*T
	request
}](f *testing.F, seeds ...any) {
	for _, s := range seeds {
		f.Add([]byte(encode(s)))
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"NetworkID":"../x","PoolID":"\n","Pool":"fe80::%1/64","Options":{"com.docker.network.portmap":[{"Port":-1}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := new(T)
		err := decode(body, P(r))
		refused := (*httpError)(nil)
		if err != nil && (!errors.As(err, &refused) || refused.status < 400 || refused.status > 499) {
			t.Fatalf("%q: %v", body, err)
		}
		if err != nil {
			return
		}
		// What was accepted, said again in our words, is accepted too.
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if err := decode(again, P(new(T))); err != nil {
			t.Fatalf("%q was accepted, %q is not: %v", body, again, err)
		}
	})
}

var fuzzID = m{"NetworkID": "s76m6pvzy8v2vvuomn6b3fsth", "EndpointID": "04214f5f6bb69a2c2904755f77b9fd3e0b7bffe50811efbf56be2a6b44b35828"}

func fuzzBody(fields m) m {
	body := m{}
	for _, from := range []m{fuzzID, fields} {
		for k, v := range from {
			body[k] = v
		}
	}
	return body
}

func FuzzNetworkRequest(f *testing.F)  { fuzzDecode[networkRequest](f, fuzzID) }
func FuzzEndpointRequest(f *testing.F) { fuzzDecode[endpointRequest](f, fuzzID) }
func FuzzGwAllocCheckRequest(f *testing.F) {
	fuzzDecode[gwAllocCheckRequest](f, m{"Options": m{optInternal: true}})
}
func FuzzAllocateNetworkRequest(f *testing.F) {
	fuzzDecode[allocateNetworkRequest](f, fuzzBody(m{"Options": m{"a": "b"}}))
}
func FuzzDiscoverRequest(f *testing.F) { fuzzDecode[discoverRequest](f, m{"DiscoveryType": 1}) }

func FuzzCreateNetworkRequest(f *testing.F) {
	fuzzDecode[createNetworkRequest](f, fuzzBody(m{
		"Options":  m{optInternal: false, optGeneric: m{optMTU: "1400", optRouter: "edge", "lab.opt": "val"}},
		"IPv4Data": []m{{"AddressSpace": localSpace, "Pool": "10.50.0.0/16", "Gateway": "10.50.0.1/16", "AuxAddresses": m{"db": "10.50.8.9/16"}}},
		"IPv6Data": []m{{"AddressSpace": localSpace, "Pool": "fd50::/64", "Gateway": "fd50::1/64"}},
	}))
}

func FuzzCreateEndpointRequest(f *testing.F) {
	fuzzDecode[createEndpointRequest](f, fuzzBody(m{
		"Interface": m{"Address": "10.50.8.2/16", "AddressIPv6": "fd50::3/64", "MacAddress": "02:42:0a:32:08:02"},
		"Options": m{optMAC: "Aqq7zN0B", optDNS: []string{"10.50.0.2"}, optExposed: []m{{"Proto": 6, "Port": 80}},
			optPortMap: []m{{"Proto": 6, "IP": "", "Port": 80, "HostIP": "127.0.0.1", "HostPort": 8088, "HostPortEnd": 8088}}},
	}))
}

func FuzzJoinRequest(f *testing.F) {
	fuzzDecode[joinRequest](f, fuzzBody(m{"SandboxKey": "/run/docker/netns/ee58692b1f39", "Options": emptyOptions}))
}

func FuzzProgramRequest(f *testing.F) {
	fuzzDecode[programRequest](f, fuzzBody(m{"Options": m{optPortMap: []m{{"Proto": 17, "Port": 53, "HostPort": 0}}}}))
}

func FuzzRequestPoolRequest(f *testing.F) {
	fuzzDecode[requestPoolRequest](f,
		m{"AddressSpace": localSpace, "Pool": "10.50.0.0/16", "SubPool": "10.50.8.0/24", "Options": m{"x": "y"}, "V6": false},
		m{"AddressSpace": globalSpace, "Pool": "fd50::5/64", "SubPool": "", "Options": nil, "V6": true})
}

func FuzzReleasePoolRequest(f *testing.F) { fuzzDecode[releasePoolRequest](f, m{"PoolID": "a"}) }

func FuzzRequestAddressRequest(f *testing.F) {
	fuzzDecode[requestAddressRequest](f,
		m{"PoolID": "a", "Address": "10.50.0.1", "Options": m{optAddressType: addressGateway}},
		m{"PoolID": "a", "Address": "", "Options": m{optMAC: "02:42:0a:32:08:02"}})
}

func FuzzReleaseAddressRequest(f *testing.F) {
	fuzzDecode[releaseAddressRequest](f, m{"PoolID": "a", "Address": "10.50.0.1"})
}

func FuzzPoolName(f *testing.F) {
	f.Add("0123abcd,local_scope,0123456789abcdef,10.0.0.0/16,10.0.8.0/24")
	f.Add("0123abcd,,0123456789abcdef,fd00::/64,")
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := parsePoolName(s)
		if !ok {
			return
		}
		if again, ok := parsePoolName(n.String()); !ok || again != n {
			t.Fatalf("%q became %q", s, n)
		}
	})
}
