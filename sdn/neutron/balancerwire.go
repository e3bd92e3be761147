package neutron

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// octaviaMeta is meta as Octavia says it, without revisions.
type octaviaMeta struct {
	meta
	Provisioning string `json:"provisioning_status"`
}

// The states of provisioning that matter. Nothing of a load balancer in PENDING_… can be
// changed.
const (
	stateError    = "ERROR"
	stateDeleted  = "DELETED"
	stateDeleting = "PENDING_DELETE"
	pendingPrefix = "PENDING_"
)

// broken names a part that Octavia holds in ERROR; "" is for any other state.
func (m *octaviaMeta) broken(noun string) string {
	if m.Provisioning != stateError {
		return ""
	}
	return noun + " " + m.ID
}

// balancerWire is a load balancer as Octavia says it, without what is below it. gophercloud's
// LoadBalancer has no vip_sg_ids, and no port_id of an additional VIP. Its types for listeners, pools
// and health monitors lack the time of change (octaviaMeta), by which below knows what to read.
type balancerWire struct {
	octaviaMeta
	VIPAddr     string    `json:"vip_address"`
	VIPPort     sdn.ID    `json:"vip_port_id"`
	VIPSubnet   sdn.ID    `json:"vip_subnet_id"`
	Additional  []vipWire `json:"additional_vips"`
	Groups      []sdn.ID  `json:"vip_sg_ids"`
	Provider    string    `json:"provider"`
	Flavor      string    `json:"flavor_id"`
	Zone        string    `json:"availability_zone"`
	AdminUp     bool      `json:"admin_state_up"`
	Operational string    `json:"operating_status"`
	// Made are the listeners in the answer to the request that makes them; elsewhere their ids alone.
	Made []*listenerWire `json:"listeners"`
}

// vipWire is a VIP besides the first.
type vipWire struct {
	Subnet sdn.ID `json:"subnet_id"`
	Addr   string `json:"ip_address,omitempty"`
	Port   sdn.ID `json:"port_id,omitempty"`
}

// listenerWire is a listener; Pool is its default pool.
type listenerWire struct {
	octaviaMeta
	Protocol       string            `json:"protocol"`
	Port           uint16            `json:"protocol_port"`
	Pool           sdn.ID            `json:"default_pool_id"`
	Limit          int               `json:"connection_limit"`
	Sources        []string          `json:"allowed_cidrs"`
	ClientTimeout  int64             `json:"timeout_client_data"` // milliseconds, as the following
	MemberTimeout  int64             `json:"timeout_member_data"`
	ConnectTimeout int64             `json:"timeout_member_connect"`
	InspectTimeout int64             `json:"timeout_tcp_inspect"`
	Headers        map[string]string `json:"insert_headers"`
	Certificate    string            `json:"default_tls_container_ref"`
}

// poolWire is a pool. Octavia tells only the ids of its members and health monitor.
type poolWire struct {
	octaviaMeta
	Protocol    string           `json:"protocol"`
	Algorithm   string           `json:"lb_algorithm"`
	Persistence *persistenceWire `json:"session_persistence"`
	Monitor     sdn.ID           `json:"healthmonitor_id"`

	members    []*memberWire
	health     *monitorWire
	seen, told time.Time // when it was seen first since its last change, and when its members were read
}

// places returns the members by address and port.
func (w *poolWire) places() map[netip.AddrPort]*memberWire {
	all := make(map[netip.AddrPort]*memberWire, len(w.members))
	for _, m := range w.members {
		all[m.at()] = m
	}
	return all
}

// persistenceWire keeps a client with its member. The timeout is in seconds, and of UDP and SCTP alone;
// gophercloud's SessionPersistence has none.
type persistenceWire struct {
	Type    string `json:"type"`
	Timeout int    `json:"persistence_timeout,omitempty"`
}

// memberWire is a member. It is known by address and port. gophercloud's Member has none
// of octaviaMeta, which lists need.
type memberWire struct {
	octaviaMeta
	Addr   netip.Addr `json:"address"`
	Port   uint16     `json:"protocol_port"`
	Subnet sdn.ID     `json:"subnet_id"`
	Weight int        `json:"weight"`
}

func (m *memberWire) at() netip.AddrPort { return netip.AddrPortFrom(m.Addr.Unmap(), m.Port) }

// monitorWire is a health monitor; times are in seconds.
type monitorWire struct {
	octaviaMeta
	Type  string `json:"type"`
	Path  string `json:"url_path"`
	Delay int    `json:"delay"`
	Wait  int    `json:"timeout"`
	Rise  int    `json:"max_retries"`
	Fall  int    `json:"max_retries_down"`
}

var (
	balancers = collection[*balancerWire]{
		title: "load balancer", item: "loadbalancer", items: "loadbalancers", path: "/loadbalancers", octavia: true,
	}
	listeners = collection[*listenerWire]{
		title: "listener", item: "listener", items: "listeners", path: "/listeners", octavia: true,
	}
	pools = collection[*poolWire]{
		title: "pool", item: "pool", items: "pools", path: "/pools", octavia: true,
	}
	monitors = collection[*monitorWire]{
		title: "health monitor", item: "healthmonitor", items: "healthmonitors", path: "/healthmonitors", octavia: true,
	}
)

// protocols are the transports by Octavia's names of listeners' and pools' protocols.
var protocols = map[string]sdn.Protocol{
	"TCP": sdn.TCP, "HTTP": sdn.TCP, "HTTPS": sdn.TCP, "TERMINATED_HTTPS": sdn.TCP, "PROMETHEUS": sdn.TCP, "PROXY": sdn.TCP, "PROXYV2": sdn.TCP,
	"UDP": sdn.UDP, "SCTP": sdn.SCTP,
}

// protocolName is Octavia's name of a transport.
func protocolName(p sdn.Protocol) string {
	switch p {
	case sdn.UDP:
		return "UDP"
	case sdn.SCTP:
		return "SCTP"
	}
	return "TCP"
}

// A tree is what is below a load balancer.
type tree struct {
	listeners []*listenerWire
	pools     []*poolWire
}

// pool returns the pool of an id, nil if there is none.
func (t *tree) pool(id sdn.ID) *poolWire {
	if t == nil {
		return nil
	}
	if at := slices.IndexFunc(t.pools, func(p *poolWire) bool { return id != "" && p.ID == string(id) }); at >= 0 {
		return t.pools[at]
	}
	return nil
}

// at returns the listener at a port of a transport, nil if there is none.
func (t *tree) at(protocol sdn.Protocol, port uint16) *listenerWire {
	at := slices.IndexFunc(t.listeners, func(l *listenerWire) bool { return protocols[l.Protocol] == protocol && l.Port == port })
	if at < 0 {
		return nil
	}
	return t.listeners[at]
}

// balancer returns the sdn form of a load balancer and what is below it; below may be
// nil.
func (p *Provider) balancer(w *balancerWire, below *tree) sdn.LoadBalancer {
	b := sdn.LoadBalancer{
		Meta: w.decode(p.owner), VIPs: w.vips(), Groups: w.Groups, Backend: w.Provider, Flavor: w.Flavor, Zone: w.Zone,
	}
	if below == nil {
		return b
	}
	for _, l := range below.listeners {
		b.Listeners = append(b.Listeners, l.value(below.pool(l.Pool)))
	}
	sortslice.Func(b.Listeners, func(a, b sdn.Listener) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	for _, pool := range below.pools {
		if !slices.ContainsFunc(below.listeners, func(l *listenerWire) bool { return string(l.Pool) == pool.ID }) {
			b.Pools = append(b.Pools, pool.value())
		}
	}
	return b
}

// vips gives the addresses, IPv4 first.
func (w *balancerWire) vips() []sdn.VIP {
	var all []sdn.VIP
	for _, v := range append([]vipWire{{w.VIPSubnet, w.VIPAddr, w.VIPPort}}, w.Additional...) {
		addr, _ := netip.ParseAddr(v.Addr)
		all = append(all, sdn.VIP{Subnet: v.Subnet, Addr: addr, Port: cmp.Or(v.Port, w.VIPPort)})
	}
	sortslice.Stable(all, func(a, b sdn.VIP) int { return cmp.Compare(a.Addr.BitLen(), b.Addr.BitLen()) })
	return all
}

func (l *listenerWire) value(pool *poolWire) sdn.Listener {
	m := l.decode(nil)
	out := sdn.Listener{
		ID: m.ID, Key: m.Key, Name: m.Name, Description: m.Description, Protocol: protocols[l.Protocol], Port: l.Port, ConnectionLimit: max(l.Limit, 0),
		ClientTimeout: milliseconds(l.ClientTimeout), MemberTimeout: milliseconds(l.MemberTimeout),
		ConnectTimeout: milliseconds(l.ConnectTimeout), InspectTimeout: milliseconds(l.InspectTimeout),
		ForwardedFor: l.forwards(), Certificate: l.Certificate, WithoutPool: pool == nil,
	}
	for _, s := range l.Sources {
		if prefix, err := netip.ParsePrefix(s); err == nil {
			out.Sources = append(out.Sources, prefix)
		}
	}
	if pool != nil {
		out.Pool = pool.value()
		switch pool.Protocol {
		case "PROXY":
			out.ProxyProtocol, out.ProxyVersion = true, 1
		case "PROXYV2":
			out.ProxyProtocol, out.ProxyVersion = true, 2
		}
	}
	return out
}

func (l *listenerWire) forwards() bool {
	return strings.EqualFold(l.Headers["X-Forwarded-For"], "true")
}

func (w *poolWire) value() sdn.Pool {
	m := w.decode(nil)
	out := sdn.Pool{ID: m.ID, Name: m.Name, Description: m.Description, Protocol: protocols[w.Protocol], Algorithm: sdn.Algorithm(w.Algorithm)}
	if w.Persistence != nil && w.Persistence.Type == "SOURCE_IP" {
		out.Affinity = sdn.Affinity{ClientIP: true, Timeout: seconds(w.Persistence.Timeout)}
	}
	for _, m := range w.members {
		out.Members = append(out.Members, sdn.Member{ID: sdn.ID(m.ID), Name: m.Name, Addr: m.at(), Subnet: m.Subnet, Weight: m.Weight, Drain: m.Weight == 0})
	}
	sortslice.Func(out.Members, func(a, b sdn.Member) int { return a.Addr.Compare(b.Addr) })
	if h := w.health; h != nil {
		out.Health = &sdn.HealthMonitor{ID: sdn.ID(h.ID), Name: h.Name, Type: h.Type, Path: h.Path, Interval: seconds(h.Delay), Timeout: seconds(h.Wait), Rise: h.Rise, Fall: h.Fall}
	}
	return out
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// key is whose a listener is, where several share its load balancer.
func (l *listenerWire) key() sdn.Key {
	key, _ := sdn.ParseKey(l.Description)
	return key
}
