package identity

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"golang.org/x/crypto/bcrypt"
)

const (
	staticAdmin  = "static-admin-token-0123"
	staticReader = "static-reader-token-0123"
)

// world is a Service on a token file that a test may change, at a time that a test may set.
type world struct {
	*Service
	set    *TokenSet
	text   string
	now    time.Time
	config Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	sum, err := bcrypt.GenerateFromPassword([]byte("correct horse"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	hash := string(sum)
	alice := "user alice blue member " + hash
	w := &world{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w.file(
		t,
		"token "+staticAdmin+" ops admin root\ntoken "+staticReader+" blue reader\n"+alice+
			"\nuser alice red admin "+hash+"\n",
	)
	w.config = Config{
		Tokens: func() *TokenSet { return w.set }, Key: []byte(strings.Repeat("k", keySize)),
		RevokedPath: filepath.Join(t.TempDir(), "revoked"),
		Now:         func() time.Time { return w.now },
	}
	w.restart(t)
	return w
}

func (w *world) file(t *testing.T, text string) {
	t.Helper()
	set, err := Parser{MinCost: bcrypt.MinCost}.Parse(strings.NewReader(text), "tokens")
	if err != nil {
		t.Fatal(err)
	}
	w.set, w.text = set, text
}

func (w *world) restart(t *testing.T) {
	t.Helper()
	var err error
	if w.Service, err = New(w.config); err != nil {
		t.Fatal(err)
	}
}

// ask sends a request with headers in pairs and gives the answer with its body.
func (w *world) ask(method, path, body string, headers ...string) (*http.Response, string) {
	r := httptest.NewRequest(method, "https://sdn.example:9696"+path, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	return rec.Result(), rec.Body.String()
}

func byPassword(user, password, scope string) string {
	body := `{"auth":{"identity":{"methods":["password"],"password":{"user":{` + user + `,"password":"` + password + `"}}}`
	if scope != "" {
		body += `,"scope":` + scope
	}
	return body + "}}"
}

func byToken(token, scope string) string {
	body := `{"auth":{"identity":{"methods":["token"],"token":{"id":"` + token + `"}}`
	if scope != "" {
		body += `,"scope":` + scope
	}
	return body + "}}"
}

const aliceDefault = `"name":"alice","domain":{"id":"default"}`

func (w *world) issue(t *testing.T, body string) string {
	t.Helper()
	resp, text := w.ask("POST", "/v3/auth/tokens", body)
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	return resp.Header.Get("X-Subject-Token")
}

// A project has no quotas of services that do not exist, and they can be deleted. Clients
// without a token are refused.
func TestAbsentServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const path = absent + "compute/os-quota-sets/blue"
	for _, c := range []struct {
		method, token string
		status        int
	}{{"GET", staticReader, 200}, {"DELETE", staticReader, 202}, {"GET", "wrong", 401}, {"DELETE", "", 401}} {
		if resp, text := w.ask(c.method, path, "", "X-Auth-Token", c.token); resp.StatusCode != c.status {
			t.Errorf("%s with %q: %d %s, want %d", c.method, c.token, resp.StatusCode, text, c.status)
		}
	}
}

func TestIssue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, tc := range map[string]struct {
		body    string
		status  int
		project string
		role    Role
	}{
		"first project": {byPassword(aliceDefault, "correct horse", ""), 201, "blue", Member},
		"by id":         {byPassword(`"id":"alice"`, "correct horse", ""), 201, "blue", Member},
		"domain by name": {
			byPassword(`"name":"alice","domain":{"name":"Default"}`, "correct horse", ""), 201, "blue",
			Member,
		},
		"no domain": {byPassword(`"name":"alice"`, "correct horse", ""), 201, "blue", Member},
		"unscoped":  {byPassword(aliceDefault, "correct horse", `"unscoped"`), 201, "blue", Member},
		"project by name": {
			byPassword(
				aliceDefault, "correct horse", `{"project":{"name":"red","domain":{"id":"default"}}}`,
			),
			201, "red", Admin,
		},
		"project by id": {byPassword(aliceDefault, "correct horse", `{"project":{"id":"red"}}`), 201, "red", Admin},
		"token":         {byToken(staticAdmin, ""), 201, "ops", Admin},
		"token and project": {
			byToken(staticReader, `{"project":{"name":"blue","domain":{"name":"Default"}}}`), 201, "blue",
			Reader,
		},
		"wrong password": {byPassword(aliceDefault, "correct hors", ""), 401, "", ""},
		"no password":    {byPassword(aliceDefault, "", ""), 401, "", ""},
		"no user":        {byPassword(`"name":""`, "correct horse", ""), 401, "", ""},
		"unknown user":   {byPassword(`"name":"bob"`, "correct horse", ""), 401, "", ""},
		"other domain":   {byPassword(`"name":"alice","domain":{"id":"moon"}`, "correct horse", ""), 401, "", ""},
		"other project":  {byPassword(aliceDefault, "correct horse", `{"project":{"name":"ops"}}`), 401, "", ""},
		"project's domain": {
			byPassword(aliceDefault, "correct horse", `{"project":{"name":"red","domain":{"name":"moon"}}}`),
			401, "", "",
		},
		"system": {byPassword(aliceDefault, "correct horse", `{"system":{"all":true}}`), 401, "", ""},
		"domain": {byPassword(aliceDefault, "correct horse", `{"domain":{"id":"default"}}`), 401, "", ""},
		"two scopes": {
			byPassword(aliceDefault, "correct horse", `{"project":{"id":"red"},"system":{"all":true}}`), 401,
			"", "",
		},
		"another's project":    {byToken(staticReader, `{"project":{"id":"ops"}}`), 401, "", ""},
		"unknown token":        {byToken(staticReader+"x", ""), 401, "", ""},
		"empty token":          {byToken("", ""), 401, "", ""},
		"two methods":          {`{"auth":{"identity":{"methods":["password","totp"]}}}`, 401, "", ""},
		"none":                 {`{"auth":{"identity":{"methods":[]}}}`, 400, "", ""},
		"no object":            {`[]`, 400, "", ""},
		"nothing":              {``, 400, "", ""},
		"the token's password": {byPassword(`"name":"root"`, staticAdmin, ""), 401, "", ""},
	} {
		resp, text := w.ask("POST", "/v3/auth/tokens", tc.body)
		if resp.StatusCode != tc.status {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
			continue
		}
		if tc.status != 201 {
			var e struct{ Error problem }
			if json.Unmarshal([]byte(text), &e) != nil || e.Error.Code != tc.status ||
				e.Error.Message == "" || resp.Header.Get("X-Subject-Token") != "" {
				t.Errorf("%s: %s", name, text)
			}
			if tc.status == 401 && resp.Header.Get("WWW-Authenticate") != `Keystone uri="https://sdn.example:9696/v3"` {
				t.Errorf("%s: WWW-Authenticate is %q", name, resp.Header.Get("WWW-Authenticate"))
			}
			continue
		}
		id, ok := w.Identify(resp.Header.Get("X-Subject-Token"))
		if !ok || id.Project != tc.project || id.Role != tc.role {
			t.Errorf("%s: it is for %+v, %v", name, id, ok)
		}
		var body struct{ Token tokenView }
		if err := json.Unmarshal([]byte(text), &body); err != nil {
			t.Fatal(err)
		}
		if body.Token.Project.ID != tc.project || body.Token.Roles[0].Name != string(tc.role) ||
			body.Token.Catalog[0].Endpoints[0].URL != "https://sdn.example:9696" ||
			body.Token.ExpiresAt != "2026-01-02T04:04:05.000000Z" || strings.Contains(text, "$2a$") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// An issued token holds over a restart, until its end; the file's word of today counts.
func TestIssuedTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := w.issue(t, byPassword(aliceDefault, "correct horse", `{"project":{"name":"red"}}`))
	holds := func(what, token string, want bool) {
		t.Helper()
		if id, ok := w.Identify(token); ok != want {
			t.Errorf("%s: it holds: %v, for %+v", what, ok, id)
		}
	}
	w.restart(t)
	holds("after a restart", token, true)
	for i := range len(token) {
		spoilt := []byte(token)
		spoilt[i] ^= 1
		holds("spoilt", string(spoilt), false)
	}
	holds("cut", token[:len(token)-1], false)
	holds("longer", token+"A", false)
	holds("nothing", "", false)
	holds("a form alone", prefix+".", false)
	w.now = w.now.Add(Lifetime - time.Second)
	holds("before its end", token, true)

	// An exchange does not make it last longer.
	exchanged := w.issue(t, byToken(token, `{"project":{"name":"blue"}}`))
	if id, ok := w.Identify(exchanged); !ok || id.Project != "blue" || id.Role != Member {
		t.Errorf("exchanged it is for %+v, %v", id, ok)
	}
	w.now = w.now.Add(time.Second)
	holds("at its end", token, false)
	holds("exchanged, at its end", exchanged, false)

	token = w.issue(t, byPassword(aliceDefault, "correct horse", `{"project":{"name":"red"}}`))
	before := w.text
	w.file(t, strings.Replace(before, "red admin", "red reader", 1))
	if id, _ := w.Identify(token); id.Role != Reader {
		t.Errorf("after the file gave another role it is for %+v", id)
	}
	w.file(t, before[:strings.Index(before, "user alice red")])
	holds("without its project", token, false)
	w.file(t, strings.ReplaceAll(before, "$2a$04$", "$2b$04$"))
	holds("with another password", token, false)
	w.file(t, before)
	holds("as it was", token, true)
	w.config.Key = []byte(strings.Repeat("x", keySize))
	w.restart(t)
	holds("with another key", token, false)
}

func TestShowAndRevoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.issue(t, byPassword(aliceDefault, "correct horse", ""))
	other := w.issue(t, byPassword(aliceDefault, "correct horse", ""))
	resp, text := w.ask("GET", "/v3/auth/tokens", "", "X-Auth-Token", alice, "X-Subject-Token", alice)
	if resp.StatusCode != 200 || resp.Header.Get("X-Subject-Token") != alice ||
		!strings.Contains(text, `"name":"alice"`) || !strings.Contains(text, "catalog") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if _, text := w.ask(
		"GET", "/v3/auth/tokens?nocatalog", "", "X-Auth-Token", alice, "X-Subject-Token", alice,
	); strings.Contains(text, "catalog") {
		t.Error(text)
	}
	if resp, _ := w.ask(
		"HEAD", "/v3/auth/tokens", "", "X-Auth-Token", staticAdmin, "X-Subject-Token", alice,
	); resp.StatusCode != 200 {
		t.Errorf("HEAD: %d", resp.StatusCode)
	}
	for name, tc := range map[string]struct {
		method, auth, subject string
		want                  int
	}{
		"nobody":            {"GET", "", alice, 401},
		"nobody deletes":    {"DELETE", "", alice, 401},
		"unknown":           {"GET", alice, "x", 404},
		"another's":         {"GET", staticReader, alice, 403},
		"deletes another's": {"DELETE", staticReader, alice, 403},
		"of the file":       {"DELETE", staticAdmin, staticAdmin, 403},
	} {
		if resp, text := w.ask(
			tc.method, "/v3/auth/tokens", "", "X-Auth-Token", tc.auth, "X-Subject-Token", tc.subject,
		); resp.StatusCode != tc.want {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
	if resp, text := w.ask(
		"DELETE", "/v3/auth/tokens", "", "X-Auth-Token", alice, "X-Subject-Token", alice,
	); resp.StatusCode != 204 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	for range 2 {
		if _, ok := w.Identify(alice); ok {
			t.Error("a revoked token holds")
		}
		if _, ok := w.Identify(other); !ok {
			t.Error("another token of hers does not hold")
		}
		w.restart(t)
	}
	if info, err := os.Stat(w.config.RevokedPath); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of revoked tokens: %v, %v", info, err)
	}
}

func TestRevokedIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r, err := loadRevoked("", now)
	if err != nil {
		t.Fatal(err)
	}
	soon := now.Add(time.Minute)
	for i := range maxRevokedEach {
		if err := r.add("alice", strconv.Itoa(i), soon, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.add("alice", "one more", soon, now); err == nil {
		t.Error("there is no bound for one credential")
	}
	if err := r.add("bob", "0", soon, now); err != nil || !r.has("bob", "0") || r.has("bob", "1") {
		t.Errorf("another credential's: %v", err)
	}
	for i := range maxRevoked {
		r.ends[strconv.Itoa(i)] = soon
	}
	if err := r.add("bob", "one more", soon, now); err == nil {
		t.Error("there is no bound for all")
	}
	if err := r.add("bob", "later", now.Add(2*time.Minute), soon); err != nil || len(r.ends) != 1 {
		t.Errorf("those at their end are kept: %d, %v", len(r.ends), err)
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.issue(t, byPassword(aliceDefault, "correct horse", ""))
	for name, tc := range map[string]struct {
		path, token string
		status      int
		has, hasNot string
	}{
		"versions":            {"/identity", "", 300, `"values":[{"id":"v3.`, ""},
		"version":             {"/v3", "", 200, `"href":"https://sdn.example:9696/v3/"`, ""},
		"slash":               {"/v3/", "", 200, `"version":{"id":"v3.`, ""},
		"below":               {"/identity/v3", "", 200, `"version":{"id":"v3.`, ""},
		"catalog":             {"/v3/auth/catalog", alice, 200, `"type":"network"`, ""},
		"balancers":           {"/v3/auth/catalog", alice, 200, `"url":"https://sdn.example:9696/load-balancer"`, ""},
		"catalog of nobody":   {"/v3/auth/catalog", "", 401, "", "network"},
		"own projects":        {"/v3/auth/projects", alice, 200, `"red"`, "ops"},
		"her projects":        {"/v3/users/alice/projects", alice, 200, `"red"`, "ops"},
		"another's projects":  {"/v3/users/root/projects", alice, 404, "", "red"},
		"her":                 {"/v3/users/alice", alice, 200, `"alice"`, ""},
		"another":             {"/v3/users/root", alice, 404, "", ""},
		"projects":            {"/v3/projects", alice, 200, `"blue"`, "ops"},
		"project":             {"/v3/projects/red", alice, 200, `"name":"red"`, ""},
		"foreign project":     {"/v3/projects/ops", alice, 404, "Could not find project: ops.", ""},
		"all projects":        {"/v3/projects", staticAdmin, 200, `"red"`, ""},
		"project by name":     {"/v3/projects?name=red", staticAdmin, 200, `"red"`, "blue"},
		"of another domain":   {"/v3/projects?domain_id=moon", staticAdmin, 200, `"projects":[]`, "blue"},
		"an unknown project":  {"/v3/projects/none", staticAdmin, 404, "Could not find", ""},
		"projects of nobody":  {"/v3/projects", "", 401, "", "blue"},
		"domains":             {"/v3/domains?name=Default", alice, 200, `"default"`, ""},
		"domain":              {"/v3/domains/default", alice, 200, `"Default"`, ""},
		"another domain":      {"/v3/domains/moon", alice, 404, "", ""},
		"something else":      {"/v3/regions", alice, 404, "could not be found", ""},
		"beside the identity": {"/identityx", alice, 404, "", ""},
	} {
		resp, text := w.ask("GET", tc.path, "", "X-Auth-Token", tc.token)
		if resp.StatusCode != tc.status || !strings.Contains(text, tc.has) ||
			tc.hasNot != "" && strings.Contains(text, tc.hasNot) || !json.Valid([]byte(text)) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
}

// A Host that is no host is not repeated.
func TestHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := httptest.NewRequest("GET", "/v3", nil)
	r.Host = `evil"><x`
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	if strings.Contains(rec.Body.String(), "evil") || !strings.Contains(rec.Body.String(), "https://localhost/v3/") {
		t.Error(rec.Body.String())
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "key")
	key, err := LoadKey(path)
	if err != nil || len(key) != keySize {
		t.Fatalf("%d bytes, %v", len(key), err)
	}
	again, err := LoadKey(path)
	if err != nil || string(again) != string(key) {
		t.Errorf("the second time it is another, %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "mode 0644") {
		t.Errorf("open to others: %v", err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("spoilt: %v", err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no key is taken for one")
	}
}

// gophercloud logs in, by password and by token, finds the network service, and gets
// another token when its own is refused.
func TestGophercloud(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Scheme, w.config.Now = "http", nil
	w.restart(t)
	mux := http.NewServeMux()
	mux.Handle("/", w)
	mux.HandleFunc("GET /{$}", w.ServeVersions)
	server := httptest.NewServer(mux)
	defer server.Close()
	for name, auth := range map[string]gophercloud.AuthOptions{
		"password": {
			Username: "alice", Password: "correct horse", DomainName: "Default", TenantName: "red",
			AllowReauth: true,
		},
		"token": {TokenID: staticAdmin, TenantName: "ops", DomainName: "Default"},
	} {
		for _, path := range []string{"/v3", "/v3/", "/identity/v3", "/identity"} {
			auth.IdentityEndpoint = server.URL + path
			provider, err := openstack.AuthenticatedClient(t.Context(), auth)
			if err != nil {
				t.Errorf("%s at %s: %v", name, path, err)
				continue
			}
			network, err := openstack.NewNetworkV2(provider, gophercloud.EndpointOpts{})
			if err != nil || network.ResourceBaseURL() != server.URL+"/v2.0/" {
				t.Errorf("%s at %s: the network service is at %+v, %v", name, path, network, err)
			}
			if _, ok := w.Identify(provider.Token()); !ok {
				t.Errorf("%s at %s: its token does not hold", name, path)
			}
		}
	}
	wrong := gophercloud.AuthOptions{
		IdentityEndpoint: server.URL + "/v3", Username: "alice", Password: "wrong horse",
		DomainName: "Default",
	}
	if _, err := openstack.AuthenticatedClient(t.Context(), wrong); !gophercloud.ResponseCodeIs(
		err, http.StatusUnauthorized,
	) {
		t.Errorf("a wrong password: %v", err)
	}
}

// FuzzIssue: whatever is asked, only who has proved it gets a token.
func FuzzIssue(f *testing.F) {
	set, err := ParseTokens(strings.NewReader("token "+staticAdmin+" ops admin root\n"), "tokens")
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Config{Tokens: func() *TokenSet { return set }, Key: []byte(strings.Repeat("k", keySize))})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(byToken("x", ""))
	f.Add(byToken("k1.e30.AAAA", `{"project":{"id":"ops"}}`))
	f.Add(`{"auth":{"identity":{"methods":["token"]}}}`)
	f.Fuzz(func(t *testing.T, body string) {
		if strings.Contains(body, "static") {
			return
		}
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, httptest.NewRequest("POST", "/v3/auth/tokens", io.NopCloser(strings.NewReader(body))))
		if rec.Code < 400 || rec.Code >= 500 {
			t.Errorf("%q: %d %s", body, rec.Code, rec.Body)
		}
	})
}
