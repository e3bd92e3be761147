package neutronapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// persistence keeps clients with their members.
type persistence struct {
	Type        string  `json:"type"`
	CookieName  *string `json:"cookie_name"`
	Timeout     *int64  `json:"persistence_timeout"` // seconds
	Granularity *string `json:"persistence_granularity"`
}

// sourceIP is the only kind of persistence without HTTP.
const sourceIP = "SOURCE_IP"

// proxies are Octavia's names of the PROXY protocol, by its version. A pool of TCP tells its members
// the client's address by it.
var proxies = map[int]string{1: "PROXY", 2: "PROXYV2"}

// poolProtocol is the protocol of a pool: that of a listener, or the PROXY protocol over TCP.
type poolProtocol struct {
	sdn.Protocol
	proxy int
}

func (b *body) poolProtocol(name string) *poolProtocol {
	for version, proxy := range proxies {
		if b.values[name] == proxy {
			b.take(name)
			return &poolProtocol{sdn.TCP, version}
		}
	}
	if protocol := b.balanced(name); protocol != nil {
		return &poolProtocol{Protocol: *protocol}
	}
	return nil
}

func commonOfPool(p *sdn.Pool) partCommon { return partCommon{&p.ID, &p.Name, &p.Tags} }

var poolNoun = partNoun[sdn.Pool]{
	title: "pool", common: commonOfPool, all: poolsOf,
	at: func(all *sdn.LoadBalancerSpec, id sdn.ID) *sdn.Pool {
		p, _ := poolAt(all, id)
		return p
	},
}

// poolsOf returns all pools of a load balancer.
func poolsOf(l sdn.LoadBalancer) []part[sdn.Pool] {
	var all []part[sdn.Pool]
	for p, listener := range eachPool(&sdn.LoadBalancerSpec{Listeners: l.Listeners, Pools: l.Pools}) {
		all = append(all, part[sdn.Pool]{value: *p, of: l, listener: listener})
	}
	return all
}

var poolAttributes = poolFields

// poolFields are the attributes of pools. poolParts reads those of POST that are objects.
var poolFields = append(partFields(commonOfPool, online), []field{
	changeable("description", isDescription, func(p *part[sdn.Pool]) any { return p.value.Description },
		func(p *sdn.Pool, text string) { p.Description = text }),
	{name: "loadbalancer_id", access: hookPost},
	{name: "load_balancer_id", access: hookPost},
	{name: "listener_id", access: hookPost},
	{name: "loadbalancers", show: via(func(p *part[sdn.Pool]) any { return []ref{{string(p.of.ID)}} })},
	{name: "listeners", show: via(showListener)},
	{name: "protocol", is: kindOf((*body).poolProtocol), access: required, show: via(showPoolProtocol), why: whyBalanced,
		taken: "`TCP`, `UDP`, `SCTP`; `PROXY` and `PROXYV2` of a pool with a listener",
		post: store(func(e *partEdit[sdn.Pool], v any) {
			protocol := v.(poolProtocol)
			e.value.Protocol, e.proxy = protocol.Protocol, protocol.proxy
		})},
	{name: "lb_algorithm", is: isWord(algorithms...), access: required, show: via(showAlgorithm),
		post: edits(setAlgorithm), put: edits(setAlgorithm)},
	{name: "session_persistence", is: kindOf((*body).persistence), show: via(showPersistence),
		taken: "`null`, type `" + sourceIP + "`", why: whyBalanced, post: edits(setAffinity), put: edits(setAffinity)},
	{name: "members", access: hookPost, show: via(func(p *part[sdn.Pool]) any {
		return refs(p.value.Members, func(m *sdn.Member) sdn.ID { return m.ID })
	})},
	{name: "healthmonitor", access: hookPost},
	{name: "healthmonitor_id", show: via(func(p *part[sdn.Pool]) any {
		if p.value.Health == nil {
			return nil
		}
		return some(string(p.value.Health.ID))
	})},
	{name: "tls_enabled", is: isUnset(), show: never, why: noSuchThing},
	{name: "tls_container_ref", is: isUnset(), show: null, why: noSuchThing},
	{name: "ca_tls_container_ref", is: isUnset(), show: null, why: noSuchThing},
	{name: "crl_container_ref", is: isUnset(), show: null, why: noSuchThing},
	{name: "tls_ciphers", is: isUnset(), show: null, why: noSuchThing},
	{name: "tls_versions", is: isUnset(), show: empty, why: noSuchThing},
	{name: "alpn_protocols", is: isUnset(), show: empty, why: noSuchThing},
}...)

// algorithms are how members are chosen here, the default first.
var algorithms = []string{string(sdn.RoundRobin), string(sdn.LeastConns), string(sdn.SourceIP), string(sdn.SourceIPPort)}

func setAffinity(p *sdn.Pool, affinity sdn.Affinity) { p.Affinity = affinity }

func setAlgorithm(p *sdn.Pool, algorithm string) { p.Algorithm = sdn.Algorithm(algorithm) }

func showAlgorithm(p *part[sdn.Pool]) any { return cmp.Or(string(p.value.Algorithm), algorithms[0]) }

func showListener(p *part[sdn.Pool]) any {
	if p.listener == nil || p.listener.ID == "" {
		return []ref{}
	}
	return []ref{{string(p.listener.ID)}}
}

func showPoolProtocol(p *part[sdn.Pool]) any {
	switch l := p.listener; {
	case l == nil:
		return balancedName(p.value.Protocol)
	case l.ProxyProtocol:
		return proxies[max(l.ProxyVersion, 1)]
	default:
		return balancedName(l.Protocol)
	}
}

func showPersistence(p *part[sdn.Pool]) any {
	affinity := p.value.Affinity
	if !affinity.ClientIP {
		return nil
	}
	out := persistence{Type: sourceIP}
	if affinity.Timeout > 0 {
		seconds := int64(affinity.Timeout / time.Second)
		out.Timeout = &seconds
	}
	return out
}

func (s *server) pools() tableOf[part[sdn.Pool]] {
	t := poolNoun.table(s)
	t.member, t.collection, t.fields = "pool", "pools", poolFields
	t.beforePost = hook(s.beforePool)
	t.checkPost = hook(func(_ *call, b *body, e *partEdit[sdn.Pool]) {
		s.poolParts(b, e)
		if e.listener == nil {
			b.free(e)
		}
	})
	t.create = creates(s.createPool)
	t.remove, t.removeIf = poolNoun.remover(s, func(all *sdn.LoadBalancerSpec, id sdn.ID) {
		if _, l := poolAt(all, id); l != nil {
			withoutPool(l)
		}
		all.Pools = slices.DeleteFunc(all.Pools, func(p sdn.Pool) bool { return p.ID == id })
	})
	return t
}

// beforePool reads the load balancer that a new pool is of, and the listener that sends to it.
func (s *server) beforePool(c *call, b *body, e *partEdit[sdn.Pool]) {
	var of sdn.ID
	if id := or(b.id("listener_id")); id == "" {
		of = b.parent("loadbalancer_id", "load_balancer_id")
	} else {
		of = or(b.id("loadbalancer_id"))
		l, err := s.listeners().own(c, id)
		b.fail(err)
		if err == nil && of != "" && of != l.of.ID {
			b.invalid("loadbalancer_id", "the listener is another load balancer's")
		}
		of, e.listener = l.of.ID, &l.value
	}
	if b.err == nil {
		balancer, err := s.loadBalancers().own(c, of)
		b.fail(err)
		e.of = balancer.LoadBalancer
	}
	if b.err != nil {
		b.stop(b.err)
		return
	}
	b.ofProject(e.of.Project)
}

// poolIn reads a pool in the tree of a load balancer.
func (s *server) poolIn(b *body, project string) (e partEdit[sdn.Pool]) {
	e.of.Project = project
	b.ofProject(project)
	if !b.has("lb_algorithm") {
		b.invalid("lb_algorithm", "Mandatory field missing")
	}
	b.attributes(poolAttributes, &e)
	s.poolParts(b, &e)
	return e
}

// poolParts reads the members and the health monitor that are created with a pool.
func (s *server) poolParts(b *body, e *partEdit[sdn.Pool]) {
	for _, m := range or(s.membersIn(b, e.of.Project)) {
		e.value.Members = append(e.value.Members, m.value)
	}
	if inner := b.sub("healthmonitor"); inner != nil {
		e.value.Health = inner.newMonitor(e.of.Project)
		b.took(inner)
	}
}

// persistence takes how clients keep their members. An empty one is none.
func (b *body) persistence(name string) *sdn.Affinity {
	if b.null(name) {
		return &sdn.Affinity{}
	}
	inner := b.sub(name)
	if inner == nil {
		return nil
	}
	out := inner.affinity()
	b.took(inner)
	return &out
}

func (b *body) affinity() (a sdn.Affinity) {
	if len(b.values) == 0 {
		return a
	}
	b.needs("type")
	if kind := b.text("type"); kind != nil && *kind != sourceIP {
		b.unsupported("session_persistence", "'"+*kind+"' needs HTTP, which is not balanced here; "+sourceIP+" is")
	}
	b.unset("cookie_name")
	b.unset("persistence_granularity", "255.255.255.255")
	a.ClientIP = true
	if !b.null("persistence_timeout") {
		a.Timeout = time.Duration(or(b.number("persistence_timeout", 1, longestTimeout/1000))) * time.Second
	}
	return a
}

// free refuses a pool that must have a listener. How it tells its members of clients is the
// listener's here.
func (b *body) free(e *partEdit[sdn.Pool]) {
	if e.proxy > 0 {
		b.unsupported("protocol", "a pool of the protocol "+proxies[e.proxy]+" must be a listener's")
	}
	if e.value.Protocol == 0 {
		b.invalid("protocol", "Mandatory field missing")
	}
}

// createPool adds a pool to a load balancer: that of a listener that has none, or a free one.
func (s *server) createPool(ctx context.Context, e partEdit[sdn.Pool]) (part[sdn.Pool], error) {
	before := map[sdn.ID]bool{}
	return poolNoun.add(ctx, s, e.of.ID, func(all *sdn.LoadBalancerSpec) error {
		clear(before)
		for p := range eachPool(all) {
			before[p.ID] = true
		}
		if e.listener == nil {
			all.Pools = append(all.Pools, e.value)
			return nil
		}
		l := listenerNoun.at(all, e.listener.ID)
		switch {
		case l == nil:
			return sdn.NotFound("listener", e.listener.ID)
		case !l.WithoutPool:
			return refuse(http.StatusConflict, "DuplicatePoolEntry", "This Listener already has a default pool")
		case e.value.Protocol != l.Protocol:
			return errPoolProtocol(l.Protocol)
		}
		send(l, e)
		return nil
	}, func(p *part[sdn.Pool]) bool {
		same := (p.listener == nil) == (e.listener == nil) && (p.listener == nil || p.listener.ID == e.listener.ID)
		return same && !before[p.value.ID]
	})
}
