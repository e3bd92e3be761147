// Package endpoint keeps the endpoints of this host's containers: the port of each, its
// interface, its published ports and its floating IP.
//
// Rows of four kinds have what was asked for: an endpoint owns its plug, and the plug owns the
// publication and the floating IP. Rows are deleted in the reverse order. The targets of the kinds
// (target.go, join.go, publication.go, floating.go) only call the SDN, the kernel and the proxy;
// the methods of Service check requests and answer them.
//
// The package must not know networks, pools or addresses but through Networks and Addresses.
package endpoint

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Binder plugs ports on this host. *bind.Binder is one.
type Binder interface {
	// Plug makes the interface of a port. If it exists, Plug returns its names.
	Plug(ctx context.Context, i bind.Interface) (bind.Result, error)
	// Unplug removes the interface of a port. An absent one is no error.
	Unplug(ctx context.Context, port sdn.Port) error
	// Connected reports whether a container has the interface of a port.
	Connected(ctx context.Context, port sdn.Port) (bool, error)
}

// Networks finds the networks of endpoints.
type Networks interface {
	// Find returns a network by the engine's id, or a refusal if there is none.
	Find(ctx context.Context, networkID string) (network.View, error)
}

// Addresses finds the ports that were requested with addresses.
type Addresses interface {
	// At returns the ports of a network that have the addresses, as they are now, by its subnets.
	At(ctx context.Context, subnets []sdn.Subnet, addresses []netip.Prefix) ([]ipam.Held, error)
	// Merge makes one port of several, and deletes the others.
	Merge(ctx context.Context, held []ipam.Held) (ipam.Held, error)
	// Deleting reports whether the row of a port is being deleted.
	Deleting(ref string) bool
}

// Config is what a Service needs.
type Config struct {
	identity.Daemon
	Binder    Binder
	Networks  Networks
	Addresses Addresses
	HostPorts publish.HostPorts // nil: the SDN alone decides
	Proxy     *portproxy.Proxy
	// WaitActive is how long Join waits until the SDN reports that the port is active; 0: it does
	// not wait.
	WaitActive time.Duration
	// ExposedGroups opens exposed ports by a security group of the endpoint.
	ExposedGroups bool
	// YieldMAC takes a MAC from a port that no endpoint uses, and reports whether there was one;
	// nil: none has.
	YieldMAC func(ctx context.Context, network sdn.ID, mac net.HardwareAddr) (bool, error)
	// Refused is told of a CreateEndpoint that was refused because another endpoint has the port.
	// The engine releases the addresses of the request next; nil is not told.
	Refused func(port sdn.ID, addresses []netip.Prefix)
	// Records is the folder of the records that the previous version reads; "": none.
	Records string
}

// Service answers the calls about endpoints.
type Service struct {
	Config
	endpoints    *reconcile.Kind[Spec, Last]
	plugs        *reconcile.Kind[PlugSpec, PlugLast]
	publications *reconcile.Kind[PublicationSpec, PublicationLast]
	floating     *reconcile.Kind[FloatingSpec, FloatingLast]
	boot         string // of the machine
}

// The rows of the kinds.
type (
	endpointRow    = reconcile.Row[Spec, Last]
	plugRow        = reconcile.Row[PlugSpec, PlugLast]
	publicationRow = reconcile.Row[PublicationSpec, PublicationLast]
	floatingRow    = reconcile.Row[FloatingSpec, FloatingLast]
)

// New registers the kinds of a store that is not started yet.
func New(c Config) *Service {
	store := c.Store
	s := &Service{Config: c, boot: store.Boot()}
	endpoints := partOptions[Spec, Last](s)
	endpoints.InUse, endpoints.Stale, endpoints.StaleAfter = s.isUsed, s.isStale, -1
	s.endpoints = reconcile.Register(store, "endpoint", endpointTarget{s}, endpoints)
	plugs := partOptions[PlugSpec, PlugLast](s)
	plugs.Start = startPlug
	s.plugs = reconcile.Register(store, "plug", plugTarget{s}, plugs)
	publications := partOptions[PublicationSpec, PublicationLast](s)
	publications.Start, publications.Removed = startPublication, s.deleteRecord
	s.publications = reconcile.Register(store, "publication", publicationTarget{s}, publications)
	s.floating = reconcile.Register(store, "floating", floatTarget{s}, partOptions[FloatingSpec, FloatingLast](s))
	return s
}

// partOptions are the options of a part of an endpoint, which is in use and listed with it.
func partOptions[S, T any](s *Service) reconcile.Options[S, T] {
	return reconcile.Options[S, T]{
		Timeout: s.Timeout, Engine: s.Engine,
		InUse:  func(r reconcile.Row[S, T]) bool { return s.isPartUsed(r.Key) },
		Listed: func(r reconcile.Row[S, T], content any) bool { return s.isListed(r.Key, content) },
	}
}

// Start listens again at what earlier processes published by the proxy, and ends the starts that
// no process has answered, or that the machine's restart has ended. The store is started.
func (s *Service) Start(ctx context.Context) {
	for r := range s.endpoints.Rows() {
		if r.Phase == reconcile.Wanted && (!r.Done || r.Boot != s.boot) {
			s.endStart(r.Key)
		}
	}
	s.restoreProxies(ctx)
}

// startGrace is how long an endpoint may take from its CreateEndpoint, and from its Join, until its
// interface is in the container. Docker calls Join right after CreateEndpoint.
const startGrace = 2 * time.Minute

// EngineStarted ends all starts: a new engine process does not know the endpoints that the
// previous one was starting. It is called at the handshake, which a process sends before its first
// other call. A start that is not ended counts until startGrace is over, so an endpoint is kept
// that long, and never deleted too early:
//   - before the handshake, a start of the previous process;
//   - after it, a call of the previous process that is stored later. The end of its connection
//     cancels the call, which may be past that.
func (s *Service) EngineStarted(ctx context.Context) {
	ended := false
	for r := range s.endpoints.Rows() {
		if isStarting(r) {
			s.endStart(r.Key)
			ended = true
		}
	}
	if !ended {
		return
	}
	if err := s.endpoints.Import(ctx, nil); err != nil { // commits the notes
		s.Log.WarnContext(ctx, "end of endpoint starts not stored", "err", err)
	}
}

func startTime() time.Time { return time.Now().UTC().Round(0) }

func (s *Service) endStart(id string) {
	s.endpoints.Note(id, func(l Last) Last { l.StartEnded = true; return l })
}

// isStarting reports whether the running engine is starting an endpoint. One whose CreateEndpoint
// failed it is not. The clock may have been set back since the row was stored.
func isStarting(r endpointRow) bool {
	started := r.Spec.Started
	if !r.Last.Joined.IsZero() {
		started = r.Last.Joined
	}
	return r.Phase == reconcile.Wanted && !r.Last.StartEnded && !started.IsZero() &&
		time.Since(started).Abs() < startGrace
}

// isStale reports whether an endpoint can be deleted because another needs its address or its
// port: the engine starts it no more, and no container has its interface.
func (s *Service) isStale(ctx context.Context, r endpointRow) (bool, error) {
	if isStarting(r) {
		return false, nil
	}
	port := s.knownPort(r.Key)
	if port.ID == "" {
		return true, nil // CreateEndpoint was cut off
	}
	connected, err := s.connected(ctx, port)
	return !connected && err == nil, err
}

// knownPort returns the port of an endpoint by its rows; the zero Port if they do not have it.
func (s *Service) knownPort(id string) sdn.Port {
	if row, ok := s.endpoints.Get(id); ok && row.Last.Port.ID != "" {
		return row.Last.Port
	}
	plug, _ := s.plugs.Get(id)
	return plug.Spec.Port
}

func (s *Service) isUsed(r endpointRow) bool {
	stale, err := s.isStale(context.Background(), r)
	return !stale || err != nil
}

func (s *Service) connected(ctx context.Context, port sdn.Port) (bool, error) {
	connected, err := s.Binder.Connected(ctx, port)
	if err != nil {
		return false, &PlugError{err}
	}
	return connected, nil
}

// PlugError is an error of the Binder. Its text names interfaces of this host and may be shown.
type PlugError struct{ Err error }

func (e *PlugError) Error() string { return "plugging the interface failed: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *PlugError) Unwrap() error { return e.Err }

// absent returns the error of a deletion: reconcile.ErrAbsent if there was nothing to delete, as on
// an SDN that has no such objects.
func absent(err error) error {
	if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
		return reconcile.ErrAbsent
	}
	return err
}

// isListed reports whether the engine has an endpoint, or can have it.
func (s *Service) isListed(id string, content any) bool {
	c, ok := content.(*engine.Content)
	if !ok {
		return true
	}
	if row, known := s.endpoints.Get(id); known && row.Spec.Network != "" {
		return c.HasEndpoint(row.Spec.Network, id)
	}
	// The rows were made without the network. Of what has an interface a container runs.
	return c.Runs(id)
}

// Unlisted returns the networks on which a list lacks an endpoint. It is for engine.Lister.Attach.
func (s *Service) Unlisted(c *engine.Content) (networks []string) {
	for r := range s.endpoints.Rows() {
		if r.Phase == reconcile.Wanted && !c.IsRunning(r.Spec.Network, r.Key) {
			networks = append(networks, r.Spec.Network)
		}
	}
	return networks
}

// isPartUsed reports whether the endpoint of a plug, a publication or a floating IP is being started,
// or a container has its interface.
func (s *Service) isPartUsed(id string) bool {
	if row, known := s.endpoints.Get(id); known && s.isUsed(row) {
		return true
	}
	plug, known := s.plugs.Get(id)
	if !known || plug.Spec.Port.ID == "" {
		return false
	}
	connected, err := s.connected(context.Background(), plug.Spec.Port)
	return connected || err != nil
}

// Values by which rows of endpoints are found.
const (
	byNetwork = "network/"
	byAddress = "address/"
)

// Index implements reconcile.Indexed: the network, and the key of the row of the address.
func (e Spec) Index() []string {
	values := []string{byNetwork + e.Network}
	if _, key, ok := strings.Cut(e.Address, "/"); ok {
		values = append(values, byAddress+key)
	}
	return values
}

// Of returns the endpoint that has the port of an address, by the key of the address's row; "" if
// none has it. inUse reports whether it is being started, or a container has its interface.
func (s *Service) Of(address string) (id string, inUse bool) {
	for r := range s.endpoints.ByIndex(byAddress + address) {
		if r.Phase == reconcile.Wanted {
			return r.Key, s.isUsed(r)
		}
	}
	return "", false
}

// IsDeleting reports whether an endpoint is being deleted.
func (s *Service) IsDeleting(id string) bool {
	r, ok := s.endpoints.Get(id)
	return ok && r.Phase == reconcile.Deleting
}

// Has reports whether a network has endpoints.
func (s *Service) Has(network string) bool {
	for r := range s.endpoints.ByIndex(byNetwork + network) {
		if r.Phase == reconcile.Wanted {
			return true
		}
	}
	return false
}

// InUse reports whether an endpoint of a network is being started, or a container has its interface.
func (s *Service) InUse(network string) bool {
	for r := range s.endpoints.ByIndex(byNetwork + network) {
		if r.Phase == reconcile.Wanted && s.isUsed(r) {
			return true
		}
	}
	return false
}
