package image_test

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kuryr/kuryr/kurma/image"
)

// elsewhere is the network of a registry on another machine, which redirects whoever asks for a layer.
type elsewhere struct {
	registry http.Handler
	layer    string
	to       string

	mu    sync.Mutex
	asked []string
}

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.asked = append(e.asked, r.URL.Scheme+"://"+r.URL.Host)
	e.mu.Unlock()
	w := httptest.NewRecorder()
	if r.Method == http.MethodGet && e.to != "" && strings.HasSuffix(r.URL.Path, "/blobs/"+e.layer) {
		http.Redirect(w, r, e.to, http.StatusTemporaryRedirect)
	} else {
		if r.Body == nil {
			r.Body = http.NoBody // which a server's requests always have
		}
		e.registry.ServeHTTP(w, r)
	}
	answer := w.Result()
	answer.Request = r
	return answer, nil
}

// A registry does not have this machine ask itself, whose own registries may be spoken to without TLS.
func TestRegistryRedirects(t *testing.T) {
	t.Parallel()
	away := &elsewhere{registry: registry.New(registry.Logger(nopLogger()))}
	made := imageOf(t, runtime.GOARCH, pack(t, entry{name: "a", content: "1"}))
	tag, err := name.NewTag("registry.example.org/user/plugin:1")
	if err == nil {
		err = remote.Write(tag, made, remote.WithTransport(away))
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := made.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := all[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	away.layer, away.to, away.asked = digest.String(), "http://127.0.0.1:9/secret", nil
	s := open(t, image.Config{Transport: away})
	if _, err := s.Get(t.Context(), "docker://registry.example.org/user/plugin:1", nil); err == nil || !strings.Contains(err.Error(), "plain http is refused") {
		t.Errorf("%v", err)
	}
	if slices.Contains(away.asked, "http://127.0.0.1:9") {
		t.Errorf("asked %v", away.asked)
	}
	away.to = ""
	if _, err := s.Get(t.Context(), "docker://registry.example.org/user/plugin:1", nil); err != nil {
		t.Errorf("without the redirect: %v", err)
	}
}
