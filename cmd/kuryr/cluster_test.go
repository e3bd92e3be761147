//go:build linux && kubernetes

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
	"k8s.io/client-go/rest"
)

// A token that is refused is read from its file again before the next request, and none that is taken is.
func TestKubernetesTokenRefused(t *testing.T) {
	t.Parallel()
	taken := "old"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+taken {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(api.Close)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	c, err := restConfig(config.Kubernetes{APIServer: api.URL, TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(want int) {
		t.Helper()
		answer, err := client.Get(api.URL)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("the API server answers %s, want %d", answer.Status, want)
		}
	}
	ask(http.StatusOK)
	write("new") // before the old one ends, as a kubelet does
	ask(http.StatusOK)
	taken = "new"
	ask(http.StatusUnauthorized) // which is when it is read again
	ask(http.StatusOK)

	if _, err := restConfig(config.Kubernetes{APIServer: api.URL, TokenFile: file + ".none"}); err == nil || !strings.Contains(err.Error(), file+".none") {
		t.Errorf("a token file that is not there: %v", err)
	}
}
