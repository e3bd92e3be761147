package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/sdn"
)

func TestConstantAnswers(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const spaces = `{"GlobalDefaultAddressSpace":"global_scope","LocalDefaultAddressSpace":"local_scope"}`
	for method, want := range map[string]string{
		"Plugin.Activate":                           `{"Implements":["NetworkDriver","IpamDriver"]}`,
		"NetworkDriver.GetCapabilities":             `{"ConnectivityScope":"local","GwAllocChecker":true,"Scope":"local"}`,
		"IpamDriver.GetCapabilities":                `{"RequiresMACAddress":true,"RequiresRequestReplay":false}`,
		"IpamDriver.GetDefaultAddressSpaces":        spaces,
		"IpamDriver.GetDefaultAddressSpcaces":       spaces,
		"NetworkDriver.DiscoverNew":                 `{}`,
		"NetworkDriver.DiscoverDelete":              `{}`,
		"NetworkDriver.FreeNetwork":                 `{}`,
		"NetworkDriver.GwAllocCheck":                `{"SkipIPv4":true,"SkipIPv6":true}`,
		"NetworkDriver.EndpointOperInfo":            `{"Value":{}}`,
		"NetworkDriver.AllocateNetwork":             `{"Options":{}}`,
		"NetworkDriver.Leave":                       `{}`,
		"IpamDriver.ReleasePool":                    `{}`,
		"NetworkDriver.ProgramExternalConnectivity": `{}`,
	} {
		var body m
		switch method[strings.Index(method, ".")+1:] {
		case "DiscoverNew", "DiscoverDelete":
			body = m{"DiscoveryType": 1, "DiscoveryData": m{"Address": "192.0.2.1", "BindAddress": "", "Self": true}}
		case "GwAllocCheck":
			body = m{"Options": m{optInternal: true}}
		case "ReleasePool":
			body = m{"PoolID": "x"}
		case "Activate", "GetCapabilities", "GetDefaultAddressSpaces", "GetDefaultAddressSpcaces":
			// without a body
		default:
			body = m{"NetworkID": newID(), "EndpointID": newID(), "Options": nil, "SomethingNew": []int{1}}
		}
		if got := encode(b.ok(method, body)); got != want {
			t.Errorf("%s: %s, want %s", method, got, want)
		}
	}
}

func TestGlobalScope(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Scope = Global })
	if a := b.ok("NetworkDriver.GetCapabilities", nil); a["Scope"] != "global" || a["ConnectivityScope"] != "global" {
		t.Errorf("capabilities %v", a)
	}
}

// The methods that have arguments.
func withArguments() []string {
	var list []string
	for path := range everyRoute {
		if !strings.Contains(path, "GetCapabilities") && !strings.Contains(path, "GetDefault") &&
			!strings.Contains(path, "Activate") {
			list = append(list, path[1:])
		}
	}
	return list
}

func TestUnknownPathAndMethod(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, method := range []string{
		"NetworkDriver.Nope", "", "NetworkDriver.Join/", "../etc/passwd", "networkdriver.join",
	} {
		if status, _ := b.post(method, "{}"); status != http.StatusNotFound {
			t.Errorf("%q: %d", method, status)
		}
	}
	for _, verb := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		w := httptest.NewRecorder()
		b.driver.Handler().ServeHTTP(w, httptest.NewRequest(verb, "/Plugin.Activate", nil))
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != http.MethodPost {
			t.Errorf("%s: %d", verb, w.Code)
		}
	}
}

func TestHugeBody(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if status, _ := b.post(
		"NetworkDriver.Join", `{"NetworkID":"`+strings.Repeat("x", maxBody)+`"}`,
	); status != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", status)
	}
	b.refused("NetworkDriver.Join", strings.Repeat("[", 20000))
}

// Unknown objects and wrong addresses are refused with a text for users.
func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.contains(b.fails("IpamDriver.RequestAddress", m{"PoolID": "gone", "Address": ""}), "pool")
	b.contains(b.fails("NetworkDriver.CreateEndpoint", m{"NetworkID": newID(), "EndpointID": newID()}), "no network")
	b.contains(
		b.fails(
			"NetworkDriver.Join", (&endpoint{net: &network{id: newID()}, id: newID()}).joinBody(),
		),
		"no endpoint",
	)
	b.contains(
		b.fails("NetworkDriver.CreateNetwork", m{"NetworkID": newID(), "IPv4Data": []m{
			{"AddressSpace": localSpace, "Pool": "10.0.0.0/24"},
		}}),
		"10.0.0.0/24",
	)
	n := b.create(dualNetwork())
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "10.50.0.1", "Options": m{optMAC: "02:00:00:00:00:01"},
		}),
		"gateway",
	)
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "10.51.0.1", "Options": m{optMAC: "02:00:00:00:00:01"},
		}),
		"10.51.0.1",
	)
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "10.50.0.2",
			"Options": m{optAddressType: addressGateway},
		}),
		"10.50.0.1",
	)
	other := b.create(v4Network("10.52.0.0/24"))
	e := b.run(&endpoint{net: n})
	body := e.joinBody()
	body["NetworkID"] = other.id
	b.contains(b.fails("NetworkDriver.Join", body), "not of network")
}

// Errors that are not meant for users reach the log only.
func TestErrorsShownToUsers(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err         error
		shown, kept string
	}{
		"of the SDN": {
			sdn.Exhausted(sdn.NoAddresses, "subnet", "10.0.0.0/24 has no free address"),
			"no free address", "\x00",
		},
		"transport": {
			sdn.Unavailable(
				errors.New("dial https://u:secret@x"), "pool", "the SDN does not answer",
			),
			"does not answer", "secret",
		},
		"unforeseen":  {errors.New("token=secret"), "request ", "secret"},
		"out of time": {fmt.Errorf("secret: %w", context.DeadlineExceeded), "not done in time", "secret"},
		"many lines":  {sdn.Invalid("pool", "x", "a\nb\x1b[31m"), "a b", "\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, func(config *Config) {
				config.Provider = &dockertest.Provider{Provider: config.Provider, Before: func(call dockertest.Call) error {
					if call.Method == "SubnetPool" {
						return c.err
					}
					return nil
				}}
			})
			text := b.fails("IpamDriver.RequestAddress", m{"PoolID": "x", "Address": ""})
			b.contains(text, c.shown)
			if strings.Contains(text, c.kept) {
				t.Errorf("%q shows %q", text, c.kept)
			}
		})
	}
}

func TestMetricsAndLog(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	var log strings.Builder
	b := newBox(t, func(c *Config) {
		c.Registerer = registry
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	b.ok("Plugin.Activate", nil)
	b.fails("IpamDriver.RequestAddress", m{"PoolID": "gone", "Address": ""})
	b.refused("IpamDriver.RequestAddress", "")
	b.post("Nope", "")
	want := `# HELP kuryr_docker_calls_total Calls of the Docker engine, by method and outcome (ok, failed, invalid).
# TYPE kuryr_docker_calls_total counter
kuryr_docker_calls_total{method="IpamDriver.RequestAddress",outcome="failed"} 1
kuryr_docker_calls_total{method="IpamDriver.RequestAddress",outcome="invalid"} 1
kuryr_docker_calls_total{method="Plugin.Activate",outcome="ok"} 1
kuryr_docker_calls_total{method="unknown",outcome="invalid"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kuryr_docker_calls_total"); err != nil {
		t.Error(err)
	}
	for _, part := range []string{
		"level=DEBUG msg=\"docker call\" method=Plugin.Activate",
		"level=WARN msg=\"docker call\" method=IpamDriver.RequestAddress",
	} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("log %q lacks %q", log.String(), part)
		}
	}
	if _, err := New(b.config); err == nil {
		t.Error("metrics were registered twice without an error")
	}
}

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for name, change := range map[string]func(*Config){
		"no provider": func(c *Config) { c.Provider = nil },
		"no binder":   func(c *Config) { c.Binder = nil },
		"no folder":   func(c *Config) { c.StateDir = "" },
		"no room":     func(c *Config) { c.StateDir = DatabasePath(b.config.StateDir) },
		"scope":       func(c *Config) { c.Scope = "planet" },
		"pool family": func(c *Config) { c.Pools4 = DefaultPools6 },
		"pool length": func(c *Config) { c.Pools4 = []AutoPool{{Prefix: DefaultPools4[0].Prefix, Len: 8}} },
	} {
		c := b.config
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// blocked is a provider that lets a call wait until it is told to go on.
type blocked struct{ entered, leave chan struct{} }

func (b *blocked) of(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, Before: func(c dockertest.Call) error {
		if c.Method != "SubnetPool" {
			return nil
		}
		b.entered <- struct{}{}
		select {
		case <-b.leave:
			return nil
		case <-c.Context.Done():
			return c.Context.Err()
		}
	}}
}

// The socket as an engine uses it: an empty Host header, several calls on a connection, a call in progress at the end.
func TestServe(t *testing.T) {
	t.Parallel()
	gate := &blocked{entered: make(chan struct{}, 1), leave: make(chan struct{})}
	b := newBox(t, func(c *Config) { c.Provider = gate.of(c.Provider) })
	path := filepath.Join(t.TempDir(), "kuryr.sock")
	listener, err := rootsock.Listen(path)
	b.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.driver.Serve(ctx, listener) }()
	conn, err := net.Dial("unix", path)
	b.must(err)
	defer conn.Close()
	reader := bufio.NewReader(conn)
	call := func(path, body string) {
		fmt.Fprintf(
			conn, "POST %s HTTP/1.1\r\nHost: \r\nContent-Length: %d\r\nAccept: %s\r\n\r\n%s", path,
			len(body), contentType, body,
		)
	}
	answer := func() string {
		t.Helper()
		r, err := http.ReadResponse(reader, nil)
		b.must(err)
		text, err := io.ReadAll(r.Body)
		b.must(err)
		return fmt.Sprint(r.StatusCode, " ", string(text))
	}
	for range 3 {
		call("/Plugin.Activate", "")
		if got := answer(); got != `200 {"Implements":["NetworkDriver","IpamDriver"]}` {
			t.Errorf("answer %s", got)
		}
	}
	call("/IpamDriver.ReleasePool", `{"PoolID":"x"}`)
	<-gate.entered
	cancel()
	close(gate.leave)
	if got := answer(); got != "200 {}" {
		t.Errorf("the call in progress was answered %s", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve ended with %v", err)
	}
	if _, err := net.Dial("unix", path); err == nil {
		t.Error("the socket still answers")
	}
}

// Calls beyond the limit wait, and fail when their time is over.
func TestTooManyCalls(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.MaxCalls = 1 })
	synctest.Test(t, func(t *testing.T) {
		gate := &blocked{entered: make(chan struct{}, 1), leave: make(chan struct{})}
		b.config.Provider = gate.of(b.config.Provider)
		b.restart() // its channels must be of this bubble
		first := make(chan int, 1)
		go func() {
			w := httptest.NewRecorder()
			b.driver.Handler().ServeHTTP(w, httptest.NewRequest(
				http.MethodPost, "/IpamDriver.ReleasePool", strings.NewReader(`{"PoolID":"x"}`),
			))
			first <- w.Code
		}()
		<-gate.entered
		b.driver.slots <- struct{}{} // the first call ends with its time; then this one has the only place
		if status, _ := b.post("IpamDriver.ReleasePool", `{"PoolID":"x"}`); status != http.StatusServiceUnavailable {
			t.Errorf("status %d", status)
		}
		if status := <-first; status != http.StatusOK {
			t.Errorf("the first call: %d", status)
		}
	})
}
