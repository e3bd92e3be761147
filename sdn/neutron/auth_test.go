package neutron

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

var (
	postTokens = neutrontest.Call{Method: "POST", Collection: "v3"}
)

func withKeystone() *double {
	d := newDouble()
	d.tokens = map[string]bool{}
	return d
}

// A token that is taken back in the middle is replaced without a failed call, a POST among them, and by one authentication for all that notice.
func TestTokenExpiresInTheMiddle(t *testing.T) {
	t.Parallel()
	d := withKeystone()
	p, proxy := onDouble(t, d, nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name := range map[string]bool{"one": true, "another": true} {
		d.mu.Lock()
		clear(d.tokens)
		d.mu.Unlock()
		if _, err := networks.create(t.Context(), p, map[string]any{"name": name}); err != nil {
			t.Errorf("a POST with a token that was taken back: %v", err)
		}
	}
	if n := d.count("networks"); n != 2 {
		t.Errorf("%d networks were made, want 2", n)
	}
	d.mu.Lock()
	clear(d.tokens)
	d.mu.Unlock()
	proxy.Reset()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := p.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := proxy.Count(postTokens); n != 1 {
		t.Errorf("%d authentications for eight calls, want one", n)
	}
}

// A token that Keystone gives and Neutron does not take is no endless loop.
func TestTokenNeverTaken(t *testing.T) {
	t.Parallel()
	d := withKeystone()
	p, proxy := onDouble(t, d, nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Say(getNetworks, 100, neutrontest.Answer{Status: 401})
	if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "401") {
		t.Errorf("the error is %v", err)
	}
	if n := proxy.Count(getNetworks); n != 2 {
		t.Errorf("it was asked %d times, want twice", n)
	}
}

// A token near its end is replaced before Neutron refuses it, and no call waits for that. A short life has a short end.
func TestTokenRenewedAhead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ life, near time.Duration }{{time.Hour, renewAhead}, {time.Minute, 15 * time.Second}} {
		d := withKeystone()
		d.lifetime = c.life
		p, proxy := onDouble(t, d, nil)
		var at atomic.Pointer[time.Time] // nil: now
		p.client.auth.now = func() time.Time {
			if now := at.Load(); now != nil {
				return *now
			}
			return time.Now()
		}
		first, err := p.client.auth.session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at.Store(new(first.expires.Add(-c.near - 10*time.Second)))
		if now, err := p.client.auth.session(t.Context()); err != nil || now != first {
			t.Errorf("of %v: another session long before the end: %v", c.life, err)
		}
		if n := proxy.Count(postTokens); n != 1 {
			t.Errorf("of %v: %d authentications long before the end, want one", c.life, n)
		}
		at.Store(new(first.expires.Add(-c.near + time.Second)))
		if now, err := p.client.auth.session(t.Context()); err != nil || now != first {
			t.Errorf("of %v: the call waits for another session: %v", c.life, err)
		}
		second, err := p.client.auth.renew(t.Context(), first) // shares the renewal that is under way, or finds it done
		if err != nil || second == first {
			t.Errorf("of %v: the session was not renewed: %v", c.life, err)
		}
		if n := proxy.Count(postTokens); n != 2 {
			t.Errorf("of %v: %d authentications, want 2", c.life, n)
		}
	}
}

// Open needs neither Keystone nor Neutron; what fails while Keystone is away works when it is back.
func TestKeystoneAwayThenBack(t *testing.T) {
	t.Parallel()
	d := withKeystone()
	p, proxy := onDouble(t, d, nil)
	now := time.Now()
	p.client.auth.breaker.now = func() time.Time { return now }
	proxy.Away(true)
	for range 2 * breakerFailures {
		err := p.Ping(t.Context())
		if !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "Keystone") {
			t.Fatalf("the error is %v", err)
		}
	}
	if n := proxy.Count(neutrontest.Call{}); n != breakerFailures {
		t.Errorf("Keystone was asked %d times, want %d", n, breakerFailures)
	}
	proxy.Away(false)
	now = now.Add(breakerPause)
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	// A renewal that fails leaves the next call another try.
	d.mu.Lock()
	clear(d.tokens)
	d.mu.Unlock()
	proxy.Say(postTokens, 1, neutrontest.Answer{Status: 503})
	if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) {
		t.Errorf("the error is %v", err)
	}
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestKeystoneOutageIsLoggedOnce checks that an outage is one warning, repeated with a count, and
// that another reason and the end are logged too.
func TestKeystoneOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, withKeystone(), nil)
	var log strings.Builder
	auth := p.client.auth
	auth.log = slog.New(slog.NewTextHandler(&log, nil))
	now := time.Now()
	auth.now = func() time.Time { return now }
	auth.breaker.now = auth.now
	logged := func(failures ...string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(log.String()) {
			_, count, _ := strings.Cut(strings.TrimSpace(line), "failures=")
			got = append(got, count)
		}
		if !slices.Equal(got, failures) {
			t.Errorf("the log has failures %q, want %q:\n%s", got, failures, log.String())
		}
		log.Reset()
	}
	fail := func(times int) {
		t.Helper()
		for range times {
			now = now.Add(breakerPause)
			if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) {
				t.Fatal(err)
			}
		}
	}
	proxy.Away(true)
	fail(7)
	logged("1")
	now = now.Add(repeatWarning)
	fail(2)
	logged("8")
	proxy.Away(false)
	proxy.Say(postTokens, 1, neutrontest.Answer{Status: 503})
	fail(1)
	logged("10")
	now = now.Add(breakerPause)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	logged("10")
}

// The catalogue's endpoint is chosen by region and interface.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ region, iface, path string }{
		{"", "", "/r0/v2.0"}, {"R1", "", "/v2.0"}, {"R1", "internal", "/internal/v2.0"},
	} {
		p, proxy := onDouble(t, withKeystone(), func(o *Config) { o.Region, o.Interface = c.region, c.iface })
		s, err := p.client.auth.session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := proxy.URL + c.path; s.endpoint != want || s.project != "p1" {
			t.Errorf("region %q, interface %q: endpoint %s of project %s, want %s", c.region, c.iface, s.endpoint, s.project, want)
		}
	}
	p, _ := onDouble(t, withKeystone(), func(o *Config) { o.Region = "R9" })
	if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) || sdn.FieldOf(err) != "endpoint" || !strings.Contains(err.Error(), "R9") {
		t.Errorf("the error is %v", err)
	}
}

// What is configured is taken, from clouds.yaml and secure.yaml, or from the variables, whatever the kind of credentials; what cannot work is named.
func TestResolve(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("clouds.yaml", `clouds:
  split: {auth: {auth_url: "http://k/v3", username: u, project_name: p, user_domain_name: ud, project_domain_name: pd}, region_name: R, interface: internal, network_endpoint_override: "http://n:9696/"}
  hidden: {region_name: R}
  appcred: {auth_type: v3applicationcredential, auth: {auth_url: "http://k/v3", application_credential_id: i, application_credential_secret: s}}
  open: {auth_type: none, auth: {endpoint: "http://n:9696"}}
  half: {auth: {auth_url: "http://k/v3", username: u}}
`)
	write("secure.yaml", `clouds:
  split: {auth: {password: from-secure}}
  hidden: {auth: {auth_url: "http://k/v3", token: tok}}
`)
	env := func(pairs ...string) func(string) (string, bool) {
		return func(name string) (string, bool) {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1], true
				}
			}
			return "", false
		}
	}
	file := filepath.Join(dir, "clouds.yaml")
	for _, c := range []struct {
		name string
		c    Config
		want string // "" of a good one, else the field that the error names
	}{
		{"password in secure.yaml", Config{Cloud: "split", CloudsFile: file}, "u from-secure p pd ud R internal http://n:9696/ "},
		{"all in secure.yaml", Config{Env: env("OS_CLOUD", "hidden", "OS_CLIENT_CONFIG_FILE", file)}, "    R public  tok"},
		{"application credential", Config{Cloud: "appcred", CloudsFile: file}, "    public  s"},
		{"no authentication", Config{Cloud: "open", CloudsFile: file, Project: "p"}, "none http://n:9696"},
		{"variables", Config{Env: env("OS_AUTH_URL", "http://k:5000", "OS_USERNAME", "u", "OS_PASSWORD", "w", "OS_PROJECT_NAME", "p", "OS_USER_DOMAIN_NAME", "ud", "OS_PROJECT_DOMAIN_NAME", "pd", "OS_REGION_NAME", "R")}, "u w p pd ud R public  "},
		{"variables, no authentication", Config{Env: env("OS_AUTH_TYPE", "noauth", "OS_ENDPOINT", "http://n", "OS_PROJECT_ID", "p")}, "none http://n"},
		{"no authentication, the project of credentials", Config{Auth: Auth{Type: "none", ProjectID: "p"}, Endpoint: "http://n"}, "none http://n"},
		{"settings before variables", Config{Auth: Auth{Username: "me"}, Env: env("OS_AUTH_URL", "http://k", "OS_USERNAME", "u", "OS_PASSWORD", "w")}, "me w    public  "},
		{"absent cloud", Config{Cloud: "nowhere", CloudsFile: file}, "!cloud"},
		{"absent file", Config{Cloud: "split", CloudsFile: filepath.Join(dir, "no.yaml")}, "!cloud"},
		{"half the credentials", Config{Cloud: "half", CloudsFile: file}, "!auth"},
		{"no credentials", Config{Env: env()}, "!auth.url"},
		{"no authentication without a project", Config{Cloud: "open", CloudsFile: file}, "!project"},
		{"no authentication without an endpoint", Config{Auth: Auth{Type: "none"}, Project: "p"}, "!endpoint"},
		{"endpoint that is none", Config{Auth: Auth{Type: "none"}, Project: "p", Endpoint: "neutron:9696"}, "!endpoint"},
		{"certificate without a key", Config{Cloud: "split", CloudsFile: file, CertFile: file}, "!cloud"},
		{"authorities that are none", Config{Cloud: "split", CloudsFile: file, CAFile: file}, "!cloud"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.c.Env == nil {
				c.c.Env = env()
			}
			c.c.Installation = "test"
			got, err := c.c.resolve()
			if field, bad := strings.CutPrefix(c.want, "!"); bad {
				if !sdn.IsInvalid(err) || sdn.FieldOf(err) != field {
					t.Errorf("the error is %v about %q, want one about %q", err, sdn.FieldOf(err), field)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text := "none " + got.endpoint
			if !got.none {
				a := got.auth
				text = fmt.Sprint(strings.Join([]string{a.Username, a.Password}, " "))
				scope := ""
				domain := ""
				if a.Scope != nil {
					scope, domain = a.Scope.ProjectName, a.Scope.DomainName
				}
				text = strings.Join([]string{text, scope, domain, a.DomainName, got.where.Region, string(got.where.Availability), got.endpoint, a.TokenID + a.ApplicationCredentialSecret}, " ")
			}
			if strings.Join(strings.Fields(text), " ") != strings.Join(strings.Fields(c.want), " ") {
				t.Errorf("resolved to %q, want %q", text, c.want)
			}
		})
	}
}

// No way of printing or logging a configuration shows a secret.
func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	c := Config{Auth: Auth{URL: "http://user:hidden@k", Username: "u", Password: "hidden", Token: "hidden", ApplicationCredentialSecret: "hidden"}}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", c, "auth", c.Auth)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "auth", c.Auth)
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c.Auth), log.String()} {
		if strings.Contains(text, "hidden") {
			t.Errorf("a secret is shown: %s", text)
		}
	}
}

// Nor does the error of a clouds.yaml or secure.yaml that has one in the wrong place.
func TestSecretInTheWrongPlace(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][2]string{
		"clouds.yaml": {"clouds: {c: {auth_type: password, auth: {auth_url: http://k/v3, username: u}, region_name: R, regions: hidden}}", ""},
		"secure.yaml": {"clouds: {c: {auth: {auth_url: http://k/v3, username: u}}}", "clouds: {c: {auth: hidden}}"},
	} {
		dir := t.TempDir()
		for i, file := range []string{"clouds.yaml", "secure.yaml"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(files[i]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(Config{Installation: "test", Cloud: "c", CloudsFile: filepath.Join(dir, "clouds.yaml"), Env: func(string) (string, bool) { return "", false }}, slog.New(slog.DiscardHandler))
		if !sdn.IsInvalid(err) || strings.Contains(err.Error(), "hid") || sdn.FieldOf(err) != "cloud" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Certificates are verified, by the authority that is configured, unless that was switched off by name.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(newDouble())
	t.Cleanup(server.Close)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pemOf(server.Certificate()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		ok     bool
	}{
		{"unknown authority", func(*Config) {}, false},
		{"our authority", func(c *Config) { c.CAFile = ca }, true},
		{"OS_CACERT", func(c *Config) {
			c.Env = func(n string) (string, bool) { return map[string]string{"OS_CACERT": ca}[n], n == "OS_CACERT" }
		}, true},
		{"switched off", func(c *Config) { c.Insecure = true }, true},
	} {
		p, _ := onDouble(t, newDouble(), func(o *Config) {
			o.Endpoint = server.URL
			c.change(o)
		})
		if err := p.Ping(t.Context()); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "neutron.ca_file") {
			t.Errorf("%s: the error is %v", c.name, err)
		}
	}
}

// A Neutron that wants a certificate of its clients is told apart from one that does not answer.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(newDouble())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	p, _ := onDouble(t, newDouble(), func(o *Config) { o.Endpoint, o.Insecure = server.URL, true })
	if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "neutron.cert_file") || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("the error is %v", err)
	}
}

// That nothing is verified is said, whoever says so.
func TestInsecureIsSaid(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte("clouds: {c: {auth_type: none, verify: false, auth: {endpoint: 'https://n'}}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Config{"neutron.insecure": {Insecure: true, Auth: Auth{Type: "none"}, Endpoint: "https://n"}, "clouds.yaml": {Cloud: "c", CloudsFile: file}} {
		var log strings.Builder
		c.Installation, c.Project, c.Env = "test", "p", func(string) (string, bool) { return "", false }
		if _, err := Open(c, slog.New(slog.NewTextHandler(&log, nil))); err != nil || !strings.Contains(log.String(), "are not verified") {
			t.Errorf("%s: the log is %q, the error %v", name, log.String(), err)
		}
	}
}

func TestOpenChecks(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]Config{
		"installation": {Installation: "Not Good"},
		"host":         {Installation: "x", Host: "a b"},
		"timeout":      {Installation: "x", Timeout: -1},
	} {
		if _, err := Open(c, slog.New(slog.DiscardHandler)); !sdn.IsInvalid(err) || sdn.FieldOf(err) != field {
			t.Errorf("the error is %v, want one about %s", err, field)
		}
	}
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
