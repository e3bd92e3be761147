package network

import (
	"net/netip"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// Spec is what a network of the engine's was asked for.
type Spec struct {
	Ranges    []Range `json:"ranges,omitempty"`
	Internal  bool    `json:"internal,omitempty"`
	NoGateway bool    `json:"noGateway,omitempty"`
	Shared    bool    `json:"shared,omitempty"`
	MTU       int     `json:"mtu,omitempty"`
	Routing
	HostBinding netip.Addr `json:"hostBinding,omitzero"`
	Publish     string     `json:"publish,omitempty"`
	Groups      []string   `json:"groups,omitempty"`
	Existing    sdn.ID     `json:"existing,omitempty"` // the network of the SDN that it is; "": a new one
	Form        uint8      `json:"form"`               // of its Keys
	// Unknown is set in rows that are being deleted and say nothing of the network: the
	// SDN is asked.
	Unknown bool `json:"unknown,omitempty"`
}

// The forms of Keys.
const (
	formCompat = 1 // the names of the previous version
	formOwn    = 2 // with host, store and incarnation
)

// Range is a range of a network.
type Range struct {
	CIDR     netip.Prefix    `json:"cidr"`
	Sub      netip.Prefix    `json:"sub,omitzero"`     // of automatic allocation; invalid: all of CIDR
	Place    int             `json:"place,omitempty"`  // among the ranges of its family
	Gateway  netip.Addr      `json:"gateway,omitzero"` // invalid: the first address
	None     bool            `json:"none,omitempty"`   // it has no gateway
	Reserved []netip.Addr    `json:"reserved,omitempty"`
	Routes   []sdn.HostRoute `json:"routes,omitempty"`
	Pool     string          `json:"pool,omitempty"`     // key of its row; "": of another IPAM driver
	PoolID   sdn.ID          `json:"poolID,omitempty"`   // of the SDN
	CutFrom  sdn.ID          `json:"cutFrom,omitempty"`  // pool that the subnet is allocated from
	Standing sdn.ID          `json:"standing,omitempty"` // existing subnet; "": one is made
	Absent   bool            `json:"absent,omitempty"`   // its subnet is deleted while it is empty
}

func (s Spec) pools() (keys []string) {
	for _, r := range s.Ranges {
		if r.Pool != "" {
			keys = append(keys, r.Pool)
		}
	}
	return keys
}

// Last is what the SDN has of a network.
type Last struct {
	ID             sdn.ID       `json:"id,omitempty"`
	Key            sdn.Key      `json:"key,omitzero"`
	Project        string       `json:"project,omitempty"`
	MTU            int          `json:"mtu,omitempty"`
	NoPortSecurity bool         `json:"noPortSecurity,omitempty"`
	Subnets        []sdn.Subnet `json:"subnets,omitempty"`
	Added          []sdn.ID     `json:"added,omitempty"` // subnets that were added to an existing network
	Router         sdn.ID       `json:"router,omitempty"`
	RouterOurs     bool         `json:"routerOurs,omitempty"`
	Link           sdn.ID       `json:"link,omitempty"`
	Emptied        []sdn.ID     `json:"emptied,omitempty"` // pools with the tags of a deleted subnet
	Home           string       `json:"home,omitempty"`    // Kuryr's project, beside an existing network
}

// specOf returns the spec of a network with the options, without ranges and routing.
func specOf(o api.NetworkOptions, form uint8) Spec {
	return Spec{
		Internal: o.Internal, NoGateway: o.NoGateway, MTU: o.MTU, HostBinding: o.HostBinding,
		Publish: o.Publish, Groups: o.Groups, Form: form,
	}
}

// taggedSpec returns the spec of a network whose options the tags store.
func taggedSpec(tags []string, form uint8) Spec {
	o := identity.NetworkOptions(tags)
	s := specOf(o, form)
	s.Router, s.External = o.Router, sdn.ID(o.External)
	return s
}

// options returns the options of a network, as tags store them and endpoints need them.
func (s Spec) options() api.NetworkOptions {
	return api.NetworkOptions{
		Internal: s.Internal, NoGateway: s.NoGateway, MTU: s.MTU, Router: s.Router,
		External: string(s.External), HostBinding: s.HostBinding, Publish: s.Publish, Groups: s.Groups,
	}
}

// View is what other packages know of a network of Docker's.
type View struct {
	Ref            string // of its row, which is an owner of its endpoints; "" if it has none
	ID             sdn.ID
	Project        string
	MTU            int
	Subnets        []sdn.Subnet
	NoPortSecurity bool
	Options        api.NetworkOptions // what was asked for
}
