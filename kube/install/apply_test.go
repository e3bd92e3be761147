package install

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// What the fake API server can of server-side apply, which no dry runs are; a real one is asked in test/e2e/kubernetes.
func TestApply(t *testing.T) {
	t.Parallel()
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(s).Build()
	apply := func(set ...string) map[string]int {
		t.Helper()
		manifests, _ := render(t, append([]string{"createNamespace=true"}, set...)...)
		// The fake knows no admission policies' defaults; the rest is enough.
		manifests = slices.DeleteFunc(manifests, func(m Manifest) bool { return strings.HasPrefix(m.Object.GetKind(), "ValidatingAdmission") })
		counts := map[string]int{}
		err := Applier{API: api, Said: func(what, _, _ string) { counts[what]++ }}.Apply(t.Context(), manifests)
		if err != nil {
			t.Fatal(err)
		}
		return counts
	}
	var config corev1.ConfigMap
	key := client.ObjectKey{Namespace: "kuryr-system", Name: "kuryr"}
	first := apply()
	if first[Created] < 15 || len(first) != 1 {
		t.Errorf("first: %v", first)
	}
	if n := apply(); n[Unchanged] != first[Created] || len(n) != 1 {
		t.Errorf("the same once more: %v", n)
	}
	if n := apply("config.log.level=debug"); n[Changed] != 2 || n[Created] != 0 { // the ConfigMap, and Raven's pods
		t.Errorf("another configuration: %v", n)
	}
	if err := api.Get(t.Context(), key, &config); err != nil || !strings.Contains(config.Data["kuryr.yaml"], "level: debug") {
		t.Errorf("%q, %v", config.Data, err)
	}
}
