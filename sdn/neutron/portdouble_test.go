package neutron

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

const (
	doubleNet    = "11111111-0000-4000-8000-000000000001"
	doubleSubnet = "22222222-0000-4000-8000-000000000001"
	doubleHost   = "n1"
)

// portDouble is a network with one subnet of a Neutron 21 with ML2/OVN, with the habits that were seen there: a host that is not known binds "successfully", tags
// at creation are dropped, revisions in answers are behind, the addresses of a bulk that fails are lost.
type portDouble struct {
	mu     sync.Mutex
	ports  map[string]*portWire
	serial int
	room   int // free addresses
	slaac  netip.Prefix
	bodies []map[string]any // of the ports in POSTs
	bulks  []int            // how many ports each POST asked for
	refuse func(r *http.Request, body []byte) (status int, answer string)
	now    time.Time // of Neutron
}

func newPortDouble(room int) *portDouble {
	return &portDouble{ports: map[string]*portWire{}, room: room, now: time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)}
}

// onPorts opens a provider on the double. Time passes for its cache as *now says.
func onPorts(t *testing.T, d *portDouble) (p *Provider, proxy *neutrontest.Proxy, now *time.Time) {
	t.Helper()
	return onPortsBefore(t, d)
}

// onPortsBefore is onPorts for what stands before a double.
func onPortsBefore(t *testing.T, h http.Handler) (p *Provider, proxy *neutrontest.Proxy, now *time.Time) {
	t.Helper()
	proxy = neutrontest.NewBefore(t, h)
	c := Config{
		Installation: "test", Project: "p1", Host: doubleHost, Endpoint: proxy.URL, Auth: Auth{Type: "none"},
		Env: func(string) (string, bool) { return "", false },
	}
	p, err := Open(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	p.cache.ports.now = func() time.Time { return at }
	p.client.backoff = func(ctx context.Context, _ int, _ error) bool { return ctx.Err() == nil }
	if _, err := p.Subnet(t.Context(), doubleSubnet); err != nil { // as a front end has by then
		t.Fatal(err)
	}
	proxy.Reset()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, proxy, &at
}

func (d *portDouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if d.refuse != nil {
		if status, text := d.refuse(r, body); status != 0 {
			answer(w, status, text)
			return
		}
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2.0/"), "/")
	subnet := map[string]any{
		"id": doubleSubnet, "network_id": doubleNet, "ip_version": 4, "cidr": "10.0.0.0/24", "gateway_ip": "10.0.0.1", "project_id": "p1", "revision_number": 0,
		"enable_dhcp": true, "allocation_pools": []map[string]string{{"start": "10.0.0.2", "end": fmt.Sprintf("10.0.0.%d", 1+d.room+len(d.ports))}},
		"created_at": doubleTime, "updated_at": doubleTime,
	}
	switch {
	case parts[0] == "extensions":
		var list []map[string]string
		for _, a := range append([]string{"trunk"}, usual...) {
			list = append(list, map[string]string{"alias": a})
		}
		reply(w, http.StatusOK, map[string]any{"extensions": list})
	case parts[0] == "subnets" && len(parts) == 2:
		reply(w, http.StatusOK, map[string]any{"subnet": subnet})
	case parts[0] == "subnets":
		reply(w, http.StatusOK, map[string]any{"subnets": []any{subnet}})
	case parts[0] != "ports":
		answer(w, http.StatusNotFound, "")
	case r.Method == http.MethodPost:
		d.post(w, body)
	case len(parts) == 1:
		d.list(w, r)
	default:
		d.one(w, r, parts, body)
	}
}

// bulkOf are the ports that the body of a POST asks for in bulk.
func bulkOf(body []byte) []json.RawMessage {
	var in struct{ Ports []json.RawMessage }
	if err := json.Unmarshal(body, &in); err != nil {
		panic(err)
	}
	return in.Ports
}

func (d *portDouble) post(w http.ResponseWriter, body []byte) {
	var in struct{ Port json.RawMessage }
	if err := json.Unmarshal(body, &in); err != nil {
		panic(err)
	}
	all := bulkOf(body)
	if in.Port != nil {
		all = []json.RawMessage{in.Port}
	}
	d.bulks = append(d.bulks, len(all))
	var made []*portWire
	for _, raw := range all {
		var fields map[string]any
		_ = json.Unmarshal(raw, &fields)
		d.bodies = append(d.bodies, fields)
		port := &portWire{}
		if err := json.Unmarshal(raw, port); err != nil {
			panic(err)
		}
		if status, text := d.make(port); status != 0 {
			for _, p := range made { // undone, but for their addresses
				delete(d.ports, p.ID)
			}
			answer(w, status, text)
			return
		}
		made = append(made, port)
	}
	if in.Port != nil {
		reply(w, http.StatusCreated, map[string]any{"port": d.said(made[0])})
		d.settle(made...)
		return
	}
	var list []any
	for _, p := range made {
		list = append(list, d.said(p))
	}
	reply(w, http.StatusCreated, map[string]any{"ports": list})
	d.settle(made...)
}

func (d *portDouble) make(p *portWire) (status int, text string) {
	for _, other := range d.ports {
		if p.MAC != "" && p.MAC == other.MAC {
			return http.StatusConflict, neutronError("MacAddressInUse", "Unable to complete operation for network "+doubleNet+". The mac address "+p.MAC+" is in use.")
		}
		for _, a := range p.FixedIPs {
			if a.Addr != "" && slices.ContainsFunc(other.FixedIPs, func(b fixedIP) bool { return a.Addr == b.Addr }) {
				return http.StatusConflict, neutronError("IpAddressAlreadyAllocated", "IP address "+a.Addr+" already allocated in subnet "+doubleSubnet)
			}
		}
	}
	if d.room == 0 {
		return http.StatusConflict, neutronError("IpAddressGenerationFailure", "No more IP addresses available on network "+doubleNet+".")
	}
	d.room--
	d.serial++
	p.ID = fmt.Sprintf("%08x-0000-4000-8000-%012d", 0x9e3779b9*uint32(d.serial), d.serial)
	if p.MAC == "" {
		p.MAC = fmt.Sprintf("fa:16:3e:00:00:%02x", d.serial)
	}
	if p.FixedIPs == nil {
		p.FixedIPs = []fixedIP{{}}
	}
	for i := range p.FixedIPs {
		p.FixedIPs[i].Subnet = doubleSubnet
		if p.FixedIPs[i].Addr == "" {
			p.FixedIPs[i].Addr = fmt.Sprintf("10.0.0.%d", 100+d.serial)
		}
	}
	if d.slaac.IsValid() {
		p.FixedIPs = append(p.FixedIPs, fixedIP{Subnet: "slaac", Addr: eui64(d.slaac, p.MAC).String()})
	}
	p.Created, p.Updated, p.Tags, p.Status, p.Revision = stamp{d.now}, stamp{d.now}, nil, sdn.PortDown, 1
	d.bind(p)
	d.ports[p.ID] = p
	return 0, ""
}

func eui64(prefix netip.Prefix, mac string) netip.Addr {
	m, err := net.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	a := prefix.Addr().As16()
	copy(a[8:], []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	return netip.AddrFrom16(a)
}

func (d *portDouble) bind(p *portWire) {
	switch p.Host {
	case "":
		p.VIFType = sdn.VIFUnbound
	case doubleHost, "n2":
		p.VIFType, p.VIFDetails = sdn.VIFOVS, map[string]any{}
	default:
		p.VIFType = vifBindingFailed
	}
}

// settle is what Neutron does after its answer: it counts bound ports up.
func (d *portDouble) settle(ports ...*portWire) {
	for _, p := range ports {
		if p.Host != "" {
			p.Revision++
		}
	}
}

// said is a port as JSON.
func (d *portDouble) said(p *portWire) any {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		panic(err)
	}
	return object
}

func (d *portDouble) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	found := []any{}
	for _, p := range d.ports {
		fits := true
		for name, value := range map[string]string{"id": p.ID, "description": p.Description, "device_id": p.DeviceID, "network_id": string(p.Network), "mac_address": p.MAC} {
			fits = fits && (!q.Has(name) || slices.Contains(q[name], value))
		}
		for _, f := range q["fixed_ips"] {
			addr, ok := strings.CutPrefix(f, "ip_address=")
			fits = fits && (!ok || slices.ContainsFunc(p.FixedIPs, func(a fixedIP) bool { return a.Addr == addr }))
		}
		if fits {
			found = append(found, d.said(p))
		}
	}
	reply(w, http.StatusOK, map[string]any{"ports": found})
}

func (d *portDouble) one(w http.ResponseWriter, r *http.Request, parts []string, body []byte) {
	p := d.ports[parts[1]]
	if p == nil {
		answer(w, http.StatusNotFound, neutronError("PortNotFound", "Port "+parts[1]+" could not be found."))
		return
	}
	if want := r.Header.Get("If-Match"); want != "" && want != fmt.Sprintf("revision_number=%d", p.Revision) {
		answer(w, http.StatusPreconditionFailed, neutronError("RevisionNumberConstraintFailed", fmt.Sprintf("Constrained to another, but current revision is %d", p.Revision)))
		return
	}
	switch {
	case r.Method == http.MethodDelete:
		delete(d.ports, p.ID)
		d.room++
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut && len(parts) == 3:
		var in struct{ Tags []string }
		_ = json.Unmarshal(body, &in)
		p.Tags = in.Tags
		p.Revision++
		reply(w, http.StatusOK, in)
	case r.Method == http.MethodPut:
		var in struct{ Port json.RawMessage }
		_ = json.Unmarshal(body, &in)
		var fields map[string]any
		_ = json.Unmarshal(in.Port, &fields)
		if _, there := fields["fixed_ips"]; there {
			p.FixedIPs = nil
		}
		before := p.Revision
		if err := json.Unmarshal(in.Port, p); err != nil {
			panic(err)
		}
		p.Revision = before + 1
		d.bind(p)
		reply(w, http.StatusOK, map[string]any{"port": d.said(p)})
		d.settle(p)
	default:
		reply(w, http.StatusOK, map[string]any{"port": d.said(p)})
	}
}

// change does to a port what somebody else does.
func (d *portDouble) change(id sdn.ID, f func(*portWire)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d.ports[string(id)])
	d.ports[string(id)].Revision++
}

func (d *portDouble) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ports)
}
