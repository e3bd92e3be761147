package docker

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/sdn"
)

// poolName is the name in a pool's Key: all that must be known of a pool of the engine's. The nonce makes it unique, since
// two networks may have the same range.
type poolName struct {
	host  string // Driver.hostKey
	space string
	nonce string
	cidr  netip.Prefix
	sub   netip.Prefix // invalid: the whole
	// What of the SDN's the user named for the range: at most one of them.
	ofSubnet sdn.ID // an existing subnet, which stands for the range
	ofPool   sdn.ID // an existing subnet pool, which the subnet is to be cut from
}

const (
	ofSubnetPrefix = "subnet="
	ofPoolPrefix   = "pool="
)

// newPoolName makes the name whole that lacks the host and the nonce.
func newPoolName(host string, n poolName) poolName {
	n.host, n.nonce = host, strings.ReplaceAll(uuid.NewString(), "-", "")[:16]
	return n
}

func (n poolName) String() string {
	sub := ""
	if n.sub.IsValid() {
		sub = n.sub.String()
	}
	parts := []string{n.host, n.space, n.nonce, n.cidr.String(), sub}
	switch {
	case n.ofSubnet != "":
		parts = append(parts, ofSubnetPrefix+string(n.ofSubnet))
	case n.ofPool != "":
		parts = append(parts, ofPoolPrefix+string(n.ofPool))
	}
	return strings.Join(parts, ",")
}

func parsePoolName(s string) (poolName, bool) {
	parts := strings.Split(s, ",")
	if len(parts) != 5 && len(parts) != 6 {
		return poolName{}, false
	}
	n := poolName{host: parts[0], space: parts[1], nonce: parts[2]}
	var err error
	if n.cidr, err = netip.ParsePrefix(parts[3]); err != nil {
		return poolName{}, false
	}
	if parts[4] != "" {
		if n.sub, err = netip.ParsePrefix(parts[4]); err != nil {
			return poolName{}, false
		}
	}
	if len(parts) == 6 {
		subnet, isSubnet := strings.CutPrefix(parts[5], ofSubnetPrefix)
		pool, isPool := strings.CutPrefix(parts[5], ofPoolPrefix)
		switch {
		case isSubnet:
			n.ofSubnet = sdn.ID(subnet)
		case isPool:
			n.ofPool = sdn.ID(pool)
		default:
			return poolName{}, false
		}
	}
	return n, true
}

// poolTitle is the name of a pool as kuryr-libnetwork gives it, by which pools of one range are found.
func poolTitle(cidr netip.Prefix) string { return "kuryrPool-" + cidr.String() }

// subnetTitle is the name of a subnet as kuryr-libnetwork gives it.
func subnetTitle(cidr netip.Prefix) string { return "kuryr-subnet-" + cidr.String() }

// cutFrom is the pool that the subnet is cut from.
func (p enginePool) cutFrom() sdn.ID {
	if p.ofPool != "" {
		return p.ofPool
	}
	return p.ID
}

// enginePool is a pool of an engine with what its Key and tags tell.
type enginePool struct {
	sdn.SubnetPool
	poolName
}

// enginePool reads a pool; false for one that is not an engine's.
func (d *Driver) enginePool(p sdn.SubnetPool) (enginePool, bool) {
	if !d.ours(p.Meta, kindPool) {
		return enginePool{}, false
	}
	name, ok := parsePoolName(p.Key.Name)
	return enginePool{p, name}, ok
}

// subnet is the existing subnet that stands for the pool's range, "" where none does. A pool of a range that turned out to be an
// existing network's only when that was made says so by a tag, as kuryr-libnetwork's do.
func (p enginePool) subnet() sdn.ID {
	if p.ofSubnet != "" {
		return p.ofSubnet
	}
	return idTag(p.Tags)
}

func (p enginePool) released() bool { return slices.Contains(p.Tags, tagReleased) }

// gateway is the address that the engine took for its gateway, invalid if it took none.
func (p enginePool) gateway() netip.Addr {
	for _, v := range tagValues(p.Tags, tagGateway) {
		if a, err := netip.ParseAddr(v); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

// aux are the auxiliary addresses that the engine took.
func (p enginePool) aux() []netip.Addr {
	var list []netip.Addr
	for _, v := range tagValues(p.Tags, tagAux) {
		if a, err := netip.ParseAddr(v); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// untouched tells that the engine has done nothing with the pool that was seen here.
func (p enginePool) untouched() bool { return !p.gateway().IsValid() && len(p.aux()) == 0 }
