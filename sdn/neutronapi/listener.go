package neutronapi

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

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

const whyBalanced = "load balancers here forward TCP, UDP and SCTP"

// isBalanced takes the protocol of a listener, an sdn.Protocol.
var isBalanced = kindOf((*body).balanced)

func (b *body) balanced(name string) *sdn.Protocol {
	said := b.text(name)
	if said == nil {
		return nil
	}
	protocol, known := balanced[*said]
	if !known {
		b.unsupported(name, "'"+*said+"' is not balanced here, but TCP, UDP and SCTP are")
	}
	return &protocol
}

// isTimeout takes a timeout in milliseconds, a time.Duration. What Octavia has by default is the
// SDN's own, 0.
func isTimeout(usual int64) kind {
	milliseconds := isNumber(0, longestTimeout)
	return nullIs(time.Duration(0), func(b *body, name string) (any, bool) {
		ms, given := milliseconds(b, name)
		if !given || ms.(int64) == usual {
			return time.Duration(0), given
		}
		return time.Duration(ms.(int64)) * time.Millisecond, true
	})
}

// milliseconds shows a timeout. usual is what Octavia shows for the SDN's own.
func milliseconds(d time.Duration, usual int) any {
	if d == 0 {
		return usual
	}
	return int(d.Milliseconds())
}

func commonOfListener(l *sdn.Listener) partCommon { return partCommon{&l.ID, &l.Name, &l.Tags} }

var listenerNoun = partNoun[sdn.Listener]{
	title: "listener", common: commonOfListener, all: listenersOf,
	at: func(all *sdn.LoadBalancerSpec, id sdn.ID) *sdn.Listener {
		for i := range all.Listeners {
			if all.Listeners[i].ID == id {
				return &all.Listeners[i]
			}
		}
		return nil
	},
}

func listenersOf(l sdn.LoadBalancer) []part[sdn.Listener] {
	all := make([]part[sdn.Listener], len(l.Listeners))
	for i, listener := range l.Listeners {
		all[i] = part[sdn.Listener]{value: listener, of: l}
	}
	return all
}

var listenerAttributes = listenerFields

// listenerFields are the attributes of listeners, but not default_pool: see defaultPool.
var listenerFields = append(partFields(commonOfListener, online), []field{
	changeable("description", isDescription, showListenerDescription, describeListener),
	{name: "loadbalancer_id", access: required | hookPost},
	{name: "load_balancer_id", access: hookPost},
	{name: "loadbalancers", show: via(func(p *part[sdn.Listener]) any { return []ref{{string(p.of.ID)}} })},
	{name: "protocol", is: isBalanced, access: required, taken: "`TCP`, `UDP`, `SCTP`", why: whyBalanced,
		show: via(func(p *part[sdn.Listener]) any { return listenerProtocol(&p.value) }),
		post: edits(func(l *sdn.Listener, protocol sdn.Protocol) { l.Protocol = protocol })},
	{name: "protocol_port", is: isInt(1, 65535), access: required, show: via(func(p *part[sdn.Listener]) any { return int(p.value.Port) }),
		post: edits(func(l *sdn.Listener, port int) { l.Port = uint16(port) })},
	changeable("connection_limit", nullIs(-1, isInt(-1, most32)), showLimit,
		func(l *sdn.Listener, limit int) { l.ConnectionLimit = max(limit, 0) }),
	{name: "default_pool_id", access: hooked, show: via(showDefaultPool),
		taken: "a pool without a listener", why: "a pool has one listener"},
	changeable("allowed_cidrs", isPrefixes, func(p *part[sdn.Listener]) any { return prefixTexts(p.value.Sources) },
		func(l *sdn.Listener, sources []netip.Prefix) { l.Sources = sources }),
	changeable("timeout_client_data", isTimeout(idleTimeout),
		func(p *part[sdn.Listener]) any { return milliseconds(p.value.ClientTimeout, idleTimeout) },
		func(l *sdn.Listener, d time.Duration) { l.ClientTimeout = d }),
	changeable("timeout_member_data", isTimeout(idleTimeout),
		func(p *part[sdn.Listener]) any { return milliseconds(p.value.MemberTimeout, idleTimeout) },
		func(l *sdn.Listener, d time.Duration) { l.MemberTimeout = d }),
	changeable("timeout_member_connect", isTimeout(connectTimeout),
		func(p *part[sdn.Listener]) any { return milliseconds(p.value.ConnectTimeout, connectTimeout) },
		func(l *sdn.Listener, d time.Duration) { l.ConnectTimeout = d }),
	changeable("timeout_tcp_inspect", isTimeout(0),
		func(p *part[sdn.Listener]) any { return milliseconds(p.value.InspectTimeout, 0) },
		func(l *sdn.Listener, d time.Duration) { l.InspectTimeout = d }),
	{name: "l7policies", show: via(func(*part[sdn.Listener]) any { return []ref{} })},
	{name: "insert_headers", is: isUnset(), show: via(showHeaders), why: noSuchThing},
	{name: "client_authentication", is: isUnset("NONE"), show: via(func(*part[sdn.Listener]) any { return "NONE" }), why: noSuchThing},
	{name: "default_tls_container_ref", is: isUnset(), why: noSuchThing,
		show: via(func(p *part[sdn.Listener]) any { return some(p.value.Certificate) })},
	{name: "default_tls_container", is: isUnset(), why: noSuchThing},
	{name: "sni_container_refs", is: isUnset(), show: empty, why: noSuchThing},
	{name: "sni_containers", is: isUnset(), why: noSuchThing},
	{name: "client_ca_tls_container_ref", is: isUnset(), show: null, why: noSuchThing},
	{name: "client_crl_container_ref", is: isUnset(), show: null, why: noSuchThing},
	{name: "tls_ciphers", is: isUnset(), show: null, why: noSuchThing},
	{name: "tls_versions", is: isUnset(), show: empty, why: noSuchThing},
	{name: "alpn_protocols", is: isUnset(), show: empty, why: noSuchThing},
	{name: "hsts_max_age", is: isUnset("0"), why: noSuchThing},
	{name: "hsts_include_subdomains", is: isUnset(), why: noSuchThing},
	{name: "hsts_preload", is: isUnset(), why: noSuchThing},
}...)

// showListenerDescription shows the Key, if there is one.
func showListenerDescription(p *part[sdn.Listener]) any {
	return cmp.Or(p.value.Key.String(), p.value.Description)
}

func describeListener(l *sdn.Listener, text string) {
	if key, ok := sdn.ParseKey(text); ok {
		l.Key, l.Description = key, ""
	} else {
		l.Key, l.Description = sdn.Key{}, text
	}
}

func listenerProtocol(l *sdn.Listener) string {
	switch {
	case l.Certificate != "":
		return "TERMINATED_HTTPS"
	case l.ForwardedFor:
		return "HTTP"
	}
	return balancedName(l.Protocol)
}

func showLimit(p *part[sdn.Listener]) any {
	if p.value.ConnectionLimit <= 0 {
		return -1
	}
	return p.value.ConnectionLimit
}

func showDefaultPool(p *part[sdn.Listener]) any {
	if p.value.WithoutPool {
		return nil
	}
	return some(string(p.value.Pool.ID))
}

func showHeaders(p *part[sdn.Listener]) any {
	if p.value.ForwardedFor {
		return map[string]string{"X-Forwarded-For": "true"}
	}
	return map[string]string{}
}

func (s *server) listeners() tableOf[part[sdn.Listener]] {
	t := listenerNoun.table(s)
	t.member, t.collection, t.fields = "listener", "listeners", listenerFields
	t.beforePost = hook(s.beforeListener)
	t.checkPost = hook(func(_ *call, b *body, e *partEdit[sdn.Listener]) {
		s.defaultPool(b, e, nil)
		if e.whole != nil && !e.value.WithoutPool {
			b.invalid("default_pool_id", "default_pool is given too")
		}
	})
	t.checkPut = hookOn(func(_ *call, b *body, _ *part[sdn.Listener], e *partEdit[sdn.Listener]) { b.poolOf(e) })
	t.create = creates(s.createListener)
	t.remove, t.removeIf = listenerNoun.remover(s, s.dropListener)
	return t
}

// beforeListener reads the load balancer that a new listener is of.
func (s *server) beforeListener(c *call, b *body, e *partEdit[sdn.Listener]) {
	of := b.parent("loadbalancer_id", "load_balancer_id")
	if b.err == nil {
		balancer, err := s.loadBalancers().own(c, of)
		b.fail(err)
		e.of = balancer.LoadBalancer
	}
	if b.err != nil {
		b.stop(b.err)
		return
	}
	b.poolOf(e)
	b.newListener(e)
}

// newListener reads what a new listener needs, before its attributes.
func (b *body) newListener(e *partEdit[sdn.Listener]) {
	b.ofProject(e.of.Project)
	b.needs("protocol", "protocol_port")
	e.value.WithoutPool = true
}

// listenerIn reads a listener in the tree of a load balancer, with its pool. named are the tree's
// pools by name. The pool that the listener takes of them is removed.
func (s *server) listenerIn(b *body, project string, named map[string]partEdit[sdn.Pool]) sdn.Listener {
	var e partEdit[sdn.Listener]
	e.of.Project = project
	b.newListener(&e)
	b.attributes(listenerAttributes, &e)
	s.defaultPool(b, &e, named)
	return e.value
}

// defaultPool reads the pool that is created with a listener.
func (s *server) defaultPool(b *body, e *partEdit[sdn.Listener], named map[string]partEdit[sdn.Pool]) {
	inner := b.sub("default_pool")
	if inner == nil {
		return
	}
	name, _ := inner.values["name"].(string)
	pool, there := named[name]
	if there && len(inner.values) == 1 {
		delete(named, name)
		inner.values = nil
	} else {
		pool = s.poolIn(inner, e.of.Project)
	}
	b.give(&e.value, pool)
	b.took(inner)
}

// give makes a new pool that of a listener. It must have the listener's protocol, or TCP with the
// PROXY protocol.
func (b *body) give(l *sdn.Listener, p partEdit[sdn.Pool]) {
	if p.value.Protocol != 0 && p.value.Protocol != l.Protocol && b.err == nil {
		b.fail(errPoolProtocol(l.Protocol))
	}
	send(l, p)
}

// send has a listener send to a new pool.
func send(l *sdn.Listener, p partEdit[sdn.Pool]) {
	l.Pool, l.WithoutPool = p.value, false
	l.Pool.Protocol = 0 // that of the listener
	l.ProxyProtocol, l.ProxyVersion = p.proxy > 0, p.proxy
}

func errPoolProtocol(p sdn.Protocol) error {
	return refuse(http.StatusBadRequest, "ProtocolMismatch", "Validation failure: The pool protocol is not valid while the listener protocol is '%s'.", balancedName(p))
}

// parent reads the id of the object that a new one is below. The first of the names that is not
// null counts.
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

// createListener adds a listener to its load balancer.
func (s *server) createListener(ctx context.Context, e partEdit[sdn.Listener]) (part[sdn.Listener], error) {
	same := func(l *sdn.Listener) bool { return l.Protocol == e.value.Protocol && l.Port == e.value.Port }
	return listenerNoun.add(ctx, s, e.of.ID, func(all *sdn.LoadBalancerSpec) error {
		if slices.ContainsFunc(all.Listeners, func(l sdn.Listener) bool { return same(&l) }) {
			return errSameListener(e.value)
		}
		listener := e.value
		if e.whole != nil {
			if err := e.whole(all, &listener); err != nil {
				return err
			}
		}
		all.Listeners = append(all.Listeners, listener)
		return nil
	}, func(p *part[sdn.Listener]) bool { return same(&p.value) })
}

// poolOf reads which existing pool a listener sends to. Null is none.
func (b *body) poolOf(e *partEdit[sdn.Listener]) {
	id := b.id("default_pool_id")
	switch {
	case id == nil:
	case *id != "":
		e.whole = func(all *sdn.LoadBalancerSpec, l *sdn.Listener) error { return givePool(all, l, *id) }
	case !b.post:
		e.whole = func(all *sdn.LoadBalancerSpec, l *sdn.Listener) error {
			freePool(all, l)
			return nil
		}
	}
}

// givePool makes a pool without a listener that of a listener, whose own pool becomes free.
func givePool(all *sdn.LoadBalancerSpec, l *sdn.Listener, id sdn.ID) error {
	if !l.WithoutPool && l.Pool.ID == id {
		return nil
	}
	p, of := poolAt(all, id)
	switch {
	case p == nil:
		return sdn.NotFound("pool", id)
	case of != nil:
		return &sdn.Error{
			Kind: sdn.KindUnsupported, Noun: "listener", Field: "default_pool_id",
			Detail: "the pool is another listener's, and one is of one listener here",
		}
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

// freePool takes a listener's pool from it. The pool stays, without a listener.
func freePool(all *sdn.LoadBalancerSpec, l *sdn.Listener) {
	if l.WithoutPool {
		return
	}
	kept := l.Pool
	kept.Protocol = l.Protocol
	all.Pools = append(all.Pools, kept)
	withoutPool(l)
}

// withoutPool makes a listener one that sends to no pool.
func withoutPool(l *sdn.Listener) {
	l.Pool, l.WithoutPool = sdn.Pool{}, true
	l.ProxyProtocol, l.ProxyVersion = false, 0
}

// dropListener removes a listener. Its pool stays, as in Octavia.
func (s *server) dropListener(all *sdn.LoadBalancerSpec, id sdn.ID) {
	if l := listenerNoun.at(all, id); l != nil && s.p.Capabilities().LoadBalancer.FreePools {
		freePool(all, l)
	}
	all.Listeners = slices.DeleteFunc(all.Listeners, func(l sdn.Listener) bool { return l.ID == id })
}
