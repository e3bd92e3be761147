package install

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestHome(t *testing.T) {
	t.Parallel()
	node := func(name string, labels ...string) client.Object {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		for _, l := range labels {
			n.Labels[l] = ""
		}
		return n
	}
	pod := func(node string, phase corev1.PodPhase) client.Object {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kuryr-system", Name: "kuryr-sdn-" + node, Labels: map[string]string{"app.kubernetes.io/name": "kuryr-sdn"}},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	running := pod("b", corev1.PodRunning)
	for name, row := range map[string]struct {
		there   []client.Object
		want    string
		changes bool
		fails   string
	}{
		"the only one":        {there: []client.Object{node("a", "x")}, want: "a", changes: true},
		"where it runs":       {there: []client.Object{node("a"), node("b"), running}, want: "b", changes: true},
		"as an administrator": {there: []client.Object{node("a"), node("b"), node("c", LabelSDN), running}, want: "c"},
		"one of several":      {there: []client.Object{node("a"), node("b")}},
		"no node yet":         {},
		"too many":            {there: []client.Object{node("a", LabelSDN), node("b", LabelSDN)}, fails: "a, b"},
		"others have ended":   {there: []client.Object{node("a"), node("b"), node("c"), pod("a", corev1.PodSucceeded), running, pod("c", corev1.PodFailed)}, want: "b", changes: true},
		"here and there":      {there: []client.Object{node("a"), node("b"), pod("a", corev1.PodPending), running}},
		"its node is gone":    {there: []client.Object{node("a"), node("c"), running}},
	} {
		for _, dry := range []bool{true, false} {
			api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(row.there...).Build()
			got, changed, err := Applier{API: api, DryRun: dry}.Home(t.Context(), "kuryr-system")
			if got != row.want || changed != row.changes || (err != nil) != (row.fails != "") || err != nil && !strings.Contains(err.Error(), row.fails) {
				t.Errorf("%s, dry %v: %q, %v, %v", name, dry, got, changed, err)
			}
			var all corev1.NodeList
			if err := api.List(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			for _, n := range all.Items {
				_, has := n.Labels[LabelSDN]
				if want := n.Name == row.want && (!dry || !row.changes); row.fails == "" && has != want {
					t.Errorf("%s, dry %v: node %s has the label: %v", name, dry, n.Name, has)
				}
			}
		}
	}
}
