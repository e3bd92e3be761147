//go:build linux && kubernetes

package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestAwaitCluster checks that Raven waits at its start for an API server that is unavailable, and
// ends where waiting does not help.
func TestAwaitCluster(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int // of the first answer; 0 is none
		tls    bool
		want   string // the error
	}{
		"starting":          {status: http.StatusServiceUnavailable},
		"silent":            {},
		"unknown token":     {status: http.StatusUnauthorized, want: "credentials"},
		"no rights":         {status: http.StatusForbidden, want: "server groups"},
		"unknown authority": {tls: true, want: "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			answer := func(w http.ResponseWriter, r *http.Request) {
				switch first := asked.Add(1) == 1; {
				case first && c.status == 0:
					<-r.Context().Done()
				case first, c.want != "":
					w.WriteHeader(c.status)
				default:
					w.Header().Set("Content-Type", "application/json")
					_ = json.NewEncoder(w).Encode(answerTo(r.URL.Path))
				}
			}
			api := httptest.NewUnstartedServer(http.HandlerFunc(answer))
			api.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			if c.tls {
				api.StartTLS()
			} else {
				api.Start()
			}
			t.Cleanup(api.Close)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			uid, err := awaitCluster(ctx, &rest.Config{Host: api.URL}, time.Second, slog.New(slog.DiscardHandler))
			switch {
			case ctx.Err() != nil:
				t.Fatalf("it waits: %v", err)
			case c.want == "" && (err != nil || uid != "a-b"):
				t.Errorf("%q, %v", uid, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// answerTo is what an API server answers at a path: its resources, or the namespace kube-system.
func answerTo(path string) any {
	if path == "/api/v1/namespaces/kube-system" {
		return &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "A-B"},
		}
	}
	return &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: "v1",
		APIResources: []metav1.APIResource{{Name: "namespaces", Kind: "Namespace"}},
	}
}
