//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"github.com/prometheus/client_golang/prometheus"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/doctor"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/internal/tlsfiles"
	"github.com/kuryr/kuryr/sdn/local"
)

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The front end alone, by TCP with TLS and nothing else, on the provider that is configured.
func TestDockerByTLS(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	dir, address := m.path("tls"), freePort(t)
	settings := "tls_client_ca: " + filepath.Join(dir, tlsfiles.CAFile) + "\n    tls_client_names: [dockerd]\n"
	if out := m.must(t, "docker", "certificates", dir, "--host", "127.0.0.1"); !strings.Contains(out, settings) {
		t.Errorf("certificates: %s", out)
	}
	if code, _, complaint := m.run(t, "docker", "certificates", dir, "--host", "127.0.0.1"); code == exitOK || !strings.Contains(complaint, "exists") {
		t.Errorf("certificates over others: %s", complaint)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	stop, _ := m.start(t, func(ctx context.Context, a *app) int {
		return a.run(ctx, []string{"docker", "--docker-socket", "", "--docker-listen", "tcp://" + address, "--docker-tls-cert", in(tlsfiles.ServerFile),
			"--docker-tls-key", in(tlsfiles.ServerKeyFile), "--docker-tls-client-ca", in(tlsfiles.CAFile),
			"--docker-tls-client-names", tlsfiles.ClientName})
	})
	if out := m.must(t, "status"); !strings.Contains(out, "tcp://"+address) || strings.Contains(out, m.plugin) {
		t.Errorf("status: %s", out)
	}
	if _, err := os.Stat(m.plugin); err == nil {
		t.Error("there is a socket too")
	}
	authorities, err := tlsfiles.LoadAuthorities(in(tlsfiles.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tlsfiles.LoadPair(in(tlsfiles.ClientFile), in(tlsfiles.ClientKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(c *tls.Config) (string, error) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: c}}
		response, err := client.Post("https://"+address+"/Plugin.Activate", "", nil)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
	if body, err := ask(&tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{pair}}); err != nil || !strings.Contains(body, "NetworkDriver") {
		t.Errorf("with a certificate: %v %s", err, body)
	}
	if body, err := ask(&tls.Config{RootCAs: authorities}); err == nil {
		t.Errorf("without a certificate: %s", body)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// What the configuration's file says holds: kuryr-libnetwork made its drivers before it read the file, and went on without it. The name is that
// of the defect in the list of docs/development.md.
func TestPeerB13ConfigurationIgnored(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	file := m.path("kuryr.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("provider: nobody\n")
	if code, _, complaint := m.run(t, "docker", "--config", file); code == exitOK || !strings.Contains(complaint, file+":1: provider: ") {
		t.Errorf("a provider that there is not: exit %d, %s", code, complaint)
	}
	write("provider: local\ndocker:\n  capability_scope: global\n  default_pools: [10.66.0.0/16]\n  default_pool_size: 26\n")
	m.start(t, func(ctx context.Context, a *app) int { return a.run(ctx, []string{"docker", "--config", file}) })
	if scope := m.call(t, "NetworkDriver.GetCapabilities", "")["Scope"]; scope != "global" {
		t.Errorf("scope %v", scope)
	}
	if pool := m.call(t, "IpamDriver.RequestPool", `{"AddressSpace":"local_scope"}`)["Pool"]; pool != "10.66.0.0/26" {
		t.Errorf("a pool of %v", pool)
	}
}

// An SDN that runs by itself needs nothing of what belongs to the embedded one, and says so where it is asked for that.
func TestDockerOnAnSDNThatRunsByItself(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	open := func(ctx context.Context, c config.Config, log *slog.Logger, _ prometheus.Registerer) (*backend, error) {
		p, err := local.Open(ctx, local.Options{Path: m.path("elsewhere.db"), Host: c.Host, Logger: log})
		return &backend{provider: p}, err
	}
	stop, _ := m.start(t, func(ctx context.Context, a *app) int {
		cfg, err := config.Load(config.Source{Path: "/absent", Environ: m.env})
		if err == nil {
			err = up(ctx, cfg, slog.New(slog.NewTextHandler(a.err, nil)), duties{open: open, docker: true})
		}
		if err != nil {
			_, _ = io.WriteString(a.err, err.Error())
			return exitError
		}
		return exitOK
	})
	m.call(t, "Plugin.Activate", "")
	pool := m.call(t, "IpamDriver.RequestPool", `{"AddressSpace":"local_scope","Pool":"10.78.0.0/24"}`)
	if pool["PoolID"] == "" {
		t.Errorf("pool: %v", pool)
	}
	var status struct {
		Ready bool
		Store struct{ Path string }
	}
	if err := json.Unmarshal([]byte(m.must(t, "status", "-o", "json")), &status); err != nil || !status.Ready || status.Store.Path != "" {
		t.Errorf("status: %v %+v", err, status)
	}
	m.must(t, "network", "list")
	for _, command := range [][]string{{"sdn", "check"}, {"sdn", "reconcile"}, {"down"}, {"sdn", "backup", m.path("backup")}} {
		if code, _, complaint := m.run(t, command...); code == exitOK || !strings.Contains(complaint, "runs by itself") {
			t.Errorf("kuryr %s: exit %d, %s", strings.Join(command, " "), code, complaint)
		}
	}
	// The doctor compares what there is, which is Docker, and mends what there is to mend.
	var networks atomic.Value
	networks.Store("[" + onlyNone + "]")
	fakeDocker(t, m.path("docker.sock"), &networks)
	for _, flags := range [][]string{nil, {"--fix"}, {"--fix", "--now", "--forget-engine", "unknown"}} {
		_, out, complaint := m.run(t, append([]string{"doctor", "-o", "json"}, flags...)...)
		var r doctorReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Failed) > 0 {
			t.Fatalf("doctor %v: %v %s %s", flags, err, out, complaint)
		}
		for _, f := range r.Findings {
			if f.Verdict != doctor.OK && slices.Contains([]string{"kuryr", "store and kernel", "forwarding and firewalls"}, f.Check) {
				t.Errorf("doctor %v: %+v", flags, f)
			}
		}
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

func TestDockerInstall(t *testing.T) {
	t.Parallel()
	dir, certs := t.TempDir(), t.TempDir()
	run := func(args ...string) (int, string, string) {
		t.Helper()
		return kuryr(t.Context(), nil, append([]string{"docker"}, args...)...)
	}
	if code, _, complaint := run("certificates", certs, "--host", "127.0.0.1,kuryr.example"); code != exitOK {
		t.Fatal(complaint)
	}
	in := func(name string) string { return filepath.Join(certs, name) }
	tcp := []string{"install", "--dir", dir, "--address", "tcp://127.0.0.1:2378", "--ca", in(tlsfiles.CAFile), "--cert", in(tlsfiles.ClientFile), "--key", in(tlsfiles.ClientKeyFile)}
	if code, out, _ := run(append(tcp, "--dry-run")...); code != exitOK || !strings.Contains(out, `"Addr": "https://127.0.0.1:2378"`) {
		t.Errorf("dry: exit %d %s", code, out)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("a dry run wrote %v", left)
	}
	for _, want := range []string{"written", "is there already"} {
		if code, out, complaint := run(tcp...); code != exitOK || !strings.Contains(out, want) || !strings.Contains(complaint, "is not a folder that Docker looks into") {
			t.Errorf("exit %d %s %s", code, out, complaint)
		}
	}
	spec := []string{"install", "--dir", dir, "--address", "unix:///srv/kuryr.sock"}
	if code, _, complaint := run(spec...); code != exitError || !strings.Contains(complaint, "--force") {
		t.Errorf("over another: exit %d %s", code, complaint)
	}
	if code, _, complaint := run(append(spec, "--force")...); code != exitOK {
		t.Errorf("with force: exit %d %s", code, complaint)
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"--ca: is needed", []string{"install", "--dir", dir, "--address", "https://127.0.0.1:1"}},
		{"--address: want", []string{"install", "--dir", dir, "--address", "http://127.0.0.1:1"}},
		{"--host: want", []string{"certificates", t.TempDir()}},
	} {
		if code, _, complaint := run(tc.args...); code != exitUsage || !strings.Contains(complaint, tc.want) {
			t.Errorf("%v: exit %d %s", tc.args, code, complaint)
		}
	}
	if code, out, _ := run("install", "--dir", dir); code != exitOK || !strings.Contains(out, "by itself") {
		t.Errorf("the default socket: exit %d %s", code, out)
	}
	for _, want := range []string{"removed", "nothing was installed"} {
		if code, out, _ := run("uninstall", "--dir", dir); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("uninstall: exit %d %s", code, out)
		}
	}
}

func TestCallable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ listen, want string }{
		{"", "unix:///s"}, {"tcp://:1", "https://127.0.0.1:1"}, {"tcp://0.0.0.0:1", "https://127.0.0.1:1"}, {"tcp://[::]:1", "https://[::1]:1"}, {"tcp://192.0.2.1:1", "https://192.0.2.1:1"},
	} {
		if got := callable(config.Docker{Socket: "/s", Listen: tc.listen}); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.listen, got, tc.want)
		}
	}
}

// The managed plugin knows every setting: it can be set, or is the plugin's own affair.
func TestEverySettingIsOfTheManagedPlugin(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../deploy/docker-plugin/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var plugin struct {
		Env []struct {
			Name     string
			Value    *string
			Settable []string
		}
		Mounts []struct{ Destination string }
	}
	if err := json.Unmarshal(data, &plugin); err != nil {
		t.Fatal(err)
	}
	settable := map[string]bool{}
	environ := []string{}
	for _, e := range plugin.Env {
		settable[e.Name] = len(e.Settable) > 0
		if e.Value != nil {
			environ = append(environ, e.Name+"="+*e.Value)
		}
	}
	if unknown := config.UnknownEnv(environ); len(unknown) > 0 {
		t.Errorf("set nothing: %v", unknown)
	}
	cfg, err := config.Load(config.Source{Path: "/absent", Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Admin.Socket != "/host/run/kuryr/kuryr.sock" {
		t.Errorf("the host does not see the admin socket %s", cfg.Admin.Socket)
	}
	if cfg.Bind.OVSDBSocket != "/host/run/openvswitch/db.sock" {
		t.Errorf("Open vSwitch of the host is not at %s", cfg.Bind.OVSDBSocket)
	}
	// Set by the plugin alone, or of no use in it.
	own := []string{"state_dir", "run_dir", "docker.socket", "docker.listen", "docker.tls_cert", "docker.tls_key",
		"docker.tls_client_ca", "docker.tls_client_names", "sdn.socket", "admin.socket"}
	others := []string{"node", "kubernetes", "controller", "kurma"}
	for _, s := range config.Settings() {
		section, _, _ := strings.Cut(s.Key, ".")
		if want := !slices.Contains(own, s.Key) && !slices.Contains(others, section); settable[s.Env()] != want {
			t.Errorf("%s: settable is %v, want %v", s.Env(), settable[s.Env()], want)
		}
	}
}
