//go:build linux

package netplugin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kurma/netplugin/call"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// pod is the UUID of the specification's example.
const pod = "146d7cef-fbf6-41da-a2f8-eba218597f9c"

// binder remembers what is plugged.
type binder struct {
	mu      sync.Mutex
	plugged map[sdn.ID]bind.Interface
	refuse  error
}

func (b *binder) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return bind.Result{}, b.refuse
	}
	b.plugged[i.Port.ID] = i
	return bind.Result{Name: i.Name}, nil
}

func (b *binder) Unplug(_ context.Context, port sdn.Port) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.plugged, port.ID)
	return nil
}

func open(t *testing.T, path string) *local.Provider {
	t.Helper()
	p, err := local.Open(t.Context(), local.Options{Path: path, Host: "here", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rig is a plugin on an SDN with the network blue, 10.1.0.0/29, and the security group web.
func rig(t *testing.T) (*Plugin, *local.Provider, *binder) {
	t.Helper()
	p := open(t, filepath.Join(t.TempDir(), "kuryr.db"))
	t.Cleanup(func() { _ = p.Close() })
	fill(t, p)
	b := &binder{plugged: map[sdn.ID]bind.Interface{}}
	return New(Config{Provider: p, Binder: b, Host: "here", Logger: slog.New(slog.DiscardHandler)}), p, b
}

func fill(t *testing.T, p *local.Provider) {
	t.Helper()
	base := sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "test", Name: "blue"}, Name: "blue"}
	_, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: base, MTU: 1400, Subnets: []sdn.SubnetSpec{{Base: base, CIDR: netip.MustParsePrefix("10.1.0.0/29")}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "test", Name: "web"}, Name: "web"}}); err != nil {
		t.Fatal(err)
	}
}

func ports(t *testing.T, p sdn.Provider) []sdn.Port {
	t.Helper()
	all, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{Match: sdn.Match{Kind: kindPort}}))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAddAndDel(t *testing.T) {
	t.Parallel()
	plugin, p, b := rig(t)
	e, err := ParseEntry([]byte(`{"name": "front", "aci": "x", "default": true, "containerInterface": "eth0", "network": "blue", "addresses": ["10.1.0.5"], "mac": "02:00:00:00:00:07", "securityGroups": ["web"]}`))
	if err != nil {
		t.Fatal(err)
	}
	a := Attachment{Namespace: "/var/lib/kurma/netns/" + pod, Pod: pod, Interface: "eth0"}
	for range 2 { // the same call twice is the same as once
		r, err := plugin.Add(t.Context(), e, a)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.1.0.5/29" || len(r.Routes) != 1 {
			t.Errorf("result %v", r)
		}
	}
	all := ports(t, p)
	if len(all) != 1 || len(b.plugged) != 1 {
		t.Fatalf("ports %v, plugged %v", all, b.plugged)
	}
	port, plugged := all[0], b.plugged[all[0].ID]
	if port.MAC.String() != "02:00:00:00:00:07" || len(port.Groups) != 1 || port.Host != "here" || port.DeviceID != "kurma/"+pod+"/eth0" {
		t.Errorf("port %+v", port)
	}
	if plugged.Namespace != a.Namespace || plugged.Name != "eth0" || plugged.MTU != 1400 {
		t.Errorf("plugged %+v", plugged)
	}
	for range 2 {
		if err := plugin.Del(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	if left := ports(t, p); len(left) > 0 || len(b.plugged) > 0 {
		t.Errorf("left: %v, plugged %v", left, b.plugged)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	plugin, p, b := rig(t)
	whole := Attachment{Namespace: "/n", Pod: pod, Interface: "eth0"}
	for name, c := range map[string]struct {
		entry, want string
		a           Attachment
	}{
		"no JSON":           {`[`, "entry", whole},
		"unknown key":       {`{"name": "blue", "adresses": []}`, "adresses", whole},
		"empty":             {``, "entry", whole},
		"null":              {`null`, "network", whole},
		"a second object":   {`{"name": "blue"} {}`, "something follows", whole},
		"type of a key":     {`{"name": "blue", "addresses": "10.1.0.5"}`, "addresses", whole},
		"no name":           {`{}`, "network", whole},
		"no address":        {`{"name": "blue", "addresses": ["10.1.0.5", "10.1.0"]}`, "addresses[1]", whole},
		"no MAC":            {`{"name": "blue", "mac": "02:00"}`, "mac", whole},
		"unknown network":   {`{"name": "green"}`, "green", whole},
		"unknown group":     {`{"name": "blue", "securityGroups": ["web", "db"]}`, "securityGroups[1]", whole},
		"address elsewhere": {`{"name": "blue", "addresses": ["10.2.0.5"]}`, "10.2.0.5", whole},
		"no interface":      {`{"name": "blue"}`, "containerInterface", Attachment{Namespace: "/n", Pod: pod}},
		"no namespace":      {`{"name": "blue"}`, "namespace", Attachment{Pod: pod, Interface: "eth0"}},
		"not plugged":       {`{"name": "blue"}`, "no such namespace", whole},
	} {
		if name == "not plugged" {
			b.refuse = sdn.Invalid("interface", "namespace", "no such namespace")
		}
		out, err := plugin.do(t.Context(), call.Request{Verb: "add", Namespace: c.a.Namespace, Pod: c.a.Pod, Interface: c.a.Interface, Entry: []byte(c.entry)})
		b.refuse = nil
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, error %v", name, out, err)
		}
		if left := ports(t, p); len(left) > 0 {
			t.Fatalf("%s: left %v", name, left)
		}
	}
}

// What /opt/network/add and del say and hear, over the socket.
func TestServe(t *testing.T) {
	t.Parallel()
	plugin, p, _ := rig(t)
	socket := filepath.Join(t.TempDir(), "s")
	early := make(chan call.Answer, 1) // a call from before anybody listens is answered, too
	go func() {
		a, err := call.Do(socket, call.Request{Verb: "del", Namespace: "/n", Pod: pod, Interface: "eth9"}, time.Minute)
		if err != nil {
			t.Error(err)
		}
		early <- a
	}()
	l, err := rootsock.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- plugin.Serve(ctx, l) }()
	if a := <-early; a.Status != 0 {
		t.Errorf("an early call: %+v", a)
	}
	ask := func(verb, network, name string) call.Answer {
		t.Helper()
		a, err := call.Do(socket, call.Request{Verb: verb, Namespace: "/n", Pod: pod, Interface: name, Entry: []byte(`{"name": "` + network + `"}`)}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var result struct {
		IPs []struct{ Address string }
	}
	if a := ask("add", "blue", "eth0"); a.Status != 0 || json.Unmarshal(a.Output, &result) != nil || len(result.IPs) != 1 {
		t.Errorf("add: %d %s", a.Status, a.Output)
	}
	var told struct {
		Code int
		Msg  string
	}
	for _, wrong := range []struct{ verb, network string }{{"add", "green"}, {"list", "blue"}} {
		if a := ask(wrong.verb, wrong.network, "eth1"); a.Status != 1 || json.Unmarshal(a.Output, &told) != nil || told.Code != 7 || told.Msg == "" {
			t.Errorf("%v: %d %s", wrong, a.Status, a.Output)
		}
	}
	if a := ask("del", "blue", "eth0"); a.Status != 0 || len(a.Output) > 0 || len(ports(t, p)) > 0 {
		t.Errorf("del: %d %s", a.Status, a.Output)
	}
	conn, err := net.Dial("unix", socket) // a call that ends in the middle
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte("add\x00/n"))
	_ = conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := call.Do(socket, call.Request{Verb: "add"}, time.Millisecond); err == nil {
		t.Error("nobody listens, and the call succeeded")
	}
}

func FuzzRead(f *testing.F) {
	f.Add("add\x00/n\x00" + pod + "\x00eth0\x00{}")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := call.Read(strings.NewReader(text))
		if err == nil && strings.Join([]string{r.Verb, r.Namespace, r.Pod, r.Interface, string(r.Entry)}, "\x00") != text {
			t.Errorf("%q was read as %+v", text, r)
		}
	})
}
