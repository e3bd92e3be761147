//go:build failpoints

package docker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/httpserve"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// The environment of a child that serves a store on a socket until it is killed.
const crashStore, crashSocket, crashScope, crashEmpty, crashRouted = "KURYR_TEST_STORE", "KURYR_TEST_SOCKET", "KURYR_TEST_SCOPE",
	"KURYR_TEST_DELETE_EMPTY", "KURYR_TEST_ROUTED"

// ofEmpty tells whether a failpoint is passed only where empty subnets are deleted. Others are passed only where they are not.
func ofEmpty(point string) bool {
	return strings.HasPrefix(point, "docker.empty.") || strings.HasPrefix(point, "docker.restore.")
}

// lentRange is the range of a network on which a user has made a port, and lentAddress its address.
const lentRange, lentAddress = "10.52.0.0/24", "10.52.0.77"

// lender is an SDN whose user makes a port on a network of that range, and takes it away with the network if it is as it was.
type lender struct{ sdn.Provider }

func (l lender) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	n, err := l.Provider.EnsureNetwork(ctx, s)
	if err != nil || len(s.Subnets) == 0 || s.Subnets[0].CIDR.String() != lentRange {
		return n, err
	}
	if _, there, err := l.users(ctx, n.ID); there || err != nil {
		return n, err
	}
	_, err = l.EnsurePorts(ctx, []sdn.PortSpec{{Base: sdn.Base{Name: "theirs"}, Network: n.ID, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0x77},
		Addresses: []sdn.Address{{Addr: netip.MustParseAddr(lentAddress)}}}})
	return n, err
}

func (l lender) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	p, there, err := l.users(ctx, id)
	if err != nil {
		return err
	}
	if there {
		if p.MAC[5] != 0x77 || p.DeviceID != "" || p.DeviceOwner != "" || p.Host != "" || len(p.Tags) > 0 {
			return fmt.Errorf("the user's port is not as it was: %+v", p)
		}
		if err := l.Provider.DeletePort(ctx, p.ID, p.Revision); err != nil {
			return err
		}
	}
	return l.Provider.DeleteNetwork(ctx, id)
}

func (l lender) users(ctx context.Context, network sdn.ID) (sdn.Port, bool, error) {
	return sdn.First(l.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Names: []string{"theirs"}}, Networks: []sdn.ID{network}}))
}

// TestCrashChild is not a test of its own: it is the plugin that TestCrash kills.
func TestCrashChild(t *testing.T) {
	if os.Getenv(crashStore) == "" {
		t.Skip("it is started by TestCrash")
	}
	p, err := local.Open(t.Context(), local.Options{Path: os.Getenv(crashStore), Host: testHost})
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Provider: crashProvider(os.Getenv("KURYR_FAILPOINT"), filepath.Dir(os.Getenv(crashStore)), p), Binder: &fakeBinder{plugged: map[sdn.ID]bind.Interface{}}, Host: testHost, Routed: os.Getenv(crashRouted) != "", Scope: Scope(os.Getenv(crashScope)),
		DeleteEmptySubnets: os.Getenv(crashEmpty) != "", ProcessExternalConnectivity: true,
		StateDir: filepath.Join(filepath.Dir(os.Getenv(crashStore)), "state"), RunDir: filepath.Join(filepath.Dir(os.Getenv(crashStore)), "run")})
	if err != nil {
		t.Fatal(err)
	}
	go func() { d.database.Run(context.Background()) }()
	l, err := rootsock.Listen(os.Getenv(crashSocket))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	t.Fatal(httpserve.Run(context.Background(), &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.Handler().ServeHTTP(w, r)
		_ = d.await(r.Context(), func(row tagRow) bool { return row.Phase == reconcile.Wanted && row.Done })
	})}, l))
}

// TestCrash kills the plugin at every failpoint, at each of its first visits, while an engine and its user go through all
// that they do; starts it again; and at the end nothing may be left.
func TestCrash(t *testing.T) {
	for _, name := range failpoints(t) {
		if !strings.HasPrefix(name, swarmPoints) && !ofPlain(name) && !slices.Contains(existingPoints, name) {
			crashes(t, name, Local, (*story).tell, true)
		}
	}
}

// TestCrashPlain is the same on an SDN that has security groups, cannot publish on the host's own addresses, and is away at times.
func TestCrashPlain(t *testing.T) {
	for _, name := range failpoints(t) {
		if ofPlain(name) {
			crashes(t, name, Local, (*story).tellPlain, true)
		}
	}
}

// existingPoints are the failpoints that only those come by who use what is in the SDN already, or make networks without routers.
var existingPoints = []string{"docker.createnetwork.linked", "docker.createnetwork.used", "docker.deletenetwork.added",
	"docker.deletenetwork.empty"}

// TestCrashExisting is the same with existing networks. It comes by some of the other failpoints too.
func TestCrashExisting(t *testing.T) {
	for _, name := range failpoints(t) {
		// A pool of an existing subnet whose answer is lost tells nobody so: TestForgottenExisting shows what becomes of it.
		if !strings.HasPrefix(name, swarmPoints) && !ofEmpty(name) && !ofPlain(name) && name != "docker.requestpool.made" {
			crashes(t, name, existing, (*story).tellExisting, slices.Contains(existingPoints, name))
		}
	}
}

// ofPlain tells whether a failpoint is passed only on such an SDN.
func ofPlain(point string) bool {
	return slices.ContainsFunc([]string{"docker.owed.", "docker.expose.", "docker.unexpose.", "docker.forward."}, func(p string) bool { return strings.HasPrefix(point, p) })
}

// goneFlag is the file, in a crash's folder, that says that the SDN is away.
const goneFlag = "gone"

// crashProvider is the SDN on which a plugin is killed at a failpoint.
func crashProvider(point, folder string, store sdn.Provider) sdn.Provider {
	if !ofPlain(point) {
		return lender{store}
	}
	l := newLeaving(store)
	l.flag = filepath.Join(folder, goneFlag)
	return &plain{Provider: l, groups: filepath.Join(folder, "groups")}
}

// plainMAC is the endpoint's during whose removal the SDN is away.
const plainMAC = "02:00:00:00:00:08"

func (s *story) tellPlain() {
	s.network(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}}, &endpoint{mac: plainMAC, driver: m{optPublish: publishFloating},
		published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}, {"Proto": 6, "Port": 81}}, exposed: []m{{"Proto": 6, "Port": 80}, {"Proto": 6, "Port": 81}}}, false)
}

// existing is the scope Local on an SDN that has a network already, without routers.
const existing Scope = "existing"

// swarmPoints is how the names of failpoints begin that only a swarm comes by.
const swarmPoints = "docker.swarm."

// TestCrashSwarm is the same with a swarm's manager and node. It comes by some of the other failpoints too.
func TestCrashSwarm(t *testing.T) {
	for _, name := range failpoints(t) {
		if !ofPlain(name) {
			crashes(t, name, Global, (*story).tellSwarm, strings.HasPrefix(name, swarmPoints))
		}
	}
}

// crashes kills at the first visits of a failpoint, which must be one at least where that is said.
func crashes(t *testing.T, name string, scope Scope, tell func(*story), must bool) {
	t.Run(name, func(t *testing.T) {
		for visit := 1; visit <= 3; visit++ {
			if !crash(t, fmt.Sprintf("%s:%d", name, visit), scope, tell) {
				if visit == 1 && must {
					t.Error("the story never comes by")
				}
				return
			}
		}
	})
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
func crash(t *testing.T, point string, scope Scope, tell func(*story)) bool {
	t.Helper()
	folder := t.TempDir()
	routed := scope != existing
	if !routed {
		scope = Local
	}
	b := &box{t: t, binder: &fakeBinder{plugged: map[sdn.ID]bind.Interface{}}}
	open := func() {
		t.Helper()
		store, err := local.Open(t.Context(), local.Options{Path: filepath.Join(folder, "store"), Host: testHost})
		b.must(err)
		b.provider = crashProvider(point, folder, store)
		b.config = Config{Provider: b.provider, Binder: b.binder, Host: testHost, Routed: routed, Scope: scope, DeleteEmptySubnets: ofEmpty(point),
			ProcessExternalConnectivity: true, StateDir: filepath.Join(folder, "state"), RunDir: filepath.Join(folder, "run"),
			orphanTTL: orphanTTL}
		b.restart()
	}
	open()
	story := &story{}
	if !routed {
		story.theirs = b.theirs("net", "10.50.0.0/24")
		story.subnet = b.subnetAt(story.theirs, "10.50.0.0/24")
	}
	b.empty = b.dump()
	b.driver.closeDatabase()
	b.must(b.provider.Close())

	child := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	socket := filepath.Join(folder, "s")
	child.Env = append(os.Environ(), crashStore+"="+filepath.Join(folder, "store"), crashSocket+"="+socket, "KURYR_FAILPOINT="+point,
		crashScope+"="+string(scope))
	if routed {
		child.Env = append(child.Env, crashRouted+"=1")
	}
	if ofEmpty(point) {
		child.Env = append(child.Env, crashEmpty+"=1")
	}
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
			_ = os.Remove(filepath.Join(folder, goneFlag))
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
	story.call = call
	story.gone = func(gone bool) {
		switch flag := filepath.Join(folder, goneFlag); {
		case !gone:
			_ = os.Remove(flag)
		case !dead:
			b.must(os.WriteFile(flag, nil, 0o600))
		}
	}
	tell(story)
	if !dead {
		b.must(child.Process.Kill())
		_ = child.Wait()
		open()
	} else {
		tell(story) // the user tries all again
		b.restart()
	}
	b.must(b.settle())
	b.must(b.driver.Reconcile(t.Context()))
	b.idle()
	b.nothingPlugged()
	if now := b.dump(); now != b.empty {
		t.Errorf("killed at %s: left\n%s\nat first\n%s", point, now, b.empty)
	}
	b.driver.closeDatabase()
	b.must(b.provider.Close())
	return dead
}

// story is an engine at work. A call that was not answered fails what it was part of: the engine undoes the rest, without
// the call that failed, and ignores errors of what cleans up.
type story struct {
	call func(method string, body m) (m, bool)
	gone func(gone bool) // the SDN goes away, or comes back

	theirs sdn.Network // that was there before
	subnet sdn.Subnet
}

func (s *story) do(method string, body m) bool {
	_, ok := s.call(method, body)
	return ok
}

func (s *story) tell() {
	s.network(&network{v4: []*pool{{cidr: "10.50.0.0/24", sub: "10.50.0.128/25", gateway: "10.50.0.1"}}, v6: []*pool{{cidr: "fd50::/64"}}},
		&endpoint{mac: "02:00:00:00:00:01", published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}, {"Proto": 17, "Port": 53},
			{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1", "HostPort": 8081}, {"Proto": 6, "Port": 80, "HostIP": "::1", "HostPort": 8081}}}, false)
	s.network(&network{v4: []*pool{{}}, options: m{optRouter: "edge"}}, &endpoint{exposed: []m{{"Proto": 6, "Port": 80}}}, false) // no MAC, one family
	s.network(&network{v4: []*pool{{}}, v6: []*pool{{}}}, &endpoint{}, false)                                                     // no MAC, two ports to be joined
	s.network(&network{v4: []*pool{{}}, v6: []*pool{{}}}, &endpoint{mac: "02:00:00:00:00:02"}, true)
	s.network(&network{v4: []*pool{{cidr: lentRange}}}, &endpoint{ip4: lentAddress, mac: "02:00:00:00:00:03", driver: m{optFloatingIP: floatingAuto}}, false)
	s.otherIPAM()
	s.ipamAlone()
}

// tellExisting is an engine that uses a network that is there, adds a range to it, and has one of its own.
func (s *story) tellExisting() {
	options := m{optNetUUID: string(s.theirs.ID), optSubnet + ".uuid": string(s.subnet.ID)}
	s.network(&network{v4: []*pool{{cidr: "10.50.0.0/24", gateway: "10.50.0.1", options: options}}, options: options}, &endpoint{mac: "02:00:00:00:00:01"}, false)
	s.network(&network{v4: []*pool{{cidr: "10.50.0.0/24", gateway: "10.50.0.1"}}, v6: []*pool{{cidr: "fd60::/64"}},
		options: m{optNetUUID: string(s.theirs.ID)}}, &endpoint{mac: "02:00:00:00:00:02"}, true)
	s.network(&network{v4: []*pool{{cidr: "10.70.0.0/24"}}}, &endpoint{mac: "02:00:00:00:00:03"}, false)
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
			a, ok := s.call("IpamDriver.RequestPool", m{"AddressSpace": localSpace, "Pool": p.cidr, "SubPool": p.sub, "V6": family == 1, "Options": p.options})
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
	s.container(&endpoint{net: n, id: newID(), mac: "02:00:00:00:00:08"}, false) // after the last of its ranges
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
			a, ok := s.call("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": *address, "Options": options})
			if !ok {
				giveBack()
				return
			}
			*address, _, _ = strings.Cut(a["Address"].(string), "/")
			release = append(release, func() { s.do("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": *address}) })
		}
	}
	program := e.body()
	program["Options"] = e.joinBody()["Options"]
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
	if e.mac == plainMAC {
		s.gone(true)
		defer s.gone(false)
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

// tellSwarm is a swarm of one node, whose manager does not repeat what failed.
func (s *story) tellSwarm() {
	n := &network{id: swarmID(), v4: []*pool{{cidr: "10.60.0.0/24", gateway: "10.60.0.1", space: globalSpace}}}
	if !s.managed(n) {
		return
	}
	p := n.v4[0]
	var addresses []string
	for range 3 {
		if a, ok := s.call("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "", "Options": serialOption}); ok {
			bare, _, _ := strings.Cut(a["Address"].(string), "/")
			addresses = append(addresses, bare)
		}
	}
	// It is restarted.
	if !s.managed(n) {
		return
	}
	for _, a := range addresses {
		s.do("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": a, "Options": serialOption})
	}
	addresses = addresses[1:] // the first is a VIP
	for i, a := range addresses {
		s.node(n, a, i == 0, func() {})
	}
	for _, a := range addresses {
		s.do("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": a})
	}
	if a, ok := s.call("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "", "Options": serialOption}); ok {
		bare, _, _ := strings.Cut(a["Address"].(string), "/")
		freed := false
		s.node(n, bare, false, func() { s.free(n); freed = true })
		if freed {
			return
		}
	}
	s.free(n)
}

// managed asks for a network as a manager does.
func (s *story) managed(n *network) bool {
	p := n.v4[0]
	a, ok := s.call("IpamDriver.RequestPool", m{"AddressSpace": globalSpace, "Pool": p.cidr})
	if !ok {
		return false
	}
	p.id = a["PoolID"].(string)
	ok = s.do("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": p.gateway, "Options": m{optAddressType: addressGateway, optSerial: "true"}}) &&
		s.do("NetworkDriver.AllocateNetwork", n.allocateBody())
	if !ok {
		s.release(p)
	}
	return ok
}

func (s *story) release(p *pool) {
	s.do("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway})
	s.do("IpamDriver.ReleasePool", m{"PoolID": p.id})
}

// free ends a manager's network. The pools are kept where FreeNetwork fails.
func (s *story) free(n *network) {
	if s.do("NetworkDriver.FreeNetwork", m{"NetworkID": n.id}) {
		s.release(n.v4[0])
	}
}

// node runs a task with the address, and a balancer, on a node; where forget is true its end is lost. meanwhile happens while
// the task runs.
func (s *story) node(n *network, address string, forget bool, meanwhile func()) {
	p := &pool{cidr: n.v4[0].cidr, gateway: n.v4[0].gateway, space: localSpace}
	a, ok := s.call("IpamDriver.RequestPool", m{"AddressSpace": localSpace, "Pool": p.cidr})
	if !ok {
		return
	}
	p.id = a["PoolID"].(string)
	ok = s.do("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": p.gateway, "Options": m{optAddressType: addressGateway}}) &&
		s.do("NetworkDriver.CreateNetwork", m{"NetworkID": n.id, "Options": m{}, "IPv4Data": []m{p.data()}})
	if !ok {
		s.release(p)
		return
	}
	e := &endpoint{id: newID(), net: &network{id: n.id, v4: []*pool{p}}, ip4: address, mac: "02:00:00:00:00:07"}
	if s.do("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": address, "Options": m{optMAC: e.mac}}) {
		if s.do("NetworkDriver.CreateEndpoint", e.createBody()) {
			join := e.joinBody()
			join["SandboxKey"] = "/run/docker/netns/lb_" + n.id[:9]
			s.do("NetworkDriver.Join", join)
			meanwhile()
			if !forget {
				s.do("NetworkDriver.Leave", e.body())
				s.do("NetworkDriver.DeleteEndpoint", e.body())
			}
		}
		if !forget {
			s.do("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": address})
		}
	}
	s.release(p)
	s.do("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
}
