package install

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// cluster has objects by kind, namespace and name, as YAML.
type cluster map[string]string

func (c cluster) lookup(t *testing.T) Lookup {
	return func(_, kind, namespace, name string) (map[string]any, error) {
		text, exists := c[fmt.Sprintf("%s %s/%s", kind, namespace, name)]
		if !exists {
			return nil, nil
		}
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatalf("%s %s: %v", kind, name, err)
		}
		return object, nil
	}
}

// with returns the objects of c and others.
func (c cluster) with(more cluster) cluster {
	all := cluster{}
	for _, objects := range []cluster{c, more} {
		for key, text := range objects {
			all[key] = text
		}
	}
	return all
}

// renderIn renders the chart with values, as YAML, in a cluster.
func renderIn(t *testing.T, values string, c cluster) ([]Manifest, error) {
	t.Helper()
	v, err := Defaults()
	if err == nil {
		err = v.Merge([]byte(values))
	}
	if err != nil {
		t.Fatal(err)
	}
	return Render(Release{Namespace: "kuryr-system", Values: v, Lookup: c.lookup(t)})
}

// read converts the manifest of a kind and name into object.
func read(t *testing.T, manifests []Manifest, kind, name string, object any) {
	t.Helper()
	for _, m := range manifests {
		if m.Object.GetKind() == kind && m.Object.GetName() == name {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m.Object.Object, object); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%s %s is not rendered", kind, name)
}

// clusterInfo is what kubeadm leaves in the namespace kube-public.
func clusterInfo(server string) cluster {
	kubeconfig := "apiVersion: v1\nclusters:\n- cluster: {certificate-authority-data: QQ==, server: '" + server +
		"'}\n  name: ''\nkind: Config\nusers: null\n"
	data, err := yaml.Marshal(map[string]any{"data": map[string]any{"kubeconfig": kubeconfig}})
	if err != nil {
		panic(err)
	}
	return cluster{"ConfigMap kube-public/cluster-info": string(data)}
}

// TestAPIServer checks where Kuryr's pods find the API server.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	slice := func(addresses ...string) cluster {
		text := "ports: [{name: https, port: 6444, protocol: TCP}]\nendpoints:\n"
		for _, a := range addresses {
			text += "- {addresses: ['" + a + "'], conditions: {ready: true}}\n"
		}
		return cluster{"EndpointSlice default/kubernetes": text}
	}
	deployment := func(env string) cluster {
		return cluster{"Deployment kuryr-system/kuryr-controller": "spec: {template: {spec: {containers: [{name: controller" +
			env + "}]}}}"}
	}
	const name = "{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}"
	const address = "{name: KUBERNETES_SERVICE_HOST, value: old}, {name: KUBERNETES_SERVICE_PORT, value: '1'}"
	info := clusterInfo("https://192.0.2.1:6443")
	for _, row := range []struct {
		name, values string
		has          cluster
		host, port   string
	}{
		{name: "nothing is known"},
		{name: "value", values: "apiServer: {host: a, port: '1'}", has: info, host: "a", port: "1"},
		{name: "value without port", values: "apiServer: {host: a}", has: info, host: "a"},
		{
			name: "value in an upgrade", values: "apiServer: {host: a, port: '2'}",
			has: deployment(", env: [" + address + "]"), host: "a", port: "2",
		},
		{
			name: "new host in an upgrade", values: "apiServer: {host: a}",
			has: deployment(", env: [" + address + "]"), host: "a", port: "1",
		},
		{
			name: "new port in an upgrade", values: "apiServer: {port: '2'}",
			has: deployment(", env: [" + address + "]"), host: "old", port: "2",
		},
		{name: "kubeadm", has: info.with(slice("192.0.2.2")), host: "192.0.2.1", port: "6443"},
		{
			name: "kubeadm with a name for several servers",
			has:  clusterInfo("https://api.example.org:8443").with(slice("192.0.2.2", "192.0.2.3")),
			host: "api.example.org", port: "8443",
		},
		{
			name: "kubeadm without a port", has: clusterInfo("https://api.example.org/"),
			host: "api.example.org", port: "443",
		},
		{name: "kubeadm with IPv6", has: clusterInfo("https://[2001:db8::1]:6443"), host: "2001:db8::1", port: "6443"},
		{
			name: "a server with a path", has: clusterInfo("https://a/b").with(slice("192.0.2.2")),
			host: "192.0.2.2", port: "6444",
		},
		{name: "no server", has: clusterInfo("").with(slice("192.0.2.2")), host: "192.0.2.2", port: "6444"},
		{
			name: "another cluster-info",
			has:  cluster{"ConfigMap kube-public/cluster-info": "data: {kubeconfig: '[a'}"}.with(slice("192.0.2.2")),
			host: "192.0.2.2", port: "6444",
		},
		{name: "one API server", has: slice("192.0.2.2"), host: "192.0.2.2", port: "6444"},
		{name: "one API server with IPv6", has: slice("2001:db8::2"), host: "2001:db8::2", port: "6444"},
		{name: "several API servers", has: slice("192.0.2.2", "192.0.2.3")},
		{name: "no API server is ready", has: cluster{"EndpointSlice default/kubernetes": "ports: null\nendpoints: null"}},
		{
			name: "upgrade", has: deployment(", env: [" + name + ", " + address + "]").with(info),
			host: "old", port: "1",
		},
		{name: "upgrade of a cluster with the ClusterIP", has: deployment(", env: [" + name + "]").with(info)},
		{name: "upgrade of a Deployment without variables", has: deployment("").with(info)},
	} {
		manifests, err := renderIn(t, row.values, row.has)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		var raven appsv1.Deployment
		var nodes appsv1.DaemonSet
		read(t, manifests, "Deployment", "kuryr-controller", &raven)
		read(t, manifests, "DaemonSet", "kuryr-node", &nodes)
		for _, pod := range []appsv1.DeploymentSpec{raven.Spec, {Template: nodes.Spec.Template}} {
			var host, port string
			for _, e := range pod.Template.Spec.Containers[0].Env {
				switch e.Name {
				case "KUBERNETES_SERVICE_HOST":
					host = e.Value
				case "KUBERNETES_SERVICE_PORT":
					port = e.Value
				}
			}
			if host != row.host || port != row.port {
				t.Errorf("%s: %s gets %q and %q, want %q and %q", row.name,
					pod.Template.Spec.Containers[0].Name, host, port, row.host, row.port)
			}
		}
	}
}

// nodes is the list of nodes, each with its labels.
func nodes(all ...string) cluster {
	text := "items:\n"
	for _, node := range all {
		name, label, _ := strings.Cut(node, " ")
		text += "- metadata: {name: " + name + ", labels: {kubernetes.io/os: linux" + label + "}}\n"
	}
	return cluster{"Node /": text}
}

// TestSDNNode checks which nodes may run the embedded SDN: those with the label, and the only
// node of a new cluster. An upgrade adds no node and keeps those that there are.
func TestSDNNode(t *testing.T) {
	t.Parallel()
	const label = " , openstack.org/kuryr-sdn: ''"
	deployment := func(affinity string) cluster {
		return cluster{
			"Deployment kuryr-system/kuryr-sdn": "spec: {template: {spec: {containers: [{name: sdn}]" + affinity + "}}}",
			"ConfigMap kuryr-system/kuryr":      "data: {kuryr.yaml: 'controller.services: true'}",
		}
	}
	required := func(terms string) cluster {
		return deployment(", affinity: {nodeAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + terms + "]}}}")
	}
	const byLabel = "{matchExpressions: [{key: openstack.org/kuryr-sdn, operator: Exists}]}"
	const byName = ", {matchFields: [{key: metadata.name, operator: In, values: [a]}]}"
	for _, row := range []struct {
		name string
		has  cluster
		want string
	}{
		{name: "no cluster", has: cluster{}},
		{name: "no node yet", has: nodes()},
		{name: "one node", has: nodes("a"), want: "a"},
		{name: "one node with the label", has: nodes("a" + label)},
		{name: "upgrade by the label", has: required(byLabel).with(nodes("a" + label))},
		{name: "upgrade by the label, which no node has", has: required(byLabel).with(nodes("a"))},
		{name: "upgrade by the name", has: required(byLabel + byName).with(nodes("a")), want: "a"},
		{name: "another node has joined", has: required(byLabel + byName).with(nodes("a", "b")), want: "a"},
		{name: "only another node is left", has: required(byLabel + byName).with(nodes("b")), want: "a"},
		{name: "another node has the label", has: required(byLabel + byName).with(nodes("a", "b"+label))},
		{name: "upgrade from a release without the label", has: deployment("").with(nodes("a"))},
		{name: "another affinity", has: deployment(", affinity: {podAffinity: {}}").with(nodes("a"))},
	} {
		manifests, err := renderIn(t, "", row.has)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		var sdn appsv1.Deployment
		read(t, manifests, "Deployment", sdnName, &sdn)
		affinity := sdn.Spec.Template.Spec.Affinity.NodeAffinity
		terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		wantTerms := 1
		if row.want != "" {
			wantTerms = 2
		}
		if len(terms) != wantTerms || len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != LabelSDN {
			t.Errorf("%s: it may run on %+v", row.name, terms)
			continue
		}
		for _, term := range terms[1:] {
			if f := term.MatchFields; len(term.MatchExpressions) != 0 || len(f) != 1 || f[0].Key != "metadata.name" ||
				f[0].Operator != corev1.NodeSelectorOpIn || !slices.Equal(f[0].Values, []string{row.want}) {
				t.Errorf("%s: it may also run on %+v, want %s", row.name, term, row.want)
			}
		}
	}
}

// TestSeveralNodes checks that the embedded SDN is refused in a new cluster of several nodes, and
// that a cluster that has Kuryr is upgraded.
func TestSeveralNodes(t *testing.T) {
	t.Parallel()
	const refused = "value provider: embedded serves one node, and the cluster has 3; use neutron"
	there := cluster{"ConfigMap kuryr-system/kuryr": "data: {}"}
	for _, row := range []struct {
		name, values, want string
		has                cluster
	}{
		{name: "none", has: nodes()},
		{name: "one", has: nodes("a")},
		{name: "three", has: nodes("a", "b", "c"), want: refused},
		{name: "three, one with the label", has: nodes("a", "b , openstack.org/kuryr-sdn: ''", "c"), want: refused},
		{name: "three with Neutron", values: "provider: neutron", has: nodes("a", "b", "c")},
		{name: "three, daemon on some", values: "node: {nodeSelector: {sdn: here}}", has: nodes("a", "b", "c")},
		{name: "three that have Kuryr", has: nodes("a", "b", "c").with(there)},
	} {
		_, err := renderIn(t, row.values, row.has)
		if row.want == "" && err != nil || row.want != "" && (err == nil || err.Error() != row.want) {
			t.Errorf("%s: error %v, want %q", row.name, err, row.want)
		}
	}
}

// TestNotes checks what both installers print after an installation.
func TestNotes(t *testing.T) {
	t.Parallel()
	const (
		ready  = "Check the installation with \"kuryr doctor cluster\".\n"
		byIP   = "If nothing serves ClusterIPs"
		first  = "To remove it, first set\napiServer.host and apiServer.port, and wait until"
		remove = "kubectl -n kube-system delete daemonset/kube-proxy configmap/kube-proxy"
		warns  = "the embedded SDN serves one node, and the cluster has 2"
	)
	proxy := cluster{"DaemonSet kube-system/kube-proxy": "metadata: {name: kube-proxy}"}
	there := cluster{"ConfigMap kuryr-system/kuryr": "data: {kuryr.yaml: ''}"}
	for _, row := range []struct {
		name, values string
		has          cluster
		want         []string
	}{
		{name: "nothing is known", has: cluster{}, want: []string{byIP}},
		{name: "kubeadm", has: clusterInfo("https://192.0.2.1:6443"), want: []string{"at 192.0.2.1, port 6443."}},
		{name: "a host alone", values: "apiServer: {host: a}", want: []string{"at a, port 443."}},
		{name: "kube-proxy", has: proxy, want: []string{byIP, first, remove}},
		{
			name: "kube-proxy and an address", values: "apiServer: {host: a}", has: proxy,
			want: []string{"at a, port 443.", remove},
		},
		{name: "kube-proxy alone", values: "services: false", has: proxy, want: []string{byIP}},
		{name: "kube-proxy alone, kept by an upgrade", has: proxy.with(there), want: []string{byIP}},
		{name: "two nodes that have Kuryr", has: nodes("a", "b").with(there), want: []string{byIP, warns}},
		{name: "two nodes of Neutron", values: "provider: neutron", has: nodes("a", "b"), want: []string{byIP}},
	} {
		v, err := Defaults()
		if err == nil {
			err = v.Merge([]byte(row.values))
		}
		if err != nil {
			t.Fatal(err)
		}
		notes, err := Notes(Release{Namespace: "kuryr-system", Values: v, Lookup: row.has.lookup(t)})
		if err != nil || !strings.HasPrefix(notes, "Kuryr is installed in the namespace kuryr-system, ") ||
			!strings.HasSuffix(notes, ready) {
			t.Errorf("%s: %v\n%s", row.name, err, notes)
		}
		for _, part := range []string{"at 192.0.2.1, port 6443.", "at a, port 443.", byIP, first, remove, warns} {
			if strings.Contains(notes, part) != slices.Contains(row.want, part) {
				t.Errorf("%s: %q is in the notes: %t\n%s", row.name, part, !slices.Contains(row.want, part), notes)
			}
		}
	}
}
