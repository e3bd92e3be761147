//go:build linux

package router

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// The sets of the share table.
const (
	setConnections = "connections" // MAC . shard: connections of a port
	setRates       = "rates"       // MAC: new connections of a port
	setRatesOut    = "rates_out"   // MAC: those that leave by the uplink
	setRatesNear   = "rates_near"  // MAC: addresses of the router's networks that a port is the first to use
	setOnLink      = "onlink"      // ethertype . prefix: the router's networks; by family
	setReached     = "reached"     // MAC . address of the router's networks: what a port used lately; by family
)

// shards is how many counters a port's connections are spread over. The kernel goes
// through all connections of a counter to count one more, so there are many short lists.
const shards = 64

// What a port may take of connection tracking, which has room for so many connections:
// one in liveShare may be its own. One that was closed by both ends is remembered and not
// counted, so new ones have a rate too. It is lower to the outside: the host remembers
// closed connections for 120 seconds, the router for closedFor.
const (
	liveShare  = 8
	burstShare = 4
	nearShare  = 100
	outerShare = 320
	defaultMax = 1 << 18
	closedFor  = 30 // seconds
	ratesFor   = time.Minute
)

// How many addresses of the router's networks a port may be the first to use, a second.
// The kernel's table of neighbours holds 1,024 by default, for all namespaces together.
const (
	nearRate   = 50
	nearBurst  = 256
	reachedFor = time.Minute
)

// balancing is package lb's table, where a namespace has load balancers.
var balancing = table{family: nftables.TableFamilyINet, own: lb.DefaultName}

// beforeBalancing is added to the priority of destination NAT: package lb, which is at
// -7, ends what that hook does with a packet.
const beforeBalancing = -10

// noted is a set that rules fill; no timeout: its elements stay until the kernel finds
// that they count nothing. It has no size, so the kernel makes a small one, which grows,
// for at most 65,535. Those beyond that are not limited.
func noted(name string, timeout time.Duration, key ...nftables.SetDatatype) nftables.Set {
	s := nftables.Set{Name: name, KeyType: key[0], Dynamic: true, HasTimeout: timeout != 0,
		Timeout: timeout}
	if len(key) > 1 {
		s.Concatenation, s.KeyType = true, nft.Concat(key...)
	}
	return s
}

// shareTable bounds what one port of a namespace takes of what all of them share there:
// connection tracking, of the router and so of the host, and the table of neighbours. The
// port that takes more is refused. Its rules are evaluated for the first packet of a
// connection only, as the chain is one of NAT. With count, connections are counted
// (CONFIG_NFT_CONNLIMIT).
func shareTable(most int, count bool) table {
	t := table{family: nftables.TableFamilyINet, own: "kuryr_share"}
	mac := nftables.TypeEtherAddr
	for _, name := range []string{setRates, setRatesOut, setRatesNear} {
		t.sets = append(t.sets, noted(name, ratesFor, mac))
	}
	pre := nft.Chain{Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hook:     nftables.ChainHookPrerouting,
		Priority: *nftables.ChainPriorityNATDest + beforeBalancing}
	own := nft.Exprs{nft.Load(nft.LinkHeader, 6, 6, nft.Reg(0))}
	pre.Add("not from a port", nft.NotIn(bridgePrefix+"*"), nft.Return)
	for _, v := range nft.Versions {
		addr := v.AddrType()
		t.sets = append(t.sets,
			nft.RangeSet(setOnLink+v.String(), v),
			noted(setReached+v.String(), reachedFor, mac, addr))
		for _, end := range []struct {
			comment string
			load    func(register uint32) expr.Any
		}{{"its own", v.LoadSource}, {"to reach", v.LoadDestination}} {
			family := nft.LoadMeta(expr.MetaKeyPROTOCOL, nft.Reg(0))
			near := nft.Join(v.Match(), nft.Exprs{family, end.load(nft.Reg(1))}, nft.InSet(setOnLink+v.String(), nft.First))
			key := nft.Join(own, nft.Exprs{end.load(nft.Reg(2))})
			pre.Add("more new addresses than its share, "+end.comment, near, key,
				nft.NotInSet(setReached+v.String(), nft.First), nft.Over(own, setRatesNear, nearRate, nearBurst))
			pre.Add("address, "+end.comment, near, key, nft.ChangeSet(nft.SetUpdate, setReached+v.String(), 0))
		}
	}
	burst := uint32(most / burstShare)
	pre.Add("more new connections than its share", nft.Over(own, setRates, uint64(most/nearShare), burst))
	pre.Add("more new connections to the outside than its share", nft.RoutedBy(uplinkName),
		nft.Over(own, setRatesOut, uint64(most/outerShare), burst))
	if count {
		t.sets = append(t.sets, noted(setConnections, 0, mac, nftables.TypeMark))
		limit := &expr.Connlimit{Count: uint32(most / liveShare / shards),
			Flags: expr.NFT_CONNLIMIT_F_INV}
		pre.Add("one of its counters", nft.Random(shards), nft.MarkFrom(nft.First))
		pre.Add("more connections than its share", own,
			nft.Exprs{nft.LoadMeta(expr.MetaKeyMARK, nft.Reg(2))},
			nft.ChangeSet(nft.SetAdd, setConnections, 0, limit), nft.CountedDrop)
		pre.Add("no mark", nft.SetMark(0, nft.First))
	}
	t.chains = []nft.Chain{pre}
	return t
}

// connectionsAtMost is how many connections connection tracking has room for: in the
// host, and in each namespace.
func connectionsAtMost() (int, error) {
	content, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if errors.Is(err, os.ErrNotExist) {
		return defaultMax, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || n <= 0 { // 0 is no bound
		return defaultMax, nil
	}
	return max(n, liveShare*shards, outerShare), nil
}

// convergeShares makes the namespace's share table. The prefixes are those of its
// networks.
func (s *space) convergeShares(r *run, prefixes []netip.Prefix) error {
	can := supports()
	if !can.rates {
		return nil
	}
	most, err := connectionsAtMost()
	if err != nil {
		return fmt.Errorf("size of connection tracking: %w", err)
	}
	t := shareTable(most, can.connections)
	if err := t.converge(r, s); err != nil {
		return err
	}
	var elements []nft.Element
	for _, p := range ipprefix.Widest(prefixes) {
		elements = append(elements, nft.Range(setOnLink+nft.VersionOf(p.Addr()).String(),
			p.Addr(), ipprefix.Last(p)))
	}
	return t.sync(r, s, elements, setOnLink+nft.V4.String(), setOnLink+nft.V6.String())
}

// onLink reads the prefixes of the namespace's networks: those of its bridges' addresses.
func (s *space) onLink(bridges []netlink.Link) ([]netip.Prefix, error) {
	addrs, err := s.addrs()
	if err != nil {
		return nil, err
	}
	var prefixes []netip.Prefix
	for _, b := range bridges {
		for _, text := range addrs[b.Attrs().Index] {
			if p, err := netip.ParsePrefix(text); err == nil && !p.Addr().IsLinkLocalUnicast() {
				prefixes = append(prefixes, p)
			}
		}
	}
	return prefixes, nil
}

// removeShares deletes the share table.
func (s *space) removeShares(r *run) error {
	if !supports().rates {
		return nil
	}
	return shareTable(defaultMax, false).remove(r, s)
}

// probeShares tries the share table, in a temporary namespace.
func probeShares(ns netns.NsHandle) (rates, connections bool) {
	try := func(count bool) bool {
		c, err := nft.Dial(int(ns))
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		return shareTable(defaultMax, count).create(c, false) == nil
	}
	if try(true) {
		return true, true
	}
	return try(false), false
}
