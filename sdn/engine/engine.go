package engine

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// Options say what the rules are to know.
type Options struct {
	Host   string // this machine's name, the only one ports can be bound to
	Logger *slog.Logger
	// UplinkRanges are where a new store takes the IPv4 range between the host and its routers
	// from: the first that overlaps nothing in HostRoutes. nil is a choice of ranges that are rare
	// elsewhere.
	UplinkRanges []netip.Prefix
	HostRoutes   []netip.Prefix
	// PortsPerNetwork limits a network; less than 0 no limit.
	PortsPerNetwork int
	// Quotas limit what a server's clients make in a named project that has no limits of
	// its own; nouns left out have no limit.
	Quotas map[sdn.Noun]int64
}

// Engine has the rules of the embedded SDN: the methods of sdn.Provider, except Close, on a store and a realm.
type Engine struct {
	store        Store
	realm        Realm
	host         string
	log          *slog.Logger
	limit        int // ports per network; <0 none
	quotas       map[sdn.Noun]int64
	installation string
	external     sdn.ID // the built-in external network
	projects     ownProjects
	proposals    *proposals
}

// New reads what is kept for the whole store, and makes the built-in external network if it is not there yet.
func New(ctx context.Context, s Store, realm Realm, o Options) (*Engine, error) {
	e := &Engine{
		store: s, realm: realm, host: o.Host, log: o.Logger, limit: o.PortsPerNetwork, quotas: o.Quotas,
		proposals: newProposals(),
	}
	err := e.view(func(b Tx) error {
		e.installation = InstallationOf(b)
		e.external = sdn.ID(b.Get(MetaTable, externalKey))
		return nil
	})
	if err == nil && e.external == "" {
		err = e.makeBuiltIn(ctx, o)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", s.Location(), err)
	}
	return e, nil
}

// makeBuiltIn makes the built-in external network.
func (e *Engine) makeBuiltIn(ctx context.Context, o Options) error {
	var id sdn.ID
	err := e.update(ctx, func(t *tx) (err error) {
		if id, err = t.makeExternal(o.UplinkRanges, o.HostRoutes); err != nil {
			return err
		}
		return t.Put(MetaTable, externalKey, []byte(id))
	})
	e.external = id
	return err
}

// Keys of metaTable.
var (
	installationKey = []byte("installation")
	externalKey     = []byte("external-network")
)

// Create makes a new store ready for the rules. An empty installation makes one up.
func Create(b Tx, installation string) error {
	if installation == "" {
		id := uuid.New()
		installation = hex.EncodeToString(id[:4])
	}
	return b.Put(MetaTable, installationKey, []byte(installation))
}

// InstallationOf returns the installation of a store.
func InstallationOf(b Tx) string { return string(b.Get(MetaTable, installationKey)) }

// ValidInstallation reports whether id can be the Owner of a Key.
func ValidInstallation(id string) bool {
	return sdn.Key{Owner: id, Kind: "x", Name: "x"}.Validate() == nil && !strings.Contains(id, "/")
}

// Installation is the id that marks what this installation made.
func (e *Engine) Installation() string { return e.installation }

// Capabilities tell what the embedded SDN can do.
func (e *Engine) Capabilities() sdn.Capabilities {
	can := e.realm.Supports()
	return sdn.Capabilities{
		ExternalNetwork: e.external,
		ChooseMAC:       true,
		ChooseAddress:   true,
		HostBinding:     true,
		TagsAtCreate:    true,
		MaxTagLen:       valid.MaxText,
		MaxNameLen:      valid.MaxText,
		MaxBulk:         4096,
		PortsPerNetwork: max(e.limit, 0),
		AdminState:      true,
		KeepReserved:    true,
		ServiceTypes:    true,
		SubnetPools:     true,
		Trunks:          can.VLANs,
		Routers:         true,
		FloatingIPs:     true,
		FloatingIPv6:    true,
		PickFloatingIP:  true,
		HostAddresses:   true,
		HostReached:     true,
		Forwards:        true,
		ForwardRanges:   true,
		SecurityGroups:  can.Groups,
		GrouplessOpen:   true,
		RemoteGroups:    can.Groups,
		AddressGroups:   can.Groups,
		QoS:             can.Limits,
		Quotas:          true,
		WatchPorts:      true,
		Ordered:         true,
		LoadBalancer:    e.balancing(),
	}
}

// Ping reads from the store.
func (e *Engine) Ping(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return e.view(func(Tx) error { return nil })
}

// UplinkRanges are where the addresses between the host and its routers come from. The first of each is the host's.
func (e *Engine) UplinkRanges() (uplink4, uplink6 netip.Prefix, err error) {
	err = e.view(func(b Tx) error {
		rows, err := Subnets.All(b, "network", string(e.external))
		for _, s := range rows {
			if s.CIDR.Addr().Is4() {
				uplink4 = s.CIDR
			} else {
				uplink6 = s.CIDR
			}
		}
		return err
	})
	return uplink4, uplink6, err
}

// Count returns how many objects there are by noun, the SDN's own ports and "forward" among them, and the usage of
// subnets. It costs by the number of networks, subnets and routers, not of ports or addresses.
func (e *Engine) Count(ctx context.Context) (map[sdn.Noun]int64, map[sdn.ID]sdn.SubnetUsage, error) {
	objects, usage := map[sdn.Noun]int64{}, map[sdn.ID]sdn.SubnetUsage{}
	err := e.view(func(b Tx) error {
		for _, noun := range append([]sdn.Noun{Forwards.Noun, AddressGroups.Noun, QoSPolicies.Noun}, countedNouns...) {
			objects[noun] = counter(b, tallyKey(noun))
		}
		return Subnets.Each(b, func(r *subnetRow) error {
			ad, err := openAddressing(b, &r.Subnet)
			if err != nil {
				return err
			}
			usage[r.ID] = ad.usage()
			return ctx.Err()
		})
	})
	return objects, usage, err
}

// view runs f in a read transaction. f must not call anything that belongs to a caller.
func (e *Engine) view(f func(Tx) error) error { return e.store.View(f) }
