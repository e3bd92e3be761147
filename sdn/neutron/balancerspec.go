package neutron

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// The values of a health monitor that Octavia requires, if the spec has none.
const usualRise, usualFall = 2, 3

// checkBalancer refuses what no Octavia can make.
func checkBalancer(spec sdn.LoadBalancerSpec) error {
	if err := valid.LoadBalancer(spec); err != nil {
		return err
	}
	invalid := func(field, detail string, args ...any) error {
		return sdn.Invalid("load balancer", field, detail, args...)
	}
	for i, l := range spec.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		switch {
		case l.ConnectTimeout < 0 || l.InspectTimeout < 0:
			return invalid(at+".connect_timeout", "and inspect_timeout must not be less than 0")
		case l.ProxyVersion < 0 || l.ProxyVersion > 2 || l.ProxyVersion != 0 && !l.ProxyProtocol:
			return invalid(at+".proxy_version", "must be 1 or 2, and of the PROXY protocol, not %d", l.ProxyVersion)
		case l.Protocol != sdn.TCP && (l.ProxyProtocol || l.ForwardedFor || l.Certificate != ""):
			return invalid(at+".protocol", "must be TCP for the PROXY protocol, HTTP and TLS")
		case spec.Shared && l.Description != "":
			return invalid(at+".description", "must be empty where others have listeners too: it holds the key")
		}
	}
	return nil
}

// listenerProtocol returns Octavia's protocol of a listener.
func listenerProtocol(l sdn.Listener) string {
	switch {
	case l.Certificate != "":
		return "TERMINATED_HTTPS"
	case l.ForwardedFor:
		return "HTTP"
	}
	return protocolName(l.Protocol)
}

// poolProtocol returns Octavia's protocol of the pool of a listener.
func poolProtocol(l sdn.Listener) string {
	switch {
	case l.ProxyProtocol && l.ProxyVersion == 2:
		return "PROXYV2"
	case l.ProxyProtocol:
		return "PROXY"
	case l.ForwardedFor, l.Certificate != "":
		return "HTTP"
	}
	return protocolName(l.Protocol)
}

// place names a listener in messages, and in Octavia if the spec has no name.
func place(l sdn.Listener) string {
	return fmt.Sprintf("%s-%d", strings.ToLower(protocolName(l.Protocol)), l.Port)
}

// A balancerMaker writes the bodies of requests for one load balancer of one provider.
type balancerMaker struct {
	can   sdn.LoadBalancerCapabilities
	spec  sdn.LoadBalancerSpec
	owner sdn.Key // of the listeners that are meant
	// OVN's provider forgets the health monitors of a load balancer's first request, and takes
	// members without a subnet for ones of the VIP's network.
	isOVN     bool
	isAmphora bool   // see forgotten
	subnet    sdn.ID // of the first VIP
	usual     *usualTimeouts
}

// balancer returns the body that makes the whole load balancer.
func (m balancerMaker) balancer(body map[string]any, backend string, tags, providers bool) map[string]any {
	if tags && len(m.spec.Tags) > 0 {
		body["tags"] = valid.TagSet(m.spec.Tags)
	}
	if providers {
		body["provider"] = backend
	}
	for field, value := range map[string]string{"flavor_id": m.spec.Flavor, "availability_zone": m.spec.Zone} {
		if value != "" {
			body[field] = value
		}
	}
	if len(m.spec.Groups) > 0 {
		body["vip_sg_ids"] = m.spec.Groups
	}
	body["vip_subnet_id"] = m.spec.VIPs[0].Subnet
	if addr := m.spec.VIPs[0].Addr; addr.IsValid() {
		body["vip_address"] = addr
	}
	if len(m.spec.VIPs) > 1 {
		more := vipWire{Subnet: m.spec.VIPs[1].Subnet}
		if addr := m.spec.VIPs[1].Addr; addr.IsValid() {
			more.Addr = addr.String()
		}
		body["additional_vips"] = []vipWire{more}
	}
	var all []map[string]any
	names := map[string]bool{}
	for _, l := range m.spec.Listeners {
		listener := m.listener(l)
		pool := m.pool(l)
		if name := pool["name"].(string); names[name] {
			pool["name"] = place(l) // Octavia knows pools by their names here
		}
		names[pool["name"].(string)] = true
		pool["members"] = m.members(l.Pool, nil)
		if l.Pool.Health != nil && !m.isOVN {
			pool["healthmonitor"] = m.monitor(l)
		}
		listener["default_pool"] = pool
		all = append(all, listener)
	}
	if len(all) > 0 {
		body["listeners"] = all
	}
	return body
}

// listener returns the body that makes a listener, without its pool.
func (m balancerMaker) listener(l sdn.Listener) map[string]any {
	body := m.listenerChange(l, &listenerWire{Limit: -1})
	body["protocol"], body["protocol_port"], body["name"] = listenerProtocol(l), l.Port, cmp.Or(l.Name, place(l))
	return body
}

// listenerChange returns what of a listener differs. A timeout of 0 in the spec is
// Octavia's own, which null restores.
func (m balancerMaker) listenerChange(l sdn.Listener, have *listenerWire) map[string]any {
	body := map[string]any{}
	if l.Name != "" && l.Name != have.Name {
		body["name"] = l.Name
	}
	description := cmp.Or(l.Description, m.owner.String())
	if description != have.Description && (description != "" || have.ID != "") {
		body["description"] = description
	}
	has := have.timeouts()
	for attribute, ms := range timeouts(l) {
		switch {
		case ms != 0 && ms != has[attribute]:
			body[attribute] = ms
		case ms == 0 && have.ID != "" && m.can.Timeouts && !m.usual.is(attribute, has[attribute]):
			body[attribute] = nil
		}
	}
	if limit := l.ConnectionLimit; limit != max(have.Limit, 0) {
		if limit == 0 {
			limit = -1
		}
		body["connection_limit"] = limit
	}
	if want := sources(l.Sources); m.can.SourceRanges && !slices.Equal(want, valid.TagSet(have.Sources)) {
		if want == nil {
			want = []string{}
		}
		body["allowed_cidrs"] = want
	}
	if l.ForwardedFor != have.forwards() {
		body["insert_headers"] = map[string]string{"X-Forwarded-For": fmt.Sprint(l.ForwardedFor)}
	}
	if l.Certificate != have.Certificate {
		body["default_tls_container_ref"] = l.Certificate
	}
	return body
}

// sources returns prefixes as Octavia has them, in the order of a set.
func sources(prefixes []netip.Prefix) []string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.Masked().String())
	}
	return valid.TagSet(all)
}

// algorithm returns how a member is chosen: the provider's first way if the spec has
// none.
func (m balancerMaker) algorithm(p sdn.Pool) string {
	return string(cmp.Or(p.Algorithm, append(slices.Clone(m.can.Algorithms), sdn.RoundRobin)[0]))
}

// persistence returns how clients keep their members, nil for not at all.
func (m balancerMaker) persistence(l sdn.Listener) *persistenceWire {
	if !l.Pool.Affinity.ClientIP {
		return nil
	}
	p := &persistenceWire{Type: "SOURCE_IP"}
	if l.Protocol != sdn.TCP || m.can.AffinityTCP {
		p.Timeout = ceil(l.Pool.Affinity.Timeout)
	}
	return p
}

// ceil returns whole seconds.
func ceil(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// pool returns the body that makes a listener's pool, without members and health monitor.
func (m balancerMaker) pool(l sdn.Listener) map[string]any {
	body := map[string]any{
		"name": cmp.Or(l.Pool.Name, l.Name, place(l)), "protocol": poolProtocol(l),
		"lb_algorithm": m.algorithm(l.Pool),
	}
	if l.Pool.Description != "" {
		body["description"] = l.Pool.Description
	}
	if p := m.persistence(l); p != nil {
		body["session_persistence"] = p
	}
	return body
}

// poolChange returns what of a pool differs.
func (m balancerMaker) poolChange(l sdn.Listener, have *poolWire) map[string]any {
	body := differing(m.pool(l), map[string]any{
		"name": have.Name, "description": have.Description, "lb_algorithm": have.Algorithm,
	})
	if l.Pool.Name == "" {
		delete(body, "name")
	}
	switch want := m.persistence(l); {
	case want == nil && have.Persistence != nil:
		body["session_persistence"] = nil
	case want != nil && (have.Persistence == nil || *want != *have.Persistence):
		body["session_persistence"] = want // without a timeout Octavia's own is back
	}
	return body
}

// differing returns the attributes of want that has has with another value.
func differing(want, has map[string]any) map[string]any {
	body := map[string]any{}
	for attribute, old := range has {
		if value, ok := want[attribute]; ok && value != old {
			body[attribute] = value
		}
	}
	return body
}

// members returns the members of a pool as one value; have are those that exist. A
// member's subnet cannot be changed: one that exists on another subnet is left out, and
// the next step adds it.
func (m balancerMaker) members(p sdn.Pool, have map[netip.AddrPort]*memberWire) []map[string]any {
	all := []map[string]any{}
	for _, member := range p.Members {
		if h := have[member.Addr]; h != nil && member.Subnet != "" && h.Subnet != member.Subnet {
			continue
		}
		body := map[string]any{"address": member.Addr.Addr(), "protocol_port": member.Addr.Port(), "weight": weight(member)}
		if member.Name != "" {
			body["name"] = member.Name
		}
		if subnet := member.Subnet; subnet != "" {
			body["subnet_id"] = subnet
		} else if m.isOVN {
			body["subnet_id"] = m.subnet
		}
		all = append(all, body)
	}
	return all
}

func weight(m sdn.Member) int {
	switch {
	case m.Drain:
		return 0
	case m.Weight == 0:
		return 1
	}
	return m.Weight
}

// sameMembers reports whether a pool has the members of the spec. Their state does not
// count.
func sameMembers(p sdn.Pool, have map[netip.AddrPort]*memberWire) bool {
	if len(p.Members) != len(have) {
		return false
	}
	for _, m := range p.Members {
		h := have[m.Addr]
		if h == nil || h.Weight != weight(m) || m.Name != "" && m.Name != h.Name || m.Subnet != "" && m.Subnet != h.Subnet {
			return false
		}
	}
	return true
}

// monitor returns the body of a health monitor of a listener's pool.
func (m balancerMaker) monitor(l sdn.Listener) map[string]any {
	h := l.Pool.Health
	delay := ceil(h.Interval)
	body := map[string]any{
		"type": h.Type, "delay": delay, "timeout": min(ceil(h.Timeout), delay),
		"max_retries": cmp.Or(h.Rise, usualRise), "max_retries_down": cmp.Or(h.Fall, usualFall),
	}
	if h.Name != "" {
		body["name"] = h.Name
	}
	if h.Path != "" || strings.HasPrefix(h.Type, "HTTP") {
		body["url_path"] = cmp.Or(h.Path, "/") // Octavia's own
	}
	return body
}

// monitorChange returns what of a health monitor differs; anew is true if it must be
// recreated for that.
func (m balancerMaker) monitorChange(l sdn.Listener, have *monitorWire) (body map[string]any, anew bool) {
	want := m.monitor(l)
	if want["type"] != have.Type {
		return nil, true
	}
	return differing(want, map[string]any{
		"delay": have.Delay, "timeout": have.Wait, "max_retries": have.Rise,
		"max_retries_down": have.Fall, "name": have.Name, "url_path": have.Path,
	}), false
}

// A listener without a timeout in the spec has Octavia's own. The operator chooses that in section
// haproxy_amphora of octavia.conf, and no request returns it. A null in a PUT restores it. Kuryr learns
// it from the answers to requests without a timeout; before, it assumes Octavia's default.

// octaviasTimeouts are Octavia's defaults, by attribute, in milliseconds.
var octaviasTimeouts = map[string]int64{"timeout_client_data": 50000, "timeout_member_data": 50000, "timeout_member_connect": 5000, "timeout_tcp_inspect": 0}

// timeouts returns those of a spec, by attribute, in milliseconds; 0 is Octavia's own.
func timeouts(l sdn.Listener) map[string]int64 {
	return map[string]int64{
		"timeout_client_data": l.ClientTimeout.Milliseconds(), "timeout_member_data": l.MemberTimeout.Milliseconds(),
		"timeout_member_connect": l.ConnectTimeout.Milliseconds(), "timeout_tcp_inspect": l.InspectTimeout.Milliseconds(),
	}
}

// timeouts returns those of a listener; 0 also if Octavia does not tell.
func (l *listenerWire) timeouts() map[string]int64 {
	return map[string]int64{
		"timeout_client_data": l.ClientTimeout, "timeout_member_data": l.MemberTimeout, "timeout_member_connect": l.ConnectTimeout, "timeout_tcp_inspect": l.InspectTimeout,
	}
}

// usualTimeouts are the timeouts of listeners whose specs had none. An attribute has
// several if the operator has changed it: a listener keeps each of them while this
// process runs.
type usualTimeouts struct {
	mu   sync.Mutex
	seen map[string][]int64
}

// is reports whether a timeout may be Octavia's own.
func (u *usualTimeouts) is(attribute string, ms int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if seen := u.seen[attribute]; len(seen) > 0 {
		return ms == 0 || slices.Contains(seen, ms)
	}
	return ms == 0 || ms == octaviasTimeouts[attribute]
}

// learn notes the timeouts of a listener that a request has left to Octavia.
func (u *usualTimeouts) learn(l *listenerWire, left func(attribute string) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for attribute, ms := range l.timeouts() {
		if ms == 0 || !left(attribute) || slices.Contains(u.seen[attribute], ms) {
			continue
		}
		if u.seen == nil {
			u.seen = map[string][]int64{}
		}
		u.seen[attribute] = append(u.seen[attribute], ms)
	}
}

// learnFrom does so with the listeners of a new load balancer.
func (u *usualTimeouts) learnFrom(made []*listenerWire, of []sdn.Listener) {
	for _, l := range made {
		at := slices.IndexFunc(of, func(o sdn.Listener) bool { return o.Protocol == protocols[l.Protocol] && o.Port == l.Port })
		if at >= 0 {
			u.learn(l, func(attribute string) bool { return timeouts(of[at])[attribute] == 0 })
		}
	}
}

// writeListener is the step that adds or changes a listener, and learns from the answer which timeouts
// are Octavia's. isLeft tells which ones the request leaves to it.
func (m balancerMaker) writeListener(
	what string, isLeft func(attribute string) bool,
	write func(context.Context, *Provider) (*listenerWire, error),
) *step {
	return &step{what: what, do: func(ctx context.Context, p *Provider) error {
		w, err := write(ctx, p)
		if err == nil {
			m.usual.learn(w, isLeft)
		}
		return err
	}}
}
