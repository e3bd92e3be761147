package neutronlab

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kuryr/kuryr/internal/jsonstore"
)

// KeystoneURL is Keystone's, as the hosts reach it.
var KeystoneURL = "http://" + Management.Addr().String() + ":5000/v3"

// Identity is what the lab's Keystone knows: a user "demo" with the roles member and
// kuryr (see ManualPolicy) in the project "demo".
type Identity struct {
	Project  string // id
	User     string // id
	Name     string // of the user, and of the project
	Password string

	// An application credential of that user.
	Credential, Secret string
	// Another, of the role member alone.
	Member, MemberSecret string
}

// Identity is valid in a lab with Keystone or Octavia.
func (l *Lab) Identity() Identity { return l.identity }

//go:embed keystone.conf
var keystoneConf string

//go:embed keystone-serve.py
var keystoneServe string

const adminPassword = "admin-password"

// tokenLife is how long Keystone's tokens are valid unless SetTokenLife says otherwise.
const tokenLife = time.Hour

// SetTokenLife says how long tokens are valid that Keystone gives from its next start on;
// 0 is an hour. Those of before keep theirs, which matters to Neutron's own: its
// keystoneauth takes a token with less than two minutes left for ended, and with shorter
// lives authenticates eight times for each request that it serves, which takes seconds.
// So Neutron must have got its own, by serving somebody, before lives become short.
func (l *Lab) SetTokenLife(life time.Duration) {
	l.admin.Lock()
	defer l.admin.Unlock()
	l.tokenLife, l.admin.given = life, time.Time{}
}

func (l *Lab) keystoneFiles() (string, error) {
	dir := filepath.Join(l.Central.Dir(), "keystone")
	life := cmp.Or(l.tokenLife, tokenLife)
	text := strings.NewReplacer(
		"@dir@", dir, "@database@", database("keystone"), "@life@", fmt.Sprint(int(life.Seconds())),
	).Replace(keystoneConf)
	if _, err := writeFile(l.Central, "keystone/serve.py", keystoneServe); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(dir, "policy.d"), 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"fernet/0", "fernet/1", "credential/0", "credential/1"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			continue
		}
		key := make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return "", err
		}
		if _, err := writeFile(
			l.Central, filepath.Join("keystone", name), base64.URLEncoding.EncodeToString(key),
		); err != nil {
			return "", err
		}
	}
	return writeFile(l.Central, "keystone/keystone.conf", text)
}

func (l *Lab) migrateKeystone(ctx context.Context) error {
	conf, err := l.keystoneFiles()
	if err != nil {
		return err
	}
	if err := l.createDatabase(ctx, "keystone"); err != nil {
		return err
	}
	manage := []string{"keystone-manage", "--config-file", conf}
	err = run(ctx, l.Central, append(manage, "db_sync"), append(manage, "bootstrap", "--bootstrap-password", adminPassword,
		"--bootstrap-admin-url", KeystoneURL, "--bootstrap-internal-url", KeystoneURL, "--bootstrap-public-url", KeystoneURL,
		"--bootstrap-region-id", "RegionOne"))
	if err != nil {
		return err
	}
	if err := l.StartKeystone(ctx); err != nil {
		return err
	}
	if err := l.seed(ctx); err != nil {
		return fmt.Errorf("make Keystone's users: %w", err)
	}
	return l.StopKeystone(syscall.SIGKILL)
}

// identityFile is kept with the database whose users it tells of.
func (l *Lab) identityFile() string { return filepath.Join(l.databaseDir(), "identity.json") }

func (l *Lab) readIdentity() (err error) {
	if l.identity, err = jsonstore.ReadFile[Identity](l.identityFile()); err != nil {
		return err
	}
	return l.writeClouds()
}

// StartKeystone starts Keystone and returns when it answers.
func (l *Lab) StartKeystone(ctx context.Context) error {
	conf, err := l.keystoneFiles()
	if err != nil {
		return err
	}
	dir := filepath.Dir(conf)
	l.keystone, err = l.Central.StartService(
		ctx, "keystone",
		[]string{"OS_KEYSTONE_CONFIG_FILES=" + conf, "OS_KEYSTONE_CONFIG_DIR=" + dir},
		[]string{"/usr/bin/python3", filepath.Join(dir, "serve.py"), Management.Addr().String(), "5000"},
		listens(l.Central, "tcp", Management.Addr().String()+":5000"))
	return err
}

// StopKeystone ends Keystone with sig.
func (l *Lab) StopKeystone(sig syscall.Signal) error { return l.keystone.Stop(sig, stopLimit) }

// Login asks Keystone for a token of a user in the project.
func (l *Lab) Login(ctx context.Context, user, password, project string) (string, error) {
	domain := Object{"id": "default"}
	header, err := l.request(ctx, http.MethodPost, KeystoneURL+"/auth/tokens", "", Object{"auth": Object{
		"identity": Object{"methods": []string{"password"}, "password": Object{
			"user": Object{"name": user, "password": password, "domain": domain},
		}},
		"scope": Object{"project": Object{"name": project, "domain": domain}},
	}}, nil)
	if err != nil {
		return "", err
	}
	return header.Get("X-Subject-Token"), nil
}

// adminToken is a token of the administrator's that is good for a call. It is used again
// for a while: Neutron knows it then and need not ask Keystone.
func (l *Lab) adminToken(ctx context.Context) (string, error) {
	l.admin.Lock()
	defer l.admin.Unlock()
	if time.Since(l.admin.given) < cmp.Or(l.tokenLife, tokenLife)/3 {
		return l.admin.token, nil
	}
	begin := time.Now()
	token, err := l.Login(ctx, "admin", adminPassword, "admin")
	if err != nil {
		return "", err
	}
	l.admin.token, l.admin.given = token, begin
	return token, nil
}

// seedEdition tells databases of one seed from those of another; who changes seed changes it.
const seedEdition = "3"

// seed makes Neutron's service user, the endpoint of Neutron in the catalogue, and the user and project "demo".
func (l *Lab) seed(ctx context.Context) error {
	token, err := l.Login(ctx, "admin", adminPassword, "admin")
	if err != nil {
		return err
	}
	var failed []error
	create := func(nouns string, token string, o Object) Object {
		answer := map[string]Object{}
		if _, err := l.request(
			ctx, http.MethodPost, KeystoneURL+"/"+nouns, token, map[string]any{singular(nouns): o},
			&answer,
		); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", nouns, err))
		}
		return answer[singular(nouns)]
	}
	roles := map[string]string{}
	var listed struct{ Roles []Object }
	if _, err := l.request(ctx, http.MethodGet, KeystoneURL+"/roles", token, nil, &listed); err != nil {
		return err
	}
	for _, r := range listed.Roles {
		roles[r.Text("name")] = r.ID()
	}
	wanted, balancing := []string{"service", "kuryr"}, []string{}
	if l.opts.Octavia {
		balancing = append(balancing, balancerRole)
	}
	for _, r := range append(wanted, balancing...) {
		if roles[r] == "" {
			roles[r] = create("roles", token, Object{"name": r}).ID()
		}
	}
	user := func(name, password, project string, in ...string) (string, string) {
		p := create("projects", token, Object{"name": project, "domain_id": "default"}).ID()
		u := create("users", token, Object{
			"name": name, "password": password, "domain_id": "default", "default_project_id": p,
		}).ID()
		for _, r := range in {
			url := fmt.Sprintf("%s/projects/%s/users/%s/roles/%s", KeystoneURL, p, u, roles[r])
			if _, err := l.request(ctx, http.MethodPut, url, token, nil, nil); err != nil {
				failed = append(failed, err)
			}
		}
		return u, p
	}
	user("neutron", "neutron-password", "service", "admin", "service")
	id := Identity{Name: "demo", Password: "demo-password"}
	id.User, id.Project = user(id.Name, id.Password, id.Name, append([]string{"member", "kuryr"}, balancing...)...)
	serve := func(name, kind, url string) {
		service := create("services", token, Object{"name": name, "type": kind}).ID()
		for _, i := range []string{"public", "internal", "admin"} {
			create("endpoints", token, Object{"service_id": service, "interface": i, "region_id": "RegionOne", "url": url})
		}
	}
	serve("neutron", "network", Endpoint)
	if l.opts.Octavia {
		user("octavia", "octavia-password", "octavia", "admin", "service")
		serve("octavia", "load-balancer", OctaviaURL)
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if id.Credential, id.Secret, err = l.createCredential(
		ctx, id, "kuryr", append([]string{"member", "kuryr"}, balancing...)...,
	); err != nil {
		return err
	}
	if id.Member, id.MemberSecret, err = l.createCredential(ctx, id, "member", "member"); err != nil {
		return err
	}
	return jsonstore.WriteFile(l.identityFile(), id)
}

func (l *Lab) createCredential(
	ctx context.Context, of Identity, name string, roles ...string,
) (id, secret string, err error) {
	demo, err := l.Login(ctx, of.Name, of.Password, of.Name)
	if err != nil {
		return "", "", err
	}
	var answer struct {
		Credential Object `json:"application_credential"`
	}
	var named []Object
	for _, r := range roles {
		named = append(named, Object{"name": r})
	}
	body := map[string]Object{"application_credential": {"name": name, "roles": named}}
	if _, err := l.request(ctx, http.MethodPost, credentialsURL(of), demo, body, &answer); err != nil {
		return "", "", fmt.Errorf("make an application credential: %w", err)
	}
	return answer.Credential.ID(), answer.Credential.Text("secret"), nil
}

func credentialsURL(id Identity) string {
	return KeystoneURL + "/users/" + id.User + "/application_credentials"
}

// DeleteCredential takes the application credential back, with its tokens.
func (l *Lab) DeleteCredential(ctx context.Context) error {
	demo, err := l.Login(ctx, l.identity.Name, l.identity.Password, l.identity.Name)
	if err != nil {
		return err
	}
	_, err = l.request(ctx, http.MethodDelete, credentialsURL(l.identity)+"/"+l.identity.Credential, demo, nil, nil)
	return err
}

// CreateCredential makes another application credential after DeleteCredential and writes it to CloudsFile.
func (l *Lab) CreateCredential(ctx context.Context) error {
	var err error
	if l.identity.Credential, l.identity.Secret, err = l.createCredential(
		ctx, l.identity, "kuryr", "member", "kuryr",
	); err != nil {
		return err
	}
	return l.writeClouds()
}
