package neutron

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
	"github.com/kuryr/kuryr/sdn/neutronapi"
	"github.com/kuryr/kuryr/sdn/sdntest"
)

// servedHost is the host that the embedded SDN of these tests binds ports to.
const servedHost = "this-host"

// shared is an embedded SDN without a kernel, served by Kuryr's REST API.
type shared struct {
	sdn    *local.Provider
	proxy  *neutrontest.Proxy
	server *httptest.Server
}

// share opens the store at path and serves it. Ending it twice is as once.
func share(t *testing.T, path string) *shared {
	t.Helper()
	store, err := local.Open(t.Context(), local.Options{Path: path, Host: servedHost, PortsPerNetwork: 400, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s := &shared{sdn: store}
	caller := neutronapi.Caller{Role: neutronapi.Admin, Project: "served"}
	s.proxy = neutrontest.Handler(neutronapi.As(caller, neutronapi.NewHandler(store, neutronapi.Options{})))
	s.server = httptest.NewServer(s.proxy)
	t.Cleanup(s.end)
	return s
}

// end stops serving and closes the store, as a crash would: connections are cut.
func (s *shared) end() {
	s.proxy.Reset()
	s.server.CloseClientConnections()
	s.server.Close()
	_ = s.sdn.Close()
}

// config is that of a user.
func (s *shared) config() Config {
	return Config{
		Installation: s.sdn.Installation(), Host: servedHost, Endpoint: s.server.URL,
		Auth: Auth{Type: "none"}, Project: "served",
	}
}

// user opens a provider of its own.
func (s *shared) user(t *testing.T) *Provider {
	t.Helper()
	p, err := Open(s.config(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// storePath is that of a test's store.
func storePath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "sdn.db")
}

// Kuryr's API tells by its capabilities what it can do: of the extensions that are usual of a Neutron, and not of it, nobody is told.
func TestServedLacksNothing(t *testing.T) {
	t.Parallel()
	s := share(t, storePath(t))
	var said bytes.Buffer
	p, err := Open(s.config(), slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.extensions.has("provider") || !p.extensions.known() {
		t.Fatal("the API was not asked, or has what is none of its own")
	}
	if said.Len() > 0 {
		t.Errorf("the log says %s", said.String())
	}
}

// The contract, checked a second time: by this provider, asked through Kuryr's REST API of the embedded SDN.
func TestContractOverREST(t *testing.T) {
	t.Parallel()
	sdntest.Run(t, func(t *testing.T) sdntest.Fixture {
		store := storePath(t)
		s := share(t, store)
		p := s.user(t)
		if err := p.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		deaf := &deaf{Provider: p, p: p, proxy: s.proxy}
		return sdntest.Fixture{
			Provider: deaf, Host: servedHost,
			DropReply: func(*testing.T) { deaf.drop = true },
			Reopen: func(t *testing.T) sdn.Provider {
				s.end()
				again := share(t, store)
				p := again.user(t)
				if err := p.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
				return p
			},
		}
	})
}

// Kuryr is asked for more ports at once than a Neutron, and tells how many tags its API takes.
func TestBulkOverREST(t *testing.T) {
	t.Parallel()
	s := share(t, storePath(t))
	p := s.user(t)
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: "wide"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.EnsureSubnet(t.Context(), sdn.SubnetSpec{Network: n.ID, CIDR: netip.MustParsePrefix("10.9.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	specs := make([]sdn.PortSpec, 2*servedBulk/3)
	for i := range specs {
		specs[i] = sdn.PortSpec{Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "many", Name: strconv.Itoa(i)}}, Network: n.ID}
	}
	ports, err := p.EnsurePorts(t.Context(), specs)
	if err != nil {
		t.Fatal(err)
	}
	for i, port := range ports {
		if port.Key != specs[i].Key || len(port.Addresses) != 1 {
			t.Fatalf("port %d is %+v", i, port)
		}
	}
	if posts := s.proxy.Count(neutrontest.Call{Method: http.MethodPost, Collection: "ports"}); posts != 1 {
		t.Errorf("%d requests for %d ports", posts, len(specs))
	}
	if can := p.Capabilities(); can.MaxBulk != servedBulk || can.MaxTags == 0 {
		t.Errorf("it takes %d ports at once and %d tags", can.MaxBulk, can.MaxTags)
	}
}

// A load balancer on Kuryr's own API has all that is said of it by one request, of whatever it is a change, and is not changed again.
func TestBalancerOverREST(t *testing.T) {
	t.Parallel()
	s := share(t, storePath(t))
	p := s.user(t)
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: "vips"}})
	if err != nil {
		t.Fatal(err)
	}
	subnet, err := p.EnsureSubnet(t.Context(), sdn.SubnetSpec{Network: n.ID, CIDR: netip.MustParsePrefix("10.9.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	spec := balancerSpec("web", "10.9.1.1:8080", "10.9.1.2:8080")
	spec.VIPs[0].Subnet, spec.Tags = subnet.ID, []string{"t"}
	l := &spec.Listeners[0]
	l.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	l.Pool.Affinity = sdn.Affinity{ClientIP: true, Timeout: 3 * time.Hour}
	for i := range l.Pool.Members {
		l.Pool.Members[i].Subnet, l.Pool.Members[i].Name = subnet.ID, "pod"
	}
	if err := p.needOctavia(t.Context()); err != nil { // what is asked once
		t.Fatal(err)
	}
	s.proxy.Reset()
	b, err := p.ApplyLoadBalancer(t.Context(), spec)
	if calls := s.proxy.Calls(); err != nil || !b.Status.Ready || len(calls) != 1 {
		t.Fatalf("%+v %v by %v", b.Status, err, calls)
	}
	got := b.Listeners[0]
	if got.Pool.Affinity != l.Pool.Affinity || len(got.Sources) != 1 || got.Pool.Members[0].Subnet != subnet.ID || got.Pool.Members[0].Name != "pod" || len(b.Tags) != 1 {
		t.Errorf("it is %+v", b)
	}
	s.proxy.Reset()
	before, err := s.sdn.LoadBalancer(t.Context(), b.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplyLoadBalancer(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if same, err := s.sdn.LoadBalancer(t.Context(), b.ID); err != nil || same.Revision != before.Revision {
		t.Errorf("nothing has changed, and it was changed: %+v %v", same, err)
	}
	l.Pool.Members = l.Pool.Members[:1]
	if b, err = p.ApplyLoadBalancer(t.Context(), spec); err != nil || len(b.Listeners[0].Pool.Members) != 1 {
		t.Errorf("a member fewer is %+v %v", b, err)
	}
	if calls := s.proxy.Calls(); len(calls) != 2 {
		t.Errorf("two values were applied by %v", calls)
	}
	stored, err := s.sdn.LoadBalancer(t.Context(), b.ID)
	if err != nil || stored.Description != spec.Key.String() {
		t.Errorf("the SDN has %+v: %v", stored, err)
	}
}

// Where the kernel does not follow the store, Kuryr's API says that a load balancer is PENDING: then its user comes again later, instead of asking as fast as it can.
func TestBalancerOverRESTIsNotWaitedFor(t *testing.T) {
	o := newOctaviaDouble(amphora)
	o.pend = 2 * maxSteps
	p, proxy, _ := onOctavia(t, o)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.extensions.mu.Lock()
	p.extensions.kuryr = &sdn.Capabilities{LoadBalancer: backends[amphora]}
	p.extensions.mu.Unlock()
	proxy.Reset()
	b, err := p.ApplyLoadBalancer(t.Context(), balancerSpec("web", "10.0.0.1:8080"))
	if calls := proxy.Calls(); err != nil || b.Status.Ready || b.Status.RetryAfter <= 0 || len(calls) > 4 {
		t.Errorf("it is %+v after %d requests: %v", b.Status, len(calls), err)
	}
}
