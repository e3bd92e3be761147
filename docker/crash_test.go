//go:build failpoints

package docker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// The environment of a child that serves a store on a socket until it is killed.
const crashStore, crashSocket = "KURYR_TEST_STORE", "KURYR_TEST_SOCKET"

// TestCrashChild is not a test of its own: it is the plugin that TestCrash kills.
func TestCrashChild(t *testing.T) {
	if os.Getenv(crashStore) == "" {
		t.Skip("it is started by TestCrash")
	}
	p, err := local.Open(t.Context(), local.Options{Path: os.Getenv(crashStore), Host: testHost})
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Provider: p, Binder: &fakeBinder{plugged: map[sdn.ID]bind.Interface{}}, Host: testHost})
	if err != nil {
		t.Fatal(err)
	}
	l, err := rootsock.Listen(os.Getenv(crashSocket))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	t.Fatal(d.Serve(context.Background(), l))
}

// TestCrash kills the plugin at every failpoint, at each of its first visits, while an engine and its user go through all
// that they do; starts it again; and at the end nothing may be left.
func TestCrash(t *testing.T) {
	for _, name := range failpoints(t) {
		t.Run(name, func(t *testing.T) {
			for visit := 1; visit <= 3; visit++ {
				if !crash(t, fmt.Sprintf("%s:%d", name, visit)) {
					if visit == 1 {
						t.Error("the story never comes by")
					}
					return
				}
			}
		})
	}
}

// failpoints are the names in this package's source.
func failpoints(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`failpoint\.Here\("([^"]+)"\)`).FindAllStringSubmatch(string(text), -1) {
			if slices.Contains(names, found[1]) {
				t.Errorf("two failpoints are named %s", found[1])
			}
			names = append(names, found[1])
		}
	}
	return names
}

// crash tells the story to a plugin that dies at the failpoint, and tells whether it died.
func crash(t *testing.T, point string) bool {
	t.Helper()
	folder := t.TempDir()
	b := &box{t: t, binder: &fakeBinder{plugged: map[sdn.ID]bind.Interface{}}}
	open := func() {
		t.Helper()
		var err error
		b.provider, err = local.Open(t.Context(), local.Options{Path: filepath.Join(folder, "store"), Host: testHost})
		b.must(err)
		b.config = Config{Provider: b.provider, Binder: b.binder, Host: testHost}
		b.restart()
	}
	open()
	b.empty = b.dump()
	b.must(b.provider.Close())

	child := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	socket := filepath.Join(folder, "s")
	child.Env = append(os.Environ(), crashStore+"="+filepath.Join(folder, "store"), crashSocket+"="+socket, "KURYR_FAILPOINT="+point)
	out, err := child.StdoutPipe()
	b.must(err)
	b.must(child.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child said %q: %v", line, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	dead := false
	call := func(method string, body m) (m, bool) {
		if dead {
			status, answer := b.post(method, encode(body))
			if status != http.StatusOK || answer["Err"] != nil {
				t.Errorf("killed at %s: then %s %v: %d %v", point, method, body, status, answer)
			}
			return answer, true
		}
		r, err := client.Post("http://plugin/"+method, "", strings.NewReader(encode(body)))
		if err != nil {
			dead = true
			_ = child.Wait()
			open()
			b.must(b.driver.Reconcile(t.Context()))
			return nil, false
		}
		defer r.Body.Close()
		answer := m{}
		b.must(json.NewDecoder(r.Body).Decode(&answer))
		if answer["Err"] != nil {
			t.Fatalf("%s %v: %v", method, body, answer)
		}
		return answer, true
	}
	story := &story{call: call}
	story.tell()
	if !dead {
		b.must(child.Process.Kill())
		_ = child.Wait()
		open()
	} else {
		story.tell() // the user tries all again
		b.restart()
	}
	b.must(b.driver.Reconcile(t.Context()))
	if now := b.dump(); now != b.empty {
		t.Errorf("killed at %s: left\n%s\nat first\n%s", point, now, b.empty)
	}
	b.must(b.provider.Close())
	return dead
}

// story is an engine at work. A call that was not answered fails what it was part of: the engine undoes the rest, without
// the call that failed, and ignores errors of what cleans up.
type story struct {
	call func(method string, body m) (m, bool)
}

func (s *story) do(method string, body m) bool {
	_, ok := s.call(method, body)
	return ok
}

func (s *story) tell() {
	s.network(&network{v4: []*pool{{cidr: "10.50.0.0/24", sub: "10.50.0.128/25", gateway: "10.50.0.1"}}, v6: []*pool{{cidr: "fd50::/64"}}},
		&endpoint{mac: "02:00:00:00:00:01", published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}, {"Proto": 17, "Port": 53}}}, false)
	s.network(&network{v4: []*pool{{}}, options: m{optRouter: "edge"}}, &endpoint{}, false) // no MAC, one family
	s.network(&network{v4: []*pool{{}}, v6: []*pool{{}}}, &endpoint{}, false)               // no MAC, two ports to be joined
	s.network(&network{v4: []*pool{{}}, v6: []*pool{{}}}, &endpoint{mac: "02:00:00:00:00:02"}, true)
	s.otherIPAM()
	s.ipamAlone()
}

// network is a network's life with one container on it. Where forget is true the engine loses its DeleteEndpoint.
func (s *story) network(n *network, e *endpoint, forget bool) {
	n.id = newID()
	var undo []func()
	rollback := func() {
		for _, u := range undo {
			u()
		}
	}
	for family, pools := range [][]*pool{n.v4, n.v6} {
		for _, p := range pools {
			p.space = localSpace
			a, ok := s.call("IpamDriver.RequestPool", m{"AddressSpace": localSpace, "Pool": p.cidr, "SubPool": p.sub, "V6": family == 1})
			if !ok {
				rollback()
				return
			}
			p.id, p.cidr = a["PoolID"].(string), a["Pool"].(string)
			a, ok = s.call("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": p.gateway, "Options": m{optAddressType: addressGateway}})
			if ok {
				p.gateway, _, _ = strings.Cut(a["Address"].(string), "/")
				undo = append(undo, func() { s.do("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway}) })
			}
			undo = append(undo, func() { s.do("IpamDriver.ReleasePool", m{"PoolID": p.id}) })
			if !ok {
				rollback()
				return
			}
		}
	}
	body := m{"NetworkID": n.id, "Options": m{optGeneric: n.options}, "IPv4Data": []m{}, "IPv6Data": []m{}}
	for _, p := range n.v4 {
		body["IPv4Data"] = append(body["IPv4Data"].([]m), p.data())
	}
	for _, p := range n.v6 {
		body["IPv6Data"] = append(body["IPv6Data"].([]m), p.data())
	}
	if !s.do("NetworkDriver.CreateNetwork", body) {
		rollback()
		return
	}
	undo = append(undo, func() { s.do("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id}) })
	e.net, e.id = n, newID()
	s.container(e, forget)
	rollback()
}

func (s *story) container(e *endpoint, forget bool) {
	var release []func()
	giveBack := func() {
		for _, r := range release {
			r()
		}
	}
	for family, address := range []*string{&e.ip4, &e.ip6} {
		for _, p := range [][]*pool{e.net.v4, e.net.v6}[family] {
			options := m{}
			if e.mac != "" {
				options[optMAC] = e.mac
			}
			a, ok := s.call("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "", "Options": options})
			if !ok {
				giveBack()
				return
			}
			*address, _, _ = strings.Cut(a["Address"].(string), "/")
			release = append(release, func() { s.do("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": *address}) })
		}
	}
	program := e.body()
	program["Options"] = e.options()
	if !s.do("NetworkDriver.CreateEndpoint", e.createBody()) {
		giveBack()
		return
	}
	if s.do("NetworkDriver.Join", e.joinBody()) && s.do("NetworkDriver.ProgramExternalConnectivity", program) {
		s.do("NetworkDriver.RevokeExternalConnectivity", e.body())
		if e.published != nil {
			s.do("NetworkDriver.ProgramExternalConnectivity", program)
		}
	}
	if !forget {
		s.do("NetworkDriver.Leave", e.body())
		s.do("NetworkDriver.DeleteEndpoint", e.body())
	}
	giveBack()
}

// otherIPAM is a network whose addresses the engine manages.
func (s *story) otherIPAM() {
	e := &endpoint{id: newID(), net: &network{id: newID(), v4: []*pool{{cidr: "172.18.0.0/16"}}}, ip4: "172.18.0.2"}
	if !s.do("NetworkDriver.CreateNetwork", m{"NetworkID": e.net.id, "Options": m{},
		"IPv4Data": []m{{"AddressSpace": "LocalDefault", "Gateway": "172.18.0.1/16", "Pool": "172.18.0.0/16"}}}) {
		return
	}
	if s.do("NetworkDriver.CreateEndpoint", e.createBody()) {
		s.do("NetworkDriver.Join", e.joinBody())
		s.do("NetworkDriver.Leave", e.body())
		s.do("NetworkDriver.DeleteEndpoint", e.body())
	}
	s.do("NetworkDriver.DeleteNetwork", m{"NetworkID": e.net.id})
}

// ipamAlone is a pool of a bridge network, with one address that is given back and one that is not.
func (s *story) ipamAlone() {
	a, ok := s.call("IpamDriver.RequestPool", m{"AddressSpace": localSpace, "Pool": "10.121.0.0/24"})
	if !ok {
		return
	}
	id := a["PoolID"]
	s.do("IpamDriver.RequestAddress", m{"PoolID": id, "Address": "", "Options": m{optAddressType: addressGateway}})
	s.do("IpamDriver.RequestAddress", m{"PoolID": id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:01"}})
	if a, ok := s.call("IpamDriver.RequestAddress", m{"PoolID": id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:02"}}); ok {
		address, _, _ := strings.Cut(a["Address"].(string), "/")
		s.do("IpamDriver.ReleaseAddress", m{"PoolID": id, "Address": address})
	}
	s.do("IpamDriver.ReleasePool", m{"PoolID": id})
}
