package neutronapi

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Pools are served below /v2.0/lbaas/pools.
var Pools = Resource[Pool]{"pool", "pools"}

// Pool is a pool in Octavia's JSON.
type Pool struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	Tags        []string `json:"tags"`
	balancerStatus
	Protocol      string       `json:"protocol"`
	Algorithm     string       `json:"lb_algorithm"`
	Persistence   *Persistence `json:"session_persistence"`
	LoadBalancers []ref        `json:"loadbalancers"`
	Listeners     []ref        `json:"listeners"`
	Members       []ref        `json:"members"`
	MonitorID     *string      `json:"healthmonitor_id"`
	TLS           bool         `json:"tls_enabled"` // never, and what follows is of TLS
	TLSRef        *string      `json:"tls_container_ref"`
	CARef         *string      `json:"ca_tls_container_ref"`
	CRLRef        *string      `json:"crl_container_ref"`
	Ciphers       *string      `json:"tls_ciphers"`
	Versions      []string     `json:"tls_versions"`
	ALPN          []string     `json:"alpn_protocols"`
}

// Persistence keeps clients with their members.
type Persistence struct {
	Type        string  `json:"type"`
	CookieName  *string `json:"cookie_name"`
	Timeout     *int64  `json:"persistence_timeout"` // seconds
	Granularity *string `json:"persistence_granularity"`
}

// sourceIP is the only kind of persistence that there is without HTTP.
const sourceIP = "SOURCE_IP"

// defaultAlgorithm is what is shown of a pool of which the SDN chooses how members are.
const defaultAlgorithm = string(sdn.RoundRobin)

// proxies are the protocols of a pool of TCP whose members are told the client's address, by the version of the PROXY protocol.
var proxies = map[int]string{1: "PROXY", 2: "PROXYV2"}

func encodePool(p part[pool]) Pool {
	v := p.value
	out := Pool{
		ID: string(v.ID), Name: v.Name, Description: v.Description, ProjectID: p.of.Project, Tags: list(v.Tags), balancerStatus: balancerState(p.of), Protocol: balancedName(v.protocol), Algorithm: string(v.Algorithm),
		LoadBalancers: []ref{{string(p.of.ID)}}, Listeners: []ref{}, Members: []ref{}, Versions: []string{}, ALPN: []string{},
	}
	if v.proxy > 0 {
		out.Protocol = proxies[v.proxy]
	}
	if out.Algorithm == "" {
		out.Algorithm = defaultAlgorithm
	}
	if v.listener != "" {
		out.Listeners = []ref{{string(v.listener)}}
	}
	if v.Affinity.ClientIP {
		out.Persistence = &Persistence{Type: sourceIP}
		if v.Affinity.Timeout > 0 {
			seconds := int64(v.Affinity.Timeout / time.Second)
			out.Persistence.Timeout = &seconds
		}
	}
	for _, m := range v.Members {
		out.Members = append(out.Members, ref{string(m.ID)})
	}
	if v.Health != nil {
		out.MonitorID = optional(string(v.Health.ID))
	}
	return out
}

func poolParts(l sdn.LoadBalancer) []part[pool] {
	var all []part[pool]
	for _, p := range poolsOf(l) {
		all = append(all, part[pool]{p, l})
	}
	return all
}

// poolSpec asks for a pool of a load balancer, or of one of its listeners.
type poolSpec struct {
	sdn.Pool
	proxy        int // version of the PROXY protocol that is spoken to members, 0 for none
	of, listener sdn.ID
}

// poolPatch changes a pool.
type poolPatch struct {
	ifRevision int64
	of         sdn.ID
	change     func(*sdn.Pool) error
}

func (s *server) pool(ctx context.Context, id sdn.ID) (part[pool], error) {
	return needPart(ctx, s, "pool", id, poolParts, func(p pool) sdn.ID { return p.ID })
}

func (s *server) pools() *definition[part[pool], Pool, poolSpec, poolPatch] {
	return &definition[part[pool], Pool, poolSpec, poolPatch]{
		Resource: Pools, title: "pool",
		meta: func(p part[pool]) sdn.Meta { return p.meta(p.value.ID, p.value.Name, p.value.Tags) },
		get:  s.pool, encode: encodePool,
		find: func(ctx context.Context, f *filter) iter.Seq2[part[pool], error] {
			return findParts(ctx, s, partQuery(f), poolParts)
		},
		spec: s.specPool, create: s.createPool,
		patch: func(_ *call, b *body, p part[pool]) poolPatch {
			b.ofProject(p.of.Project)
			b.readOnly("protocol", "loadbalancer_id", "load_balancer_id", "listener_id", "listeners", "members", "healthmonitor", "healthmonitor_id")
			given := maps.Clone(b.values)
			b.pool(new(sdn.Pool))
			return poolPatch{ifRevision: b.ifRevision, of: p.of.ID, change: func(now *sdn.Pool) error {
				(&body{call: b.call, noun: b.noun, values: maps.Clone(given)}).pool(now)
				return nil
			}}
		},
		update: func(ctx context.Context, id sdn.ID, p poolPatch) (part[pool], error) {
			if _, err := s.changePool(ctx, p.of, id, p.ifRevision, p.change); err != nil {
				return part[pool]{}, err
			}
			return s.pool(ctx, id)
		},
		remove: func(ctx context.Context, id sdn.ID) error { return s.removePool(ctx, id, 0) }, removeIf: s.removePool,
	}
}

// poolIn reads a pool, with members and health monitor where it is in a tree.
func (s *server) poolIn(b *body, project string) poolSpec {
	b.ofProject(project)
	var out poolSpec
	for version, name := range proxies {
		if b.values["protocol"] == name {
			b.take("protocol")
			out.Protocol, out.proxy = sdn.TCP, version
		}
	}
	if out.proxy == 0 {
		out.Protocol = b.balancedProtocol("protocol")
	}
	if !b.has("lb_algorithm") {
		b.invalid("lb_algorithm", "Mandatory field missing")
	}
	b.pool(&out.Pool)
	b.readOnly("listeners")
	if members := s.membersIn(b, project); members != nil {
		out.Members = *members
	}
	if inner := b.sub("healthmonitor"); inner != nil {
		out.Health = new(sdn.HealthMonitor)
		inner.ofProject(project)
		inner.healthMonitor(out.Health)
		b.took(inner)
	}
	return out
}

// pool reads what can be changed of a pool into what it is so far.
func (b *body) pool(p *sdn.Pool) {
	b.blank("name", "description")
	if name := b.text("name"); name != nil {
		p.Name = *name
	}
	b.partDescription(&p.Description)
	b.partTags(&p.Tags)
	if algorithm := b.oneOf("lb_algorithm", string(sdn.RoundRobin), string(sdn.LeastConns), string(sdn.SourceIP), string(sdn.SourceIPPort)); algorithm != nil {
		p.Algorithm = sdn.Algorithm(*algorithm)
	}
	if b.null("session_persistence") {
		p.Affinity = sdn.Affinity{}
	}
	if inner := b.sub("session_persistence"); inner != nil {
		p.Affinity = inner.persistence()
		b.took(inner)
	}
	b.unset(nil, "tls_enabled", "tls_container_ref", "ca_tls_container_ref", "crl_container_ref", "tls_ciphers", "tls_versions", "alpn_protocols")
}

// persistence reads how clients keep their members; what is empty is that they do not.
func (b *body) persistence() (a sdn.Affinity) {
	if len(b.values) == 0 {
		return a
	}
	b.needs("type")
	if kind := b.text("type"); kind != nil && *kind != sourceIP {
		b.unsupported("session_persistence", "'"+*kind+"' needs HTTP, which is not balanced here; "+sourceIP+" is")
	}
	b.unset(nil, "cookie_name")
	b.unset([]any{"255.255.255.255"}, "persistence_granularity")
	a.ClientIP = true
	if !b.null("persistence_timeout") {
		a.Timeout = time.Duration(or(b.number("persistence_timeout", 1, longestTimeout/1000))) * time.Second
	}
	return a
}

// free is a pool that no listener sends to: how it tells of clients is the listener's here.
func (b *body) free(p poolSpec) sdn.Pool {
	if p.proxy > 0 {
		b.unsupported("protocol", "a pool of the protocol "+proxies[p.proxy]+" must be a listener's")
	}
	if p.Protocol == 0 {
		b.invalid("protocol", "Mandatory field missing")
	}
	return p.Pool
}

func (s *server) specPool(c *call, b *body) poolSpec {
	b.required("protocol", "lb_algorithm")
	listener := or(b.id("listener_id"))
	of := sdn.ID("")
	if listener == "" {
		of = b.parent("loadbalancer_id", "load_balancer_id")
	} else {
		of = or(b.id("loadbalancer_id"))
		l, err := s.listeners().own(c, listener)
		switch {
		case err != nil:
			b.fail(err)
		case of != "" && of != l.of.ID:
			b.invalid("loadbalancer_id", "the listener is another load balancer's")
		}
		of = l.of.ID
	}
	if b.err != nil {
		b.stop(b.err)
		return poolSpec{}
	}
	balancer, err := s.loadBalancers().own(c, of)
	if err != nil {
		b.stop(err)
		return poolSpec{}
	}
	out := s.poolIn(b, balancer.Project)
	out.of, out.listener = of, listener
	if listener == "" {
		out.Pool = b.free(out)
	}
	return out
}

// createPool makes a pool a listener's that has none, or keeps it free.
func (s *server) createPool(ctx context.Context, spec poolSpec) (part[pool], error) {
	before := map[sdn.ID]bool{}
	l, err := s.rewriteBalancer(ctx, spec.of, balancerChange{change: func(all *sdn.LoadBalancerSpec) error {
		clear(before)
		for _, p := range poolsOf(sdn.LoadBalancer{Listeners: all.Listeners, Pools: all.Pools}) {
			before[p.ID] = true
		}
		if spec.listener == "" {
			all.Pools = append(all.Pools, spec.Pool)
			return nil
		}
		i := slices.IndexFunc(all.Listeners, func(l sdn.Listener) bool { return l.ID == spec.listener })
		switch {
		case i < 0:
			return sdn.NotFound("listener", spec.listener)
		case !all.Listeners[i].WithoutPool:
			return refuse(http.StatusConflict, "DuplicatePoolEntry", "This Listener already has a default pool")
		case spec.Protocol != all.Listeners[i].Protocol:
			return errPoolProtocol(all.Listeners[i].Protocol)
		}
		given := spec.Pool
		given.Protocol = 0
		l := &all.Listeners[i]
		l.Pool, l.WithoutPool = given, false
		l.ProxyProtocol, l.ProxyVersion = spec.proxy > 0, spec.proxy
		return nil
	}})
	if err != nil {
		return part[pool]{}, err
	}
	for _, p := range poolParts(l) {
		if p.value.listener == spec.listener && !before[p.value.ID] {
			return p, nil
		}
	}
	return part[pool]{}, sdn.Conflict(sdn.Stale, "pool", "", "it was taken away at once")
}

func (s *server) removePool(ctx context.Context, id sdn.ID, ifRevision int64) error {
	p, err := s.pool(ctx, id)
	if err != nil {
		if sdn.IsNotFound(err) {
			err = nil
		}
		return err
	}
	_, err = s.rewriteBalancer(ctx, p.of.ID, balancerChange{ifRevision: ifRevision, change: func(all *sdn.LoadBalancerSpec) error {
		if _, of := poolAt(all, id); of != nil {
			of.Pool, of.WithoutPool = sdn.Pool{}, true
			of.ProxyProtocol, of.ProxyVersion = false, 0
		}
		all.Pools = slices.DeleteFunc(all.Pools, func(p sdn.Pool) bool { return p.ID == id })
		return nil
	}})
	return err
}
