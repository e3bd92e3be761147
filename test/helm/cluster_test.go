package helm

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// resources has the kinds of the API server by group and version, with their resources. Those in
// namespaces have a "/" before.
var resources = map[string]map[string]string{
	"v1": {
		"Namespace": "namespaces", "Node": "nodes", "ConfigMap": "/configmaps", "ServiceAccount": "/serviceaccounts",
		"Pod": "/pods",
	},
	"apps/v1":             {"Deployment": "/deployments", "DaemonSet": "/daemonsets"},
	"policy/v1":           {"PodDisruptionBudget": "/poddisruptionbudgets"},
	"discovery.k8s.io/v1": {"EndpointSlice": "/endpointslices"},
	"rbac.authorization.k8s.io/v1": {
		"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Role": "/roles",
		"RoleBinding": "/rolebindings",
	},
	"admissionregistration.k8s.io/v1": {
		"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
		"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
	},
	"apiextensions.k8s.io/v1": {"CustomResourceDefinition": "customresourcedefinitions"},
}

// apiServer answers both installers. It keeps objects as they are, by their path, and records
// what is applied.
type apiServer struct {
	*httptest.Server
	sync.Mutex
	objects map[string]map[string]any
	applied objects
	notes   string // the end of what kuryr printed
}

// serve starts an API server with objects in YAML.
func serve(t *testing.T, texts ...string) *apiServer {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}, applied: objects{}}
	for _, text := range texts {
		object := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		s.objects[pathOf(t, object)] = object
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// pathOf returns the path of an object.
func pathOf(t *testing.T, object map[string]any) string {
	t.Helper()
	version, kind := object["apiVersion"].(string), object["kind"].(string)
	resource := resources[version][kind]
	if resource == "" {
		t.Fatalf("%s %s is missing in resources", version, kind)
	}
	metadata := object["metadata"].(map[string]any)
	folder := "/api/" + version
	if version != "v1" {
		folder = "/apis/" + version
	}
	if resource[0] == '/' {
		folder += "/namespaces/" + metadata["namespace"].(string)
	}
	return path.Join(folder, resource, metadata["name"].(string))
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	answer := s.discover(r.URL.Path)
	switch {
	case r.Method == http.MethodPatch:
		answer = s.patch(r)
	case answer == nil:
		answer = s.get(r.URL.Path)
	}
	if answer == nil {
		w.WriteHeader(http.StatusNotFound)
		answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// patch stores what is applied. Another patch changes labels alone.
func (s *apiServer) patch(r *http.Request) any {
	body, _ := io.ReadAll(r.Body)
	object := map[string]any{}
	if err := yaml.Unmarshal(body, &object); err != nil {
		return nil
	}
	metadata := object["metadata"].(map[string]any)
	if r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
		there := s.objects[r.URL.Path]["metadata"].(map[string]any)
		there["labels"] = metadata["labels"]
		return s.objects[r.URL.Path]
	}
	s.applied[object["kind"].(string)+" "+metadata["name"].(string)] = object
	s.objects[r.URL.Path] = object
	return object
}

// get returns an object or a list.
func (s *apiServer) get(at string) any {
	if object := s.objects[at]; object != nil {
		return object
	}
	for version, kinds := range resources {
		for kind, resource := range kinds {
			if path.Base(resource) != path.Base(at) {
				continue
			}
			items := []any{}
			for _, name := range slices.Sorted(maps.Keys(s.objects)) {
				if path.Dir(name) == at {
					items = append(items, s.objects[name])
				}
			}
			return map[string]any{"apiVersion": version, "kind": kind + "List", "metadata": map[string]any{}, "items": items}
		}
	}
	return nil
}

// discover returns what the API server has.
func (s *apiServer) discover(at string) any {
	if at == "/api" {
		return map[string]any{"kind": "APIVersions", "versions": []string{"v1"}}
	}
	if at == "/apis" {
		var groups []any
		for version := range resources {
			if version != "v1" {
				this := map[string]any{"groupVersion": version, "version": "v1"}
				groups = append(groups, map[string]any{
					"name": path.Dir(version), "versions": []any{this}, "preferredVersion": this,
				})
			}
		}
		return map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
	}
	version := strings.TrimPrefix(strings.TrimPrefix(at, "/apis/"), "/api/")
	if resources[version] == nil {
		return nil
	}
	var all []any
	for kind, resource := range resources[version] {
		all = append(all, map[string]any{
			"name": path.Base(resource), "kind": kind, "namespaced": resource[0] == '/', "verbs": []string{"get", "list"},
		})
	}
	return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": all}
}

// appliedByKuryr returns what "kuryr install kubernetes --apply" applies to the cluster.
func (s *apiServer) appliedByKuryr(t *testing.T, v values) (objects, error) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "`+s.URL+`"}}], users: [{name: c, user: {}}],
contexts: [{name: c, context: {cluster: c, user: c}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"install", "kubernetes", "--namespace", system, "--apply", "--kubeconfig", kubeconfig}
	for _, set := range v.set {
		args = append(args, "--set", set)
	}
	out, err := program(t, args...)
	_, s.notes, _ = strings.Cut(out, "\n\n")
	s.Lock()
	defer s.Unlock()
	return maps.Clone(s.applied), err
}

// renderedByHelm returns what helm installs in the cluster.
func (s *apiServer) renderedByHelm(t *testing.T, v values) (objects, error) {
	t.Helper()
	return byEngine(t, engine.New(&rest.Config{Host: s.URL, QPS: -1}), v)
}

// notes returns what helm prints after it has installed the chart in the cluster.
func notes(t *testing.T, s *apiServer, v values) string {
	t.Helper()
	files, err := renderFiles(t, engine.New(&rest.Config{Host: s.URL, QPS: -1}), v)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(files["kuryr/templates/NOTES.txt"]) + "\n"
}

// address returns the API server's address in the variables of a container.
func address(t *testing.T, workload map[string]any) string {
	t.Helper()
	data, err := json.Marshal(workload)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Env []struct{ Name, Value string }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, e := range read.Spec.Template.Spec.Containers[0].Env {
		if strings.HasPrefix(e.Name, "KUBERNETES_SERVICE_") {
			text += " " + e.Value
		}
	}
	return text
}

const (
	clusterInfo = `{apiVersion: v1, kind: ConfigMap, metadata: {namespace: kube-public, name: cluster-info},
data: {kubeconfig: "clusters: [{name: '', cluster: {server: 'https://[2001:db8::1]:6443'}}]"}}`
	endpoint = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: default, name: kubernetes},
addressType: IPv4, ports: [{name: https, port: 6444}], endpoints: [{addresses: [192.0.2.2]}]}`
	controller = `{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: kuryr-system, name: kuryr-controller},
spec: {template: {spec: {containers: [{name: controller, env: [{name: KUBERNETES_SERVICE_HOST, value: old},
{name: KUBERNETES_SERVICE_PORT, value: "1"}]}]}}}}`
)

// TestAPIServerAddress checks that both installers find the same API server in a cluster.
func TestAPIServerAddress(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		cluster []string
		set     []string
		want    string
	}{
		{name: "empty cluster"},
		{name: "kubeadm", cluster: []string{clusterInfo, endpoint}, want: " 2001:db8::1 6443"},
		{name: "one API server", cluster: []string{endpoint}, want: " 192.0.2.2 6444"},
		{name: "upgrade", cluster: []string{clusterInfo, endpoint, controller}, want: " old 1"},
		{
			name: "value", cluster: []string{clusterInfo, endpoint, controller},
			set: []string{"apiServer.host=new", "apiServer.port=2"}, want: " new 2",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			v := values{set: append([]string{"createNamespace=true"}, row.set...)}
			theirs, err := serve(t, row.cluster...).renderedByHelm(t, v)
			if err != nil {
				t.Fatal(err)
			}
			ourServer := serve(t, row.cluster...)
			ours, err := ourServer.appliedByKuryr(t, v)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(ours, theirs); diff != "" {
				t.Errorf("kuryr (-) and helm (+) install different objects:\n%s", diff)
			}
			if ours, theirs := ourServer.notes, notes(t, serve(t, row.cluster...), v); ours != theirs ||
				!strings.HasPrefix(ours, "Kuryr is installed") {
				t.Errorf("kuryr prints the notes\n%shelm\n%s", ours, theirs)
			}
			for _, workload := range []string{"Deployment kuryr-controller", "DaemonSet kuryr-node"} {
				if got := address(t, theirs[workload]); got != row.want {
					t.Errorf("%s gets the address%s, want%s", workload, got, row.want)
				}
			}
		})
	}
}

// TestNodes checks in both installers that the embedded SDN may run on the only node, that an
// upgrade keeps the nodes that it may run on, and that it is refused in a new cluster of several.
func TestNodes(t *testing.T) {
	t.Parallel()
	node := func(name string) string {
		return "{apiVersion: v1, kind: Node, metadata: {name: " + name + ", labels: {kubernetes.io/os: linux}}}"
	}
	const there = `{apiVersion: v1, kind: ConfigMap, metadata: {namespace: kuryr-system, name: kuryr},
data: {kuryr.yaml: "a: 1"}}`
	const sdn = `{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: kuryr-system, name: kuryr-sdn},
spec: {template: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
{matchFields: [{key: metadata.name, operator: In, values: [node1]}]}]}}}}}}}`
	v := values{set: []string{"createNamespace=true"}}
	nodes := func(all objects) any {
		place := any(all["Deployment kuryr-sdn"])
		for _, key := range []string{
			"spec", "template", "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
			"nodeSelectorTerms",
		} {
			below, isMap := place.(map[string]any)
			if !isMap {
				t.Fatalf("the SDN has no %s", key)
			}
			place = below[key]
		}
		return place
	}
	label := map[string]any{"matchExpressions": []any{
		map[string]any{"key": "openstack.org/kuryr-sdn", "operator": "Exists"},
	}}
	name := map[string]any{"matchFields": []any{
		map[string]any{"key": "metadata.name", "operator": "In", "values": []any{"node1"}},
	}}
	for _, row := range []struct {
		name         string
		cluster      []string
		ours, theirs []any // where the SDN may run
	}{
		// Kuryr sets the label, which helm cannot do.
		{"one node", []string{node("node1")}, []any{label}, []any{label, name}},
		{"upgrade", []string{node("node1"), node("node2"), there, sdn}, []any{label, name}, []any{label, name}},
		{"several nodes", []string{node("node1"), node("node2")}, nil, nil},
		{"several nodes that have Kuryr", []string{node("node1"), node("node2"), there}, []any{label}, []any{label}},
	} {
		theirs, theirErr := serve(t, row.cluster...).renderedByHelm(t, v)
		ours, ourErr := serve(t, row.cluster...).appliedByKuryr(t, v)
		if row.ours == nil {
			if len(ours) > 0 || ourErr == nil {
				t.Errorf("%s: kuryr applies %d objects", row.name, len(ours))
			}
			const refused = "value provider: embedded serves one node, and the cluster has 2; use neutron"
			if theirErr == nil || !strings.Contains(theirErr.Error(), refused) {
				t.Errorf("%s: helm says %v", row.name, theirErr)
			}
			continue
		}
		if ourErr != nil || theirErr != nil {
			t.Errorf("%s: kuryr says %v, helm %v", row.name, ourErr, theirErr)
			continue
		}
		if diff := gocmp.Diff(row.ours, nodes(ours)); diff != "" {
			t.Errorf("%s: nodes with kuryr, want (-) and got (+):\n%s", row.name, diff)
		}
		if diff := gocmp.Diff(row.theirs, nodes(theirs)); diff != "" {
			t.Errorf("%s: nodes with helm, want (-) and got (+):\n%s", row.name, diff)
		}
	}
}
