package neutron

import (
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

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
