package install

import (
	"errors"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// switches are what is rendered of Services.
type switches struct {
	raven, nodes, rights bool
	pods                 string // what makes new pods
}

func servicesOf(t *testing.T, values string, there map[string]any) switches {
	t.Helper()
	v, err := Defaults()
	if err == nil {
		err = v.Merge([]byte(values))
	}
	if err != nil {
		t.Fatal(err)
	}
	release := Release{Namespace: "kuryr-system", Values: v}
	release.Lookup = func(apiVersion, kind, namespace, name string) (map[string]any, error) {
		if apiVersion != "v1" || kind != "ConfigMap" || namespace != "kuryr-system" || name != "kuryr" {
			return nil, nil
		}
		return there, nil
	}
	manifests, err := Render(release)
	if err != nil {
		t.Fatal(err)
	}
	var found switches
	for _, m := range manifests {
		switch m.Object.GetKind() + " " + m.Object.GetName() {
		case "ConfigMap kuryr":
			for key, on := range map[string]func(config.Config) bool{
				"kuryr.yaml": func(c config.Config) bool { found.raven = c.Controller.Services; return true },
				"node.yaml":  func(c config.Config) bool { found.nodes = c.Node.Services; return true },
			} {
				text, _, _ := unstructured.NestedString(m.Object.Object, "data", key)
				cfg, err := config.Parse(key, []byte(text))
				if err != nil || !on(cfg) {
					t.Errorf("%s: %v", key, err)
				}
			}
		case "ClusterRole kuryr-node":
			found.rights = strings.Contains(m.Text, "endpointslices")
		case "DaemonSet kuryr-node", "Deployment kuryr-controller":
			hash, _, _ := unstructured.NestedString(m.Object.Object,
				"spec", "template", "metadata", "annotations", "openstack.org/config")
			found.pods += hash + " "
		}
	}
	return found
}

// A new cluster has Services by default. An upgrade of one that has Kuryr switches nothing: where
// Services are kube-proxy's, no second proxy is started.
func TestServicesByDefault(t *testing.T) {
	t.Parallel()
	data := func(more map[string]any) map[string]any {
		all := map[string]any{"kuryr.yaml": "installation: a\n"}
		for key, value := range more {
			all[key] = value
		}
		return map[string]any{"kind": "ConfigMap", "data": all}
	}
	before := data(nil)
	since := data(map[string]any{"kuryr.yaml": "controller.services: true", "node.yaml": "node.services: true"})
	// Rendered with config and node.config.
	settings := data(map[string]any{
		"kuryr.yaml": "controller.listen: 127.0.0.1:9465\ncontroller:\n  services: true",
		"node.yaml":  "node:\n  services: true",
	})
	for _, row := range []struct {
		name, values string
		there        map[string]any
		raven, nodes bool
	}{
		{"new", "", nil, true, true},
		{"new, switched off", "services: false", nil, false, false},
		{"new, nodes balance", "loadBalancers: node", nil, true, true},
		{"upgrade of a release without the value", "", before, false, false},
		{"the same, with the values that switched it on", "config: {controller: {services: true}}\n" +
			"node: {config: {node.services: true}}", before, true, true},
		{"the same, Raven alone", "config: {controller.services: true}", before, true, false},
		{"the same, switched off by values", "config: {controller: {services: false}}", before, false, false},
		{"the same, switched on", "services: true", before, true, true},
		{"upgrade of a cluster that has them", "", since, true, true},
		{"the same, switched off", "services: false", since, false, false},
		{"the same, switched off by values", "node: {config: {node: {services: false}}}", since, false, false},
		{"upgrade of a cluster where two settings switched them on", "", settings, true, true},
		{"the same, nodes balance", "loadBalancers: node", settings, true, true},
		{"the same, switched off", "services: false", settings, false, false},
		{"Raven alone", "", data(map[string]any{"kuryr.yaml": "controller.services: true"}), true, false},
		{"nodes alone", "", data(map[string]any{"node.yaml": "node.services: true"}), false, true},
		{"two settings that switched them off", "", data(map[string]any{
			"kuryr.yaml": "controller: {services: false}", "node.yaml": "node.services: false",
		}), false, false},
		{"no map", "", data(map[string]any{"kuryr.yaml": "a", "node.yaml": "node: null"}), false, false},
		{"no data", "", map[string]any{"kind": "ConfigMap"}, false, false},
		{"values of before, without the key", "services: null", nil, false, false},
	} {
		got := servicesOf(t, row.values, row.there)
		if got.raven != row.raven || got.nodes != row.nodes || got.rights != row.nodes {
			t.Errorf("%s: %+v, want Raven %t, nodes %t", row.name, got, row.raven, row.nodes)
		}
	}
	// What does not change makes no new pods.
	if off, kept := servicesOf(t, "services: false", nil), servicesOf(t, "", before); off.pods != kept.pods {
		t.Errorf("an upgrade of a cluster without Services makes new pods: %q and %q", off.pods, kept.pods)
	}
}

func TestServicesAreSaidOnce(t *testing.T) {
	t.Parallel()
	for values, says := range map[string]string{
		"services: maybe": "value services: want auto, true or false",
		"{services: true, config: {controller: {services: false}}}":             "values services and config.controller.services",
		"{services: false, node: {config: {node.services: true}}}":              "values services and node.config.node.services",
		"config: {controller: {pod_ranges: [10.96.0.0/16]}}":                    "value config.controller.pod_ranges: 10.96.0.0/16 overlaps",
		"{services: false, config: {controller: {pod_ranges: [10.96.0.0/16]}}}": "",
	} {
		v, err := Defaults()
		if err == nil {
			err = v.Merge([]byte(values))
		}
		if err == nil {
			_, err = Render(Release{Namespace: "a", Values: v})
		}
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", values, err, says)
		}
	}
}

// A cluster that cannot be asked is not taken for a new one.
func TestLookupFails(t *testing.T) {
	t.Parallel()
	v, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	away := errors.New("no answer")
	_, err = Render(Release{Namespace: "a", Values: v, Lookup: func(_, _, _, _ string) (map[string]any, error) {
		return nil, away
	}})
	if err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("error %v", err)
	}
}
