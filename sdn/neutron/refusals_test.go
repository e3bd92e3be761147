package neutron

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

var refusal = neutrontest.Answer{Status: 401, Body: `{"error": {"code": 401, "message": "The request you have made requires authentication."}}`}

// A refusal of the credentials, which is a 404 for an application credential or a token that is gone, is a sentence without a secret. It is about the session, not about what was asked for, which may be asked for again.
func TestCredentialsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		auth Auth
		want string
	}{
		{Auth{Username: "u", Password: "secret", ProjectName: "p", UserDomainID: "d", ProjectDomainID: "d"}, `the password of user "u"`},
		{Auth{ApplicationCredentialID: "i", ApplicationCredentialSecret: "secret"}, `the application credential "i"`},
		{Auth{Token: "secret"}, "the token that was given"},
	} {
		for status, body := range map[int]string{401: refusal.Body, 403: refusal.Body, 404: `{"error": {"code": 404, "message": "Could not find Application Credential: i.", "title": "Not Found"}}`} {
			p, proxy := onDouble(t, withKeystone(), func(o *Config) {
				c.auth.URL = o.Auth.URL
				o.Auth = c.auth
			})
			proxy.Say(neutrontest.Call{Collection: "v3"}, 1, neutrontest.Answer{Status: status, Body: body}) // a token that is given is asked for by GET
			for _, err := range []error{p.Ping(t.Context()), p.DeletePort(t.Context(), "p1", 0)} {
				if !sdn.IsUnavailable(err) || sdn.IsDenied(err) || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "refuses the credentials") || !strings.Contains(err.Error(), c.want) {
					t.Errorf("the error is %v", err)
				}
			}
		}
	}
}

// A 404 that is not Keystone's own is of an address that is not Keystone's: the error says which field has it, and nothing of credentials, which are
// not kept from being sent there.
func TestNoKeystone(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"Keystone, another path":  "<!doctype html><h1>Not Found</h1>",
		"nothing":                 "",
		"Neutron":                 `{"message": "The resource could not be found.<br /><br />\n\n\n", "code": "404 Not Found", "title": "Not Found"}`,
		"Neutron, below its path": neutronError("HTTPNotFound", "The resource could not be found."),
		"Nova":                    `{"itemNotFound": {"code": 404, "message": "The resource could not be found."}}`,
		"a gateway":               `{"message": "no Route matched with those values"}`,
		"another's word":          `{"error": "Not Found"}`,
		"another's object":        `{"error": {"code": 404, "message": "Requested entity was not found.", "status": "NOT_FOUND"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, proxy := onDouble(t, withKeystone(), nil)
			proxy.Say(postTokens, 1, neutrontest.Answer{Status: 404, Body: body})
			if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) || sdn.FieldOf(err) != "auth.url" || !strings.Contains(err.Error(), "auth_url") || strings.Contains(err.Error(), "credentials") {
				t.Errorf("the error is %v", err)
			}
			if err := p.Ping(t.Context()); err != nil {
				t.Errorf("with the right answer: %v", err)
			}
		})
	}
}

// Credentials that are refused are sent seldom, however many calls there are, whether there is still a session or not, and at once when they are others.
func TestRefusedCredentialsRest(t *testing.T) {
	t.Parallel()
	for _, valid := range []bool{false, true} {
		d := withKeystone()
		file := filepath.Join(t.TempDir(), "clouds.yaml")
		p, proxy := onDouble(t, d, func(o *Config) {
			writeCloud(t, file, o.Auth.URL, "old")
			o.Cloud, o.CloudsFile, o.Auth = "c", file, Auth{}
		})
		a := p.client.auth
		now := time.Now()
		a.now = func() time.Time { return now }
		calls := func(want int, what string) {
			t.Helper()
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					err := p.Ping(t.Context())
					if valid && err != nil {
						t.Errorf("%s: a call with a valid token: %v", what, err)
					} else if !valid && !strings.Contains(err.Error(), "refuses the credentials") {
						t.Errorf("%s: the error is %v", what, err)
					}
				})
			}
			all.Wait()
			if valid { // the renewals are nobody's to wait for but this test's
				a.mu.Lock()
				s := a.current
				a.mu.Unlock()
				if _, err := a.renew(t.Context(), s); err == nil {
					t.Errorf("%s: the session was renewed", what)
				}
			}
			if n := proxy.Count(postTokens); n != want {
				t.Errorf("valid=%v, %s: the credentials were sent %d times, want %d", valid, what, n, want)
			}
		}
		if valid {
			if err := p.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			now = a.current.expires.Add(time.Millisecond - renewAhead)
		}
		proxy.Reset()
		proxy.Say(postTokens, 1000, refusal)
		calls(1, "at first")
		now = now.Add(refusalBackoff.Min/2 - time.Second)
		calls(1, "before the first wait is over")
		now = now.Add(refusalBackoff.Min/2 + time.Second)
		calls(2, "after it")
		now = now.Add(refusalBackoff.Min - time.Second)
		calls(2, "before the second wait is over")
		writeCloud(t, file, proxy.URL+"/v3", "new")
		calls(3, "with other credentials")
		writeCloud(t, file, proxy.URL+"/v3", "newer")
		proxy.Reset()
		before := a.current
		if s, err := a.renew(t.Context(), before); err != nil || s == before {
			t.Errorf("with good credentials: %v", err)
		}
		if n := proxy.Count(postTokens); n != 1 {
			t.Errorf("good credentials were sent %d times", n)
		}
	}
}

func writeCloud(t *testing.T, file, url, password string) {
	t.Helper()
	text := `clouds: {c: {region_name: R1, auth: {auth_url: "` + url + `", username: u, password: ` + password + `, project_name: p, user_domain_id: d, project_domain_id: d}}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What becomes unreadable of the configuration in the middle is said with its field, and denies nothing.
func TestConfigurationLost(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	p, _ := onDouble(t, withKeystone(), func(o *Config) {
		writeCloud(t, file, o.Auth.URL, "w")
		o.Cloud, o.CloudsFile, o.Auth = "c", file, Auth{}
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) || sdn.FieldOf(err) != "cloud" || !strings.Contains(err.Error(), file) {
		t.Errorf("the error is %v", err)
	}
}

// While Keystone is away, or starts again, calls go on with the token that is held, to its very end.
func TestKeystoneAwayWithToken(t *testing.T) {
	t.Parallel()
	d := withKeystone()
	p, proxy := onDouble(t, d, nil)
	begin := time.Now()
	var passed atomic.Int64
	p.client.auth.now = func() time.Time { return begin.Add(time.Duration(passed.Load())) }
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	life := p.client.auth.current.expires.Sub(begin)
	proxy.Cut(postTokens, 1000)
	for _, left := range []time.Duration{30 * time.Minute, renewAhead - time.Second, time.Second} {
		passed.Store(int64(life - left))
		for range 10 {
			if err := p.Ping(t.Context()); err != nil {
				t.Errorf("%v before the token's end: %v", left, err)
			}
		}
	}
	passed.Store(int64(life + time.Second))
	if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "Keystone") {
		t.Errorf("after the token's end: %v", err)
	}
	proxy.Reset()
	p.client.auth.breaker.mu.Lock()
	p.client.auth.breaker.now = func() time.Time { return time.Now().Add(breakerPause) }
	p.client.auth.breaker.mu.Unlock()
	if err := p.Ping(t.Context()); err != nil {
		t.Errorf("Keystone is back: %v", err)
	}
}
