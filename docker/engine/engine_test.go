package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeEngine serves answers by path on a Unix socket. Its fields may be set before requests.
type fakeEngine struct {
	socket  string
	mu      sync.Mutex
	answers map[string]json.RawMessage
	asked   func(path string) // called before each answer
}

func serve(t *testing.T, answers map[string]json.RawMessage) *fakeEngine {
	t.Helper()
	f := &fakeEngine{socket: filepath.Join(t.TempDir(), "d.sock"), answers: answers}
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(f)
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return f
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked != nil {
		f.asked(r.URL.Path)
	}
	answer, ok := f.answers[r.URL.Path]
	if !ok || r.Method != http.MethodGet {
		w.WriteHeader(http.StatusNotFound)
		answer = []byte(`{"message":"page not found"}`)
	}
	_, _ = w.Write(answer)
}

func (f *fakeEngine) client(t *testing.T) *Client {
	t.Helper()
	c := New(f.socket, "kuryr")
	t.Cleanup(c.Close)
	return c
}

// recorded returns the answers of an engine by path: networks front and back of Kuryr's,
// "bridged" of Docker's driver with Kuryr's IPAM, and a container in each of five states.
// Those with the prefix "swarm " are of the same engine as a manager.
func recorded(t *testing.T, version string) map[string]json.RawMessage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", version+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var answers map[string]json.RawMessage
	if err := json.Unmarshal(text, &answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

// describe returns a list as text, with names of networks for their ids.
func describe(l List) (lines []string) {
	names := map[string]string{}
	for _, n := range l.Networks {
		names[n.ID] = n.Name
		line := fmt.Sprintf("%s %s/%s", n.Name, n.Scope, n.Driver)
		if n.Ours {
			line += " ours"
		}
		if n.OurIPAM {
			line += " ipam"
		}
		if mtu := n.Options["com.docker.network.driver.mtu"]; mtu != "" {
			line += " mtu " + mtu
		}
		for _, s := range n.Subnets {
			line += " " + s.Range.String()
			if s.Gateway.IsValid() {
				line += " via " + s.Gateway.String()
			}
			for _, a := range s.Auxiliary {
				line += " not " + a.String()
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines) // engines list networks in any order
	for _, c := range l.Containers {
		line := c.Name + " " + c.State + " " + strings.Join(c.Networks, ",")
		for _, e := range c.Endpoints {
			line += fmt.Sprint(" ", names[e.Network], e.Addresses)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestList(t *testing.T) {
	t.Parallel()
	containers := []string{
		"again restarting back", "made created front", "ended exited front", "asleep paused back back[10.78.0.3]",
		"web running back,front back[10.78.0.2] front[10.77.0.128 fd77::2]",
	}
	for version, want := range map[string]struct {
		engine, version string
		networks        []string
	}{
		// Docker 20.10 tells only gateways that the user gave.
		"20.10": {"18a8f8ec31a938e7", "20.10.24+dfsg1", []string{
			"back local/kuryr ours ipam 10.78.0.0/24", "bridge local/bridge mtu 1500 172.17.0.0/16",
			"bridged local/bridge ipam 10.79.0.0/24",
			"front local/kuryr ours ipam mtu 1400 10.77.0.0/24 via 10.77.0.1 not 10.77.0.9 fd77::/64",
			"host local/host", "none local/null",
		}},
		"29": {"a49bcc671e58a554", "29-v2.0.0-beta.24", []string{
			"back local/kuryr ours ipam 10.78.0.0/24 via 10.78.0.1",
			"bridge local/bridge mtu 1500 172.17.0.0/16 via 172.17.0.1",
			"bridged local/bridge ipam 10.79.0.0/24 via 10.79.0.1",
			"front local/kuryr ours ipam mtu 1400 10.77.0.0/24 via 10.77.0.1 not 10.77.0.9 fd77::/64 via fd77::1",
			"host local/host", "none local/null",
		}},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := serve(t, recorded(t, version)).client(t)
			before := time.Now()
			list, err := c.List(t.Context())
			if err != nil || list.Engine != want.engine || list.Version != want.version ||
				list.Swarm != (Swarm{}) || list.Began.Before(before) {
				t.Errorf("engine %s %s, %+v, begun %s: %v", list.Engine, list.Version, list.Swarm, list.Began, err)
			}
			if got, want := describe(list), slices.Concat(want.networks, containers); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if id, err := c.Identity(t.Context()); err != nil || id != list.Engine {
				t.Errorf("identity %s, %v", id, err)
			}
			byNetwork(t, c, list)
		})
	}
}

// byNetwork compares what containers and networks tell about the same endpoints.
func byNetwork(t *testing.T, c *Client, list List) {
	t.Helper()
	all, found := list.Endpoints(), 0
	for _, n := range list.Networks {
		if !n.Ours {
			continue
		}
		there, err := c.Endpoints(t.Context(), n.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range there {
			found++
			if !slices.ContainsFunc(all, func(o Endpoint) bool { return fmt.Sprint(o) == fmt.Sprint(e) }) {
				t.Errorf("%+v is on network %s and not in\n%+v", e, n.Name, all)
			}
		}
	}
	if len(all) != 3 || found != len(all) {
		t.Errorf("%d endpoints of containers, %d of networks", len(all), found)
	}
}

func TestDetails(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"20.10", "29"} {
		c := serve(t, recorded(t, version)).client(t)
		containers, err := c.Containers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, container := range containers {
			d, err := c.Details(t.Context(), container.ID)
			var ok bool
			switch container.Name {
			case "web":
				ok = err == nil && d.RestartPolicy == "no" && strings.Contains(d.Sandbox, "/netns/")
			case "again":
				ok = err == nil && d.RestartPolicy == "always" && d.Error == ""
			default: // not recorded
				ok = IsNotFound(err)
			}
			if !ok {
				t.Errorf("%s: %s is %+v, %v", version, container.Name, d, err)
			}
		}
	}
	f := serve(t, map[string]json.RawMessage{"/containers/c/json": []byte(`{"State":{"Error":"no plugin"}}`)})
	if d, err := f.client(t).Details(t.Context(), "c"); err != nil || d.Error != "no plugin" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestSwarm(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"20.10", "29"} {
		answers := recorded(t, version)
		for path, answer := range maps.All(answers) {
			if path, ok := strings.CutPrefix(path, "swarm "); ok {
				answers[path] = answer
			}
		}
		list, err := serve(t, answers).client(t).List(t.Context())
		if err != nil || list.Swarm != (Swarm{Member: true, Manager: true, Complete: true}) ||
			!slices.Contains(describe(list), "ingress swarm/overlay 10.0.0.0/24 via 10.0.0.1") {
			t.Errorf("%s: %+v, %s, %v", version, list.Swarm, describe(list), err)
		}
	}
	for state, want := range map[string]Swarm{
		`{"LocalNodeState":"inactive"}`: {},
		`{}`:                            {},
		`{"LocalNodeState":"pending"}`:  {Member: true},
		`{"LocalNodeState":"locked","Error":"locked"}`:        {Member: true},
		`{"LocalNodeState":"active"}`:                         {Member: true},
		`{"LocalNodeState":"active","ControlAvailable":true}`: {Member: true, Manager: true, Complete: true},
		`{"LocalNodeState":"active","ControlAvailable":true,"Error":"no leader"}`: {
			Member: true, Manager: true,
		},
	} {
		f := serve(t, map[string]json.RawMessage{"/info": []byte(`{"Swarm":` + state + `}`)})
		if info, err := f.client(t).Info(t.Context()); err != nil || info.Swarm != want {
			t.Errorf("%s: %+v, %v", state, info.Swarm, err)
		}
	}
}

// An engine that changes while it is listed, or leaves out an answer, gives no list.
func TestListIsComplete(t *testing.T) {
	t.Parallel()
	type answers = map[string]json.RawMessage
	for name, change := range map[string]func(answers){
		"another engine": func(a answers) { a["/info"] = []byte(`{"ID":"other"}`) },
		"another data root": func(a answers) {
			a["/networks"] = []byte(`[{"Id":"new","Name":"none","Driver":"null"}]`)
		},
		"it joins a swarm":   func(a answers) { a["/info"] = a["swarm /info"] },
		"no containers":      func(a answers) { delete(a, "/containers/json") },
		"part of containers": func(a answers) { a["/containers/json"] = a["/containers/json"][:3000] },
		"it is gone":         func(a answers) { clear(a) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := serve(t, recorded(t, "29"))
			f.asked = func(path string) {
				if path == "/containers/json" {
					change(f.answers)
				}
			}
			if list, err := f.client(t).List(t.Context()); err == nil || len(list.Networks) > 0 {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
	// A manager that finds its leader has not listed all networks of the swarm yet.
	f := serve(t, recorded(t, "29"))
	f.answers["/info"] = bytes.Replace(f.answers["swarm /info"], []byte(`"Error":""`), []byte(`"Error":"no leader"`), 1)
	f.asked = func(path string) {
		if path == "/containers/json" {
			f.answers["/info"] = f.answers["swarm /info"]
		}
	}
	list, err := f.client(t).List(t.Context())
	if err != nil || list.Swarm != (Swarm{Member: true, Manager: true}) {
		t.Errorf("%+v, %v", list.Swarm, err)
	}
}

// The identity is written into tags and stores, so it must never change.
func TestIdentity(t *testing.T) {
	t.Parallel()
	networks := func(id string) []Network {
		return []Network{{ID: "b", Name: "bridge", Driver: "bridge"}, {ID: id, Name: "none", Driver: "null"}}
	}
	for _, test := range []struct {
		id       string
		networks []Network
		want     string
	}{
		{"AB", networks("n1"), "86008b8d55d21cd4"},
		{"AC", networks("n1"), "da01cb5b9b209ace"},
		{"AB", networks("n2"), "5d801116f7bd7f2b"},
		{"", networks("n1"), ""}, {"AB", nil, ""}, {"AB", networks(""), ""},
	} {
		got, err := identity(Info{ID: test.id}, test.networks)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q, %v: %s, %v, want %q", test.id, test.networks, got, err, test.want)
		}
	}
}

func TestOurs(t *testing.T) {
	t.Parallel()
	c := New("", "blue", "kuryr")
	for name, want := range map[string]bool{
		"kuryr": true, "kuryr:latest": true, "example/kuryr:1": true, "blue": true,
		"bridge": false, "mykuryr": false, "": false,
	} {
		if c.ours(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}

func TestSocket(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "/default", "unix:///run/d.sock": "/run/d.sock", "tcp://192.0.2.1:2375": "",
	} {
		if got := Socket(in, "/default"); got != want {
			t.Errorf("Socket(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPlugins(t *testing.T) {
	t.Parallel()
	f := serve(t, map[string]json.RawMessage{"/plugins": []byte(`[{
		"Id":"p","Name":"kuryr:latest","Enabled":true,"Config":{"Entrypoint":["/usr/bin/kuryr","up"],
		"Interface":{"Types":["docker.networkdriver/1.0"],"Socket":"k.sock"}}}]`)})
	plugins, err := f.client(t).Plugins(t.Context())
	want := "[{kuryr:latest true [/usr/bin/kuryr up] [docker.networkdriver/1.0]}]"
	if fmt.Sprint(plugins) != want || err != nil {
		t.Errorf("%v, %v", plugins, err)
	}
}

// reply is an engine that answers every question with one text.
type reply struct {
	status int
	body   string
}

func (r reply) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: r.status, Body: io.NopCloser(strings.NewReader(r.body))}, nil
}

func (r reply) client() *Client {
	return &Client{http: &http.Client{Transport: r}, maxAnswer: 1000}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reply
		notFound bool
		says     string
	}{
		{reply{404, `{"message":"no such network"}`}, true, `/networks/n: status 404 Not Found: "no such network"`},
		{reply{403, "denied by a proxy"}, false, "/networks/n: status 403 Forbidden"},
		{reply{500, `{"message":"a\u001b[2J\nb"}`}, false, `status 500 Internal Server Error: "a\x1b[2J\nb"`},
		{reply{500, `{"message":"` + strings.Repeat("x", 2*maxMessage) + `"}`}, false, "status 500"},
		{reply{200, `{"Id":"n","Containers":{`}, false, "/networks/n: unexpected EOF"},
		{reply{200, `{"Id":"n","Name":"` + strings.Repeat("x", 1000)}, false, "answer exceeds 1000 bytes"},
		{reply{200, `[]`}, false, "cannot unmarshal"},
		{reply{200, `{"Id":"n2","Name":"n"}`}, true, "status 404"}, // the engine also finds names
	} {
		_, err := test.client().Endpoints(t.Context(), "n")
		if err == nil || IsNotFound(err) != test.notFound || !strings.HasPrefix(err.Error(), askPrefix) ||
			!strings.Contains(err.Error(), test.says) || len(err.Error()) > 200 {
			t.Errorf("%+v: %v", test.reply, err)
		}
	}
	_, err := New(filepath.Join(t.TempDir(), "none")).Networks(t.Context())
	if err == nil || IsNotFound(err) || !strings.HasPrefix(err.Error(), askPrefix) {
		t.Errorf("no engine: %v", err)
	}
}

// An engine that does not answer is given up when the caller's time is over.
func TestDeadline(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	f := serve(t, map[string]json.RawMessage{})
	f.asked = func(string) { <-release }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.client(t).List(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	close(release)
}

// FuzzClient gives any answer to every question: there is a value or an error.
func FuzzClient(f *testing.F) {
	f.Add([]byte(`[{"Id":"n1","Name":"none","Driver":"null","IPAM":{"Config":[{
		"Subnet":"10.0.0.1/8","Gateway":"10.0.0.1/8","AuxiliaryAddresses":{"a":"10.0.0.3"}}]},
		"State":"running","NetworkSettings":{"Networks":{"x":{"EndpointID":"e","IPAddress":"::1"}}}}]`))
	f.Add([]byte(`{"Id":"n","ID":"n","Containers":{"c":{"IPv4Address":"10.0.0.2/8"}}}`))
	f.Add([]byte("{\"Type\":\"network\",\"Action\":\"create\",\"Actor\":{\"ID\":\"n\"}}\n{}\n"))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, ctx := reply{http.StatusOK, string(body)}.client(), t.Context()
		networks, err := c.Networks(ctx)
		for _, n := range networks {
			for _, s := range n.Subnets {
				if !s.Range.IsValid() || s.Range != s.Range.Masked() {
					t.Errorf("range %s", s.Range)
				}
			}
		}
		containers, other := c.Containers(ctx)
		for _, e := range (List{Containers: containers}).Endpoints() {
			if e.ID == "" {
				t.Error("an endpoint without id")
			}
		}
		_, third := c.Endpoints(ctx, "n")
		_, fourth := c.List(ctx)
		for _, err := range []error{err, other, third, fourth} {
			if err != nil && !strings.HasPrefix(err.Error(), askPrefix) {
				t.Errorf("error %v", err)
			}
		}
		if err := c.stream(ctx, func() {}, func(Event) {}); err == nil {
			t.Error("a stream that ended is no error")
		}
	})
}
