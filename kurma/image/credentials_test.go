package image

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A service of systemd has neither HOME nor a variable of XDG; the daemon sets HOME.
func TestCredentialFilesOfAService(t *testing.T) {
	t.Parallel()
	env := func(key string) string { return map[string]string{"HOME": "/root"}[key] }
	want := []string{
		"/root/.docker/config.json", "/run/containers/0/auth.json",
		"/run/user/0/containers/auth.json", "/root/.config/containers/auth.json",
	}
	if got := credentialFiles(env, 0); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// An image of a registry that wants a password comes with the credentials that a login has
// left, in whichever file and form.
func TestCredentials(t *testing.T) {
	const right, wrong = `{"auth":"dXNlcjpwYXNz"}`, `{"auth":"dXNlcjpubw=="}` // user:pass, user:no
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "pass" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "login", http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	tag, err := name.NewTag(host + "/ns/plugin:1")
	if err != nil {
		t.Fatal(err)
	}
	file, err := empty.Image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", goarch
	image, err := mutate.ConfigFile(empty.Image, file)
	if err == nil {
		err = remote.Write(tag, image, remote.WithAuth(&authn.Basic{Username: "user", Password: "pass"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	auths := func(key, value string) string { return `{"auths":{"` + key + `":` + value + `}}` }
	const docker, podman = ".docker/config.json", ".config/containers/auth.json"
	for title, c := range map[string]struct {
		files  map[string]string // below HOME
		may    bool
		logged string
	}{
		"none":                        {nil, false, ""},
		"docker login":                {map[string]string{docker: auths(host, right)}, true, ""},
		"an old docker login":         {map[string]string{docker: auths("https://"+host+"/v1/", right)}, true, ""},
		"podman login":                {map[string]string{podman: auths(host, right)}, true, ""},
		"podman login of a namespace": {map[string]string{podman: auths(host+"/ns", right)}, true, ""},
		"podman login of an image": {map[string]string{podman: `{"auths":{"` + host + `":` + wrong + `,"` +
			host + `/ns":` + wrong + `,"` + host + `/ns/plugin":` + right + `}}`}, true, ""},
		"another namespace": {map[string]string{podman: auths(host+"/other", right)}, false, ""},
		"another registry":  {map[string]string{docker: auths("example.com", right)}, false, ""},
		"another registry of docker, this one of podman": {
			map[string]string{docker: auths("example.com", wrong), podman: auths(host, right)}, true, ""},
		"an empty entry of docker": {map[string]string{docker: auths(host, "{}"), podman: auths(host, right)}, true, ""},
		"a runtime folder":         {map[string]string{"run/containers/auth.json": auths(host, right)}, true, ""},
		"a file by its name":       {map[string]string{"named.json": auths(host, right)}, true, ""},
		"a malformed file":         {map[string]string{docker: "{", podman: auths(host, right)}, true, docker},
		"a file of another kind":   {map[string]string{docker: `{"auths":[]}`, podman: auths(host, right)}, true, docker},
		"an empty file":            {map[string]string{docker: "", podman: auths(host, right)}, true, ""},
		"a long file": {map[string]string{docker: strings.Repeat(" ", maxCredentials+1), podman: auths(host, right)},
			true, docker},
	} {
		t.Run(title, func(t *testing.T) {
			home := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(home, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for key, value := range map[string]string{
				"HOME": home, "DOCKER_CONFIG": "", "XDG_CONFIG_HOME": "", "XDG_RUNTIME_DIR": filepath.Join(home, "run"),
				"REGISTRY_AUTH_FILE": filepath.Join(home, "named.json"),
			} {
				t.Setenv(key, value)
			}
			var said bytes.Buffer
			s, err := Open(t.TempDir(), Config{Log: slog.New(slog.NewTextHandler(&said, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Get(t.Context(), "docker://"+tag.String(), nil); (err == nil) != c.may {
				t.Errorf("%v, want success %v", err, c.may)
			}
			told := (c.logged == "") == (said.Len() == 0) && strings.Contains(said.String(), c.logged)
			if !told || strings.Contains(said.String(), "dXNl") {
				t.Errorf("log is %q, want %q", said.String(), c.logged)
			}
		})
	}
}
