package endpoint

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// newService returns a Service on an empty database. It must not call the SDN.
func newService(t *testing.T) (*Service, *reconcile.Store) {
	t.Helper()
	store, err := reconcile.Open(reconcile.Config{Path: filepath.Join(t.TempDir(), "docker.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	proxy := portproxy.New(portproxy.Config{})
	t.Cleanup(proxy.Close)
	return New(Config{
		Daemon: identity.Daemon{
			Names: identity.NewNamer("owner", "box", store.ID(), true), Host: "box", Store: store, Log: slog.Default(),
		},
		Proxy: proxy,
	}), store
}

func TestStartEnds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		name    string
		started time.Time
		joined  time.Time
		ended   bool
		phase   reconcile.Phase
		want    bool
	}{
		{"just now", now, time.Time{}, false, reconcile.Wanted, true},
		{"never", time.Time{}, time.Time{}, false, reconcile.Wanted, false},
		{"long ago", now.Add(-startGrace), time.Time{}, false, reconcile.Wanted, false},
		{"the clock was set back", now.Add(startGrace / 2), time.Time{}, false, reconcile.Wanted, true},
		{"the clock was set back far", now.Add(2 * startGrace), time.Time{}, false, reconcile.Wanted, false},
		{"the call that joins it", now.Add(-time.Hour), now, false, reconcile.Wanted, true},
		{"joined long ago", now.Add(-time.Hour), now.Add(-startGrace), false, reconcile.Wanted, false},
		{"Leave was called", now, now, true, reconcile.Wanted, false},
		{"CreateEndpoint failed", now, time.Time{}, false, reconcile.Deleting, false},
	} {
		row := endpointRow{
			Phase: c.phase, Spec: Spec{Started: c.started}, Last: Last{Joined: c.joined, StartEnded: c.ended},
		}
		if got := isStarting(row); got != c.want {
			t.Errorf("%s: starting %v, want %v", c.name, got, c.want)
		}
	}
}

// A new engine process has no starts, and makes others.
func TestEngineStarted(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	for _, id := range []string{"before", "after"} {
		row := endpointRow{
			Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Done: true, Spec: Spec{Started: startTime()},
		}
		if err := s.endpoints.Import(t.Context(), []endpointRow{row}); err != nil {
			t.Fatal(err)
		}
		if id == "before" {
			s.EngineStarted(t.Context())
		}
	}
	before, _ := s.endpoints.Get("before")
	after, _ := s.endpoints.Get("after")
	if isStarting(before) || !isStarting(after) {
		t.Errorf("starting: %v before the engine, %v after it", isStarting(before), isStarting(after))
	}
}

func TestExposedRanges(t *testing.T) {
	t.Parallel()
	ports := []api.ExposedPort{
		{Proto: sdn.TCP, Port: 8001}, {Proto: sdn.UDP, Port: 53}, {Proto: sdn.TCP, Port: 8000},
		{Proto: sdn.TCP, Port: 80}, {Proto: sdn.TCP, Port: 8000}, {Proto: sdn.UDP, Port: 54},
	}
	want := []string{"53-54/udp", "80/tcp", "8000-8001/tcp"}
	if got := exposedTexts(ports); !slices.Equal(got, want) {
		t.Errorf("exposed %q, want %q", got, want)
	}
	if got := Exposed(exposedTags(ports)); len(got) != len(want) {
		t.Errorf("tags %q", got)
	}
	var many []api.ExposedPort
	for p := range uint16(100) {
		many = append(many, api.ExposedPort{Proto: sdn.TCP, Port: 2*p + 1})
	}
	if got := exposedTags(many); len(got) != maxExposed {
		t.Errorf("%d tags, want %d", len(got), maxExposed)
	}
}

// TestImportRecords checks that the endpoints of the previous version get rows, without a call of
// the SDN, and that a row is not replaced by a record.
func TestImportRecords(t *testing.T) {
	t.Parallel()
	s, store := newService(t)
	folder := filepath.Join(t.TempDir(), "endpoints")
	port := func(id sdn.ID, key sdn.Key, tags ...string) sdn.Port {
		return sdn.Port{
			Meta: sdn.Meta{ID: id, Base: sdn.Base{Key: key, Tags: tags}}, Network: "net", Host: "box",
			Addresses: []sdn.Address{{Subnet: "subnet", Addr: netip.MustParseAddr("10.1.0.2")}},
		}
	}
	ours := s.Names.GlobalKey(identity.KindPort, "net/x")
	proxied := []portproxy.Forward{{Protocol: sdn.TCP, Listen: netip.MustParseAddrPort("127.0.0.1:8080")}}
	write := func() {
		records, err := jsonstore.OpenVolatile(folder)
		if err != nil {
			t.Fatal(err)
		}
		for id, r := range map[string]record{
			"created": {Network: "n", Port: port("1", ours), Unpublished: true, Started: time.Now()},
			"running": {Network: "n", Port: port("2", ours), Unpublished: true, Sandbox: "/netns/2", MTU: 1400},
			"public":  {Network: "n", Port: port("3", ours), Sandbox: "/netns/3"},
			"proxied": {Network: "n", Port: port("4", ours), Unpublished: true, Sandbox: "/netns/4", Proxied: proxied},
			"existing": {Network: "n", Sandbox: "/netns/5", Unpublished: true,
				Port: port("5", sdn.Key{}, identity.TagExistingPort, identity.TagFloating+"auto")},
		} {
			if err := records.Put(id, r); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.ImportRecords(t.Context(), folder); err != nil {
			t.Fatal(err)
		}
	}
	write()
	names := func() []string {
		var list []string
		for name := range store.Rows() {
			list = append(list, name)
		}
		slices.Sort(list)
		return list
	}
	want := []string{
		"endpoint/created", "endpoint/existing", "endpoint/proxied", "endpoint/public", "endpoint/running",
		"floating/existing", "plug/created", "plug/existing", "plug/proxied", "plug/public", "plug/running",
		"publication/proxied", "publication/public",
	}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
	checkOrder(t, s)
	created, _ := s.endpoints.Get("created")
	running, _ := s.endpoints.Get("running")
	if !isStarting(created) || isStarting(running) || running.Spec.MTU != 1400 || running.Last.Port.ID != "2" {
		t.Errorf("created %+v, running %+v", created, running)
	}
	if row, _ := s.endpoints.Get("existing"); !row.Spec.Existing || row.Spec.Port != "5" {
		t.Errorf("existing %+v", row)
	}
	if row, _ := s.publications.Get("proxied"); row.Last.Unknown || !reflect.DeepEqual(row.Last.Proxied, proxied) {
		t.Errorf("proxied %+v", row)
	}
	if row, _ := s.publications.Get("public"); !row.Last.Unknown {
		t.Errorf("public %+v", row)
	}
	if got := Publications(store.Rows()); len(got) != 1 || got[0].Endpoint != "proxied" || got[0].Port != "4" {
		t.Errorf("publications %+v", got)
	}
	written := filepath.Join(t.TempDir(), "endpoints")
	s.Records = written
	if err := s.WriteRecords(); err != nil {
		t.Fatal(err)
	}
	back, err := jsonstore.Load[record](jsonstore.Shared(written))
	if r := back["proxied"]; err != nil || len(back) != 1 || r.Network != "n" || r.Port.ID != "4" ||
		r.Sandbox != "/netns/4" || !reflect.DeepEqual(r.Proxied, proxied) {
		t.Errorf("records for the previous version: %+v, %v", back, err)
	}
	before := running.Gen
	write() // as a rolled back version does
	if again, _ := s.endpoints.Get("running"); again.Gen != before || !slices.Equal(names(), want) {
		t.Errorf("rows %q, running %+v", names(), again)
	}
}

// checkOrder checks that all parts were stored before any endpoint, so that after a crash in between
// no endpoint counts as imported that lacks a part.
func checkOrder(t *testing.T, s *Service) {
	t.Helper()
	var parts, endpoints []uint64
	for r := range s.endpoints.Rows() {
		endpoints = append(endpoints, r.Gen)
	}
	for r := range s.plugs.Rows() {
		parts = append(parts, r.Gen)
	}
	for r := range s.publications.Rows() {
		parts = append(parts, r.Gen)
	}
	for r := range s.floating.Rows() {
		parts = append(parts, r.Gen)
	}
	if len(parts) == 0 || len(endpoints) == 0 || slices.Max(parts) > slices.Min(endpoints) {
		t.Errorf("generations of endpoints %v, of their parts %v", endpoints, parts)
	}
}

func TestImportOrder(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	if err := s.importUnknown(t.Context(), "unknown", true); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, s)
	s, _ = newService(t)
	if err := s.importFound(t.Context(), "found", "net", network.View{}, sdn.Port{}); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, s)
}

// The proxy of a container that is gone does not listen again: another container may have its port.
func TestRestoreProxies(t *testing.T) {
	t.Parallel()
	s, store := newService(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := portproxy.Forward{Protocol: sdn.TCP, Listen: listener.Addr().(*net.TCPAddr).AddrPort()}
	_ = listener.Close()
	var rows []reconcile.Row[PublicationSpec, PublicationLast]
	for id, namespace := range map[string]string{"runs": "/proc/self/ns/net", "gone": filepath.Join(t.TempDir(), "gone")} {
		f.Namespace = namespace
		rows = append(rows, reconcile.Row[PublicationSpec, PublicationLast]{
			Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Done: true,
			Spec: PublicationSpec{Mode: modeProxy}, Last: PublicationLast{Proxied: []portproxy.Forward{f}},
		})
	}
	if err := s.publications.Import(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	if err := store.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Start(t.Context())
	runs, _ := s.publications.Get("runs")
	gone, _ := s.publications.Get("gone")
	if runs.Phase != reconcile.Wanted || gone.Phase != reconcile.Deleting {
		t.Errorf("the one that runs is %s, the one that is gone %s", runs.Phase, gone.Phase)
	}
	if len(s.Proxy.Forwards("runs")) != 1 || len(s.Proxy.Forwards("gone")) != 0 {
		t.Errorf("forwards %v and %v", s.Proxy.Forwards("runs"), s.Proxy.Forwards("gone"))
	}
}

// A conflict of an endpoint has a text for its user.
func TestConflictTexts(t *testing.T) {
	t.Parallel()
	s := &Service{}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	r := &api.CreateEndpointRequest{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}, MAC: mac}
	bare := &api.CreateEndpointRequest{}
	held := func(resource, holder string) error {
		return &reconcile.ConflictError{Resource: resource, Holder: holder}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			s.conflict(&reconcile.OwnerError{Owner: "network/a"}, r),
			"the network or the address of the endpoint is being deleted",
		},
		{s.conflict(held("bound/p", "endpoint/b"), bare), "port p is in use by another endpoint"},
		{
			s.conflict(held("mac/n/"+mac.String(), "endpoint/b"), r),
			"MAC 02:00:00:00:00:01 is in use by another endpoint of the network",
		},
		{s.conflict(held("address/n/10.0.0.5", "endpoint/b"), r), "address 10.0.0.5 is in use by another endpoint"},
		{explain("e", &reconcile.OwnerError{Owner: "endpoint/e"}), "endpoint e is being deleted"},
		{
			explain("e", &reconcile.PendingError{Row: "plug/e", Err: errors.New("x")}),
			"an earlier cleanup of endpoint e is not complete",
		},
	} {
		refused, ok := errors.AsType[*api.Refusal](c.err)
		if !ok || refused.Text != c.want {
			t.Errorf("%v, want %s", c.err, c.want)
		}
	}
	if err := explain("e", sdn.NotFound("port", "p")); !sdn.IsNotFound(err) {
		t.Errorf("an error of the SDN became %v", err)
	}
}
