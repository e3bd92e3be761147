//go:build e2e

package docker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

const tlsSettings = `docker:
  socket: ""
  listen: tcp://127.0.0.1:2378
  tls_cert: /etc/kuryr/tls/server.pem
  tls_key: /etc/kuryr/tls/server-key.pem
  tls_client_ca: /etc/kuryr/tls/ca.pem
`

// background starts a kuryr that the test ends with, and waits until its command finds it.
func (r rig) background(t *testing.T, args ...string) (kill func()) {
	t.Helper()
	cmd := r.Command(context.Background(), append([]string{kuryr}, args...)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := r.StartCommand(cmd); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("kuryr %s said:\n%s", strings.Join(args, " "), said.String())
		}
	})
	r.answers(t)
	return kill
}

func (r rig) write(t *testing.T, path, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if res := r.ExecIn(
		ctx, strings.NewReader(text), "sh", "-c", `mkdir -p "$(dirname "$0")" && cat >"$0"`, path,
	); !res.OK() {
		t.Fatal(res)
	}
}

// The engine finds Kuryr by the file that "kuryr docker install" writes, speaks TLS with it, and nobody else is let in.
func TestTCPWithTLS(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := ownHost(t, "the engine keeps the plugin's address that it found first", privatehost.Options{KuryrLater: true})
	r.must(t, kuryr, "docker", "certificates", "/etc/kuryr/tls", "--host", "127.0.0.1")
	r.must(t, kuryr, "docker", "certificates", "/etc/kuryr/foreign", "--host", "127.0.0.1")
	r.settings(t, tlsSettings)
	install := []string{
		kuryr, "docker", "install", "--ca", "/etc/kuryr/tls/ca.pem", "--cert",
		"/etc/kuryr/tls/client.pem", "--key", "/etc/kuryr/tls/client-key.pem",
	}
	if res := r.sh(install...); !res.OK() ||
		!strings.Contains(res.Stdout, "/etc/docker/plugins/kuryr.json written") ||
		res.Stderr != "" {
		t.Errorf("install: %s", res)
	}
	if res := r.sh(install...); !res.OK() || !strings.Contains(res.Stdout, "already") {
		t.Errorf("install again: %s", res)
	}
	kill := r.background(t, "docker")
	if res := r.sh("ls", privatehost.PluginSocket); res.OK() {
		t.Fatalf("there is a socket, which Docker would take: %s", res)
	}
	r.docker(t, createArgs("secure", "--ipv6", "--subnet", "10.95.0.0/24", "--subnet", "fd95::/64")...)
	a, b := r.run(t, "secure-a", "secure"), r.run(t, "secure-b", "secure", "-p", "8095:7000")
	reaches(t, a.in, b.ip4, a.ip4)
	reaches(t, a.in, b.ip6, a.ip6)
	getsOut(t, a)
	s := a.pingOn(t, b.ip4)
	kill()
	r.background(t, "docker")
	if sent, lost := s.lost(t); lost > 1 || sent < 1 {
		t.Errorf("%d of %d packets lost", lost, sent)
	}
	r.pluginClean(t)
	c := r.run(t, "secure-c", "secure") // by a new connection
	reaches(t, c.in, a.ip4, c.ip4)

	// The engine tries for 15 seconds where it is refused, so all at once.
	strangers := map[string]struct{ file, text, want string }{
		"nocert": {
			"nocert.json",
			`{"Addr":"https://127.0.0.1:2378","TLSConfig":{"CAFile":"/etc/kuryr/tls/ca.pem"}}`,
			"certificate required",
		},
		"foreign": {
			"foreign.json",
			`{"Addr":"https://127.0.0.1:2378","TLSConfig":{"CAFile":"/etc/kuryr/tls/ca.pem",` +
				`"CertFile":"/etc/kuryr/foreign/client.pem",` +
				`"KeyFile":"/etc/kuryr/foreign/client-key.pem"}}`,
			"certificate",
		},
		"deluded": {
			"deluded.json",
			`{"Addr":"https://127.0.0.1:2378","TLSConfig":{"CAFile":"/etc/kuryr/foreign/ca.pem",` +
				`"CertFile":"/etc/kuryr/tls/client.pem",` +
				`"KeyFile":"/etc/kuryr/tls/client-key.pem"}}`,
			"unknown authority",
		},
		"plain": {"plain.spec", "tcp://127.0.0.1:2378\n", ""},
	}
	var wait sync.WaitGroup
	for name, s := range strangers {
		r.write(t, "/etc/docker/plugins/"+s.file, s.text)
		wait.Go(func() {
			start := time.Now()
			if res := r.sh(
				"docker", "network", "create", "-d", name, "--subnet", "10.96.0.0/24", name,
			); res.OK() || !strings.Contains(res.Stderr, s.want) {
				t.Errorf("%s, after %s: %s", name, time.Since(start), res)
			}
		})
	}
	wait.Wait()

	r.docker(t, "rm", "-f", "secure-a", "secure-b", "secure-c")
	r.docker(t, "network", "rm", "secure")
	for _, noun := range []string{"network", "port", "router", "floatingip"} {
		if left := r.list(t, noun); len(left) > 0 {
			t.Errorf("kuryr %s list: %v", noun, left)
		}
	}
	if res := r.sh(kuryr, "docker", "uninstall"); !res.OK() || !strings.Contains(res.Stdout, "removed") {
		t.Errorf("uninstall: %s", res)
	}
}

// A socket elsewhere is found by a .spec file; the one in Docker's own folder goes before it, which is warned of.
func TestSocketElsewhere(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := ownHost(t, "the engine keeps the plugin's address that it found first", privatehost.Options{KuryrLater: true})
	r.settings(t, "docker:\n  socket: /run/elsewhere/kuryr.sock\n")
	r.must(t, kuryr, "docker", "install")
	r.background(t, "docker")
	r.docker(t, createArgs("elsewhere", "--subnet", "10.97.0.0/24")...)
	a, b := r.run(t, "elsewhere-a", "elsewhere"), r.run(t, "elsewhere-b", "elsewhere")
	reaches(t, a.in, b.ip4, a.ip4)
	r.docker(t, "rm", "-f", "elsewhere-a", "elsewhere-b")
	r.docker(t, "network", "rm", "elsewhere")
	r.must(t, "touch", privatehost.PluginSocket)
	if res := r.sh(kuryr, "docker", "install"); !res.OK() ||
		!strings.Contains(res.Stderr, privatehost.PluginSocket+" is there too") {
		t.Errorf("no warning: %s", res)
	}
}
