package docker

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// comparer makes one Comparison.
type comparer struct {
	d      *Driver
	engine Engine
	view   engine.List
	out    Comparison

	// What is in the SDN.
	nets      map[sdn.ID]sdn.Network // of engines
	hidden    map[sdn.ID]sdn.Network
	cut       map[sdn.ID]sdn.Subnet // by pool
	all       []enginePool
	ports     []sdn.Port
	floating  []sdn.FloatingIP
	elsewhere map[sdn.ID]bool          // networks that are another host's
	links     []link                   // to existing networks
	linked    map[sdn.ID][]sdn.Network // engines' networks by the existing one that they are

	// What the engine has, by id.
	has       map[string]engine.Network
	endpoint  map[string]bool
	inspected map[string][]engine.Endpoint
	known     map[string]bool      // the SDN's networks, by the engine's id
	ported    map[sdn.ID]bool      // networks that have ports of ours
	ranges    map[sdn.ID]int       // how many ranges a network has of this host's pools
	connected map[sdn.ID]bool      // networks on which a container has an interface that the engine does not know
	left      map[string]beginning // what no engine may have been told of, by record, as it was before the SDN was read
	alone     bool                 // nothing speaks of an engine besides the one that answers
}

// read reads the SDN.
func (c *comparer) read(ctx context.Context) error {
	d := c.d
	ofKind := func(kind string) sdn.Match { return sdn.Match{Owner: d.sdn.Installation(), Kind: kind} }
	c.nets, c.hidden = map[sdn.ID]sdn.Network{}, map[sdn.ID]sdn.Network{}
	for kind, into := range map[string]map[sdn.ID]sdn.Network{identity.KindNetwork: c.nets, identity.KindHidden: c.hidden} {
		for n, err := range d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: ofKind(kind)}) {
			if err != nil {
				return err
			}
			into[n.ID] = n
		}
	}
	for _, kind := range []string{identity.KindPort, identity.KindEndpoint} {
		found, err := sdn.All(d.sdn.FindPorts(ctx, sdn.PortQuery{Match: ofKind(kind)}))
		if err != nil {
			return err
		}
		c.ports = append(c.ports, found...)
	}
	lent, err := sdn.All(d.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Tags: []string{identity.TagExistingPort, identity.TagBorrower + d.sdn.Installation()}}}))
	if err != nil {
		return err
	}
	for _, p := range lent {
		if d.names.Attached(p, d.host) {
			p.DeviceID = identity.EndpointOf(p)
			c.ports = append(c.ports, p)
		}
	}
	for kind, has := range map[string]bool{identity.KindPublish: d.sdn.Capabilities().Forwards, identity.KindFloating: d.sdn.Capabilities().FloatingIPs} {
		if !has {
			continue
		}
		found, err := sdn.All(d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: ofKind(kind)}))
		if err != nil {
			return err
		}
		c.floating = append(c.floating, found...)
	}
	return c.readPools(ctx, ofKind)
}

func (c *comparer) readPools(ctx context.Context, ofKind func(string) sdn.Match) error {
	c.cut, c.elsewhere, c.linked = map[sdn.ID]sdn.Subnet{}, map[sdn.ID]bool{}, map[sdn.ID][]sdn.Network{}
	if !c.d.sdn.Capabilities().SubnetPools {
		return nil
	}
	for _, kind := range []string{identity.KindSubnet, identity.KindHiddenSubnet} {
		for s, err := range c.d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Match: ofKind(kind)}) {
			if err != nil {
				return err
			}
			c.cut[s.Pool] = s
		}
	}
	for p, err := range c.d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: ofKind(identity.KindPool)}) {
		if err != nil {
			return err
		}
		pool, ok := c.d.enginePool(p)
		if !ok {
			continue
		}
		if s, used := c.cut[p.ID]; used && pool.Host != c.d.names.Host {
			c.elsewhere[s.Network] = true
		}
		c.all = append(c.all, pool)
	}
	var err error
	c.links, err = c.d.allLinks(ctx)
	for _, l := range c.links {
		c.linked[l.network] = append(c.linked[l.network], l.asNetwork(c.d))
	}
	return err
}

func (c *comparer) index() {
	c.has, c.endpoint, c.connected, c.known = map[string]engine.Network{}, map[string]bool{}, map[sdn.ID]bool{}, map[string]bool{}
	for _, n := range c.nets {
		c.known[n.Key.Name] = true
	}
	for _, l := range c.links {
		c.known[l.id] = true
	}
	for _, n := range c.view.Networks {
		c.has[n.ID] = n
	}
	for _, e := range c.view.Endpoints() {
		c.endpoint[e.ID] = true
	}
	c.ported, c.ranges = map[sdn.ID]bool{}, map[sdn.ID]int{}
	for _, p := range c.ports {
		c.ported[p.Network] = true
	}
	for _, p := range c.all {
		if s, ok := c.cut[p.ID]; ok && p.Host == c.d.names.Host && p.Space != api.GlobalSpace {
			c.ranges[s.Network]++
		}
	}
	c.alone = c.soleEngine()
}

// on asks for the endpoints on an engine's network, once.
func (c *comparer) on(ctx context.Context, network string) ([]engine.Endpoint, error) {
	if list, ok := c.inspected[network]; ok {
		return list, nil
	}
	list, err := c.engine.Endpoints(ctx, network)
	if err != nil && !engine.IsNotFound(err) {
		return nil, err
	}
	c.inspected[network] = list
	return list, nil
}

func (c *comparer) add(f Forgotten, of sdn.Meta) {
	f.ID, f.Updated, f.revision = of.ID, of.Updated, of.Revision
	if of.Updated.IsZero() {
		f.Updated = of.Created
	}
	c.out.Forgotten = append(c.out.Forgotten, f)
}

// engineOf is the engine that an object says had it, by its engineName, "" if none.
func engineOf(tags []string) string {
	if ids := identity.Values(tags, identity.TagEngine); len(ids) > 0 {
		return identity.EngineName(ids[0])
	}
	return ""
}

// owned tells why what belongs to a network must be kept, "" if this engine may forget it: one that it was seen to have, and one that
// nobody can have.
//
// An engine that is killed in CreateNetwork never lists the network, so none is ever seen to have it, and no call will come for it.
// It may be forgotten nevertheless, since whoever has it would lose nothing but an empty network, where all of this holds:
//   - no endpoint was ever made on it (CreateEndpoint notes that on networks that no engine was seen to have), no port of ours
//     is on it now, and nothing on it is of a swarm (untouched);
//   - all its ranges are of pools that this host's engine asked for, one at least (untouched);
//   - the engine that answers uses this plugin: it has another of these networks, or was seen to (soleEngine);
//   - nothing speaks of an engine that is not asked: no network or pool of this host is noted as another's, and none that nobody was
//     seen to have was ever used (soleEngine);
//   - it was made a minute ago at least, besides being found missing twice with the grace time between.
//
// Where it is written down that no engine was told of it (begun), the first of these is enough: then nobody has it.
//
// All else that no engine was seen to have stays until somebody says that it is nobody's.
func (c *comparer) owned(n sdn.Network) (kept, engine string) {
	if _, has := c.has[n.Key.Name]; has {
		return "", ""
	}
	switch engine = engineOf(n.Tags); {
	case c.view.Swarm.Member && (!localID.MatchString(n.Key.Name) || ofSwarm(n)):
		return "other nodes of the swarm may have the network", swarmEngine
	case engine == "" && (c.alone || c.untold(identity.KindNetwork, n.Key.Name)) && c.untouched(n):
		return "", ""
	case engine == "":
		return "the engine that answers was never seen to have the network", ""
	case engine != c.view.Engine:
		return "the network is another engine's, or this one's before it lost its data", engine
	}
	return "", ""
}

func (c *comparer) running(context.Context) error {
	ports := map[string]sdn.Port{}
	for _, p := range c.ports {
		if p.DeviceID != "" && p.Host == c.d.host {
			ports[p.DeviceID] = p
		}
	}
	for _, e := range c.view.Endpoints() {
		if c.known[e.Network] {
			c.out.Running = append(c.out.Running, Running{e, ports[e.ID]})
		}
	}
	return nil
}

func (c *comparer) publications(context.Context) error {
	devices := map[string]bool{}
	for _, p := range c.ports {
		devices[p.DeviceID] = true
	}
	for _, f := range c.floating {
		endpoint, _, _ := strings.Cut(f.Key.Name, "/")
		endpoint, _, _ = strings.Cut(endpoint, "~") // a later one with the id
		if !devices[endpoint] {
			c.add(Forgotten{Noun: NounPublication, Name: endpoint, Why: "host ports are published for an endpoint that is gone"}, f.Meta)
		}
	}
	return nil
}

func (c *comparer) endpoints(ctx context.Context) error {
	for _, p := range c.ports {
		if p.DeviceID == "" || p.Host != c.d.host || c.endpoint[p.DeviceID] || c.elsewhere[p.Network] {
			continue
		}
		networks := c.linked[p.Network] // it is of one of them
		if network, ours := c.nets[p.Network]; ours {
			networks = append(slices.Clone(networks), network)
		}
		f, forgotten, err := c.endpointOf(ctx, p, networks)
		if err != nil {
			return err
		}
		if !forgotten {
			continue
		}
		connected, err := c.d.binder.Connected(ctx, p)
		if err != nil {
			return &endpoints.PlugError{Err: err}
		}
		if connected {
			f.Kept, f.Connected = "a container has its interface", true
			c.connected[p.Network] = true
		}
		c.add(f, p.Meta)
	}
	return nil
}

// endpointOf judges an endpoint that no container that runs has, which is of one of the networks.
func (c *comparer) endpointOf(ctx context.Context, p sdn.Port, networks []sdn.Network) (f Forgotten, forgotten bool, err error) {
	f = Forgotten{Noun: NounEndpoint, Name: p.DeviceID}
	for _, network := range networks {
		why := "Docker has no container with it"
		if _, has := c.has[network.Key.Name]; has {
			there, err := c.on(ctx, network.Key.Name)
			if err != nil {
				return f, false, err
			}
			if slices.ContainsFunc(there, func(e engine.Endpoint) bool { return e.ID == p.DeviceID }) {
				return f, false, nil
			}
		} else {
			why = "Docker does not have its network " + api.Clip(network.Key.Name, 12)
		}
		kept, engine := c.owned(network)
		if f.Why == "" || f.Kept == "" && kept != "" {
			f.Why, f.Kept, f.Engine = why, kept, engine
		}
	}
	return f, len(networks) > 0, nil
}

// addresses finds ports that hold addresses that no endpoint has: of the engine's networks, and of the hidden ones. On an existing network,
// which may be other hosts' too, a port that is nowhere does not tell whose it is, and stays.
func (c *comparer) addresses(ctx context.Context) error {
	for _, p := range c.ports {
		if p.DeviceID != "" || c.elsewhere[p.Network] {
			continue
		}
		var in []string
		if network, ok := c.nets[p.Network]; ok {
			// A swarm's addresses are held for what runs elsewhere too. Those of a network that is gone go with it.
			if _, has := c.has[network.Key.Name]; has && localID.MatchString(network.Key.Name) {
				in = append(in, network.Key.Name)
			}
		} else if _, ok := c.hidden[p.Network]; ok {
			in = c.users(c.hiddenRange(p.Network))
		}
		if len(in) == 0 {
			continue
		}
		known, err := c.anyHas(ctx, in, p.Addresses)
		if err != nil {
			return err
		}
		if !known {
			name := "of " + p.MAC.String()
			if len(p.Addresses) > 0 {
				name = p.Addresses[0].Addr.String()
			}
			c.add(Forgotten{Noun: NounAddress, Name: name, Why: "it is taken, and no endpoint in Docker has it"}, p.Meta)
		}
	}
	return nil
}

func (c *comparer) anyHas(ctx context.Context, networks []string, addresses []sdn.Address) (bool, error) {
	for _, n := range networks {
		there, err := c.on(ctx, n)
		if err != nil {
			return false, err
		}
		for _, e := range there {
			if slices.ContainsFunc(addresses, func(a sdn.Address) bool { return slices.Contains(e.Addresses, a.Addr) }) {
				return true, nil
			}
		}
	}
	return false, nil
}

// hiddenRange is the range of a hidden network, of this host only.
func (c *comparer) hiddenRange(network sdn.ID) netip.Prefix {
	for _, p := range c.all {
		if s, ok := c.cut[p.ID]; ok && s.Network == network && p.Host == c.d.names.Host && p.Space != api.GlobalSpace {
			return p.CIDR
		}
	}
	return netip.Prefix{}
}

// users are the engine's networks that may have a range from this IPAM driver, besides those that have their own subnet of it.
func (c *comparer) users(r netip.Prefix) []string {
	var ids []string
	for _, n := range c.view.Networks {
		has := func(s engine.Subnet) bool { return s.Range == r }
		if n.OurIPAM && !c.known[n.ID] && slices.ContainsFunc(n.Subnets, has) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

func (c *comparer) networks(context.Context) error {
	for _, n := range c.nets {
		if c.elsewhere[n.ID] {
			continue
		}
		if _, has := c.has[n.Key.Name]; has {
			if engineOf(n.Tags) != c.view.Engine {
				c.out.seen = append(c.out.seen, n)
			}
			continue
		}
		f := Forgotten{Noun: NounNetwork, Name: n.Key.Name, Why: "Docker does not have it"}
		f.Kept, f.Engine = c.owned(n)
		if f.Engine == "" && f.Kept == "" && engineOf(n.Tags) == "" {
			f.untouched = true
			if f.untold = c.untold(identity.KindNetwork, n.Key.Name); f.untold {
				f.Why += ", and was not told of it"
			} else {
				f.Why += ", nor was any engine seen to have it"
				f.NotBefore = n.Created.Add(creation)
			}
		}
		if c.connected[n.ID] {
			f.Kept, f.Connected = "a container has an interface on it", true
		}
		c.add(f, n.Meta)
	}
	for _, n := range c.hidden {
		// They were read before the pools were: this one's is gone. It was made, or was to have its subnet, when Kuryr was killed.
		if c.d.sdn.Capabilities().SubnetPools && !slices.ContainsFunc(c.all, func(p enginePool) bool { return string(p.ID) == n.Key.Name }) {
			c.add(Forgotten{Noun: NounNetwork, Name: n.Name, Why: "its range is gone, of which it held addresses", hidden: true}, n.Meta)
		}
	}
	for _, l := range c.links {
		n := l.asNetwork(c.d)
		if _, has := c.has[l.id]; has {
			if engineOf(n.Tags) != c.view.Engine {
				c.out.seen = append(c.out.seen, n)
			}
			continue
		}
		f := Forgotten{Noun: NounNetwork, Name: l.id, Why: "Docker does not have it; it is the existing network " + string(l.network), linked: true,
			untold: engineOf(n.Tags) == "" && c.untold(identity.KindNetwork, l.id)}
		if f.Kept, f.Engine = c.owned(n); c.connected[l.network] {
			f.Kept, f.Connected = "a container has an interface on it", true
		}
		c.add(f, l.Meta)
	}
	for _, n := range c.view.Networks {
		if n.Ours && !c.known[n.ID] {
			c.out.Unknown = append(c.out.Unknown, n)
		}
	}
	return nil
}

// pools finds those that no network of the engine's has the range of. What an engine took no gateway from is one whose request was
// answered to nobody; of others, another engine may have a use where one is known to have been here.
func (c *comparer) pools(context.Context) error {
	alone := !slices.ContainsFunc(c.out.Forgotten, func(f Forgotten) bool { return f.Noun == NounNetwork && f.Kept != "" && !f.Connected })
	linked := map[sdn.ID]bool{}
	for _, l := range c.links {
		for _, id := range l.pools {
			linked[id] = true
		}
	}
	for _, p := range c.all {
		s, used := c.cut[p.ID]
		if linked[p.ID] || p.Host != c.d.names.Host || p.released() || p.Space == api.GlobalSpace || used && !c.d.names.Ours(s.Meta, identity.KindHiddenSubnet) {
			continue
		}
		if owner, _, _ := strings.Cut(p.emptied(), "/"); c.known[owner] {
			continue // its subnet is empty and went; the next endpoint brings it back
		}
		engine := engineOf(p.Tags)
		if len(c.users(p.CIDR)) > 0 {
			if engine != c.view.Engine && !c.d.handedLately(p.ID) {
				c.out.used = append(c.out.used, p)
			}
			continue
		}
		f := Forgotten{Noun: NounPool, Name: p.CIDR.String(), Why: "no network in Docker has the range", NotBefore: c.d.handedUntil(p.ID)}
		switch {
		case engine != "" && engine != c.view.Engine:
			f.Kept, f.Engine = "the range is another engine's, or this one's before it lost its data", engine
		case engine == "" && !alone && !c.untold(identity.KindPool, p.Key.Name) && (used || c.d.frugal() || !p.untouched()):
			f.Kept = "the engine that answers was never seen to have the range, and there are networks of others"
		}
		c.add(f, p.Meta)
	}
	return nil
}
