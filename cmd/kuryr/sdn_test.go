//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/internal/tlsfiles"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutronapi"
)

// sdn starts `kuryr sdn` with more arguments.
func (m *machine) sdn(t *testing.T, args ...string) (stop, ended func() int, log *buffer) {
	t.Helper()
	log = &buffer{}
	stop, ended = m.start(t, func(ctx context.Context, a *app) int {
		a.err = io.MultiWriter(a.err, log)
		return a.run(ctx, append([]string{"sdn"}, args...))
	})
	return stop, ended, log
}

// "down --purge" ends the front ends that are processes of their own, and leaves nothing: no
// socket, no conflist, no folder.
func TestPurgeOfSeparateProcesses(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	_, sdnEnded, _ := m.sdn(t)
	conflist := m.path("net.d/10-blue.conflist")
	var fronts []func() int
	for _, args := range [][]string{
		{"docker", "--provider", "sdn"},
		{"node", "--provider", "sdn", "--node-conflist", conflist, "--node-network", "blue"},
	} {
		_, ended := m.start(t, func(ctx context.Context, a *app) int { return a.run(ctx, args) })
		fronts = append(fronts, ended)
	}
	if _, err := os.Stat(conflist); err != nil {
		t.Fatal(err)
	}
	// A killed process leaves its socket.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.path("run/kurma.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()

	out := m.must(t, "down", "--purge")
	for _, want := range []string{
		"kuryr docker has ended", "kuryr node has ended", conflist + " is deleted", "all files of Kuryr are deleted",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	for _, ended := range append(fronts, sdnEnded) {
		if code := ended(); code != exitOK {
			t.Errorf("a process ended with %d", code)
		}
	}
	for _, path := range []string{m.path("state"), m.path("run"), m.plugin, conflist} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			left, _ := os.ReadDir(path)
			t.Errorf("%s is still there: %v, %v", path, left, err)
		}
	}
}

// TestPurgeRefuses checks that "down --purge" ends no front end and deletes nothing where it is
// refused: beside the daemon of a cluster's node, and while containers are plugged.
func TestPurgeRefuses(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	_, sdnEnded, _ := m.sdn(t)
	_, dockerEnded := m.start(t, func(ctx context.Context, a *app) int {
		return a.run(ctx, []string{"docker", "--provider", "sdn"})
	})
	refused := func(says string) {
		t.Helper()
		code, _, complaint := m.run(t, "down", "--purge")
		if code != exitError || !strings.Contains(complaint, says) {
			t.Errorf("down --purge: exit %d, %q, want %q", code, complaint, says)
		}
		for _, socket := range []string{m.path("run/kuryr.sock"), m.path("run/kuryr-docker.sock")} {
			if !answered(socket) {
				t.Errorf("nothing answers at %s after %q", socket, says)
			}
		}
		if _, err := os.Stat(m.path("state/kuryr.db")); err != nil {
			t.Error(err)
		}
	}
	l, err := net.Listen("unix", m.path("run/kuryr-node.sock"))
	if err != nil {
		t.Fatal(err)
	}
	node := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/admin/status" {
			t.Errorf("the node's daemon is asked for %s", r.URL.Path)
		}
		_, _ = io.WriteString(w, `{"cluster": true}`)
	})}
	served := make(chan error, 1)
	go func() { served <- node.Serve(l) }()
	refused("take Kuryr out of the cluster first")
	_ = node.Close()
	<-served

	m.plug(t)
	refused("--force")
	m.must(t, "down", "--purge", "--force")
	for _, ended := range []func() int{dockerEnded, sdnEnded} {
		if code := ended(); code != exitOK {
			t.Errorf("a process ended with %d", code)
		}
	}
}

// What "down --purge" does not delete it names, and a conflist that is another's stays.
func TestPurgeNamesWhatStays(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	other := m.path("net.d/10-blue.conflist")
	for path, text := range map[string]string{
		m.path("state/conflists"): other + "\n", other: `{"plugins": [{"type": "bridge"}]}`,
		m.path("state/kurma/kurma.db"): "", m.path("state/.kuryr-1"): "", // as after a kill
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := m.must(t, "down", "--purge")
	if !strings.Contains(out, other+" is not Kuryr's any more") ||
		!strings.Contains(out, "not deleted: "+m.path("state/kurma")+"\n") {
		t.Errorf("down --purge says\n%s", out)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

// ask speaks with the API at its socket.
func (m *machine) ask(t *testing.T, method, path, body string) (status int, answer string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", m.path("run/sdn.sock"))
	}}}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://kuryr"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// The SDN alone, without the kernel: an API on a socket and on TCP, its end, and what its commands say.
func TestSDNStoreOnly(t *testing.T) {
	m := newMachine(t)
	listen := freePort(t)
	line := m.must(t, "sdn", "token", "demo", "member", "ci")
	admin := m.must(t, "sdn", "token", "ops", "admin")
	token, adminToken := strings.Fields(line)[1], strings.Fields(admin)[1]
	if err := os.WriteFile(m.path("tokens"), []byte(line+admin), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--store-only", "--insecure-http", "--sdn-listen", listen, "--sdn-tokens", m.path("tokens")}
	stop, _, log := m.sdn(t, args...)

	if status, answer := m.ask(t, "POST", "/v2.0/networks", `{"network":{"name":"blue"}}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, answer)
	}
	if out := m.must(t, "network", "list"); !strings.Contains(out, "blue") {
		t.Errorf("networks:\n%s", out)
	}
	if out := m.must(t, "status"); !strings.Contains(out, "ready") || !strings.Contains(out, "unix://"+m.path("run/sdn.sock")+", http://"+listen) || !strings.Contains(out, "Docker is not served") ||
		strings.Count(out, "--store-only") != 2 || strings.Contains(out, "packets pass") {
		t.Errorf("status:\n%s", out)
	}
	if _, out, complaint := m.run(t, "doctor"); strings.Count(out, "--store-only") != 2 || strings.Contains(out, "could not be compared") {
		t.Errorf("doctor:\n%s%s", out, complaint)
	}
	for _, command := range [][]string{{"sdn", "check"}, {"sdn", "reconcile"}, {"down"}} {
		if code, _, complaint := m.run(t, command...); code != exitError || !strings.Contains(complaint, "--store-only") {
			t.Errorf("%s: exit %d, %s", command, code, complaint)
		}
	}
	m.must(t, "sdn", "backup", m.path("backup"))

	// Over TCP it is the token that counts.
	over := func(secret, method, body string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+listen+"/v2.0/networks", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Auth-Token", secret)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	if status, answer := over("", "GET", ""); status != http.StatusUnauthorized || strings.Contains(answer, "blue") {
		t.Errorf("without a token: %d %s", status, answer)
	}
	if status, answer := over(token, "GET", ""); status != http.StatusOK || strings.Contains(answer, "blue") {
		t.Errorf("a member sees root's: %d %s", status, answer)
	}
	if status, answer := over(token, "POST", `{"network":{"name":"red"}}`); status != http.StatusCreated || !strings.Contains(answer, `"project_id":"demo"`) {
		t.Errorf("a member's network: %d %s", status, answer)
	}
	if status, answer := over(adminToken, "GET", ""); status != http.StatusOK || !strings.Contains(answer, "blue") || !strings.Contains(answer, "red") {
		t.Errorf("an administrator sees: %d %s", status, answer)
	}
	// Groups and their rules are seen without a client of Neutron's.
	if status, answer := m.ask(t, "POST", "/v2.0/security-groups", `{"security_group":{"name":"web"}}`); status != http.StatusCreated {
		t.Fatalf("a security group: %d %s", status, answer)
	}
	if out := m.must(t, "securitygroup", "show", "web"); !strings.Contains(out, "out IPv4\n") || !strings.Contains(out, "out IPv6\n") {
		t.Errorf("security group:\n%s", out)
	}
	// So are load balancers, with where they lead.
	if status, answer := m.ask(t, "POST", "/v2.0/networks", `{"network":{"name":"vips"}}`); status != http.StatusCreated {
		t.Fatalf("a network: %d %s", status, answer)
	}
	var made struct {
		Networks []struct{ ID string }
	}
	_, answer := m.ask(t, "GET", "/v2.0/networks?name=vips", "")
	if err := json.Unmarshal([]byte(answer), &made); err != nil || len(made.Networks) != 1 {
		t.Fatalf("%v: %s", err, answer)
	}
	if status, answer := m.ask(t, "POST", "/v2.0/subnets", `{"subnet":{"name":"vips","ip_version":4,"cidr":"10.96.0.0/24","network_id":"`+made.Networks[0].ID+`"}}`); status != http.StatusCreated {
		t.Fatalf("a subnet: %d %s", status, answer)
	}
	var subnets struct {
		Subnets []struct{ ID string }
	}
	_, answer = m.ask(t, "GET", "/v2.0/subnets?name=vips", "")
	if err := json.Unmarshal([]byte(answer), &subnets); err != nil || len(subnets.Subnets) != 1 {
		t.Fatalf("%v: %s", err, answer)
	}
	body := `{"loadbalancer":{"name":"web","vip_subnet_id":"` + subnets.Subnets[0].ID + `","vip_address":"10.96.0.10","listeners":[{"protocol":"TCP","protocol_port":80,
		"default_pool":{"protocol":"TCP","lb_algorithm":"ROUND_ROBIN","members":[{"address":"10.0.0.5","protocol_port":8080},{"address":"10.0.0.6","protocol_port":8080,"weight":0}]}}]}}`
	if status, answer := m.ask(t, "POST", "/v2.0/lbaas/loadbalancers", body); status != http.StatusCreated {
		t.Fatalf("a load balancer: %d %s", status, answer)
	}
	if out := m.must(t, "loadbalancer", "show", "web"); !strings.Contains(out, "10.96.0.10") || !strings.Contains(out, "tcp 80 to 10.0.0.5:8080, 10.0.0.6:8080 drained\n") {
		t.Errorf("load balancer:\n%s", out)
	}
	if out := m.must(t, "loadbalancer", "list", "--filter", "vip_address=10.96.0.10"); !strings.Contains(out, "ACTIVE") {
		t.Errorf("load balancers:\n%s", out)
	}
	// A line taken out of the file ends what it gave.
	if err := os.WriteFile(m.path("tokens"), []byte(admin), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _ := over(token, "GET", ""); status != http.StatusUnauthorized {
		t.Errorf("a token taken out of the file: %d", status)
	}
	if code := stop(); code != exitOK {
		t.Fatalf("ended with %d", code)
	}
	said := log.String()
	for _, want := range []string{`msg="change by the API" user=root project="" role=admin peer="uid `, `user=ci project=demo role=member peer=127.0.0.1:`, "method=POST path=/v2.0/networks status=201 ids="} {
		if !strings.Contains(said, want) {
			t.Errorf("the log does not say %s:\n%s", want, said)
		}
	}
	if strings.Contains(said, token) || strings.Contains(said, adminToken) {
		t.Errorf("the log holds a token:\n%s", said)
	}

	// What was answered is there after a restart.
	m.sdn(t, args...)
	if out := m.must(t, "network", "list"); !strings.Contains(out, "blue") || !strings.Contains(out, "red") {
		t.Errorf("networks after a restart:\n%s", out)
	}
}

// A driver that finds an SDN of a version without sdn/rpc says what to do, and ends.
func TestDriverOnEarlierSDN(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	if err := os.MkdirAll(m.path("run"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", m.path("run/sdn.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, _, complaint := m.run(t, "docker", "--provider", "sdn")
	if code != exitError || !strings.Contains(complaint, "upgrade and restart `kuryr sdn` first") {
		t.Errorf("exit %d, %s", code, complaint)
	}
}

// A driver that has met its SDN begins without it, also with what an earlier version kept.
func TestDriverBeforeItsSDN(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	stopSDN, _, _ := m.sdn(t)
	driver := func(ctx context.Context, a *app) int { return a.run(ctx, []string{"docker", "--provider", "sdn"}) }
	stop, _ := m.start(t, driver)
	stop()
	stopSDN()
	m.start(t, driver)
	if _, err := os.Stat(m.path("state/" + peerFile)); err != nil {
		t.Error(err)
	}
	m.sdn(t)
	m.plug(t)
}

// What Kuryr's own driver changes at the socket is no line at info. Nobody hides what comes over the network by a name.
func TestAuditOfTheDriver(t *testing.T) {
	ci := neutronapi.Caller{Project: "demo", Role: neutronapi.Admin, Name: "root"}
	for _, c := range []struct {
		caller neutronapi.Caller
		agent  string
		want   slog.Level
	}{
		{rootCaller, "kuryr gophercloud/v2.8.0", slog.LevelDebug},
		{rootCaller, neutron.BackgroundAgent, slog.LevelDebug},
		{rootCaller, "curl/8.14.1", slog.LevelInfo},
		{rootCaller, "", slog.LevelInfo},
		{ci, "kuryr gophercloud/v2.8.0", slog.LevelInfo},
	} {
		var log bytes.Buffer
		audit(t.Context(), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), neutronapi.Change{Caller: c.caller, Agent: c.agent, Method: "POST", Path: "/v2.0/ports", Status: 201})
		if !strings.Contains(log.String(), "level="+c.want.String()+` msg="change by the API"`) {
			t.Errorf("%+v as %q: want %v, not %s", c.caller, c.agent, c.want, log.String())
		}
	}
}

func TestRuleInWords(t *testing.T) {
	low, high, tcp, prefix, group := 80, 90, "tcp", "10.0.0.0/8", "g"
	for want, r := range map[string]api.SecurityGroupRule{
		"out IPv6":                       {Direction: "egress", EtherType: "IPv6"},
		"in IPv4 tcp 80 from 10.0.0.0/8": {Direction: "ingress", EtherType: "IPv4", Protocol: &tcp, PortRangeMin: &low, PortRangeMax: &low, RemoteIPPrefix: &prefix},
		"out IPv4 tcp 80-90 to group g":  {Direction: "egress", EtherType: "IPv4", Protocol: &tcp, PortRangeMin: &low, PortRangeMax: &high, RemoteGroupID: &group},
		"in IPv4 from address group g":   {Direction: "ingress", EtherType: "IPv4", RemoteAddressGroupID: &group},
	} {
		if got := rule(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// By TLS, with a user's password: gophercloud makes a network, and its token holds over a restart.
func TestSDNWithTLS(t *testing.T) {
	m := newMachine(t)
	listen := freePort(t)
	if out := m.must(t, "sdn", "certificates", m.path("tls"), "--host", "127.0.0.1"); !strings.Contains(out, "OS_CACERT="+m.path("tls/ca.pem")) {
		t.Errorf("certificates:\n%s", out)
	}
	user := passwordLine(t, m, "correct horse\n", "alice", "demo", "member")
	if err := os.WriteFile(m.path("tokens"), []byte(user), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--store-only", "--sdn-listen", listen, "--sdn-tokens", m.path("tokens"),
		"--sdn-tls-cert", m.path("tls/" + tlsfiles.ServerFile), "--sdn-tls-key", m.path("tls/" + tlsfiles.ServerKeyFile),
	}
	stop, _, _ := m.sdn(t, args...)
	pool, err := tlsfiles.LoadAuthorities(m.path("tls/" + tlsfiles.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	provider, err := openstack.NewClient("https://" + listen + "/v3")
	if err != nil {
		t.Fatal(err)
	}
	provider.HTTPClient.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	options := gophercloud.AuthOptions{IdentityEndpoint: "https://" + listen + "/v3", Username: "alice", Password: "correct horse", DomainName: "Default", TenantName: "demo"}
	if err := openstack.Authenticate(t.Context(), provider, options); err != nil {
		t.Fatal(err)
	}
	client, err := openstack.NewNetworkV2(provider, gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := networks.Create(t.Context(), client, networks.CreateOpts{Name: "hers"}).Extract()
	if err != nil || made.ProjectID != "demo" {
		t.Fatalf("%+v, %v", made, err)
	}
	balancers, err := openstack.NewLoadBalancerV2(provider, gophercloud.EndpointOpts{})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := loadbalancers.List(balancers, nil).AllPages(t.Context()); err != nil {
		t.Errorf("load balancers at the catalogue's address: %v, %v", all, err)
	}
	stop()
	m.sdn(t, args...)
	if again, err := networks.Get(t.Context(), client, made.ID).Extract(); err != nil || again.Name != "hers" {
		t.Errorf("after a restart: %+v, %v", again, err)
	}
	if info, err := os.Stat(m.path("state/" + keyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	if _, err := http.Get("http://" + listen + "/"); err == nil {
		response, _ := http.Get("http://" + listen + "/v2.0/networks")
		if response != nil && response.StatusCode != http.StatusBadRequest {
			t.Errorf("without TLS it answers %d", response.StatusCode)
		}
	}
}

// passwordLine has `kuryr sdn password` read a password from its standard input.
func passwordLine(t *testing.T, m *machine, password string, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	stdin := os.Stdin
	os.Stdin = from
	defer func() { os.Stdin = stdin }()
	return m.must(t, append([]string{"sdn", "password"}, args...)...)
}

// What would let in others than it should, or nobody, is refused at the start.
func TestSDNRefuses(t *testing.T) {
	m := newMachine(t)
	put := func(name, text string, mode os.FileMode) string {
		t.Helper()
		if err := os.WriteFile(m.path(name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return m.path(name)
	}
	good := put("good", m.must(t, "sdn", "token", "demo", "admin"), 0o600)
	open := put("open", m.must(t, "sdn", "token", "demo", "admin"), 0o644)
	spoilt := put("spoilt", "token 0123456789abcdef demo\n", 0o600)
	plain := []string{"--store-only", "--insecure-http", "--sdn-listen", "127.0.0.1:0"}
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no certificate":   {[]string{"--store-only", "--sdn-listen", "127.0.0.1:0", "--sdn-tokens", good}, exitError, "sdn.tls_cert: is needed"},
		"no key":           {[]string{"--store-only", "--sdn-listen", "127.0.0.1:0", "--sdn-tokens", good, "--sdn-tls-cert", "/x"}, exitError, "sdn.tls_key: is needed"},
		"plain for all":    {[]string{"--store-only", "--insecure-http", "--sdn-listen", "0.0.0.0:0", "--sdn-tokens", good}, exitError, "sdn.listen: must be an address of the loopback"},
		"plain by name":    {[]string{"--store-only", "--insecure-http", "--sdn-listen", "localhost:0", "--sdn-tokens", good}, exitError, "sdn.listen: must be an address of the loopback"},
		"plain for real":   {[]string{"--insecure-http", "--sdn-listen", "127.0.0.1:0", "--sdn-tokens", good}, exitUsage, "--insecure-http goes with --store-only"},
		"no tokens":        {append(plain, "--sdn-tokens", m.path("none")), exitError, "sdn.tokens: there is no file " + m.path("none")},
		"tokens for all":   {append(plain, "--sdn-tokens", open), exitError, "has mode 0644"},
		"spoilt tokens":    {append(plain, "--sdn-tokens", spoilt), exitError, "spoilt:1: want"},
		"unknown command":  {[]string{"chekc"}, exitUsage, "is check meant?"},
		"no absolute path": {[]string{"--store-only", "--sdn-socket", "sdn.sock"}, exitUsage, "sdn.socket: want a whole path"},
	} {
		code, _, complaint := m.run(t, append([]string{"sdn"}, tc.args...)...)
		if code != tc.code || !strings.Contains(complaint, tc.want) {
			t.Errorf("%s: exit %d, %s", name, code, complaint)
		}
	}
	for name, args := range map[string][]string{"role": {"token", "demo", "boss"}, "project": {"token", "de/mo", "admin"}, "few": {"token", "demo"}} {
		if code, _, complaint := m.run(t, append([]string{"sdn"}, args...)...); code != exitUsage || complaint == "" {
			t.Errorf("%s: exit %d, %s", name, code, complaint)
		}
	}
}

// Docker's network driver on the SDN of another process: what `kuryr up` would do, the SDN's end and its coming back in between.
func TestDockerOnASharedSDN(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.env = append(m.env, "KURYR_PROVIDER=sdn")
	stopSDN, _, _ := m.sdn(t)
	stop, _ := m.start(t, func(ctx context.Context, a *app) int { return a.run(ctx, []string{"docker"}) })
	m.plug(t)
	links := uplinks(t)
	if links == 0 {
		t.Error("the router has no link in the host")
	}
	for _, socket := range []string{m.socket, m.path("run/kuryr-docker.sock"), m.path("run/sdn.sock")} {
		var ports []struct {
			Device string `json:"device_id"`
			VIF    string `json:"binding:vif_type"`
		}
		out := m.must(t, "--socket", socket, "port", "list", "-o", "json", "--filter", "device_id="+endpointID)
		if err := json.Unmarshal([]byte(out), &ports); err != nil || len(ports) != 1 {
			t.Errorf("at %s: %v\n%s", socket, err, out)
		}
	}
	if out := m.must(t, "--socket", m.path("run/kuryr-docker.sock"), "status"); !strings.Contains(out, m.plugin) || !strings.Contains(out, "ready") {
		t.Errorf("status of the front end:\n%s", out)
	}
	m.checkClean(t)

	// While the SDN is away a call waits; when it is back it goes on, and nothing is lost or twice.
	stopSDN()
	const second = "3333333333333333333333333333333333333333333333333333333333333333"
	joined := make(chan error, 1)
	body := `{"NetworkID":"` + networkID + `","EndpointID":"` + second + `","Interface":{"Address":"10.77.0.9/24"},"Options":{}}`
	go func() {
		client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", m.plugin)
		}}}
		response, err := client.Post("http://plugin/NetworkDriver.CreateEndpoint", "application/json", strings.NewReader(body))
		if err == nil {
			answer, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if bytes.Contains(answer, []byte(`"Err"`)) {
				err = io.ErrUnexpectedEOF
				t.Logf("%s", answer)
			}
		}
		joined <- err
	}()
	m.sdn(t)
	if err := <-joined; err != nil {
		t.Errorf("the call over the restart: %v", err)
	}
	if out := m.must(t, "port", "list", "--filter", "device_id="+second); strings.Count(out, "10.77.0.9") != 1 {
		t.Errorf("ports after it:\n%s", out)
	}
	if got := uplinks(t); got != links {
		t.Errorf("%d links in the host after the restart, %d before", got, links)
	}
	m.checkClean(t)
	stop()
	m.must(t, "down", "--force", "--purge")
	if _, err := os.Stat(m.path("state")); !os.IsNotExist(err) {
		left, _ := os.ReadDir(m.path("state"))
		t.Errorf("state is still there: %v", left)
	}
}
