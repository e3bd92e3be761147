//go:build linux

package bind

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/bind/ovsdb"
	"github.com/kuryr/kuryr/bind/vifexec"
	"github.com/kuryr/kuryr/internal/idlegate"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/sdn"
)

// Interface is one port's interface to be.
type Interface struct {
	// Port has the MAC, the addresses and the VIF, which says where its host end goes.
	Port sdn.Port
	// MTU is the network's in bytes; 0 is the kernel's default.
	MTU int
	// Subnets are those of the port's addresses: they give prefix lengths, gateways and host
	// routes. Others are ignored. They are needed only with Namespace.
	Subnets []sdn.Subnet
	// Namespace is the path of the network namespace that the container end is made and
	// configured in (addresses, routes, up). With "" the engine moves it itself, as Docker
	// does: the container end waits in the binder's own namespace under Name, with its MAC
	// and MTU, down and without any address.
	Namespace string
	// Name of the container end, such as eth0. "" is ContainerName, and not allowed with Namespace.
	Name string
	// Limits bound both ends here, where the SDN does not; the zero
	// Limits are none. They are for an interface with Namespace; what Plug has limited stays
	// so.
	Limits sdn.Limits
	// ReplacesRoutes lets the port's routes replace those that other interfaces of Namespace
	// have to the same destinations. Without it such routes stay.
	ReplacesRoutes bool
}

// Result is what a Plug made.
type Result struct {
	HostName  string           // the host end's name, in the namespace that the port's VIF names
	Name      string           // the container end's name
	MAC       net.HardwareAddr // the container end's
	MTU       int              // in bytes, as asked for; 0: the kernel's default
	Namespace string           // where the container end is: as asked for
	// KeptRoutes are destinations of the port's subnets that another interface of the
	// namespace already routes, such as the default route of its first network. Those routes
	// stay, and the container end has none to them.
	KeptRoutes []netip.Prefix
}

// Driver plugs ports of one VIF type. The Binder calls it for one port at a time, for
// different ports in parallel.
type Driver interface {
	// Plug makes, or finishes, or finds the port's interface, as Binder.Plug says.
	Plug(ctx context.Context, i Interface) (Result, error)
	// Unplug removes the port's interface, as Binder.Unplug says.
	Unplug(ctx context.Context, port sdn.Port) error
	// Connected reports whether a container uses the port's interface, as Binder.Connected says.
	Connected(ctx context.Context, port sdn.Port) (bool, error)
}

// Config is what a Binder needs.
type Config struct {
	Logger *slog.Logger // nil: slog.Default
	// Idle delays the deletion of links while calls, which need the same lock of the kernel, are
	// in flight. Without it links are deleted immediately.
	Idle *idlegate.Gate
	// OVSDB is the path of the Unix socket of Open vSwitch's database; "" is where its
	// packages put it. It is opened only for ports of VIF type ovs.
	OVSDB string
	// IntegrationBridge is the Open vSwitch bridge of ports whose VIF names none; "" is
	// DefaultIntegrationBridge.
	IntegrationBridge string
	// Executables is the folder of the executables that plug ports of VIF types without a
	// driver here; "" is vifexec.DefaultDir.
	Executables string
	// LinkInterface is the interface of this virtual machine that nested ports (VIFMacvlan,
	// VIFVLAN) go through; "" is the one with the MAC of its own port.
	LinkInterface string
	// Sys is where sysfs is mounted, which tells of network cards' virtual functions; "" is /sys.
	Sys string
}

// Binder plugs ports by their VIF type. All its methods but Close may be called
// concurrently from many goroutines.
type Binder struct {
	host   *host
	reaper *reaper
	locks  keymutex.Mutex // by port

	others   Driver // of VIF types that drivers has not
	function Driver // of ports that are a function of a network card, whatever their VIF type

	mu      sync.RWMutex // of drivers
	drivers map[string]Driver
}

// New makes a Binder with the drivers of this package: sdn.VIFBridge, VIFOVS, VIFTap,
// VIFMacvlan, VIFVLAN and VIFNoop, and that of ports with the VNIC types of SR-IOV; other
// types are the executables'. The network namespace of the calling thread becomes its
// own: the one of VIFs that name none, and where container ends wait for an engine. Close
// it when done.
func New(c Config) (*Binder, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	h, err := openHost()
	if err != nil {
		return nil, err
	}
	reaper := newReaper(h, c.Idle, c.Logger)
	on := func(s seat) vethDriver { return vethDriver{host: h, reaper: reaper, log: c.Logger, seat: s} }
	bridge, tap := on(bridgeSeat{}), on(tapSeat{})
	others := on(executableSeat{vifexec.Dir(cmp.Or(c.Executables, vifexec.DefaultDir)), c.Logger})
	ovs := &ovsSeat{
		socket: cmp.Or(c.OVSDB, ovsdb.DefaultSocket),
		bridge: cmp.Or(c.IntegrationBridge, DefaultIntegrationBridge), reaper: reaper, log: c.Logger,
	}
	nested := func(kind string) Driver {
		return &nestedDriver{host: h, reaper: reaper, kind: kind, parent: c.LinkInterface}
	}
	return &Binder{
		host: h, reaper: reaper, others: &others, function: &functionDriver{host: h, sys: cmp.Or(c.Sys, "/sys")},
		drivers: map[string]Driver{
			sdn.VIFBridge: &bridge,
			sdn.VIFOVS:    &ovsDriver{vethDriver: on(ovs), ovs: ovs},
			sdn.VIFTap:    &tap,
			sdn.VIFNoop:   noopDriver{},

			sdn.VIFMacvlan: nested(sdn.VIFMacvlan),
			sdn.VIFVLAN:    nested(sdn.VIFVLAN),
		},
	}, nil
}

// Close lets go of what the Binder holds; what is plugged stays so. It must come after
// all other calls have returned.
func (b *Binder) Close() error { return b.host.close() }

// Register makes d the driver of a VIF type, instead of any it had.
func (b *Binder) Register(vifType string, d Driver) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drivers[vifType] = d
}

// nowhere reports whether the port's VIF type says that it has no interface.
func nowhere(port sdn.Port) bool {
	return port.VIF.Type == "" || port.VIF.Type == sdn.VIFUnbound || port.VIF.Type == sdn.VIFBindingFailed
}

// driver finds the driver of the port. The error IsInvalid for a port that is bound to no
// host, and IsUnavailable for one that the SDN could not bind.
func (b *Binder) driver(port sdn.Port) (Driver, error) {
	if isFunction(port) && !nowhere(port) {
		return b.function, nil
	}
	b.mu.RLock()
	d := b.drivers[port.VIF.Type]
	b.mu.RUnlock()
	if d != nil {
		return d, nil
	}
	if !nowhere(port) {
		return b.others, nil
	}
	e := &sdn.Error{Noun: "port", ID: string(port.ID), Field: "vif.type"}
	if port.VIF.Type == sdn.VIFBindingFailed {
		e.Kind = sdn.KindUnavailable
		e.Detail = fmt.Sprintf(
			"the SDN could not bind it to host %q: no agent of the SDN serves that host; is one alive "+
				"there, and does it call the host by this name?",
			port.Host,
		)
	} else {
		e.Kind, e.Detail = sdn.KindInvalid, "the port is bound to no host"
	}
	return nil, e
}

// Plug makes the port's interface; when it returns, traffic flows (with Namespace "": as
// soon as the engine has put its end up; where an SDN's controller on this host wires the
// port: when Wait returns). A port that is plugged as asked stays unchanged, without harm
// to its traffic; what a killed Plug left is finished; if the container end is elsewhere,
// under another name or with another MAC, the interface is made again.
//
// Errors: IsInvalid, naming the field, for what makes no interface; IsDenied for a port
// that the SDN hides a part of from these credentials; IsNotFound for a namespace or
// bridge that is not there; IsConflict, Exists, for a name that another interface has;
// IsUnsupported for limits that the kernel or this kind of port has not; IsExhausted,
// NoPorts, for a bridge that holds no more; IsUnavailable for a switch that cannot be
// told. Nothing is left behind by these, unless the switch stays unavailable.
func (b *Binder) Plug(ctx context.Context, i Interface) (Result, error) {
	if hidden := i.Port.VIF.Hidden; len(hidden) > 0 {
		return Result{}, &sdn.Error{Kind: sdn.KindDenied, Noun: "port", ID: string(i.Port.ID), Field: "vif",
			Detail: "the SDN does not tell how to plug it: the credentials need the right to " +
				"read " + strings.Join(hidden, ", ")}
	}
	d, err := b.driver(i.Port)
	if err != nil {
		return Result{}, err
	}
	if i.Name == "" && i.Namespace == "" {
		i.Name = ContainerName(i.Port.ID)
	}
	if err := validate(i); err != nil {
		return Result{}, err
	}
	unlock, err := b.locks.Lock(ctx, string(i.Port.ID))
	if err != nil {
		return Result{}, fmt.Errorf("plug port %s: %w", i.Port.ID, err)
	}
	defer unlock()
	r, err := d.Plug(ctx, i)
	if err != nil {
		return Result{}, fmt.Errorf("plug port %s: %w", i.Port.ID, err)
	}
	if err := b.host.limit(i, r); err != nil {
		return Result{}, fmt.Errorf("plug port %s: %w", i.Port.ID, err)
	}
	return r, nil
}

// Unplug removes the port's interface, both ends, wherever the container end has been
// moved. An absent namespace or port is no error, nor is a port bound to no host. It
// returns when no traffic passes any more and the port can be plugged again; the links
// themselves go a moment later, while Run runs.
func (b *Binder) Unplug(ctx context.Context, port sdn.Port) error {
	if nowhere(port) {
		return nil
	}
	d, err := b.driver(port)
	if err != nil {
		return err
	}
	if err := checkName("port", "id", HostName(port.ID)); err != nil || port.ID == "" {
		return sdn.Invalid("port", "id", "%q cannot be part of an interface name", port.ID)
	}
	unlock, err := b.locks.Lock(ctx, string(port.ID))
	if err != nil {
		return fmt.Errorf("unplug port %s: %w", port.ID, err)
	}
	defer unlock()
	if err := d.Unplug(ctx, port); err != nil {
		return fmt.Errorf("unplug port %s: %w", port.ID, err)
	}
	return nil
}

// Connected reports whether the port is plugged and its container end is up: a container
// has it. It is not where an engine never took the container end, or the container is
// gone with its namespace. It changes nothing.
func (b *Binder) Connected(ctx context.Context, port sdn.Port) (bool, error) {
	if nowhere(port) {
		return false, nil
	}
	d, err := b.driver(port)
	if err != nil {
		return false, err
	}
	connected, err := d.Connected(ctx, port)
	if err != nil {
		err = fmt.Errorf("look for the interface of port %s: %w", port.ID, err)
	}
	return connected, err
}

// Run deletes what Unplug has put down, as it comes, until ctx ends. What a killed
// process has put down is deleted after the first Plug or Unplug in its namespace, or by
// Collect. Run's error is always nil.
func (b *Binder) Run(ctx context.Context) error {
	b.reaper.run(ctx)
	return nil
}

// Collect deletes, before it returns, what was unplugged in the namespaces at these paths
// ("" is the Binder's own). It takes as long as the kernel, some 20 ms each. An absent
// namespace is no error.
func (b *Binder) Collect(ctx context.Context, namespaces ...string) error {
	for _, path := range namespaces {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("collect unplugged ports: %w", err)
		}
		if err := b.reaper.collect(path); err != nil {
			return err
		}
	}
	return nil
}

// validate checks what every driver relies on.
func validate(i Interface) error {
	if i.Port.ID == "" || checkName("port", "id", HostName(i.Port.ID)) != nil {
		return sdn.Invalid("port", "id", "%q cannot be part of an interface name", i.Port.ID)
	}
	if n := len(Alias(i.Port.ID)); n > maxAlias {
		return sdn.Invalid("port", "id", "makes an interface alias of %d bytes; at most %d fit", n, maxAlias)
	}
	if m := i.Port.MAC; len(m) != 6 || m[0]&1 != 0 || [6]byte(m) == [6]byte{} {
		return sdn.Invalid("port", "mac", "must be a unicast MAC of 6 bytes, not %q", m)
	}
	if i.MTU < 0 || i.MTU > 65535 {
		return sdn.Invalid("network", "mtu", "%d is not within 0 and 65535", i.MTU)
	}
	return checkName("interface", "name", i.Name)
}
