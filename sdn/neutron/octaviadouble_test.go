package neutron

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// octaviaDouble is as much of an Octavia as faults need. Each change locks the tree of its load balancer, which is PENDING until it was looked at as often as
// pend says; it refuses as Octavia 11 does, by the same statuses and words.
type octaviaDouble struct {
	mu        sync.Mutex
	versions  []string
	providers []string
	pend      int            // looks until what is PENDING is done
	quota     int            // load balancers; -1: no limit
	fails     int            // load balancers that are made go to ERROR, so many
	unchecked bool           // health monitors go to ERROR, as with OVN's provider and members that are no ports
	loses     bool           // a pool whose health monitor goes stays PENDING_UPDATE, as with OVN's provider
	forgets   bool           // the parts of load balancers that are made stay PENDING_CREATE until they are written
	keeps     bool           // a timeout that is written as null stays, as with an API that is not Octavia's own
	timeouts  map[string]any // of listeners of which nothing is said
	taken     map[string]bool
	serial    int
	clock     time.Time
	balancers []*doubleBalancer
	bodies    []map[string]any // of POSTs of load balancers
}

type doubleBalancer struct {
	fields    map[string]any
	looks     int    // left until what is PENDING is done
	after     string // its state then
	listeners []map[string]any
	pools     []map[string]any
	members   map[string][]map[string]any // by pool
	monitors  map[string]map[string]any   // by pool
}

func newOctaviaDouble(providers ...string) *octaviaDouble {
	d := &octaviaDouble{providers: providers, pend: 1, quota: -1, taken: map[string]bool{}, clock: time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC), timeouts: map[string]any{}}
	for attribute, ms := range octaviasTimeouts {
		d.timeouts[attribute] = ms
	}
	for minor := range 27 {
		d.versions = append(d.versions, fmt.Sprintf("v2.%d", minor))
	}
	return d
}

func (d *octaviaDouble) id() string {
	d.serial++
	return fmt.Sprintf("10000000-0000-4000-8000-%012d", d.serial)
}

func (d *octaviaDouble) now() string {
	d.clock = d.clock.Add(time.Second)
	return d.clock.Format("2006-01-02T15:04:05")
}

func refuseOctavia(w http.ResponseWriter, status int, format string, args ...any) {
	reply(w, status, map[string]any{"faultcode": "Client", "faultstring": fmt.Sprintf(format, args...), "debuginfo": nil})
}

func (d *octaviaDouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/" {
		var all []any
		for _, v := range d.versions {
			all = append(all, map[string]string{"id": v, "status": "SUPPORTED"})
		}
		reply(w, http.StatusOK, map[string]any{"versions": all})
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/v2/lbaas/")
	if !ok {
		http.NotFound(w, r)
		return
	}
	parts := strings.Split(path, "/")
	var body map[string]any
	var envelope map[string]any
	if len(data) > 0 {
		if json.Unmarshal(data, &envelope) != nil {
			refuseOctavia(w, http.StatusBadRequest, "Invalid input.")
			return
		}
		for _, v := range envelope {
			body, _ = v.(map[string]any)
		}
	}
	switch {
	case parts[0] == "providers":
		var all []any
		for _, p := range d.providers {
			all = append(all, map[string]string{"name": p, "description": p})
		}
		reply(w, http.StatusOK, map[string]any{"providers": all})
	case parts[0] == "loadbalancers":
		d.serveBalancer(w, r, parts[1:], body)
	case len(parts) == 3 && parts[2] == "members" && r.Method == http.MethodPut:
		d.batch(w, parts[1], envelope["members"].([]any))
	default:
		d.serveChild(w, r, parts, body)
	}
}

// look is one more look at a load balancer: what is PENDING ends by and by.
func (b *doubleBalancer) look(d *octaviaDouble) (gone bool) {
	if !strings.HasPrefix(b.state(), "PENDING_") {
		return false
	}
	if b.looks--; b.looks >= 0 {
		return false
	}
	if b.after == "" {
		return true
	}
	b.set(b.after, d.now())
	return false
}

func (b *doubleBalancer) state() string { return b.fields["provisioning_status"].(string) }

func (b *doubleBalancer) set(state, now string) {
	b.fields["provisioning_status"], b.fields["updated_at"] = state, now
}

// lock begins a change of a tree, or refuses it.
func (d *octaviaDouble) lock(w http.ResponseWriter, b *doubleBalancer) bool {
	if b.state() != "ACTIVE" {
		refuseOctavia(w, http.StatusConflict, "Load Balancer %s is immutable and cannot be updated.", b.fields["id"])
		return false
	}
	b.set("PENDING_UPDATE", d.now())
	b.looks, b.after = d.pend, "ACTIVE"
	return true
}

func (d *octaviaDouble) serveBalancer(w http.ResponseWriter, r *http.Request, parts []string, body map[string]any) {
	if len(parts) == 0 && r.Method == http.MethodPost {
		d.make(w, body)
		return
	}
	d.balancers = slices.DeleteFunc(d.balancers, func(b *doubleBalancer) bool { return r.Method == http.MethodGet && b.look(d) })
	if len(parts) == 0 {
		found := []any{}
		for _, b := range d.balancers {
			if want := r.URL.Query().Get("description"); want == "" || want == b.fields["description"] {
				found = append(found, b.fields)
			}
		}
		reply(w, http.StatusOK, map[string]any{"loadbalancers": found})
		return
	}
	at := slices.IndexFunc(d.balancers, func(b *doubleBalancer) bool { return b.fields["id"] == parts[0] })
	if at < 0 {
		refuseOctavia(w, http.StatusNotFound, "Load Balancer %s not found.", parts[0])
		return
	}
	b := d.balancers[at]
	switch r.Method {
	case http.MethodGet:
		reply(w, http.StatusOK, map[string]any{"loadbalancer": b.fields})
	case http.MethodPut:
		if d.lock(w, b) {
			for name, v := range body {
				b.fields[name] = v
			}
			reply(w, http.StatusOK, map[string]any{"loadbalancer": b.fields})
		}
	case http.MethodDelete:
		if s := b.state(); s != "ACTIVE" && s != "ERROR" {
			refuseOctavia(w, http.StatusConflict, "Invalid state %s of loadbalancer resource %s", s, parts[0])
			return
		}
		b.set("PENDING_DELETE", d.now())
		b.looks, b.after = d.pend, ""
		if d.pend == 0 {
			d.balancers = slices.Delete(d.balancers, at, at+1)
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// make makes a load balancer with all that its body has.
func (d *octaviaDouble) make(w http.ResponseWriter, body map[string]any) {
	d.bodies = append(d.bodies, body)
	provider, _ := body["provider"].(string)
	addr, _ := body["vip_address"].(string)
	used := d.taken[addr] || slices.ContainsFunc(d.balancers, func(b *doubleBalancer) bool { return addr != "" && b.fields["vip_address"] == addr })
	switch {
	case d.quota >= 0 && len(d.balancers) >= d.quota:
		refuseOctavia(w, http.StatusForbidden, "Quota has been met for resources: Load Balancer")
		return
	case !slices.Contains(d.providers, provider) && d.providers != nil:
		refuseOctavia(w, http.StatusBadRequest, "Provider '%s' is not enabled.", provider)
		return
	case used && provider == ovn:
		refuseOctavia(w, http.StatusInternalServerError, "Provider 'ovn' reports error: IP address %s already allocated in subnet %s", addr, body["vip_subnet_id"])
		return
	case used:
		refuseOctavia(w, http.StatusConflict, "VIP %s is in use.", addr)
		return
	}
	id := d.id()
	if addr == "" {
		addr = netip.AddrFrom4([4]byte{10, 0, 9, byte(d.serial)}).String()
	}
	b := &doubleBalancer{fields: map[string]any{
		"id": id, "vip_address": addr, "vip_port_id": d.id(), "provider": provider, "created_at": d.now(), "updated_at": nil, "project_id": "p1", "flavor_id": nil,
		"provisioning_status": "PENDING_CREATE", "operating_status": "OFFLINE", "admin_state_up": true, "tags": []any{}, "description": "", "name": "",
	}, looks: d.pend, after: "ACTIVE", members: map[string][]map[string]any{}, monitors: map[string]map[string]any{}}
	if d.fails > 0 {
		d.fails--
		b.after = "ERROR"
	}
	for name, v := range body {
		if name != "listeners" {
			b.fields[name] = v
		}
	}
	list, _ := body["listeners"].([]any)
	for _, l := range list {
		listener := l.(map[string]any)
		pool := listener["default_pool"].(map[string]any)
		delete(listener, "default_pool")
		d.addPool(b, pool)
		listener["default_pool_id"] = pool["id"]
		d.addListener(b, listener)
	}
	if d.forgets {
		for _, part := range b.parts() {
			part["provisioning_status"] = "PENDING_CREATE"
		}
	}
	d.balancers = append(d.balancers, b)
	whole := maps.Clone(b.fields)
	whole["listeners"] = b.listeners
	reply(w, http.StatusCreated, map[string]any{"loadbalancer": whole})
}

// parts are all listeners, pools, members and health monitors.
func (b *doubleBalancer) parts() []map[string]any {
	all := slices.Concat(b.listeners, b.pools, b.of("healthmonitors"))
	for _, members := range b.members {
		all = append(all, members...)
	}
	return all
}

func (d *octaviaDouble) addListener(b *doubleBalancer, l map[string]any) {
	for name, v := range map[string]any{"id": d.id(), "connection_limit": -1, "provisioning_status": "ACTIVE", "name": "", "description": "", "updated_at": nil} {
		if l[name] == nil {
			l[name] = v
		}
	}
	for attribute, ms := range d.timeouts {
		if l[attribute] == nil {
			l[attribute] = ms
		}
	}
	b.listeners = append(b.listeners, l)
}

func (d *octaviaDouble) addPool(b *doubleBalancer, p map[string]any) {
	id := d.id()
	p["id"], p["provisioning_status"], p["updated_at"] = id, "ACTIVE", nil
	members, _ := p["members"].([]any)
	delete(p, "members")
	for _, m := range members {
		b.members[id] = append(b.members[id], d.member(m.(map[string]any)))
	}
	if h, ok := p["healthmonitor"].(map[string]any); ok && b.fields["provider"] != ovn {
		h["id"], h["provisioning_status"] = d.id(), "ACTIVE"
		b.monitors[id], p["healthmonitor_id"] = h, h["id"]
	}
	delete(p, "healthmonitor")
	b.pools = append(b.pools, p)
}

func (d *octaviaDouble) member(m map[string]any) map[string]any {
	m["id"], m["provisioning_status"] = d.id(), "ACTIVE"
	if m["weight"] == nil {
		m["weight"] = 1.0
	}
	return m
}

func memberPlace(m map[string]any) string { return fmt.Sprint(m["address"], " ", m["protocol_port"]) }

// batch makes a pool's members a set; those that stay keep their ids.
func (d *octaviaDouble) batch(w http.ResponseWriter, pool string, members []any) {
	for _, b := range d.balancers {
		at := slices.IndexFunc(b.pools, func(p map[string]any) bool { return p["id"] == pool })
		if at < 0 {
			continue
		}
		if b.forgotten(w, pool) || !d.lock(w, b) {
			return
		}
		b.pools[at]["updated_at"] = b.fields["updated_at"]
		var now []map[string]any
		for _, m := range members {
			m := d.member(m.(map[string]any))
			if had := slices.IndexFunc(b.members[pool], func(h map[string]any) bool { return memberPlace(h) == memberPlace(m) }); had >= 0 {
				m["id"], m["subnet_id"] = b.members[pool][had]["id"], b.members[pool][had]["subnet_id"]
			}
			now = append(now, m)
		}
		b.members[pool] = now
		w.WriteHeader(http.StatusAccepted)
		return
	}
	refuseOctavia(w, http.StatusNotFound, "Pool %s not found.", pool)
}

// serveChild serves listeners, pools, members and health monitors.
func (d *octaviaDouble) serveChild(w http.ResponseWriter, r *http.Request, parts []string, body map[string]any) {
	item := strings.TrimSuffix(parts[0], "s")
	if r.Method == http.MethodPost {
		d.makeChild(w, parts[0], body)
		return
	}
	if len(parts) == 1 {
		found := []map[string]any{}
		for _, b := range d.balancers {
			if b.fields["id"] == r.URL.Query().Get("loadbalancer_id") {
				found = append(found, b.of(parts[0])...)
			}
		}
		reply(w, http.StatusOK, map[string]any{parts[0]: found})
		return
	}
	for _, b := range d.balancers {
		all := b.of(parts[0])
		at := slices.IndexFunc(all, func(o map[string]any) bool { return o["id"] == parts[1] })
		if at < 0 {
			continue
		}
		switch {
		case len(parts) == 3 && r.Method == http.MethodGet:
			reply(w, http.StatusOK, map[string]any{"members": append([]map[string]any{}, b.members[parts[1]]...)})
		case r.Method == http.MethodGet:
			reply(w, http.StatusOK, map[string]any{item: all[at]})
		case parts[0] == "healthmonitors" && b.forgotten(w, b.poolOf(parts[1])):
		case !d.lock(w, b):
		case r.Method == http.MethodPut:
			b.remember(all[at])
			all[at]["updated_at"] = b.fields["updated_at"]
			for name, v := range body {
				if usual, is := d.timeouts[name]; is && v == nil {
					if v = usual; d.keeps {
						v = all[at][name]
					}
				}
				all[at][name] = v
			}
			reply(w, http.StatusOK, map[string]any{item: all[at]})
		case r.Method == http.MethodDelete:
			pool := b.poolOf(parts[1])
			b.drop(parts[0], parts[1])
			for _, p := range b.pools {
				if p["id"] != pool {
					continue
				}
				p["updated_at"] = b.fields["updated_at"]
				if d.loses {
					p["provisioning_status"] = "PENDING_UPDATE"
				}
			}
			w.WriteHeader(http.StatusNoContent)
		}
		return
	}
	refuseOctavia(w, http.StatusNotFound, "%s %s not found.", strings.ToUpper(item[:1])+item[1:], parts[1])
}

// forgotten refuses what is below a pool that is PENDING.
func (b *doubleBalancer) forgotten(w http.ResponseWriter, pool string) bool {
	at := slices.IndexFunc(b.pools, func(p map[string]any) bool { return p["id"] == pool })
	if at < 0 || b.pools[at]["provisioning_status"] == "ACTIVE" {
		return false
	}
	refuseOctavia(w, http.StatusConflict, "Pool %s is immutable and cannot be updated.", pool)
	return true
}

// poolOf is the pool of a health monitor.
func (b *doubleBalancer) poolOf(monitor string) string {
	for pool, h := range b.monitors {
		if h["id"] == monitor {
			return pool
		}
	}
	return ""
}

// remember makes a part that is written ACTIVE, and a pool's listeners with it.
func (b *doubleBalancer) remember(part map[string]any) {
	for _, l := range b.listeners {
		if l["default_pool_id"] == part["id"] {
			l["provisioning_status"] = "ACTIVE"
		}
	}
	part["provisioning_status"] = "ACTIVE"
}

func (b *doubleBalancer) of(kind string) []map[string]any {
	switch kind {
	case "listeners":
		return b.listeners
	case "pools":
		return b.pools
	}
	var all []map[string]any
	for _, h := range b.monitors {
		all = append(all, h)
	}
	return all
}

func (b *doubleBalancer) drop(kind, id string) {
	is := func(o map[string]any) bool { return o["id"] == id }
	switch kind {
	case "listeners":
		b.listeners = slices.DeleteFunc(b.listeners, is)
	case "pools":
		b.pools = slices.DeleteFunc(b.pools, is)
		delete(b.members, id)
		delete(b.monitors, id)
		for _, l := range b.listeners {
			if l["default_pool_id"] == id {
				l["default_pool_id"] = nil
			}
		}
	default:
		for pool, h := range b.monitors {
			if is(h) {
				delete(b.monitors, pool)
				for _, p := range b.pools {
					if p["id"] == pool {
						p["healthmonitor_id"] = nil
					}
				}
			}
		}
	}
}

func (d *octaviaDouble) makeChild(w http.ResponseWriter, kind string, body map[string]any) {
	for _, b := range d.balancers {
		mine := body["loadbalancer_id"] == b.fields["id"]
		var pool map[string]any
		for _, l := range b.listeners {
			mine = mine || body["listener_id"] == l["id"]
		}
		for _, p := range b.pools {
			if body["pool_id"] == p["id"] {
				mine, pool = true, p
			}
		}
		if !mine {
			continue
		}
		if body["default_pool"] != nil || body["members"] != nil {
			refuseOctavia(w, http.StatusInternalServerError, "Internal Server Error") // what Octavia 11 says of a tree below what is there
			return
		}
		if kind == "listeners" && slices.ContainsFunc(b.listeners, func(l map[string]any) bool {
			return l["protocol"] == body["protocol"] && l["protocol_port"] == body["protocol_port"]
		}) {
			refuseOctavia(w, http.StatusConflict, "Another Listener on this Load Balancer is already using protocol %v and port %v", body["protocol"], body["protocol_port"])
			return
		}
		if !d.lock(w, b) {
			return
		}
		switch kind {
		case "listeners":
			d.addListener(b, body)
		case "pools":
			d.addPool(b, body)
			for _, l := range b.listeners {
				if l["id"] == body["listener_id"] {
					l["default_pool_id"] = body["id"]
				}
			}
		default:
			body["id"], body["provisioning_status"] = d.id(), "ACTIVE"
			if d.unchecked {
				body["provisioning_status"] = stateError
			}
			b.monitors[pool["id"].(string)], pool["healthmonitor_id"], pool["updated_at"] = body, body["id"], b.fields["updated_at"]
		}
		reply(w, http.StatusCreated, map[string]any{strings.TrimSuffix(kind, "s"): body})
		return
	}
	refuseOctavia(w, http.StatusBadRequest, "Load Balancer %v not found.", body["loadbalancer_id"])
}

// onOctavia opens a provider on a Neutron and an Octavia, with a clock that a test moves.
func onOctavia(t *testing.T, o *octaviaDouble) (p *Provider, proxy *neutrontest.Proxy, clock *time.Time) {
	t.Helper()
	proxy = neutrontest.NewBefore(t, o)
	d := newDouble()
	d.add("networks", map[string]any{"id": "n1"})
	d.add("subnets", map[string]any{"id": "s1", "network_id": "n1", "cidr": "10.0.0.0/16", "ip_version": 4.0})
	d.add("subnets", map[string]any{"id": "s6", "network_id": "n1", "cidr": "fd00::/64", "ip_version": 6.0})
	p, _ = onDouble(t, d, func(c *Config) { c.OctaviaEndpoint = proxy.URL })
	p.octavia.client.backoff, p.octavia.root.backoff = p.client.backoff, p.client.backoff
	now := time.Now()
	p.octavia.memory.now = func() time.Time { return now }
	return p, proxy, &now
}
