package docker

import (
	"net/netip"
	"regexp"
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
}

var spacePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,24}$`)

func newPoolName(host, space string, cidr, sub netip.Prefix) poolName {
	return poolName{host: host, space: space, nonce: strings.ReplaceAll(uuid.NewString(), "-", "")[:16], cidr: cidr, sub: sub}
}

func (n poolName) String() string {
	sub := ""
	if n.sub.IsValid() {
		sub = n.sub.String()
	}
	return strings.Join([]string{n.host, n.space, n.nonce, n.cidr.String(), sub}, ",")
}

func parsePoolName(s string) (poolName, bool) {
	parts := strings.Split(s, ",")
	if len(parts) != 5 {
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
	return n, true
}

// poolTitle is the name of a pool as kuryr-libnetwork gives it, by which pools of one range are found.
func poolTitle(cidr netip.Prefix) string { return "kuryrPool-" + cidr.String() }

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
