//go:build linux

package claim

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What kuryr-kubernetes wrote on a pod goes, and the port that it told of is logged: no KuryrPort knows it. What was written otherwise goes without a word.
func TestAnnotationOfThePeer(t *testing.T) {
	text, err := os.ReadFile("../../vif/testdata/bridge.json")
	must(t, err)
	for annotation, logged := range map[string][]string{
		string(text): {"pod=default/a", "interface=eth0", "port=18f968a5-c420-4318-92d7-941eb5f9e60e", "10.11.9.5"},
		"by hand":    nil,
		`{"eth0": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/p1"}}, "versioned_object.name": "KuryrPortCRD"}`: nil,
	} {
		w := newWorld(t, aPod("a", "ua"))
		w.begun()
		w.kill() // so that it does so here alone
		var log bytes.Buffer
		w.Log = slog.New(slog.NewTextHandler(&log, nil))
		pod := w.api.pod(t, "a")
		pod.Annotations = map[string]string{v1.AnnotationVIF: annotation}
		must(t, w.api.Update(t.Context(), pod))
		w.index.setPod(pod)
		must(t, w.annotate(t.Context(), client.ObjectKeyFromObject(pod)))
		if left, there := w.api.pod(t, "a").Annotations[v1.AnnotationVIF]; there {
			t.Errorf("left: %s", left)
		}
		for _, word := range logged {
			if !strings.Contains(log.String(), word) {
				t.Errorf("no %s in %s", word, log.String())
			}
		}
		if logged == nil && log.Len() > 0 {
			t.Errorf("of %s: %s", annotation, log.String())
		}
	}
}
