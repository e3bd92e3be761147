package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// Spec is what an endpoint was asked to be.
type Spec struct {
	Network    string    // the engine's id; "": the row was made without one
	Started    time.Time `json:",omitzero"` // when the engine began to start it
	SDNNetwork sdn.ID
	// Port is the port that was requested with the addresses; "": the endpoint has a port of its
	// own. Existing says that its user made it.
	Port     sdn.ID `json:",omitempty"`
	Existing bool   `json:",omitempty"`
	Address  string `json:",omitempty"` // the row of Port; "": it has none
	Shared   bool   `json:",omitempty"` // other hosts change Port, too

	Addresses []netip.Prefix    `json:",omitempty"`
	MAC       string            `json:",omitempty"` // "": any
	Subnets   []sdn.Subnet      `json:",omitempty"` // of the network
	MTU       int               `json:",omitempty"`
	Internal  bool              `json:",omitempty"` // no gateways
	Ifname    string            `json:",omitempty"`
	Guarded   *bool             `json:",omitempty"` // port security; nil: as of the network
	Allowed   []sdn.AllowedPair `json:",omitempty"`
	Balancer  bool              `json:",omitempty"` // Allowed is of a swarm's balancer
	Groups    []sdn.ID          `json:",omitempty"` // nil: left to the SDN
	NoGroups  bool              `json:",omitempty"`
	Policy    sdn.ID            `json:",omitempty"`
	Floating  string            `json:",omitempty"` // api.OptFloatingIP
	Publish   string            `json:",omitempty"` // api.OptPublish
	Exposed   []api.ExposedPort `json:",omitempty"`
	Binding   netip.Addr        `json:",omitzero"` // the host's address that ports are published at
}

// Last is what an endpoint became.
type Last struct {
	Port       sdn.Port  // without its status
	Joined     time.Time `json:",omitzero"`  // when the last Join began
	StartEnded bool      `json:",omitempty"` // the engine starts it no more
	// Undo are the tags that say what was set of an existing port; nil: only the port tells.
	Undo []string `json:",omitzero"`
}

// options are those of the options that tags of the port store.
func (e Spec) options() api.EndpointOptions {
	o := api.EndpointOptions{Ifname: e.Ifname, FloatingIP: e.Floating, Publish: e.Publish}
	if e.Guarded != nil {
		off := !*e.Guarded
		o.NoPortSecurity = &off
	}
	return o
}

func (e Spec) mac() net.HardwareAddr {
	mac, _ := net.ParseMAC(e.MAC) // Create formatted it
	return mac
}

// known is the key of a context's value: the port as the caller has just read it.
type known struct{}

type endpointTarget struct{ *Service }

// Ensure implements reconcile.Target.
func (t endpointTarget) Ensure(ctx context.Context, o reconcile.Object, e Spec, last Last) (Last, error) {
	port, changed, err := t.bind(ctx, o, e, &last)
	if port.ID != "" {
		last.Port = port
		last.Port.Status = "" // of no use later
	}
	return last, identity.Outcome(err, changed)
}

// bind gives the port to the endpoint, and reports whether it changed anything.
func (t endpointTarget) bind(ctx context.Context, o reconcile.Object, e Spec, last *Last) (sdn.Port, bool, error) {
	id := cmp.Or(e.Port, last.Port.ID)
	if id == "" {
		port, err := t.create(ctx, o, e)
		return port, false, err
	}
	port, ok := ctx.Value(known{}).(sdn.Port)
	if !ok || port.ID != id {
		var err error
		if port, err = t.SDN.Port(ctx, id); err != nil {
			return sdn.Port{}, false, reconcile.Refused(err)
		}
	}
	if e.Existing {
		return t.attach(ctx, o.Key, e, port, last)
	}
	patch, changes := t.patch(o.Key, e, port)
	if !changes {
		return port, false, nil
	}
	bound, err := t.SDN.UpdatePort(ctx, port.ID, patch)
	switch {
	case sdn.ReasonOf(err) == sdn.Stale:
		err = taken(port, err)
	case sdn.IsDenied(err):
		err = t.unbindable(port, err)
	}
	return bound, false, err
}

func taken(port sdn.Port, cause error) error {
	return api.RefuseFor(cause, "address %s was taken by another endpoint", identity.Addresses(port))
}

func (s *Service) unbindable(port sdn.Port, cause error) error {
	return api.RefuseFor(cause, "the SDN does not let Kuryr bind port %s to host %s: its credentials "+
		"need the right to set binding:host_id, or the port has to be bound already", port.ID, s.Host)
}

// create makes the port of an endpoint whose addresses another IPAM driver chose, or none.
func (t endpointTarget) create(ctx context.Context, o reconcile.Object, e Spec) (sdn.Port, error) {
	options := e.options()
	spec := sdn.PortSpec{
		Base: sdn.Base{
			Key:  t.Names.Key(identity.KindEndpoint, o.Key, o),
			Name: identity.PortTitle(o.Key), Tags: t.tags(o.Key, e),
		},
		Network: e.SDNNetwork, MAC: e.mac(),
		DeviceID: o.Key, DeviceOwner: sdn.OwnerContainer, Host: t.Host,
		NoPortSecurity: options.NoPortSecurity, AllowedPairs: e.Allowed,
		Groups: e.Groups, WithoutGroups: e.NoGroups, QoSPolicy: e.Policy,
		WithoutAddresses: len(e.Subnets) == 0,
	}
	for _, a := range e.Addresses {
		spec.Addresses = append(spec.Addresses, sdn.Address{Addr: a.Addr()})
	}
	ports, err := t.SDN.EnsurePorts(ctx, []sdn.PortSpec{spec})
	if err != nil {
		return sdn.Port{}, err
	}
	return ports[0], nil
}

// patch is what binds a port of ours, or of kuryr-libnetwork, to the endpoint.
func (t endpointTarget) patch(id string, e Spec, port sdn.Port) (patch sdn.PortPatch, changes bool) {
	mac, groups, tags := e.mac(), e.Groups, t.tags(id, e)
	if e.NoGroups {
		groups = []sdn.ID{}
	}
	sameMAC := mac == nil || bytes.Equal(mac, port.MAC)
	sameAllowed := samePairs(e.Allowed, port.AllowedPairs)
	if port.DeviceID == id && port.Host == t.Host && sameMAC && identity.HasAll(port.Tags, tags) &&
		sameAllowed && !port.Key.IsZero() && (groups == nil || sameSet(groups, port.Groups)) &&
		(e.Policy == "" || e.Policy == port.QoSPolicy) {
		return patch, false
	}
	name, owner := identity.PortTitle(id), sdn.OwnerContainer
	tags = append(tags, held(port)...)
	patch = sdn.PortPatch{
		Patch:    sdn.Patch{IfRevision: port.Revision, Name: &name, Tags: &tags},
		DeviceID: &id, DeviceOwner: &owner, Host: &t.Host,
		NoPortSecurity: e.options().NoPortSecurity,
	}
	if port.Key.IsZero() {
		key := t.Names.GlobalKey(identity.KindPort, string(port.Network)+"/"+string(port.ID))
		patch.Key = &key
	}
	if !sameMAC {
		patch.MAC = mac
	}
	if groups != nil {
		patch.Groups = &groups
	}
	if e.Policy != "" {
		patch.QoSPolicy = &e.Policy
	}
	if !sameAllowed {
		pairs := append([]sdn.AllowedPair{}, e.Allowed...)
		patch.AllowedPairs = &pairs
	}
	return patch, true
}

func samePairs(a, b []sdn.AllowedPair) bool {
	return slices.EqualFunc(a, b, func(x, y sdn.AllowedPair) bool {
		return x.Prefix == y.Prefix && slices.Equal(x.MAC, y.MAC)
	})
}

func sameSet(a, b []sdn.ID) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// Delete implements reconcile.Target.
func (t endpointTarget) Delete(ctx context.Context, o reconcile.Object, e Spec, last Last) error {
	if e.Address != "" && !e.Existing && t.Addresses.Deleting(e.Address) {
		return nil // the port is deleted with its address
	}
	port, err := t.current(ctx, o, e, last)
	if sdn.IsNotFound(err) || err == nil && identity.EndpointOf(port) != o.Key {
		if e.Port != "" {
			return nil // only a port of its own may appear later
		}
		return reconcile.ErrAbsent
	}
	if err != nil {
		return err
	}
	switch {
	case t.Names.Attached(port, t.Host) && identity.IsExistingOf(port, o.Key):
		return t.detach(ctx, o.Key, port, last.Undo)
	case !t.IsOwn(port) || identity.Elsewhere(port, t.Host):
		return nil // another has it
	case port.Key.Kind == identity.KindEndpoint && len(held(port)) == 0:
		return t.SDN.DeletePorts(ctx, []sdn.ID{port.ID})
	}
	return identity.IgnoreAbsent(t.park(ctx, e, port))
}

// current reads the port of an endpoint, unless only this process changes it. After a create without
// an answer it is found by its Key, and for a row that was made without one by the engine's id.
func (t endpointTarget) current(ctx context.Context, o reconcile.Object, e Spec, last Last) (sdn.Port, error) {
	if e.Address != "" && !e.Existing && !e.Shared && last.Port.ID != "" {
		return last.Port, nil
	}
	id := cmp.Or(last.Port.ID, e.Port)
	if id != "" {
		return t.SDN.Port(ctx, id)
	}
	var port sdn.Port
	var found bool
	var err error
	if e.Network == "" && last.Port.Key.IsZero() {
		port, found, err = t.LookUp(ctx, o.Key)
	} else {
		key := last.Port.Key
		if key.IsZero() {
			key = t.Names.Key(identity.KindEndpoint, o.Key, o)
		}
		port, found, err = sdn.First(t.SDN.FindPorts(ctx, sdn.PortQuery{Match: identity.ByKey(key)}))
	}
	if err == nil && !found {
		err = sdn.NotFound("port", o.Key)
	}
	return port, err
}

// park takes the endpoint from its port, which stays until its addresses are released. Tags of a
// port without a row name the addresses that are released already, and what a swarm's manager
// holds.
func (t endpointTarget) park(ctx context.Context, e Spec, port sdn.Port) error {
	left, mine := unreleased(port), held(port)
	if len(mine) > 0 {
		left = port.Addresses
	} else if len(left) == 0 && e.Address == "" {
		return t.SDN.DeletePorts(ctx, []sdn.ID{port.ID})
	}
	none, name := "", identity.UnboundPort
	patch := sdn.PortPatch{Patch: sdn.Patch{Name: &name}, DeviceID: &none, Host: &none}
	if len(mine) > 0 || len(left) < len(port.Addresses) {
		tags := append(mine, identity.TagPort)
		patch.Tags, patch.IfRevision = &tags, port.Revision
	}
	if len(left) < len(port.Addresses) {
		patch.Addresses = &left
	}
	if len(port.AllowedPairs) > 0 {
		patch.AllowedPairs = &[]sdn.AllowedPair{}
	}
	if len(identity.Values(port.Tags, identity.TagGuarded)) > 0 {
		n, err := t.SDN.Network(ctx, port.Network)
		if err != nil {
			return err
		}
		patch.NoPortSecurity = &n.NoPortSecurity
	}
	_, err := t.SDN.UpdatePort(ctx, port.ID, patch)
	return err
}

// held are the tags of a port by which a swarm's manager has it.
func held(p sdn.Port) []string { return identity.WithPrefix(p.Tags, identity.TagHeld) }

// unreleased are the addresses of a port that the engine has not released.
func unreleased(p sdn.Port) []sdn.Address {
	released := identity.Values(p.Tags, identity.TagFreed)
	return slices.DeleteFunc(slices.Clone(p.Addresses), func(a sdn.Address) bool {
		return slices.Contains(released, a.Addr.String())
	})
}

func (s *Service) tags(id string, e Spec) []string {
	tags := append(identity.IDTags(id), identity.TagPort, s.Names.HostTag())
	if e.Binding.IsValid() {
		tags = append(tags, identity.TagBinding+e.Binding.String())
	}
	return slices.Concat(tags, identity.EndpointOptionTags(e.options()), exposedTags(e.Exposed))
}

// maxExposed is how many ranges of exposed ports tags have: Neutron has 50 tags on a port.
const maxExposed = 32

// exposedTags are the tags of exposed ports. Those beyond maxExposed are left out.
func exposedTags(ports []api.ExposedPort) []string {
	var tags []string
	for _, r := range exposedRanges(ports) {
		if len(tags) < maxExposed {
			tags = append(tags, identity.TagExposed+r.String())
		}
	}
	return tags
}

// exposedRange is neighbouring exposed ports of a protocol.
type exposedRange struct {
	first api.ExposedPort
	last  uint16
}

// String returns a text such as 80/tcp or 8000-8009/udp.
func (r exposedRange) String() string {
	name := ipproto.Name(r.first.Proto)
	if r.first.Port == r.last {
		return fmt.Sprintf("%d/%s", r.last, name)
	}
	return fmt.Sprintf("%d-%d/%s", r.first.Port, r.last, name)
}

func exposedRanges(ports []api.ExposedPort) []exposedRange {
	ports = slices.Clone(ports)
	sortslice.Func(ports, func(a, b api.ExposedPort) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	var ranges []exposedRange
	for _, p := range ports {
		n := len(ranges) - 1
		if n >= 0 && ranges[n].first.Proto == p.Proto && p.Port-ranges[n].last <= 1 {
			ranges[n].last = p.Port
			continue
		}
		ranges = append(ranges, exposedRange{p, p.Port})
	}
	return ranges
}

// Exposed returns the exposed ports in the tags of a port, such as 80/tcp and 8000-8009/udp.
func Exposed(tags []string) []string { return identity.Values(tags, identity.TagExposed) }
