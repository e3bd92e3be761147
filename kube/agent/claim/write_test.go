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

// TestLostAnswer loses the answer to the write that binds a port. The container's DEL comes before the
// watch reports the port as bound: nothing claims it then.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	release := w.api.hold()
	w.api.mu.Lock()
	w.api.loses = 2 // after the label's
	w.api.mu.Unlock()
	w.adds(ask("c", "a", "ua"))
	w.says(portName(1), v1.PortBound, "c")
	w.dels(ask("c", "a", "ua"))
	_ = w.do(t.Context(), task{port: portName(1)}) // it fails while the port is not known
	release()
	w.says(portName(1), v1.PortAvailable, "")
	w.settled(0)
}

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
