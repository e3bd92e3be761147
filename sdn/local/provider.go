package local

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
)

// DefaultPortsPerNetwork is how many ports a Linux bridge holds (BR_MAX_PORTS in the kernel's net/bridge/br_private.h).
const DefaultPortsPerNetwork = 1023

// defaultMTU is a network's where no data path knows better.
const defaultMTU = 1500

// Options say how a Provider is to be opened.
type Options struct {
	Path     string   // of the store's file; it and its folder are made if missing, for root alone
	Datapath Datapath // nil: no kernel, the store only, unless there is NewDatapath
	// NewDatapath makes the data path, for one that must know the ranges between the host and its routers. The first address of
	// each is the host's.
	NewDatapath func(uplink4, uplink6 netip.Prefix) (Datapath, error)
	Host        string // this machine's name, the only one ports can be bound to; "" is the kernel's host name
	Logger      *slog.Logger
	// Installation is given to a new store; "" makes one up. An existing store keeps its own.
	Installation string
	// UplinkRanges are where a new store takes the IPv4 range between the host and its routers from: the first that overlaps nothing
	// in HostRoutes. nil is a choice of ranges that are rare elsewhere.
	UplinkRanges []netip.Prefix
	HostRoutes   []netip.Prefix
	// PortsPerNetwork limits a network; 0 is DefaultPortsPerNetwork, less than 0 no limit.
	PortsPerNetwork int
	// Quotas limit what a server's clients make in a named project that has no limits of
	// its own; nouns left out have no limit, and nil is DefaultQuotas. Administrators and
	// the project without a name are not limited by them.
	Quotas map[sdn.Noun]int64
	// NoSync gives up that a change survives a power cut. For benchmarks.
	NoSync bool
}

// Provider is the embedded SDN.
type Provider struct {
	db           *bbolt.DB // the store's file
	store        engine.Store
	datapath     Datapath
	host         string
	log          *slog.Logger
	limit        int // ports per network; <0 none
	quotas       map[sdn.Noun]int64
	installation string
	external     sdn.ID // the built-in external network
	mtu          int    // of the uplink
	projects     ownProjects
	sync         *syncer
	proposals    *proposals
	closing      sync.Once
}

var _ sdn.Provider = (*Provider)(nil)

// Open opens the store, makes it if there is none, and migrates an older one. It does not touch the kernel: call Reconcile
// for that. It fails, and changes nothing, where the file is another process's, damaged, or of a newer schema.
func Open(ctx context.Context, o Options) (*Provider, error) {
	p, err := newProvider(o)
	if err != nil {
		return nil, err
	}
	if p.db, err = openStore(ctx, o.Path, currentSchema, o.Installation, o.NoSync); err != nil {
		return nil, err
	}
	p.store = newBoltStore(p.db)
	if err := p.start(ctx, o); err != nil {
		_ = p.db.Close()
		return nil, err
	}
	return p, nil
}

// newProvider returns a provider without a store.
func newProvider(o Options) (*Provider, error) {
	p := &Provider{
		datapath: o.Datapath, host: o.Host, log: o.Logger, limit: o.PortsPerNetwork, quotas: o.Quotas,
		mtu: defaultMTU, proposals: newProposals(),
	}
	p.sync = newSyncer(p)
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.limit == 0 {
		p.limit = DefaultPortsPerNetwork
	}
	if p.quotas == nil {
		p.quotas = DefaultQuotas()
	}
	if o.Installation != "" && !validInstallation(o.Installation) {
		return nil, sdn.Invalid("installation", "installation", "must be of a-z, 0-9 and '-', not %q", o.Installation)
	}
	if p.host == "" {
		var err error
		if p.host, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("host name: %w", err)
		}
	}
	return p, nil
}

// start reads the store and makes the data path.
func (p *Provider) start(ctx context.Context, o Options) error {
	if err := p.begin(ctx, o); err != nil {
		return fmt.Errorf("store %s: %w", p.store.Location(), err)
	}
	return p.connect(ctx, o.NewDatapath)
}

// connect makes the data path if it is not there yet, and asks it for its MTU.
func (p *Provider) connect(ctx context.Context, make func(uplink4, uplink6 netip.Prefix) (Datapath, error)) error {
	var err error
	if p.datapath == nil && make != nil {
		uplink4, uplink6, err := p.UplinkRanges()
		if err != nil {
			return err
		}
		if p.datapath, err = make(uplink4, uplink6); err != nil {
			return fmt.Errorf("data path: %w", err)
		}
	}
	if p.datapath != nil {
		if p.mtu, err = p.datapath.UplinkMTU(ctx); err != nil {
			return fmt.Errorf("MTU of the uplink: %w", err)
		}
	}
	return nil
}

// uplinkMTU is what a network gets that does not say: what the host's way out carries now. It may have changed since the start, of
// which the uplinks of routers take no notice before the next one: the kernel tells senders by itself when a packet is too large.
func (p *Provider) uplinkMTU(ctx context.Context) int {
	if p.datapath == nil {
		return p.mtu
	}
	mtu, err := p.datapath.UplinkMTU(ctx)
	if err != nil {
		p.log.WarnContext(ctx, "the uplink's MTU cannot be read; that of the start is used", "error", err, "mtu", p.mtu)
		return p.mtu
	}
	return mtu
}

// UplinkRanges are where the addresses between the host and its routers come from. The first of each is the host's.
func (p *Provider) UplinkRanges() (uplink4, uplink6 netip.Prefix, err error) {
	err = p.view(func(b engine.Tx) error {
		rows, err := subnets.all(b, "network", string(p.external))
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

// begin reads what is kept for the whole store, and makes the built-in external network where it is not there yet.
func (p *Provider) begin(ctx context.Context, o Options) error {
	err := p.view(func(b engine.Tx) error {
		p.installation = string(b.Get(metaTable, installationKey))
		p.external = sdn.ID(b.Get(metaTable, externalKey))
		return nil
	})
	if err != nil || p.external != "" {
		return err
	}
	var id sdn.ID
	err = p.update(ctx, func(t *tx) error {
		if id, err = t.makeExternal(o.UplinkRanges, o.HostRoutes); err != nil {
			return err
		}
		return t.Put(metaTable, externalKey, []byte(id))
	})
	p.external = id
	return err
}

// Installation is the id that marks what this installation made.
func (p *Provider) Installation() string { return p.installation }

// Capabilities tell what the embedded SDN can do.
func (p *Provider) Capabilities() sdn.Capabilities {
	can := p.supports()
	return sdn.Capabilities{
		ExternalNetwork: p.external,
		ChooseMAC:       true,
		ChooseAddress:   true,
		HostBinding:     true,
		TagsAtCreate:    true,
		MaxTagLen:       valid.MaxText,
		MaxNameLen:      valid.MaxText,
		MaxBulk:         4096,
		PortsPerNetwork: max(p.limit, 0),
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
		LoadBalancer:    p.balancing(),
	}
}

// Ping reads from the store.
func (p *Provider) Ping(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.view(func(engine.Tx) error { return nil })
}

// Quiesce waits for changes of the kernel under way, also those of callers that gave up, and begins no
// more. Changes of the store are still possible, and unavailable where the kernel must follow them.
func (p *Provider) Quiesce() { p.sync.quiesce() }

// Close lets the file go, after calls under way. The kernel stays as it is: traffic goes on.
func (p *Provider) Close() (err error) {
	p.closing.Do(func() {
		p.Quiesce()
		err = p.db.Close()
	})
	return err
}

// view runs f in a read transaction. f must not call anything that belongs to a caller.
func (p *Provider) view(f func(engine.Tx) error) error { return p.store.View(f) }

// Datapath is what the embedded SDN asks of the kernel; *router.Kernel is one. All methods are idempotent: adding what is there alike and
// removing what is absent succeed. For one domain they are called one after another, in the order of the store's changes.
type Datapath interface {
	// Set changes a domain; see router.Kernel.Set.
	Set(ctx context.Context, c router.Change) (router.Result, error)
	// Delete removes the domain with all that is in it.
	Delete(ctx context.Context, id string) error
	// Supports tells what the kernel can. It is cheap.
	Supports() router.Support
	// Location is where a network's bridge is. It is a pure function.
	Location(domain, network string) (nsPath, bridge string)
	// Reconcile makes everything be this state.
	Reconcile(ctx context.Context, s router.State) (router.Report, error)
	Diff(ctx context.Context, s router.State) ([]router.Difference, error)
	// Down removes everything of ours from the kernel.
	Down(ctx context.Context) error
	UplinkMTU(ctx context.Context) (int, error)
}

var _ Datapath = (*router.Kernel)(nil)

// location is where a network's bridge is, or would be if there were a data path.
func (p *Provider) location(domain, network sdn.ID) (nsPath, bridge string) {
	if p.datapath != nil {
		return p.datapath.Location(string(domain), string(network))
	}
	return "/run/kuryr/netns/" + string(domain), "br-" + network.Short()
}
