package parity

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
)

// recorded is what Neutron answered: release 21 with OVN, as Debian 12 has it.
var recorded = filepath.Join("testdata", "neutron-21.json")

// at gives an Asker of the server at a URL.
func serverAt(t *testing.T, endpoint string) Asker {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return func(r *http.Request) (*http.Response, error) {
		r.URL.Scheme, r.URL.Host = to.Scheme, to.Host
		return http.DefaultClient.Do(r)
	}
}

// Writes the record anew from the Neutron at KURYR_NEUTRON_URL, which has no authentication and nothing of the project "parity".
func TestRecord(t *testing.T) {
	endpoint := os.Getenv("KURYR_NEUTRON_URL")
	if endpoint == "" {
		t.Skip("KURYR_NEUTRON_URL does not say where a Neutron is")
	}
	answers, err := Run(t.Context(), serverAt(t, endpoint))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.MarshalIndent(answers, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recorded, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
