package neutronapi

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Listeners are served below /v2.0/lbaas/listeners.
var Listeners = Resource[Listener]{"listener", "listeners"}

// Listener is a listener in Octavia's JSON. What is null or empty for ever is of HTTP and TLS, which are not balanced here.
type Listener struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	Tags        []string `json:"tags"`
	balancerStatus
	Protocol        string            `json:"protocol"`
	ProtocolPort    uint16            `json:"protocol_port"`
	ConnectionLimit int               `json:"connection_limit"`
	DefaultPoolID   *string           `json:"default_pool_id"`
	LoadBalancers   []ref             `json:"loadbalancers"`
	AllowedCIDRs    []string          `json:"allowed_cidrs"`
	ClientData      int64             `json:"timeout_client_data"` // milliseconds, as those below
	MemberConnect   int64             `json:"timeout_member_connect"`
	MemberData      int64             `json:"timeout_member_data"`
	TCPInspect      int64             `json:"timeout_tcp_inspect"`
	Policies        []ref             `json:"l7policies"`
	InsertHeaders   map[string]string `json:"insert_headers"`
	TLS             *string           `json:"default_tls_container_ref"`
	SNI             []string          `json:"sni_container_refs"`
	ClientAuth      *string           `json:"client_authentication"`
	ClientCA        *string           `json:"client_ca_tls_container_ref"`
	ClientCRL       *string           `json:"client_crl_container_ref"`
	Ciphers         *string           `json:"tls_ciphers"`
	Versions        []string          `json:"tls_versions"`
	ALPN            []string          `json:"alpn_protocols"`
}

// Octavia's defaults of a listener's timeouts, in milliseconds. A listener of which nothing is said has the SDN's.
const (
	idleTimeout    = 50000
	connectTimeout = 5000
	longestTimeout = 365 * 24 * 60 * 60 * 1000
)

// balanced are Octavia's names of the protocols that load balancers know.
var balanced = map[string]sdn.Protocol{"TCP": sdn.TCP, "UDP": sdn.UDP, "SCTP": sdn.SCTP}

func balancedName(p sdn.Protocol) string {
	for name, protocol := range balanced {
		if protocol == p {
			return name
		}
	}
	return ""
}

func milliseconds(d time.Duration, usual int64) int64 {
	if d == 0 {
		return usual
	}
	return d.Milliseconds()
}

func encodeListener(p part[sdn.Listener]) Listener {
	l := p.value
	out := Listener{
		ID: string(l.ID), Name: l.Name, Description: cmp.Or(l.Key.String(), l.Description), ProjectID: p.of.Project, Tags: list(l.Tags), balancerStatus: balancerState(p.of), Protocol: balancedName(l.Protocol), ProtocolPort: l.Port,
		ConnectionLimit: -1, LoadBalancers: []ref{{string(p.of.ID)}}, AllowedCIDRs: []string{}, ClientData: milliseconds(l.ClientTimeout, idleTimeout),
		MemberConnect: milliseconds(l.ConnectTimeout, connectTimeout), MemberData: milliseconds(l.MemberTimeout, idleTimeout), TCPInspect: milliseconds(l.InspectTimeout, 0),
		Policies: []ref{}, InsertHeaders: map[string]string{}, SNI: []string{}, Versions: []string{}, ALPN: []string{}, ClientAuth: optional("NONE"),
	}
	if l.ConnectionLimit > 0 {
		out.ConnectionLimit = l.ConnectionLimit
	}
	if !l.WithoutPool {
		out.DefaultPoolID = optional(string(l.Pool.ID))
	}
	if l.ForwardedFor {
		out.Protocol, out.InsertHeaders = "HTTP", map[string]string{"X-Forwarded-For": "true"}
	}
	if l.Certificate != "" {
		out.Protocol, out.TLS = "TERMINATED_HTTPS", optional(l.Certificate)
	}
	for _, prefix := range l.Sources {
		out.AllowedCIDRs = append(out.AllowedCIDRs, prefix.String())
	}
	return out
}

func listenersOf(l sdn.LoadBalancer) []part[sdn.Listener] {
	all := make([]part[sdn.Listener], len(l.Listeners))
	for i, listener := range l.Listeners {
		all[i] = part[sdn.Listener]{listener, l}
	}
	return all
}

// listenerSpec asks for a listener of a load balancer.
type listenerSpec struct {
	of sdn.ID
	sdn.Listener
	pool sdn.ID // that is there already and is to be the listener's
}

// listenerPatch changes a listener.
type listenerPatch struct {
	ifRevision int64
	of         sdn.ID
	change     func(*sdn.LoadBalancerSpec, *sdn.Listener) error
}

func (s *server) listeners() *definition[part[sdn.Listener], Listener, listenerSpec, listenerPatch] {
	type listener = part[sdn.Listener]
	get := func(ctx context.Context, id sdn.ID) (listener, error) {
		return needPart(ctx, s, "listener", id, listenersOf, func(l sdn.Listener) sdn.ID { return l.ID })
	}
	return &definition[listener, Listener, listenerSpec, listenerPatch]{
		Resource: Listeners, title: "listener",
		meta: func(l listener) sdn.Meta { return l.meta(l.value.ID, l.value.Name, l.value.Tags) },
		get:  get, encode: encodeListener,
		find: func(ctx context.Context, f *filter) iter.Seq2[listener, error] {
			return findParts(ctx, s, partQuery(f), listenersOf)
		},
		spec: s.specListener, patch: s.changeListener, create: s.createListener,
		update: func(ctx context.Context, id sdn.ID, p listenerPatch) (listener, error) {
			_, err := s.rewriteBalancer(ctx, p.of, balancerChange{ifRevision: p.ifRevision, change: func(spec *sdn.LoadBalancerSpec) error {
				i := slices.IndexFunc(spec.Listeners, func(l sdn.Listener) bool { return l.ID == id })
				if i < 0 {
					return sdn.NotFound("listener", id)
				}
				return p.change(spec, &spec.Listeners[i])
			}})
			if err != nil {
				return listener{}, err
			}
			return get(ctx, id)
		},
		remove: func(ctx context.Context, id sdn.ID) error { return s.removeListener(ctx, id, 0) }, removeIf: s.removeListener,
	}
}

// listenerIn reads a listener, its pool with it. named are the pools of the same tree that it may have by name; what it takes is not there afterwards.
func (s *server) listenerIn(b *body, project string, named map[string]poolSpec) sdn.Listener {
	b.ofProject(project)
	b.needs("protocol", "protocol_port")
	out := sdn.Listener{Protocol: b.balancedProtocol("protocol"), Port: uint16(or(b.integer("protocol_port", 1, 65535))), WithoutPool: true}
	b.listener(&out)
	inner := b.sub("default_pool")
	if inner == nil {
		return out
	}
	name, _ := inner.values["name"].(string)
	if p, there := named[name]; there && len(inner.values) == 1 {
		delete(named, name)
		inner.values = nil
		b.give(&out, p)
	} else {
		b.give(&out, s.poolIn(inner, project))
	}
	b.took(inner)
	return out
}

// balancedProtocol reads the protocol of a listener.
func (b *body) balancedProtocol(name string) sdn.Protocol {
	said := b.text(name)
	if said == nil {
		return 0
	}
	protocol, known := balanced[*said]
	if !known {
		b.unsupported(name, "'"+*said+"' is not balanced here, but TCP, UDP and SCTP are")
	}
	return protocol
}

// give makes a new pool the listener's, whose protocol it must have, or else be one of TCP that tells of clients by the PROXY protocol.
func (b *body) give(l *sdn.Listener, p poolSpec) {
	if p.Protocol != 0 && p.Protocol != l.Protocol && b.err == nil {
		b.fail(errPoolProtocol(l.Protocol))
	}
	p.Pool.Protocol = 0
	l.Pool, l.WithoutPool = p.Pool, false
	l.ProxyProtocol, l.ProxyVersion = p.proxy > 0, p.proxy
}

func errPoolProtocol(p sdn.Protocol) error {
	return refuse(http.StatusBadRequest, "ProtocolMismatch", "Validation failure: The pool protocol is not valid while the listener protocol is '%s'.", balancedName(p))
}

// listener reads what can be changed of a listener into what it is so far.
func (b *body) listener(l *sdn.Listener) {
	b.blank("name", "description")
	if name := b.text("name"); name != nil {
		l.Name = *name
	}
	text := cmp.Or(l.Key.String(), l.Description)
	b.partDescription(&text)
	if key, is := sdn.ParseKey(text); is {
		l.Key, l.Description = key, ""
	} else {
		l.Key, l.Description = sdn.Key{}, text
	}
	if b.null("connection_limit") {
		l.ConnectionLimit = 0
	} else if limit := b.integer("connection_limit", -1, most32); limit != nil {
		l.ConnectionLimit = max(*limit, 0)
	}
	b.partTags(&l.Tags)
	b.timeout("timeout_client_data", idleTimeout, &l.ClientTimeout)
	b.timeout("timeout_member_data", idleTimeout, &l.MemberTimeout)
	b.timeout("timeout_member_connect", connectTimeout, &l.ConnectTimeout)
	b.timeout("timeout_tcp_inspect", 0, &l.InspectTimeout)
	if sources := b.prefixes("allowed_cidrs"); sources != nil {
		l.Sources = *sources
	}
	b.unset([]any{"NONE"}, "client_authentication")
	b.unset([]any{"0"}, "hsts_max_age")
	b.unset(nil, "insert_headers", "default_tls_container_ref", "default_tls_container", "sni_container_refs", "sni_containers", "client_ca_tls_container_ref", "client_crl_container_ref",
		"tls_ciphers", "tls_versions", "alpn_protocols", "hsts_include_subdomains", "hsts_preload")
}

// timeout reads one in milliseconds. What is Octavia's at first is the SDN's.
func (b *body) timeout(name string, usual int64, into *time.Duration) {
	if b.null(name) {
		*into = 0
		return
	}
	if ms := b.number(name, 0, longestTimeout); ms != nil {
		if *into = time.Duration(*ms) * time.Millisecond; *ms == usual {
			*into = 0
		}
	}
}

func (s *server) specListener(c *call, b *body) listenerSpec {
	b.required("loadbalancer_id", "protocol", "protocol_port")
	out := listenerSpec{of: b.parent("loadbalancer_id", "load_balancer_id")}
	if b.err != nil {
		b.stop(b.err)
		return out
	}
	of, err := s.loadBalancers().own(c, out.of)
	if err != nil {
		b.stop(err)
		return out
	}
	out.pool = or(b.id("default_pool_id"))
	out.Listener = s.listenerIn(b, of.Project, nil)
	if out.pool != "" && !out.WithoutPool {
		b.invalid("default_pool_id", "default_pool is given too")
	}
	return out
}

// parent reads the id of what a new object is to be below. The first name that is given counts; the others must be null.
func (b *body) parent(names ...string) (id sdn.ID) {
	for _, name := range names {
		if said := or(b.id(name)); said != "" && id == "" {
			id = said
		}
	}
	if id == "" {
		b.fail(badRequest("Validation failure: Invalid input for field/attribute " + names[0] + ". Value: 'None'. Mandatory field missing."))
	}
	return id
}

func errSameListener(l sdn.Listener) error {
	return refuse(http.StatusConflict, "DuplicateListenerEntry", "Another Listener on this Load Balancer is already using protocol %s and protocol_port %d", balancedName(l.Protocol), l.Port)
}

func (s *server) createListener(ctx context.Context, spec listenerSpec) (part[sdn.Listener], error) {
	same := func(l sdn.Listener) bool { return l.Protocol == spec.Protocol && l.Port == spec.Port }
	l, err := s.rewriteBalancer(ctx, spec.of, balancerChange{change: func(all *sdn.LoadBalancerSpec) error {
		if slices.ContainsFunc(all.Listeners, same) {
			return errSameListener(spec.Listener)
		}
		listener := spec.Listener
		if spec.pool != "" {
			if err := givePool(all, &listener, spec.pool); err != nil {
				return err
			}
		}
		all.Listeners = append(all.Listeners, listener)
		return nil
	}})
	if err != nil {
		return part[sdn.Listener]{}, err
	}
	i := slices.IndexFunc(l.Listeners, same)
	if i < 0 {
		return part[sdn.Listener]{}, sdn.Conflict(sdn.Stale, "listener", "", "it was taken away at once")
	}
	return part[sdn.Listener]{l.Listeners[i], l}, nil
}

// givePool makes a pool that no listener sends to the listener's, which has none then or leaves its own free.
func givePool(all *sdn.LoadBalancerSpec, l *sdn.Listener, id sdn.ID) error {
	if !l.WithoutPool && l.Pool.ID == id {
		return nil
	}
	p, of := poolAt(all, id)
	switch {
	case p == nil:
		return sdn.NotFound("pool", id)
	case of != nil:
		return &sdn.Error{Kind: sdn.KindUnsupported, Noun: "listener", Field: "default_pool_id", Detail: "the pool is another listener's, and one is of one listener here"}
	}
	taken := *p
	if taken.Protocol != 0 && taken.Protocol != l.Protocol {
		return errPoolProtocol(l.Protocol)
	}
	all.Pools = slices.DeleteFunc(all.Pools, func(p sdn.Pool) bool { return p.ID == id })
	freePool(all, l)
	taken.Protocol = 0
	l.Pool, l.WithoutPool = taken, false
	return nil
}

// freePool takes a listener's pool away from it, and keeps it.
func freePool(all *sdn.LoadBalancerSpec, l *sdn.Listener) {
	if l.WithoutPool {
		return
	}
	kept := l.Pool
	kept.Protocol = l.Protocol
	all.Pools = append(all.Pools, kept)
	l.Pool, l.WithoutPool = sdn.Pool{}, true
	l.ProxyProtocol, l.ProxyVersion = false, 0
}

func (s *server) changeListener(_ *call, b *body, l part[sdn.Listener]) listenerPatch {
	b.ofProject(l.of.Project)
	b.readOnly("protocol", "protocol_port", "loadbalancer_id", "load_balancer_id")
	given := maps.Clone(b.values)
	said := b.has("default_pool_id")
	pool := or(b.id("default_pool_id"))
	b.listener(new(sdn.Listener))
	return listenerPatch{ifRevision: b.ifRevision, of: l.of.ID, change: func(all *sdn.LoadBalancerSpec, now *sdn.Listener) error {
		again := &body{call: b.call, noun: b.noun, values: maps.Clone(given)}
		again.listener(now)
		switch {
		case !said:
		case pool == "":
			freePool(all, now)
		default:
			return givePool(all, now, pool)
		}
		return nil
	}}
}

// removeListener takes a listener away. Its pool stays, as with Octavia.
func (s *server) removeListener(ctx context.Context, id sdn.ID, ifRevision int64) error {
	p, err := needPart(ctx, s, "listener", id, listenersOf, func(l sdn.Listener) sdn.ID { return l.ID })
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.rewriteBalancer(ctx, p.of.ID, balancerChange{ifRevision: ifRevision, change: func(all *sdn.LoadBalancerSpec) error {
		for i := range all.Listeners {
			if all.Listeners[i].ID == id && s.p.Capabilities().LoadBalancer.FreePools {
				freePool(all, &all.Listeners[i])
			}
		}
		all.Listeners = slices.DeleteFunc(all.Listeners, func(l sdn.Listener) bool { return l.ID == id })
		return nil
	}})
	return err
}
