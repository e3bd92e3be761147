package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/sdntest"
)

const testHost = "this-host"

// server serves a provider at a socket.
type server struct {
	handler *handler
	drop    atomic.Int32 // answers of changes that are still to be lost
	calls   sync.Map     // *atomic.Int32 by method
	stop    func()
}

func serve(t *testing.T, p sdn.Provider, socket string) *server {
	t.Helper()
	s := &server{handler: NewHandler(p, HandlerOptions{}).(*handler)}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	hs := &http.Server{Handler: s, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() { ended <- hs.Serve(l) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		_ = hs.Close()
		<-ended
	})
	t.Cleanup(s.stop)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := strings.TrimPrefix(r.URL.Path, versionPath)
	n, _ := s.calls.LoadOrStore(method, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
	if r.Method == http.MethodPost && !isRead(method) && s.drop.Load() > 0 {
		s.drop.Add(-1)
		s.handler.ServeHTTP(mute{w}, r)
		panic(http.ErrAbortHandler)
	}
	s.handler.ServeHTTP(w, r)
}

func (s *server) count(method string) int32 {
	n, _ := s.calls.LoadOrStore(method, new(atomic.Int32))
	return n.(*atomic.Int32).Load()
}

// mute loses what is written.
type mute struct{ http.ResponseWriter }

func (mute) Write(p []byte) (int, error)   { return len(p), nil }
func (m mute) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// paths returns those of a test's store and socket. A socket's path must be short.
func paths(t *testing.T) (store, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rpc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "sdn.db"), filepath.Join(dir, "s")
}

func dial(t *testing.T, socket string, o Options) *Client {
	t.Helper()
	c, err := Dial(t.Context(), socket, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func open(t *testing.T, store string) *local.Provider {
	t.Helper()
	p, err := local.Open(t.Context(), local.Options{
		Path: store, Host: testHost, PortsPerNetwork: 400, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// The contract holds for the embedded SDN in another process.
func TestContract(t *testing.T) {
	t.Parallel()
	sdntest.Run(t, func(t *testing.T) sdntest.Fixture {
		store, socket := paths(t)
		p := open(t, store)
		s := serve(t, p, socket)
		return sdntest.Fixture{
			Provider: dial(t, socket, Options{}), Host: testHost,
			// The repeat of the call loses its answer too.
			DropReply: func(*testing.T) { s.drop.Store(2) },
			Reopen: func(t *testing.T) sdn.Provider {
				s.stop()
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				serve(t, open(t, store), socket)
				return dial(t, socket, Options{})
			},
		}
	})
}

// Client has every method of the contract, and the server calls every one of them.
func TestMethods(t *testing.T) {
	var _ sdn.Provider = (*Client)(nil)
	store, _ := paths(t)
	table := methods(open(t, store))
	provider := reflect.TypeFor[sdn.Provider]()
	withContext := 0
	for i := range provider.NumMethod() {
		m := provider.Method(i)
		if m.Type.NumIn() == 0 { // Capabilities, Close, Installation
			continue
		}
		withContext++
		if f := table[m.Name]; f == nil || reflect.TypeOf(f) != m.Type {
			t.Errorf("the server calls %T for %s, want %v", f, m.Name, m.Type)
		}
	}
	if len(table) != withContext {
		t.Errorf("the server calls %d methods of %d", len(table), withContext)
	}
	reads := []string{"Ping", "Port", "Publication", "FindPorts", "SubnetUsage", "Usage", "WaitPorts"}
	for _, name := range append(reads, "EnsurePorts", "Publish", "SetQuota", "RemoveGroups") {
		if isRead(name) != slices.Contains(reads, name) {
			t.Errorf("%s only reads: %v", name, isRead(name))
		}
	}
}

// stub is a provider of a test.
type stub struct {
	sdn.Provider
	can     sdn.Capabilities
	ping    func(context.Context) error
	network func(context.Context, sdn.NetworkSpec) (sdn.Network, error)
	update  func(sdn.PortPatch)
	find    iter.Seq2[sdn.Port, error]
	wait    func(context.Context) error
}

func (s *stub) Installation() string           { return "here" }
func (s *stub) Capabilities() sdn.Capabilities { return s.can }
func (s *stub) Ping(ctx context.Context) error { return s.ping(ctx) }

func (s *stub) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	return s.network(ctx, spec)
}

func (s *stub) UpdatePort(_ context.Context, _ sdn.ID, p sdn.PortPatch) (sdn.Port, error) {
	s.update(p)
	return sdn.Port{}, nil
}

func (s *stub) FindPorts(context.Context, sdn.PortQuery) iter.Seq2[sdn.Port, error] { return s.find }

func (s *stub) WaitPorts(ctx context.Context, _ []sdn.ID, _ sdn.PortStatus) error {
	return s.wait(ctx)
}

// start serves a stub and returns a client of it.
func start(t *testing.T, p *stub) (*server, *Client) {
	t.Helper()
	_, socket := paths(t)
	s := serve(t, p, socket)
	return s, dial(t, socket, Options{})
}

// An error has the text, the predicates, the fields and the causes that it had.
func TestErrors(t *testing.T) {
	p := &stub{}
	_, c := start(t, p)
	taken := sdn.Conflict(sdn.AddressInUse, "port", "addresses[0]", "%s is taken", "10.0.0.5")
	for _, want := range []error{
		nil,
		taken,
		sdn.NotFound("network", "4f"),
		sdn.Exhausted(sdn.NoQuota, "port", "no more"),
		sdn.Invalid("subnet", "cidr", "not a prefix"),
		sdn.Unsupported("trunk", "no VLANs"),
		sdn.Unavailable(errors.New("disk is full"), "store", "not written"),
		sdn.Unavailable(sdn.OfHost(errors.New("no route")), "port 4f", "not plugged"),
		sdn.Unavailable(taken, "store", "not written"),
		&sdn.Error{Kind: sdn.KindPending, Noun: "load balancer", ID: "7", RetryAfter: time.Second},
		&sdn.Error{Kind: sdn.KindDenied, Noun: "quota"},
		wrap("while it is tested", taken),
		wrap("while it is tested", sdn.OfHost(errors.New("no route"))),
		context.DeadlineExceeded,
		wrap("wait for ports", context.Canceled),
		errors.Join(taken, sdn.NotFound("port", "5")),
		&sdn.BulkError{Errs: []error{nil, taken, nil, wrap("x", sdn.NotFound("port", "5"))}},
		errors.New("plain"),
	} {
		p.ping = func(context.Context) error { return want }
		got := c.Ping(t.Context())
		if want == nil || got == nil {
			if (got == nil) != (want == nil) {
				t.Errorf("got error %v, want %v", got, want)
			}
			continue
		}
		if sameError(t, got, want); got.Error() != want.Error() {
			t.Errorf("got text %q, want %q", got, want)
		}
		var bulk, wantBulk *sdn.BulkError
		if errors.As(got, &bulk) != errors.As(want, &wantBulk) {
			t.Errorf("%v is of bulk: %v", want, bulk != nil)
		}
		if bulk != nil {
			for i, item := range wantBulk.Errs {
				if item == nil && bulk.Errs[i] == nil {
					continue
				}
				sameError(t, bulk.Errs[i], item)
			}
		}
	}
}

func wrap(text string, err error) error { return wrapped{text, err} }

type wrapped struct {
	text string
	error
}

func (w wrapped) Error() string { return w.text + ": " + w.error.Error() }
func (w wrapped) Unwrap() error { return w.error }

func sameError(t *testing.T, got, want error) {
	t.Helper()
	var e, wantE *sdn.Error
	if errors.As(got, &e) != errors.As(want, &wantE) {
		t.Errorf("%v became %v", want, got)
		return
	}
	if e != nil {
		a, b := *e, *wantE
		if a.Err, b.Err = nil, nil; a != b {
			t.Errorf("%#v became %#v", b, a)
		}
		if (e.Err == nil) != (wantE.Err == nil) || e.Err != nil && e.Err.Error() != wantE.Err.Error() {
			t.Errorf("the cause %v became %v", wantE.Err, e.Err)
		}
	}
	if sdn.IsOfHost(got) != sdn.IsOfHost(want) {
		t.Errorf("%v is of the host: %v", want, sdn.IsOfHost(got))
	}
	for _, end := range ends {
		if errors.Is(got, end) != errors.Is(want, end) {
			t.Errorf("%v is %v: %v", want, end, errors.Is(got, end))
		}
	}
}

// A pointer to a nil list means an empty list, and a nil pointer that the field stays.
func TestPatch(t *testing.T) {
	p := &stub{}
	_, c := start(t, p)
	var got sdn.PortPatch
	p.update = func(patch sdn.PortPatch) { got = patch }
	tags := sdn.Patch{Tags: new([]string)}
	patch := sdn.PortPatch{
		Patch: tags, Groups: new([]sdn.ID), Profile: new(map[string]json.RawMessage), Host: new(string),
		NoPortSecurity: new(bool),
	}
	if _, err := c.UpdatePort(t.Context(), "1", patch); err != nil {
		t.Fatal(err)
	}
	if got.Tags == nil || got.Groups == nil || got.Profile == nil || got.Host == nil || got.NoPortSecurity == nil {
		t.Errorf("zero values became %+v", got)
	}
	if got.Name != nil || got.Addresses != nil || got.AllowedPairs != nil || got.MAC != nil {
		t.Errorf("nil became %+v", got)
	}
	if *patch.Groups != nil {
		t.Error("the caller's patch was changed")
	}
}

// The context of the server's call has the deadline and the marks of the caller's, and ends
// with it.
func TestContext(t *testing.T) {
	p := &stub{}
	_, c := start(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	p.ping = func(ctx context.Context) error {
		limit, ok := ctx.Deadline()
		if left := time.Until(limit); !ok || left > time.Hour || left < time.Hour-time.Minute {
			t.Errorf("the deadline is in %v, %v", left, ok)
		}
		if client, ok := sdn.ClientOf(ctx); !ok || !client.Admin || !sdn.IsUnawaited(ctx) {
			t.Errorf("the marks are lost: %+v, %v", client, ok)
		}
		return nil
	}
	if err := c.Ping(sdn.WithClient(sdn.Unawaited(ctx), sdn.Client{Admin: true})); err != nil {
		t.Fatal(err)
	}
	p.ping = func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); ok {
			t.Error("a deadline without the caller's")
		}
		if _, ok := sdn.ClientOf(ctx); ok || sdn.IsUnawaited(ctx) {
			t.Error("marks without the caller's")
		}
		return nil
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	p.ping = func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}
	if err := c.Ping(ctx); !errors.Is(err, context.Canceled) || !sdn.IsUnavailable(err) {
		t.Errorf("got error %v, want the context's", err)
	}
	<-ended
}

// A call that takes longer than the client waits for a byte succeeds while the server shows
// that it is in progress, and fails if not.
func TestWait(t *testing.T) {
	took := 3 * time.Second
	p := &stub{wait: func(ctx context.Context) error {
		select {
		case <-time.After(took):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	s, c := start(t, p)
	c.silence = 2 * time.Second
	s.handler.alive = 10 * time.Millisecond
	if err := c.WaitPorts(t.Context(), nil, sdn.PortActive); err != nil {
		t.Error(err)
	}
	took, c.silence, s.handler.alive = time.Hour, 100*time.Millisecond, time.Hour
	err := c.WaitPorts(t.Context(), nil, sdn.PortActive)
	if !sdn.IsUnavailable(err) || !errors.Is(err, errSilent) {
		t.Errorf("got error %v from a silent server", err)
	}
	c.silence = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.WaitPorts(ctx, nil, sdn.PortActive); !errors.Is(err, context.DeadlineExceeded) || sdn.IsUnavailable(err) {
		t.Errorf("got error %v, want the context's", err)
	}
}

// A stream has its results before its error, ends in the server when its consumer stops,
// and is not repeated after its first result.
func TestStream(t *testing.T) {
	p := &stub{}
	s, c := start(t, p)
	broken := sdn.Unavailable(nil, "store", "broken")
	p.find = func(yield func(sdn.Port, error) bool) {
		_ = yield(sdn.Port{DeviceID: "a"}, nil) && yield(sdn.Port{DeviceID: "b"}, nil) && yield(sdn.Port{}, broken)
	}
	got, err := sdn.All(c.FindPorts(t.Context(), sdn.PortQuery{}))
	if len(got) != 2 || got[1].DeviceID != "b" || err == nil || err.Error() != broken.Error() {
		t.Errorf("got %d ports and error %v", len(got), err)
	}
	ended := make(chan struct{})
	p.find = func(yield func(sdn.Port, error) bool) {
		defer close(ended)
		for yield(sdn.Port{DeviceID: "a"}, nil) {
			continue
		}
	}
	for port, err := range c.FindPorts(t.Context(), sdn.PortQuery{}) {
		if port.DeviceID != "a" || err != nil {
			t.Errorf("got %+v, %v", port, err)
		}
		break
	}
	<-ended
	before := s.count("FindPorts")
	p.find = func(yield func(sdn.Port, error) bool) {
		for range 100 { // more than a buffer
			yield(sdn.Port{DeviceID: strings.Repeat("a", 250)}, nil)
		}
		panic(http.ErrAbortHandler)
	}
	got, err = sdn.All(c.FindPorts(t.Context(), sdn.PortQuery{}))
	if len(got) == 0 || !sdn.IsUnavailable(err) {
		t.Errorf("got %d ports and error %v", len(got), err)
	}
	if n := s.count("FindPorts") - before; n != 1 {
		t.Errorf("it was called %d times", n)
	}
}

// A call whose answer is lost is repeated once if a repeat makes nothing more.
func TestLostAnswer(t *testing.T) {
	p := &stub{network: func(_ context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
		if spec.New {
			t.Error("the server need not look for the network")
		}
		return sdn.Network{MTU: 1500}, nil
	}}
	s, c := start(t, p)
	keyed := sdn.NetworkSpec{New: true, Base: sdn.Base{Key: sdn.Key{Owner: "here", Kind: "k", Name: "n"}}}
	for _, test := range []struct {
		spec  sdn.NetworkSpec
		drop  int32
		ok    bool
		calls int32
	}{{keyed, 1, true, 2}, {keyed, 2, false, 2}, {sdn.NetworkSpec{}, 1, false, 1}} {
		before := s.count("EnsureNetwork")
		s.drop.Store(test.drop)
		n, err := c.EnsureNetwork(t.Context(), test.spec)
		isLost := sdn.IsUnavailable(err) && !errors.Is(err, sdn.ErrNotSent)
		if test.ok != (err == nil && n.MTU == 1500) || test.ok == isLost {
			t.Errorf("%+v: got %+v, %v", test, n, err)
		}
		if n := s.count("EnsureNetwork") - before; n != test.calls {
			t.Errorf("%+v: called %d times", test, n)
		}
	}
}

// Calls wait for a server that does not listen, and learn what the next one can do.
func TestServerComesBack(t *testing.T) {
	_, socket := paths(t)
	first := &stub{can: sdn.Capabilities{MaxTags: 1}, ping: func(context.Context) error { return nil }}
	s := serve(t, first, socket)
	var learned []int
	o := Options{Learned: func(p Peer) { learned = append(learned, p.Capabilities.MaxTags) }}
	c := dial(t, socket, o)
	if c.Installation() != "here" || c.Capabilities().MaxTags != 1 {
		t.Errorf("it is %s with %+v", c.Installation(), c.Capabilities())
	}
	// What a client knows gives way to a server that runs, unless Dial waited for it in vain.
	known := ""
	for attempt := 0; known != "here" && attempt < 20; attempt++ {
		known = dial(t, socket, Options{Known: &Peer{Installation: "there"}}).Installation()
	}
	if known != "here" {
		t.Errorf("a running server is %s", known)
	}
	s.stop()
	second := &stub{can: sdn.Capabilities{MaxTags: 2}, ping: first.ping}
	go func() {
		time.Sleep(100 * time.Millisecond)
		serve(t, second, socket)
	}()
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.Capabilities().MaxTags != 2 { // the server took too long to answer who it is
		if err := c.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if c.Capabilities().MaxTags != 2 || !reflect.DeepEqual(learned, []int{1, 2}) {
		t.Errorf("it has %d tags, learned %v", c.Capabilities().MaxTags, learned)
	}
}

// A client that knows its server need not wait for it, and says that nothing was asked.
func TestServerAbsent(t *testing.T) {
	_, socket := paths(t)
	c := dial(t, socket, Options{Known: &Peer{Installation: "there"}, Timeout: 50 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, ctx := range []context.Context{ctx, t.Context()} {
		_, err := c.EnsureNetwork(ctx, sdn.NetworkSpec{})
		if !sdn.IsUnavailable(err) || !errors.Is(err, sdn.ErrNotSent) ||
			!strings.HasPrefix(err.Error(), "the SDN at "+socket+": ") {
			t.Errorf("got error %v", err)
		}
	}
	if c.Installation() != "there" {
		t.Errorf("the installation is %q", c.Installation())
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, socket, Options{}); !sdn.IsUnavailable(err) {
		t.Errorf("got error %v without a server", err)
	}
}

// A server without this protocol, or with other versions of it, is told from one that does
// not run.
func TestEarlierServer(t *testing.T) {
	_, socket := paths(t)
	rest, err := net.Listen("unix", socket+".rest")
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	check := func(o Options) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := Dial(ctx, socket, o)
		if !errors.Is(err, ErrEarlier) || !sdn.IsUnavailable(err) ||
			!strings.Contains(err.Error(), "upgrade and restart `kuryr sdn` first") {
			t.Errorf("got error %v", err)
		}
		o.Known = &Peer{Installation: "here"}
		err = dial(t, socket, o).Ping(ctx)
		if !errors.Is(err, ErrEarlier) || !errors.Is(err, sdn.ErrNotSent) || ctx.Err() != nil {
			t.Errorf("got error %v", err)
		}
	}
	check(Options{Neutron: socket + ".rest"})
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	other := &http.Server{Handler: http.NotFoundHandler()}
	go func() { _ = other.Serve(l) }()
	defer other.Close()
	check(Options{})
}

// By TCP nothing is served.
func TestTCP(t *testing.T) {
	store, _ := paths(t)
	s := httptest.NewServer(NewHandler(open(t, store), HandlerOptions{}))
	defer s.Close()
	for _, path := range []string{Path, versionPath + "Ping"} {
		r, err := http.Post(s.URL+path, "", strings.NewReader("[]"))
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
}

// What a server does not know, and what is too large, is refused.
func TestRefused(t *testing.T) {
	p := &stub{
		ping: func(context.Context) error { return nil },
		network: func(context.Context, sdn.NetworkSpec) (sdn.Network, error) {
			t.Error("it was called")
			return sdn.Network{}, nil
		},
	}
	_, c := start(t, p)
	if err := c.do(t.Context(), "Dance"); !sdn.IsUnsupported(err) {
		t.Errorf("got error %v for an unknown method", err)
	}
	for _, args := range [][]any{{}, {1}, {map[string]any{"NewField": 1, "MTU": "x"}}} {
		if err := c.do(t.Context(), "EnsureNetwork", args...); !sdn.IsInvalid(err) {
			t.Errorf("got error %v for %v", err, args)
		}
	}
	// A later version has further fields and arguments.
	for _, args := range [][]any{
		{map[string]any{"NewField": 1}}, {sdn.NetworkSpec{}, 1}, {sdn.NetworkSpec{}, nil},
	} {
		err := c.do(t.Context(), "EnsureNetwork", args...)
		if !sdn.IsUnavailable(err) || !errors.Is(err, ErrEarlier) || !errors.Is(err, sdn.ErrNotSent) ||
			!strings.Contains(err.Error(), "upgrade and restart `kuryr sdn` first") {
			t.Errorf("got error %v for %v", err, args)
		}
	}
	large := sdn.NetworkSpec{Base: sdn.Base{Name: strings.Repeat("x", maxRequest)}}
	if _, err := c.EnsureNetwork(t.Context(), large); !sdn.IsInvalid(err) {
		t.Errorf("got error %v for a large request", err)
	}
	r := &request{verb: http.MethodPost, path: versionPath + "EnsureNetwork", body: make([]byte, maxRequest+1)}
	var failed *failure
	r.read = failureReader(&failed)
	if err := c.send(t.Context(), r); err != nil || !sdn.IsInvalid(failed.err()) {
		t.Errorf("got error %v, %v for a large request", err, failed.err())
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// The values of the contract are the same on both sides.
func TestValues(t *testing.T) {
	p := &stub{}
	_, c := start(t, p)
	want := sdn.Port{
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Addresses: []sdn.Address{{Addr: netip.MustParseAddr("fe80::1%eth0")}, {}},
		AllowedPairs: []sdn.AllowedPair{{Prefix: netip.MustParsePrefix("10.1.2.3/8"), Length: true}, {}}, Groups: []sdn.ID{},
		Profile: map[string]json.RawMessage{
			"a": sdn.ProfileString("<&>\u2028\n\""), "": []byte("1.50"), "o": []byte(`{"b":[null]}`),
		},
		VIF: sdn.VIF{Details: map[string]string{}},
	}
	want.Created, want.Revision = time.Unix(1, 2).UTC(), 1<<63-1
	p.find = func(yield func(sdn.Port, error) bool) { yield(want, nil) }
	got, found, err := sdn.First(c.FindPorts(t.Context(), sdn.PortQuery{}))
	if err != nil || !found || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v became %+v, %v", want, got, err)
	}
}

// A request that comes in slowly is read to its end, also if that takes longer than the
// time between signs of life.
func TestSlowRequest(t *testing.T) {
	_, socket := paths(t)
	p := &stub{network: func(_ context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
		return sdn.Network{Meta: sdn.Meta{Base: spec.Base}}, nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	h := NewHandler(p, HandlerOptions{}).(*handler)
	h.alive = 10 * time.Millisecond
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	defer func() {
		stop()
		<-ended
	}()
	c := dial(t, socket, Options{})
	in, out := io.Pipe()
	go func() {
		_, _ = io.WriteString(out, `[{"Name":`)
		time.Sleep(700 * time.Millisecond)
		_, _ = io.WriteString(out, `"slow"}]`)
		_ = out.Close()
	}()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sdn"+versionPath+"EnsureNetwork", in)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.http.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(text), `"Name":"slow"`) {
		t.Errorf("got answer %q, %v", text, err)
	}
}

// A call is not sent if the server does not answer who it is.
func TestGreetingLost(t *testing.T) {
	_, socket := paths(t)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	broken := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s was sent", r.Method, r.URL.Path)
		}
		panic(http.ErrAbortHandler)
	})}
	go func() { _ = broken.Serve(l) }()
	defer broken.Close()
	c := dial(t, socket, Options{Known: &Peer{Installation: "there"}})
	_, err = c.EnsureNetwork(t.Context(), sdn.NetworkSpec{})
	if !sdn.IsUnavailable(err) || !errors.Is(err, sdn.ErrNotSent) {
		t.Errorf("got error %v", err)
	}
}

// A client with an installation of its own judges by that what is Foreign.
func TestOwnInstallation(t *testing.T) {
	store, socket := paths(t)
	serve(t, open(t, store), socket)
	mine := dial(t, socket, Options{Installation: "mine"})
	servers := dial(t, socket, Options{})
	for i, c := range []*Client{mine, servers} {
		key := sdn.Key{Owner: c.Installation(), Kind: "network", Name: "n"}
		n, err := c.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Key: key}})
		if err != nil || n.Key != key || n.Foreign {
			t.Fatalf("client %d made %+v, %v", i, n.Meta, err)
		}
		key.Kind = "port"
		made, err := c.EnsurePorts(t.Context(), []sdn.PortSpec{{Base: sdn.Base{Key: key}, Network: n.ID}})
		if err != nil || made[0].Foreign {
			t.Fatalf("client %d made %+v, %v", i, made, err)
		}
	}
	for _, c := range []*Client{mine, servers} {
		found, err := sdn.All(c.FindNetworks(t.Context(), sdn.NetworkQuery{}))
		if err != nil || len(found) < 2 {
			t.Fatalf("found %v, %v", found, err)
		}
		for _, n := range found {
			if own := n.Key.Owner == c.Installation(); n.Foreign == own {
				t.Errorf("for %s is Foreign: %v, %v", c.Installation(), n.Key, n.Foreign)
			}
		}
	}
}

// An object of a named project stays the installation's after the server was restarted.
func TestProjectAfterRestart(t *testing.T) {
	store, socket := paths(t)
	p := open(t, store)
	s := serve(t, p, socket)
	c := dial(t, socket, Options{})
	key := sdn.Key{Owner: c.Installation(), Kind: "network", Name: "n"}
	n, err := c.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Key: key, Project: "p"}})
	if err != nil || n.Key != key {
		t.Fatalf("%+v, %v", n, err)
	}
	s.stop()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, open(t, store), socket)
	got, err := c.Network(t.Context(), n.ID)
	if err != nil || got.Key != key || got.Foreign {
		t.Errorf("after a restart it is %+v, %v", got.Meta, err)
	}
	found, err := sdn.All(c.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if err != nil || len(found) != 1 {
		t.Errorf("found %v, %v", found, err)
	}
	other, err := dial(t, socket, Options{}).Network(t.Context(), n.ID)
	if err != nil || !other.Foreign || !other.Key.IsZero() {
		t.Errorf("for a client that has not named the project it is %+v, %v", other.Meta, err)
	}
}
