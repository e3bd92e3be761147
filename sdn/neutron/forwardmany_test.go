package neutron

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
	"github.com/kuryr/kuryr/sdn/neutronapi"
)

// crowd lets requests that make forwardings pass in groups: the first alone, the others when as
// many wait as may be sent concurrently.
type crowd struct {
	http.Handler
	mu      sync.Mutex
	alone   bool // the first has passed
	waiting int
	most    int
	pass    chan struct{} // closed for the group that waits; nil: all pass
}

func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/port_forwardings") {
		c.wait(r)
	}
	c.Handler.ServeHTTP(w, r)
}

func (c *crowd) wait(r *http.Request) {
	c.mu.Lock()
	if !c.alone || c.pass == nil {
		c.alone = true
		c.mu.Unlock()
		return
	}
	c.waiting++
	c.most = max(c.most, c.waiting)
	pass := c.pass
	if c.waiting == forwardsAtOnce {
		close(c.pass)
		c.pass, c.waiting = make(chan struct{}), 0
	}
	c.mu.Unlock()
	select {
	case <-pass:
	case <-r.Context().Done():
	}
}

// TestManyForwards checks that the forwardings of a Neutron, which has no request for several, are
// made concurrently, and are taken back when one is refused.
func TestManyForwards(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, err := local.Open(ctx, local.Options{Path: filepath.Join(t.TempDir(), "sdn.db"), Host: "h"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	handler := neutronapi.As(neutronapi.Caller{Role: neutronapi.Admin}, neutronapi.NewHandler(store, neutronapi.Options{}))
	c := &crowd{Handler: handler, pass: make(chan struct{})}
	proxy := neutrontest.NewBefore(t, c)
	config := Config{Installation: store.Installation(), Project: "p1", Endpoint: proxy.URL, Auth: Auth{Type: "none"}}
	p, err := Open(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	subnets := []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.0.0.0/24")}}
	n, err := store.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: subnets})
	must(err)
	outside := store.Capabilities().ExternalNetwork
	r, err := store.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: outside}})
	must(err)
	must(store.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	ports, err := store.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID}, {Network: n.ID}})
	must(err)
	fip, err := store.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: outside})
	must(err)
	forward := func(external int, port sdn.ID) sdn.Forward {
		return sdn.Forward{
			Protocol: sdn.UDP, External: sdn.PortRange{First: uint16(external)}, Target: sdn.Target{Port: port},
			Internal: sdn.PortRange{First: uint16(external)},
		}
	}
	var wanted []sdn.Forward
	for i := range 1 + 4*forwardsAtOnce {
		wanted = append(wanted, forward(1000+i, ports[0].ID))
	}
	made, err := p.EnsureForwards(ctx, fip.ID, wanted)
	must(err)
	there, err := sdn.All(store.FindForwards(ctx, sdn.ForwardQuery{}))
	must(err)
	if len(there) != len(wanted) || c.most != forwardsAtOnce {
		t.Errorf("%d forwardings, %d concurrent requests; want %d, %d", len(there), c.most, len(wanted), forwardsAtOnce)
	}
	var ids []sdn.ID
	for i, f := range made {
		ids = append(ids, f.ID)
		if f.External.First != wanted[i].External.First {
			t.Errorf("answer %d is %+v", i, f)
		}
	}
	must(p.DeleteForwards(ctx, fip.ID, ids))

	// Another user takes a port while the forwardings are made.
	c.pass, c.Handler = nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, err := store.EnsureForwards(ctx, fip.ID, []sdn.Forward{forward(1003, ports[1].ID)})
			if err != nil {
				t.Error(err)
			}
		}
		handler.ServeHTTP(w, r)
	})
	_, err = p.EnsureForwards(ctx, fip.ID, wanted)
	if sdn.ReasonOf(err) != sdn.Exists || sdn.FieldOf(err) != "forwards[3].external" {
		t.Errorf("error %v, field %q", err, sdn.FieldOf(err))
	}
	there, err = sdn.All(store.FindForwards(ctx, sdn.ForwardQuery{}))
	must(err)
	if len(there) != 1 {
		t.Errorf("%d forwardings after the refusal, want 1", len(there))
	}
}

// inTurn records when requests for forwardings begin and end.
type inTurn struct {
	http.Handler
	mu     sync.Mutex
	events []string // "begin ID", "end ID"
}

func (h *inTurn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodDelete {
		h.Handler.ServeHTTP(w, r)
		return
	}
	id := path.Base(r.URL.Path)
	h.note("begin " + id)
	time.Sleep(5 * time.Millisecond) // long enough for those that are sent concurrently to begin
	h.Handler.ServeHTTP(w, r)
	h.note("end " + id)
}

func (h *inTurn) note(event string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, event)
}

// TestLastForwardAlone checks that the last forwarding of each protocol is deleted when no other of
// the protocol is being deleted.
func TestLastForwardAlone(t *testing.T) {
	t.Parallel()
	const each = 3
	var forwards []map[string]any
	protocols := map[string]string{}
	for i := range 2 * each {
		id, protocol := fmt.Sprint("f", i), []string{"tcp", "udp"}[i%2]
		protocols[id] = protocol
		forwards = append(forwards, map[string]any{"id": id, "protocol": protocol, "external_port": 1000 + i})
	}
	h := &inTurn{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		var aliases []map[string]string
		for _, alias := range []string{"standard-attr-description", "floating-ip-port-forwarding"} {
			aliases = append(aliases, map[string]string{"alias": alias})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"port_forwardings": forwards, "extensions": aliases})
	})}
	p, err := Open(
		Config{Installation: "i", Project: "p1", Endpoint: neutrontest.NewBefore(t, h).URL, Auth: Auth{Type: "none"}},
		slog.New(slog.DiscardHandler),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ids := []sdn.ID{"gone"}
	for i := range 2 * each {
		ids = append(ids, sdn.ID(fmt.Sprint("f", i)))
	}
	if err := p.DeleteForwards(t.Context(), "fip", ids); err != nil {
		t.Fatal(err)
	}
	if len(h.events) != 4*each {
		t.Fatalf("events: got %q, want %d forwardings deleted", h.events, 2*each)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		events := slices.DeleteFunc(slices.Clone(h.events), func(event string) bool {
			_, id, _ := strings.Cut(event, " ")
			return protocols[id] != protocol
		})
		if last := events[len(events)-2:]; !strings.HasPrefix(last[0], "begin ") {
			t.Errorf("%s: the last two are deleted concurrently: %q", protocol, events)
		}
	}
}
