//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// TestRavenStarts starts Raven on a running cluster: by a raven.conf alone, with a public network
// that the SDN does not have, and while the API server is unavailable.
func TestRavenStarts(t *testing.T) {
	w := shareNode(t)
	log := filepath.Join(w.node.Dir(), "kuryr-controller.log")
	restart := func(more ...string) (since int64) {
		t.Helper()
		if info, err := os.Stat(log); err == nil {
			since = info.Size()
		}
		w.reset(more...)
		return since
	}
	said := func(since int64) string {
		t.Helper()
		text, err := os.ReadFile(log)
		w.must(err)
		return string(text[since:])
	}
	w.create("default", serverPod("before", ""))
	w.running("default", "", 1)

	t.Run("MissingPublicNetwork", func(t *testing.T) {
		since := restart("--controller-public-network", "nowhere")
		select {
		case <-w.raven.Gone():
		case <-time.After(limit):
			t.Fatalf("Raven runs on:\n%s", said(since))
		}
		if text := said(since); !strings.Contains(text, `public network: the SDN has no external network "nowhere"`) {
			t.Errorf("Raven said:\n%s", text)
		}
		w.agree(1) // nothing has changed
	})

	t.Run("APIServerUnavailable", func(t *testing.T) {
		w.must(w.StopAPIServer(syscall.SIGTERM))
		since := restart()
		select {
		case <-w.raven.Gone():
			t.Fatalf("Raven ended:\n%s", said(since))
		case <-time.After(8 * time.Second): // without waiting it ends after 3 s
		}
		if text := said(since); !strings.Contains(text, "cannot reach the API server yet") {
			t.Errorf("Raven said:\n%s", text)
		}
		w.must(w.StartAPIServer(w.ctx))
		w.create("default", serverPod("waited", ""))
		w.running("default", "", 2)
		w.agree(2)
	})

	t.Run("RavenConf", func(t *testing.T) {
		w.must(w.raven.Stop(syscall.SIGTERM, limit))
		start := func(name, more string) {
			t.Helper()
			conf := filepath.Join(w.dir, name+".conf")
			w.must(os.WriteFile(conf, fmt.Appendf(nil, `[DEFAULT]
debug = true
[kubernetes]
api_root = %s
ssl_ca_crt_file = %s
token_file = %s
vif_pool_driver = neutron
[vif_pool]
ports_pool_min = 4
ports_pool_batch = 4
%s`, w.Endpoint(), filepath.Join(w.dir, "ca"), filepath.Join(w.dir, "kuryr-controller"), more), 0o600))
			var err error
			w.raven, err = w.node.StartService(w.ctx, name, nil, slices.Concat([]string{
				kuryr, "controller", "--config", conf, "--host", w.node.Name, "--installation", "kubernetes",
				"--provider", "sdn", "--controller-namespace", system, "--controller-leader-election=false",
			}, w.settings), nil)
			w.must(err)
		}
		start("raven-nowhere", "[neutron_defaults]\nexternal_svc_net = nowhere\n")
		select {
		case <-w.raven.Gone():
		case <-time.After(limit):
			t.Fatal("Raven does not read external_svc_net")
		}
		start("raven", "[prometheus_exporter]\ncontroller_exporter_port = 9477\n")
		w.create("default", serverPod("by-file", ""))
		w.running("default", "", 3)
		w.agree(3)
		w.until(func(ctx context.Context) error {
			var pools kuryrv1.KuryrPortPoolList
			err := w.api.List(ctx, &pools)
			for _, p := range pools.Items {
				if p.Spec.Minimum != 4 || p.Spec.Batch != 4 {
					return fmt.Errorf("pool %s has minimum %d and batch %d", p.Name, p.Spec.Minimum, p.Spec.Batch)
				}
			}
			return err
		})
		w.must(w.node.Exec(w.ctx, "curl", "-sf", "http://127.0.0.1:9477/readyz").Err())
		text, err := os.ReadFile(filepath.Join(w.node.Dir(), "raven.log"))
		w.must(err)
		if !strings.Contains(string(text), "[kubernetes] vif_pool_driver is not served: there are always pools") {
			t.Errorf("Raven said:\n%s", text)
		}
	})
	restart() // with the settings of the other tests
}
