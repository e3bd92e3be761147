package api

import (
	"encoding/json"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// NetworkRequest is the request of NetworkDriver.DeleteNetwork and FreeNetwork, answered with
// Empty.
type NetworkRequest struct {
	NetworkID string // 64 hexadecimal digits; 25 digits of base 36 in a swarm
}

func (r *NetworkRequest) decode(d *decoder) {
	d.object(r)
	d.checkID("NetworkID", r.NetworkID)
}

// CreateNetworkRequest is the request of NetworkDriver.CreateNetwork, answered with Empty.
type CreateNetworkRequest struct {
	NetworkID string
	Options   NetworkOptions
	Ranges    []*IPAMData // IPv4Data and IPv6Data
}

func (r *CreateNetworkRequest) decode(d *decoder) {
	var w struct {
		NetworkID          string
		Options            options
		IPv4Data, IPv6Data []*ipamData
	}
	d.object(&w)
	r.set(d, w.NetworkID, w.Options, w.IPv4Data, w.IPv6Data)
	d.fail(r.Options.Check())
	if d.err == nil {
		d.fail(r.placeRoutes())
	}
}

func (r *CreateNetworkRequest) set(d *decoder, id string, o options, v4, v6 []*ipamData) {
	d.checkID("NetworkID", id)
	r.NetworkID, r.Options = id, d.networkOptions(o)
	r.Ranges = append(d.ranges("IPv4Data", v4, false), d.ranges("IPv6Data", v6, true)...)
}

// IPAMData is a range of a network. The range 0.0.0.0/0, which the IPAM driver null sends, is left
// out: there is no range.
type IPAMData struct {
	AddressSpace string          // LocalSpace, GlobalSpace, or a name of another IPAM driver
	Pool         netip.Prefix    // without host bits
	Place        int             // in the list of its family
	Gateway      netip.Addr      // in the Pool; invalid: none
	AuxAddresses []netip.Addr    // of --aux-address, in or outside of the Pool
	Routes       []sdn.HostRoute // those of OptRoutes that the containers of the range can use
}

type ipamData struct {
	AddressSpace, Pool, Gateway string
	AuxAddresses                map[string]string
}

func (d *decoder) ranges(field string, list []*ipamData, v6 bool) []*IPAMData {
	var ranges []*IPAMData
	for i, w := range list {
		if d.check(w != nil, field, "must not contain null"); w == nil {
			return nil
		}
		pool, gateway := d.prefix(field+".Pool", w.Pool, v6), d.addr(field+".Gateway", w.Gateway)
		data := &IPAMData{AddressSpace: w.AddressSpace, Pool: pool.Masked(), Place: i, Gateway: gateway}
		d.check(w.Pool != "", field+".Pool", "is missing")
		d.check(!gateway.IsValid() || pool.Contains(gateway), field+".Gateway",
			"must be in %s, not %s", data.Pool, gateway)
		for name, text := range w.AuxAddresses {
			if a := d.addr(field+".AuxAddresses."+Clip(name, 60), text); a.IsValid() {
				data.AuxAddresses = append(data.AuxAddresses, a)
			}
		}
		if pool.Bits() > 0 {
			ranges = append(ranges, data)
		}
	}
	return ranges
}

// AllocateNetworkRequest is the request of NetworkDriver.AllocateNetwork, by which the manager of a
// swarm announces a network before a node creates it.
type AllocateNetworkRequest struct {
	CreateNetworkRequest
	UserOptions map[string]string // of docker network create -o; not nil
}

func (r *AllocateNetworkRequest) decode(d *decoder) {
	var w struct {
		NetworkID          string
		Options            map[string]string
		IPv4Data, IPv6Data []*ipamData
	}
	d.object(&w)
	generic, err := json.Marshal(w.Options)
	d.fail(err)
	if r.UserOptions = w.Options; r.UserOptions == nil {
		r.UserOptions = map[string]string{}
	}
	r.set(d, w.NetworkID, options{OptGeneric: generic}, w.IPv4Data, w.IPv6Data)
	d.fail(r.Options.checkKnown())
}

// AllocateNetworkResponse answers NetworkDriver.AllocateNetwork.
type AllocateNetworkResponse struct {
	Options map[string]string // replace those of the user in the calls to the nodes; not null
}

// GwAllocCheckRequest is the request of NetworkDriver.GwAllocCheck. Engines 28 and later send it
// before they request gateways.
type GwAllocCheckRequest struct{ Options NetworkOptions }

func (r *GwAllocCheckRequest) decode(d *decoder) {
	var w struct{ Options options }
	d.object(&w)
	r.Options = d.networkOptions(w.Options)
}

// GwAllocCheckResponse answers NetworkDriver.GwAllocCheck.
type GwAllocCheckResponse struct {
	SkipIPv4, SkipIPv6 bool // Docker requests no gateway of the family
}
