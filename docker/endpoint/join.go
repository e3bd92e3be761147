package endpoint

import (
	"context"
	"errors"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Join answers Join: it plugs the endpoint's port, and says which interface Docker moves into the
// container and which routes it makes. Until Docker has moved it, no container has the interface:
// the endpoint is being started.
func (s *Service) Join(ctx context.Context, r *api.JoinRequest) (api.JoinResponse, error) {
	var none api.JoinResponse
	row, err := s.find(ctx, r.EndpointID, r.NetworkID)
	if err != nil {
		return none, err
	}
	if isBalancer(r.SandboxKey) {
		if row, err = s.allow(ctx, row, subnetRanges(row)); err != nil {
			return none, err
		}
	}
	e, port := row.Spec, row.Last.Port
	if len(e.Subnets) == 0 && len(port.Addresses) > 0 { // a record of the previous version
		n, err := s.Networks.Find(ctx, r.NetworkID)
		if err != nil {
			return none, err
		}
		e.Subnets = lasting(n.Subnets)
	}
	spec := PlugSpec{
		Port: port, MTU: e.MTU, Subnets: subnetsOf(port, e.Subnets), Sandbox: r.SandboxKey,
		Exposed: exposedTexts(r.Options.Exposed), Call: uuid.NewString(),
	}
	had, known := s.plugs.Get(r.EndpointID)
	if known && spec.Exposed == nil {
		spec.Exposed = had.Spec.Exposed // a repeat may tell of none
	}
	if e.Internal {
		for i := range spec.Subnets {
			spec.Subnets[i].Gateway = netip.Addr{} // an existing subnet and a swarm's may have one
		}
	}
	s.endpoints.Note(r.EndpointID, func(l Last) Last { // the commit of the plug stores it
		l.Joined, l.StartEnded = startTime(), false
		return l
	})
	plugged, err := s.plugs.Set(ctx, reconcile.Request[PlugSpec]{
		Key: r.EndpointID, Spec: spec, Owners: []string{s.endpoints.Ref(r.EndpointID)},
	})
	if err != nil {
		return none, explain(r.EndpointID, err)
	}
	if err = s.waitActive(ctx, port.ID); err == nil {
		err = s.float(ctx, r.EndpointID, row)
	}
	if err != nil {
		if !known || had.Phase != reconcile.Wanted { // a repeat leaves what the first call made
			s.undoJoin(ctx, r.EndpointID, spec.Call)
		}
		return none, err
	}
	answer := joinAnswer(port, spec.Subnets, plugged.Name)
	answer.InterfaceName.DstName = e.Ifname
	return answer, nil
}

// waitActive waits until the SDN reports that a plugged port is active, if it has to.
func (s *Service) waitActive(ctx context.Context, port sdn.ID) error {
	if s.WaitActive == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.WaitActive)
	defer cancel()
	err := s.SDN.WaitPorts(ctx, []sdn.ID{port}, sdn.PortActive)
	if errors.Is(err, context.DeadlineExceeded) {
		return api.Refuse("port %s was plugged and is not ACTIVE after %s", port, s.WaitActive)
	}
	return err
}

// undoJoin does what the engine does not after a Join that failed. The interface of a later Join
// stays.
func (s *Service) undoJoin(ctx context.Context, id, call string) {
	if now, ok := s.plugs.Get(id); ok && now.Spec.Call != call {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unplugTime)
	defer cancel()
	if err := s.Leave(ctx, id); err != nil {
		s.Log.WarnContext(ctx, "failed join not undone", "endpoint", id, "err", err)
	}
}

// subnetsOf returns the subnets that a port has addresses of: the same list if that is all of them.
func subnetsOf(port sdn.Port, all []sdn.Subnet) []sdn.Subnet {
	isOther := func(s sdn.Subnet) bool {
		return !slices.ContainsFunc(port.Addresses, func(a sdn.Address) bool { return a.Subnet == s.ID })
	}
	if !slices.ContainsFunc(all, isOther) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), isOther)
}

func exposedTexts(ports []api.ExposedPort) []string {
	var texts []string
	for _, r := range exposedRanges(ports) {
		texts = append(texts, r.String())
	}
	slices.Sort(texts)
	return texts
}

// joinAnswer has the gateways and routes of the subnets that the port has addresses of, and no
// others. Without a gateway Docker would add an interface on a bridge of its own, which
// DisableGatewayService forbids.
func joinAnswer(port sdn.Port, subnets []sdn.Subnet, name string) api.JoinResponse {
	j := api.JoinResponse{InterfaceName: api.InterfaceName{SrcName: name, DstPrefix: "eth"}}
	byID, own := map[sdn.ID]sdn.Subnet{}, map[netip.Addr]bool{}
	for _, s := range subnets {
		byID[s.ID] = s
	}
	for _, a := range port.Addresses {
		own[a.Addr] = true
	}
	told := map[sdn.HostRoute]bool{}
	for _, a := range port.Addresses {
		s, ok := byID[a.Subnet]
		if !ok {
			continue
		}
		setGateway(&j, s.Gateway)
		for _, route := range s.HostRoutes {
			if told[route] || own[route.NextHop] {
				continue // a container that is the next hop needs no route
			}
			told[route] = true
			j.StaticRoutes = append(j.StaticRoutes, api.NewStaticRoute(route))
		}
	}
	j.DisableGatewayService = j.Gateway == ""
	return j
}

func setGateway(j *api.JoinResponse, gateway netip.Addr) {
	switch {
	case gateway.Is4() && j.Gateway == "":
		j.Gateway = gateway.String()
	case gateway.Is6() && j.GatewayIPv6 == "":
		j.GatewayIPv6 = gateway.String()
	}
}

// isBalancer reports whether a sandbox is the one in which Docker balances the services of a
// network: it has their virtual addresses beside its own.
func isBalancer(sandbox string) bool {
	name := path.Base(sandbox)
	return strings.HasPrefix(name, "lb_") || name == "ingress_sbox"
}

func subnetRanges(row endpointRow) []sdn.AllowedPair {
	var pairs []sdn.AllowedPair
	for _, s := range subnetsOf(row.Last.Port, row.Spec.Subnets) {
		pairs = append(pairs, sdn.AllowedPair{Prefix: s.CIDR})
	}
	return pairs
}

// allow lets a balancer's port send from all addresses of its subnets. Services that come later
// have virtual addresses there.
func (s *Service) allow(
	ctx context.Context, row endpointRow, pairs []sdn.AllowedPair,
) (endpointRow, error) {
	row.Spec.Allowed, row.Spec.Balancer = pairs, pairs != nil
	return s.again(ctx, row)
}

// PlugSpec is the interface of an endpoint, from Join to Leave.
type PlugSpec struct {
	Port    sdn.Port     // without an id: the row is of an endpoint without a row
	MTU     int          `json:",omitempty"`
	Subnets []sdn.Subnet `json:",omitempty"`
	Sandbox string       `json:",omitempty"` // the path of the container's network namespace
	Exposed []string     `json:",omitempty"` // what Join says that the container exposes, such as 80/tcp
	Call    string       // of the Join: each plugs
}

// PlugLast is what Plug answered.
type PlugLast struct {
	Name string `json:",omitempty"` // of the interface that Docker moves into the container
}

// startPlug forgets interfaces that a start of the kernel has removed.
func startPlug(_ plugRow, rebooted bool) reconcile.Action {
	if rebooted {
		return reconcile.Drop
	}
	return reconcile.Keep
}

type plugTarget struct{ *Service }

// Ensure implements reconcile.Target.
func (t plugTarget) Ensure(ctx context.Context, _ reconcile.Object, p PlugSpec, last PlugLast) (PlugLast, error) {
	r, err := t.Binder.Plug(ctx, bind.Interface{Port: p.Port, MTU: p.MTU, Subnets: p.Subnets})
	if err != nil {
		return last, &PlugError{err}
	}
	return PlugLast{Name: r.Name}, nil
}

// Delete implements reconcile.Target.
func (t plugTarget) Delete(ctx context.Context, o reconcile.Object, p PlugSpec, _ PlugLast) error {
	port := p.Port
	if port.ID == "" {
		found := false
		var err error
		if port, found, err = t.LookUp(ctx, o.Key); err != nil {
			return err
		}
		if !found || identity.Elsewhere(port, t.Host) || port.Host == "" {
			return reconcile.ErrAbsent
		}
	}
	return t.unplug(ctx, port)
}

// unplug removes the interface of a port from this host.
func (s *Service) unplug(ctx context.Context, port sdn.Port) error {
	if port.Host != s.Host {
		return nil
	}
	if err := s.Binder.Unplug(ctx, port); err != nil {
		return &PlugError{err}
	}
	return nil
}
