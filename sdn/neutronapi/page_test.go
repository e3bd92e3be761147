package neutronapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// BenchmarkPage measures lists of ports as an administrator and as a member see them.
func BenchmarkPage(b *testing.B) {
	w := newWorld(b)
	specs := make([]sdn.PortSpec, 200)
	for i := range specs {
		specs[i] = sdn.PortSpec{
			Base:    sdn.Base{Name: fmt.Sprintf("port-%d", i), Project: alice.Project, Tags: []string{"a", "b"}},
			Network: w.network.ID, DeviceID: fmt.Sprintf("device-%d", i), DeviceOwner: sdn.OwnerContainer, Host: "h",
		}
	}
	if _, err := w.sdn.EnsurePorts(b.Context(), specs); err != nil {
		b.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		caller Caller
		query  string
	}{
		{"administrator", root, ""}, {"member", alice, ""}, {"fields", root, "?fields=id&fields=fixed_ips"},
		{"sorted", root, "?sort_key=name&sort_dir=desc&limit=50"},
	} {
		b.Run(tc.name, func(b *testing.B) {
			h := As(tc.caller, w.handler)
			b.ReportAllocs()
			for b.Loop() {
				out := httptest.NewRecorder()
				h.ServeHTTP(out, httptest.NewRequest(http.MethodGet, "/v2.0/ports"+tc.query, nil))
				if out.Code != http.StatusOK {
					b.Fatal(out.Code, out.Body.String())
				}
			}
		})
	}
}
