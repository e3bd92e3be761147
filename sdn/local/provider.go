package local

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"

	"github.com/kuryr/kuryr/datapath/router"
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

// Provider is the embedded SDN: the engine, its store in a file, and the kernel that follows the store.
type Provider struct {
	*engine.Engine
	db       *bbolt.DB // the store's file
	store    engine.Store
	datapath Datapath
	log      *slog.Logger
	mtu      int // of the uplink
	sync     *syncer
	closing  sync.Once
}

var _ sdn.Provider = (*Provider)(nil)

// Open opens the store, makes it if there is none, and migrates an older one. It does not touch the kernel: call Reconcile
// for that. It fails, and changes nothing, where the file is another process's, damaged, or of a newer schema.
func Open(ctx context.Context, o Options) (*Provider, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	db, err := openStore(ctx, o.Path, currentSchema, o.Installation, o.NoSync)
	if err != nil {
		return nil, err
	}
	p, err := start(ctx, NewStore(db), o)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	p.db = db
	return p, nil
}

// complete checks the options and sets those that were left out.
func (o *Options) complete() (err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PortsPerNetwork == 0 {
		o.PortsPerNetwork = DefaultPortsPerNetwork
	}
	if o.Quotas == nil {
		o.Quotas = engine.DefaultQuotas()
	}
	if o.Installation != "" && !engine.ValidInstallation(o.Installation) {
		return sdn.Invalid("installation", "installation", "must be of a-z, 0-9 and '-', not %q", o.Installation)
	}
	if o.Host == "" {
		if o.Host, err = os.Hostname(); err != nil {
			return fmt.Errorf("host name: %w", err)
		}
	}
	return nil
}

// rules returns the options of the engine.
func (o *Options) rules() engine.Options {
	return engine.Options{
		Host: o.Host, Logger: o.Logger, UplinkRanges: o.UplinkRanges, HostRoutes: o.HostRoutes,
		PortsPerNetwork: o.PortsPerNetwork, Quotas: o.Quotas,
	}
}

// start returns a provider on a store. The options are complete.
func start(ctx context.Context, s engine.Store, o Options) (p *Provider, err error) {
	p = &Provider{store: s, log: o.Logger, mtu: defaultMTU}
	p.sync = newSyncer(p)
	p.Engine, err = engine.New(ctx, s, realm{p}, o.rules())
	if err != nil {
		return nil, err
	}
	p.datapath = o.Datapath
	return p, p.connect(ctx, o.NewDatapath)
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
