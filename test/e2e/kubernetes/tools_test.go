//go:build e2e

package kubernetes_test

import (
	"encoding/json"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// tools checks that doctor, trace and support-bundle know the node's pods.
func (w *whole) tools(from, to corev1.Pod) {
	w.Helper()
	traced := w.node.Exec(w.ctx, kuryr, "trace", "default/"+from.Name, "default/"+to.Name+":8080/tcp")
	for _, says := range []string{"pod default/" + from.Name, "pod default/" + to.Name, "verdict: answered"} {
		if !traced.OK() || !strings.Contains(traced.Stdout, says) {
			w.Errorf("trace does not say %q: %s", says, traced)
		}
	}
	if absent := w.node.Exec(w.ctx, kuryr, "trace", "default/nobody", "host"); absent.OK() ||
		!strings.Contains(absent.Stderr, `no pod "default/nobody"`) {
		w.Errorf("trace of nobody: %s", absent)
	}

	if found := w.findings(); found["pods"] != "ok" || found["ports of pods"] != "ok" || found["pools"] != "ok" {
		w.Errorf("doctor where all is well: %v", found)
	}
	plugin, other := filepath.Join(kubelab.PluginFolder, "kuryr"),
		filepath.Join(kubelab.ConfigurationFolder, "05-other.conflist")
	w.must(w.node.Exec(w.ctx, "sh", "-c", "cp "+plugin+" /run/plugin && echo >>"+plugin+" && touch "+other).Err())
	if found := w.findings(); found["pods"] != "problem" {
		w.Errorf("doctor where another list comes first, with an old plugin: %v", found)
	}
	w.must(w.node.Exec(w.ctx, "sh", "-c", "cp /run/plugin "+plugin+" && rm "+other).Err())

	bundle := w.node.Exec(
		w.ctx, "sh", "-c",
		kuryr+
			" support-bundle /run/bundle.tar.gz >/dev/null && tar -xzOf /run/bundle.tar.gz "+
			"--wildcards '*/node/pods.json'",
	)
	var pods struct {
		Node  string
		Ports []struct{ Pod, Status, Link string }
		Pools []struct{ Name string }
	}
	err := json.Unmarshal([]byte(bundle.Stdout), &pods)
	has := false
	for _, p := range pods.Ports {
		has = has || p.Pod == "default/"+from.Name && p.Status == "bound" && p.Link == "whole"
	}
	if err != nil || pods.Node != w.node.Name || len(pods.Pools) == 0 || !has {
		w.Errorf("support-bundle: %v, %s", err, bundle)
	}
	if secret := w.node.Exec(w.ctx, "sh", "-c", "tar -xzOf /run/bundle.tar.gz | grep -ac eyJ"); secret.Out() != "0" {
		w.Errorf("the bundle has what looks like a token: %s", secret)
	}
}

// findings are the worst verdicts of kuryr doctor by their checks.
func (w *whole) findings() map[string]string {
	w.Helper()
	said := w.node.Exec(w.ctx, kuryr, "doctor", "-o", "json")
	var report struct {
		Findings []struct{ Check, Verdict, What string }
	}
	if err := json.Unmarshal([]byte(said.Stdout), &report); err != nil {
		w.Errorf("doctor: %v, %s", err, said)
	}
	worst := map[string]string{} // they come worst first
	for _, f := range report.Findings {
		if worst[f.Check] == "" {
			worst[f.Check] = f.Verdict
		}
	}
	return worst
}
