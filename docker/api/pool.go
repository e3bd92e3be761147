package api

import (
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// RequestPoolRequest is the request of IpamDriver.RequestPool.
type RequestPoolRequest struct {
	AddressSpace string       // LocalSpace, GlobalSpace, or at most 24 letters, digits, '_', '.', '-'
	Pool         netip.Prefix // --subnet, without host bits; invalid: any, see AnyOfLength
	SubPool      netip.Prefix // --ip-range, for automatic addresses; invalid: all of the Pool
	// AnyOfLength is a Pool 0.0.0.0/LENGTH, at most /30, or ::/LENGTH, at most /126: any range of
	// that length. Invalid: of the length of the automatic pools.
	AnyOfLength netip.Prefix
	V6          bool     // false: IPv4
	Existing    Existing // the objects of the SDN that --ipam-opt names
	Foreign     []string // options without a meaning for Kuryr, sorted; those of kuryr. are refused
}

var spacePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,24}$`)

func (r *RequestPoolRequest) decode(d *decoder) {
	var w struct {
		AddressSpace, Pool, SubPool string
		Options                     map[string]string
		V6                          bool
	}
	d.object(&w)
	r.AddressSpace, r.V6 = w.AddressSpace, w.V6
	r.Pool = d.prefix("Pool", w.Pool, w.V6).Masked()
	r.SubPool = d.prefix("SubPool", w.SubPool, w.V6).Masked()
	r.Existing = d.existing("Options", w.Options)
	r.checkRanges(d)
	d.check(spacePattern.MatchString(r.AddressSpace), "AddressSpace",
		"must be at most 24 letters, digits, '_', '.' or '-', not %q", Clip(r.AddressSpace, 60))
	for _, option := range slices.Sorted(maps.Keys(w.Options)) {
		if strings.HasPrefix(option, ownPrefix) {
			d.fail(Refuse("IPAM option %s is not known", Clip(option, 100)))
		} else if !slices.Contains(ExistingOptions, option) {
			r.Foreign = append(r.Foreign, Clip(option, 100))
		}
	}
}

// checkRanges checks Pool and SubPool, and moves a Pool without an address to AnyOfLength.
func (r *RequestPoolRequest) checkRanges(d *decoder) {
	pool, sub := r.Pool, r.SubPool
	smallest := 30 // for a gateway and a container
	if r.V6 {
		smallest = 126
	}
	if pool.IsValid() && pool.Addr().IsUnspecified() && pool.Bits() > 0 {
		r.Pool, r.AnyOfLength = netip.Prefix{}, pool
	}
	asked := sub.IsValid()
	d.check(!asked || r.Pool.IsValid(), "SubPool", "must have a Pool that contains it, not %s", sub)
	d.check(!asked || sub.Bits() >= pool.Bits() && pool.Contains(sub.Addr()), "SubPool",
		"must be in %s, not %s", pool, sub)
	d.check(!r.AnyOfLength.IsValid() || pool.Bits() <= smallest, "Pool",
		"%s: the smallest range is a /%d", pool, smallest)
	unicast := pool.Bits() > 0 && !pool.Addr().IsMulticast() && !pool.Addr().IsLoopback()
	d.check(unicast || !pool.IsValid(), "Pool", "must be a unicast range, not %s", pool)
}

// RequestPoolResponse answers IpamDriver.RequestPool.
type RequestPoolResponse struct {
	PoolID string            // a PoolID
	Pool   string            // the range
	Data   map[string]string // not null
}

// ReleasePoolRequest is the request of IpamDriver.ReleasePool, answered with Empty.
type ReleasePoolRequest struct{ PoolID PoolID }

func (r *ReleasePoolRequest) decode(d *decoder) {
	var w struct{ PoolID string }
	d.object(&w)
	r.PoolID = d.poolID(w.PoolID)
}

// PoolID is the PoolID of a range: 1 to 255 printable characters that begin with the id of the
// subnet pool. A node of a swarm that requests the range of the swarm's network gets that id with
// the suffix /node; a manager that requests it again after a restart or an election gets it with
// the suffix /manager-LIFE.
type PoolID struct {
	Pool sdn.ID
	Node bool   // requested by a node
	Life string // of the manager; "": its first
}

const (
	nodeSuffix    = "/node"
	managerSuffix = "/manager-"
)

func (d *decoder) poolID(s string) PoolID {
	bad := func(r rune) bool { return r <= ' ' || r > '~' }
	d.check(s != "" && len(s) < 256 && !strings.ContainsFunc(s, bad), "PoolID",
		"must be 1 to 255 printable characters, not %q", Clip(s, 140))
	if pool, ok := strings.CutSuffix(s, nodeSuffix); ok {
		return PoolID{Pool: sdn.ID(pool), Node: true}
	}
	pool, life, _ := strings.Cut(s, managerSuffix)
	return PoolID{Pool: sdn.ID(pool), Life: life}
}

// String returns the text of the PoolID.
func (p PoolID) String() string {
	switch {
	case p.Node:
		return string(p.Pool) + nodeSuffix
	case p.Life != "":
		return string(p.Pool) + managerSuffix + p.Life
	}
	return string(p.Pool)
}

// The options of IpamDriver.RequestAddress. OptMAC is one too.
const (
	OptAddressType = "RequestAddressType"
	OptSerial      = "com.docker.network.ipam.serial"
)

// AddressGateway is the value of OptAddressType for a gateway.
const AddressGateway = "com.docker.network.gateway"

// RequestAddressRequest is the request of IpamDriver.RequestAddress.
type RequestAddressRequest struct {
	PoolID  PoolID
	Address netip.Addr       // --ip, --gateway or --aux-address; invalid: any
	MAC     net.HardwareAddr // OptMAC, such as 02:42:ac:11:00:02; nil: not of an endpoint
	Gateway bool             // OptAddressType is AddressGateway
	Serial  bool             // OptSerial is given: of the manager of a swarm, for a task or a service
}

func (r *RequestAddressRequest) decode(d *decoder) {
	var w struct {
		PoolID, Address string
		Options         map[string]string
	}
	d.object(&w)
	r.PoolID, r.Address = d.poolID(w.PoolID), d.addr("Address", w.Address)
	r.MAC = d.mac("Options."+OptMAC, w.Options[OptMAC])
	r.Gateway, r.Serial = w.Options[OptAddressType] == AddressGateway, w.Options[OptSerial] != ""
}

// RequestAddressResponse answers IpamDriver.RequestAddress.
type RequestAddressResponse struct {
	Address string            // with the prefix length of the range
	Data    map[string]string // not null
}

// NewRequestAddressResponse returns the response with an address in a range of a prefix length.
func NewRequestAddressResponse(a netip.Addr, bits int) RequestAddressResponse {
	return RequestAddressResponse{netip.PrefixFrom(a, bits).String(), map[string]string{}}
}

// ReleaseAddressRequest is the request of IpamDriver.ReleaseAddress, answered with Empty.
type ReleaseAddressRequest struct {
	PoolID  PoolID
	Address netip.Addr
}

func (r *ReleaseAddressRequest) decode(d *decoder) {
	var w struct{ PoolID, Address string }
	d.object(&w)
	r.PoolID, r.Address = d.poolID(w.PoolID), d.addr("Address", w.Address)
	d.check(w.Address != "", "Address", "is missing")
}
