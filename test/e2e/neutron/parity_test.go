//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutronapi"
	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/parity"
)

// Kuryr's REST API answers a table of requests as the real Neutron does, but for the differences that the tree lists.
func TestParity(t *testing.T) {
	r := shared(t)
	to, err := url.Parse(neutronlab.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error { // a project keeps its default group
		var errs []error
		for _, project := range []string{"parity", "parity-small"} {
			groups, err := r.api.List(ctx, "security-groups", "name=default&project_id="+project)
			errs = append(errs, err)
			for _, g := range groups {
				errs = append(errs, r.api.Delete(ctx, "security-groups", g.ID()))
			}
		}
		return errors.Join(errs...)
	})
	client := r.lab.HTTP()
	neutron, err := parity.Run(t.Context(), func(request *http.Request) (*http.Response, error) {
		request.URL.Scheme, request.URL.Host = to.Scheme, to.Host
		return client.Do(request)
	})
	if err != nil {
		t.Fatal(err)
	}
	store, err := local.Open(t.Context(), local.Options{
		Path: filepath.Join(t.TempDir(), "sdn.db"), Host: "here",
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	handler := neutronapi.As(neutronapi.Caller{Role: neutronapi.Admin}, neutronapi.NewHandler(store, neutronapi.Options{}))
	kuryr, err := parity.Run(t.Context(), func(request *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, request)
		return w.Result(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range parity.Check(neutron, kuryr) {
		t.Error(line)
	}
}
