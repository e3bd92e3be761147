package dockerapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestClient(t *testing.T) {
	t.Parallel()
	c := New(engine(t, map[string]string{
		"/info":              `{"ID":"AB:CD","ServerVersion":"29.0.1","LiveRestoreEnabled":true,"DockerRootDir":"/d","Swarm":{"LocalNodeState":"active"}}`,
		"/networks":          `[{"Id":"n1","Name":"front","Driver":"kuryr","Scope":"local","IPAM":{"Driver":"kuryr","Config":[{"Subnet":"10.1.0.7/24"},{"Subnet":"fd01::/64"},{"Subnet":"odd"}]}}]`,
		"/networks/n1":       `{"Id":"n1","Containers":{"c1":{"EndpointID":"e1","IPv4Address":"10.1.0.2/24","IPv6Address":""},"ep-e2":{"EndpointID":"e2","IPv6Address":"fd01::2/64"}}}`,
		"/containers/json":   `[{"Id":"0123456789abcdef","State":"running","Names":["/web"],"NetworkSettings":{"Networks":{"front":{"NetworkID":"n1","EndpointID":"e1","IPAddress":"10.1.0.2","GlobalIPv6Address":"fd01::2"}}}},{"Id":"0123456789abcdef","State":"exited"}]`,
		"/plugins":           `[{"Id":"p","Name":"kuryr:latest","Enabled":true,"Config":{"Entrypoint":["/usr/bin/kuryr","up"],"Interface":{"Types":["docker.networkdriver/1.0"],"Socket":"kuryr.sock"}}}]`,
		"/containers/c/json": `{"State":{"Status":"exited","Error":"plugin not found"},"HostConfig":{"RestartPolicy":{"Name":"always"}}}`,
	}))
	defer c.Close()
	ctx := t.Context()
	if info, err := c.Info(ctx); err != nil || info.ID != "AB:CD" || !info.LiveRestoreEnabled || !info.InSwarm() || info.ServerVersion != "29.0.1" {
		t.Errorf("info %+v, %v", info, err)
	}
	networks, err := c.Networks(ctx)
	if err != nil || len(networks) != 1 || networks[0].ID != "n1" || networks[0].IPAM.Driver != "kuryr" {
		t.Fatalf("networks %+v, %v", networks, err)
	}
	if got, want := networks[0].Ranges(), []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")}; !reflect.DeepEqual(got, want) {
		t.Errorf("ranges %v", got)
	}
	n, found, err := c.Network(ctx, "n1")
	if err != nil || !found || len(n.Containers) != 2 || n.Containers["c1"].Addresses()[0].String() != "10.1.0.2" || n.Containers["ep-e2"].Addresses()[0].String() != "fd01::2" {
		t.Errorf("network %+v, %t, %v", n, found, err)
	}
	containers, err := c.Containers(ctx)
	if err != nil || len(containers) != 2 || containers[0].Name() != "web" || containers[1].Name() != "0123456789ab" || len(containers[0].NetworkSettings.Networks["front"].Addresses()) != 2 {
		t.Errorf("containers %+v, %v", containers, err)
	}
	plugins, err := c.Plugins(ctx)
	if err != nil || len(plugins) != 1 || plugins[0].Name != "kuryr:latest" || !plugins[0].Enabled || len(plugins[0].Config.Entrypoint) != 2 || plugins[0].Config.Interface.Types[0] != "docker.networkdriver/1.0" {
		t.Errorf("plugins %+v, %v", plugins, err)
	}
	if d, found, err := c.Details(ctx, "c"); err != nil || !found || d.HostConfig.RestartPolicy.Name != "always" || d.State.Error == "" {
		t.Errorf("details %+v, %v", d, err)
	}
}

// What is not there is told apart from what cannot be asked.
func TestAbsentIsNoError(t *testing.T) {
	t.Parallel()
	for status, fails := range map[int]bool{http.StatusNotFound: false, http.StatusInternalServerError: true, http.StatusForbidden: true} {
		c := &Client{http: &http.Client{Transport: refusal(status)}}
		if _, found, err := c.Network(t.Context(), "n"); found || (err != nil) != fails {
			t.Errorf("%d: network %t, %v", status, found, err)
		}
		if _, found, err := c.Details(t.Context(), "c"); found || (err != nil) != fails {
			t.Errorf("%d: container %t, %v", status, found, err)
		}
		if _, err := c.Networks(t.Context()); err == nil {
			t.Errorf("%d: no networks, and no error", status)
		}
	}
}

type refusal int

func (r refusal) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(r), Body: http.NoBody}, nil
}

// An answer that is cut off is an error, never a part of what there is.
func TestCutOff(t *testing.T) {
	t.Parallel()
	c := &Client{http: &http.Client{Transport: answer(`[{"Id":"n1"},{"Id":"n2"}`)}}
	if _, err := c.Networks(t.Context()); err == nil {
		t.Error("half a list is no error")
	}
}

// The stream is taken up again after each end, whatever it was, and ends with the context.
func TestWatch(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	streams := []string{
		`{"Type":"network","Action":"create","Actor":{"ID":"n1","Attributes":{"type":"kuryr"}}}` + "\n",
		"nonsense\n",
		strings.Repeat("x", maxEvent+1) + "\n",
		`{"Type":"network","Action":"destroy","Actor":{"ID":"n1"}}` + "\n",
	}
	served := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events" || !strings.Contains(r.URL.Query().Get("filters"), "destroy") {
			t.Errorf("asked %s", r.URL)
		}
		_, _ = fmt.Fprint(w, streams[min(served, len(streams)-1)])
		served++
	}))
	server.Listener = l
	server.Start()
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	connected := 0
	c := New(socket)
	defer c.Close()
	c.Watch(ctx, func() { connected++ }, func(e Event) {
		got = append(got, e.Action+" "+e.Actor.ID+" "+e.Actor.Attributes["type"])
		if e.Action == "destroy" {
			cancel()
		}
	})
	if want := []string{"create n1 kuryr", "destroy n1 "}; !reflect.DeepEqual(got, want) || connected != len(streams) {
		t.Errorf("%q after %d connections", got, connected)
	}
}

// An engine that is away is waited for until the context ends.
func TestWatchWithoutEngine(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*firstPause/1000)
	defer cancel()
	New(filepath.Join(t.TempDir(), "none")).Watch(ctx, func() { t.Error("connected") }, func(Event) { t.Error("an event") })
}

// FuzzClient: whatever the engine answers and streams, there is an answer or an error, and no event is longer than a line may be.
func FuzzClient(f *testing.F) {
	f.Add([]byte(`[{"Id":"n1","IPAM":{"Config":[{"Subnet":"10.0.0.0/8"}]},"Containers":{"c":{"IPv4Address":"10.0.0.2/8"}},"NetworkSettings":{"Networks":{"x":{"IPAddress":"::1"}}}}]`))
	f.Add([]byte("{\"Type\":\"network\",\"Action\":\"create\",\"Actor\":{\"ID\":\"n\"}}\n{}\n"))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c := &Client{http: &http.Client{Transport: answer(body)}}
		ctx := t.Context()
		if networks, err := c.Networks(ctx); err == nil {
			for _, n := range networks {
				for _, p := range n.Ranges() {
					if p != p.Masked() {
						t.Errorf("range %s", p)
					}
				}
				for _, e := range n.Containers {
					_ = e.Addresses()
				}
			}
		}
		if containers, err := c.Containers(ctx); err == nil {
			for _, x := range containers {
				_ = x.Name()
			}
		}
		if _, err := c.Info(ctx); err != nil && !strings.HasPrefix(err.Error(), "ask the Docker engine: ") {
			t.Errorf("error %v", err)
		}
		if err := c.events(ctx, func() {}, func(Event) {}); err == nil {
			t.Error("a stream that ended is no error")
		}
	})
}
