package parity

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutronapi"
)

// Kuryr gives an Asker of the REST API over the embedded SDN, without a kernel.
func kuryr(t *testing.T) Asker {
	t.Helper()
	store, err := local.Open(t.Context(), local.Options{Path: filepath.Join(t.TempDir(), "sdn.db"), Host: "here", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	handler := neutronapi.As(neutronapi.Caller{Role: neutronapi.Admin}, neutronapi.NewHandler(store, neutronapi.Options{}))
	return func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Result(), nil
	}
}

// Kuryr answers as the Neutron did whose answers are recorded, but for the differences that are listed.
func TestRecordedNeutron(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	neutron := map[string]Answer{}
	if err := json.Unmarshal(data, &neutron); err != nil {
		t.Fatal(err)
	}
	answers, err := Run(t.Context(), kuryr(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range Check(neutron, answers) {
		t.Error(line)
	}
}
