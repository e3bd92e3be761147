package install

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/config"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// render renders with some values set, and reads each object as strictly as Kubernetes does: an unknown field is an error.
func render(t *testing.T, set ...string) ([]Manifest, []runtime.Object) {
	t.Helper()
	v, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range set {
		key, value, _ := strings.Cut(s, "=")
		if err := v.Set(key, value); err != nil {
			t.Fatal(err)
		}
	}
	manifests, err := Render(Release{Namespace: "kuryr-system", Version: "v1.2", Values: v})
	if err != nil {
		t.Fatal(err)
	}
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for _, m := range manifests {
		object, err := s.New(m.Object.GroupVersionKind())
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(m.Text), object); err != nil {
			t.Errorf("%s %s: %v\n%s", m.Object.GetKind(), m.Object.GetName(), err, m.Text)
		}
		objects = append(objects, object)
	}
	return manifests, objects
}

// Every set of values that templates branch on.
var ways = map[string][]string{
	"embedded": {},
	"neutron":  {"provider=neutron"},
	"everything": {
		"provider=neutron", "createNamespace=true", "apiServer.host=192.0.2.1", "apiServer.port=6443", "imagePullSecrets=[{name: a}]", "config.log.level=debug",
		"ravenConf=[DEFAULT]\ndebug = true\n", "controller.nodeSelector.a=b", "node.nodeSelector.a=b", "node.specDir=",
		"node.config.log.level=debug", "node.config.node.wait_active=30s",
	},
	"everything embedded": {"createNamespace=true", "imagePullSecrets=[{name: a}]", "sdn.nodeSelector.a=b", "controller.nodeSelector.a=b", "config.log.level=debug"},
}

func TestManifestsAreObjects(t *testing.T) {
	t.Parallel()
	for name, set := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifests, objects := render(t, set...)
			seen := map[string]bool{}
			for _, m := range manifests {
				id := m.Object.GetKind() + " " + m.Object.GetName()
				if seen[id] {
					t.Errorf("%s is there twice", id)
				}
				seen[id] = true
				if namespace := m.Object.GetNamespace(); namespace != "" && namespace != "kuryr-system" {
					t.Errorf("%s is in namespace %s", id, namespace)
				}
			}
			for _, id := range []string{
				"CustomResourceDefinition kuryrports.openstack.org", "DaemonSet kuryr-node", "Deployment kuryr-controller", "ValidatingAdmissionPolicyBinding kuryr-node-ports",
				"ServiceAccount kuryr-cni", "ClusterRole kuryr-node",
			} {
				if !seen[id] {
					t.Errorf("no %s among %v", id, seen)
				}
			}
			if embedded := !slices.Contains(set, "provider=neutron"); seen["Deployment kuryr-sdn"] != embedded || seen["Namespace kuryr-system"] != slices.Contains(set, "createNamespace=true") {
				t.Errorf("objects of another choice: %v", seen)
			}
			checkReferences(t, objects, seen)
		})
	}
}

// checkReferences looks whether what objects name is there: accounts, roles, volumes.
func checkReferences(t *testing.T, objects []runtime.Object, there map[string]bool) {
	t.Helper()
	pod := func(name string, spec corev1.PodSpec) {
		if !there["ServiceAccount "+spec.ServiceAccountName] {
			t.Errorf("%s: no service account %s", name, spec.ServiceAccountName)
		}
		var volumes []string
		for _, v := range spec.Volumes {
			volumes = append(volumes, v.Name)
			if v.ConfigMap != nil && !there["ConfigMap "+v.ConfigMap.Name] {
				t.Errorf("%s: no ConfigMap %s", name, v.ConfigMap.Name)
			}
		}
		used := map[string]bool{}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			if c.Image != "kuryr/kuryr:v1.2" {
				t.Errorf("%s: image %s", name, c.Image)
			}
			privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
			for _, m := range c.VolumeMounts {
				used[m.Name] = true
				if !slices.Contains(volumes, m.Name) {
					t.Errorf("%s: no volume %s", name, m.Name)
				}
				if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
					t.Errorf("%s: Kubernetes refuses the propagation of %s without privileged", name, m.Name)
				}
			}
		}
		for _, v := range volumes {
			if !used[v] {
				t.Errorf("%s: volume %s is not mounted", name, v)
			}
		}
	}
	role := func(name string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		if !there[ref.Kind+" "+ref.Name] {
			t.Errorf("binding %s: no %s %s", name, ref.Kind, ref.Name)
		}
		for _, s := range subjects {
			if !there[s.Kind+" "+s.Name] || s.Namespace != "kuryr-system" {
				t.Errorf("binding %s: no %s %s/%s", name, s.Kind, s.Namespace, s.Name)
			}
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.Deployment:
			pod(o.Name, o.Spec.Template.Spec)
		case *appsv1.DaemonSet:
			pod(o.Name, o.Spec.Template.Spec)
		case *rbacv1.ClusterRoleBinding:
			role(o.Name, o.RoleRef, o.Subjects)
		case *rbacv1.RoleBinding:
			role(o.Name, o.RoleRef, o.Subjects)
		}
	}
}

// Rights that would make Kuryr's accounts worth stealing: a role that gets one of these needs another thought, and this test's change.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	_, objects := render(t)
	reads, writes := map[string][]string{}, map[string][]string{}
	for _, o := range objects {
		role, ok := o.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for _, r := range role.Rules {
			if slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") || slices.Contains(r.APIGroups, "*") {
				t.Errorf("%s may do everything: %+v", role.Name, r)
			}
			if role.Name == "kuryr-cni" && !slices.Equal(r.Verbs, []string{"get"}) {
				t.Errorf("%s: %v %v, want get: docs/kubernetes.md says so", role.Name, r.Resources, r.Verbs)
			}
			for _, resource := range r.Resources {
				if resource == "secrets" || strings.HasPrefix(resource, "serviceaccounts") || slices.Contains(r.Verbs, "escalate") || slices.Contains(r.Verbs, "impersonate") || slices.Contains(r.Verbs, "bind") {
					t.Errorf("%s: %s %v", role.Name, resource, r.Verbs)
				}
				if slices.Contains(r.Verbs, "get") {
					reads[role.Name] = append(reads[role.Name], resource)
				}
				for _, verb := range r.Verbs {
					if !slices.Contains([]string{"get", "list", "watch"}, verb) {
						writes[role.Name] = append(writes[role.Name], verb+" "+resource)
					}
				}
			}
		}
		slices.Sort(writes[role.Name])
	}
	for role, want := range map[string][]string{
		"kuryr-cni":  nil,
		"kuryr-view": nil,
		"kuryr-node": {"patch kuryrports", "patch kuryrports/status", "patch nodes/status", "patch pods/status"},
	} {
		if !slices.Equal(writes[role], want) {
			t.Errorf("%s writes %q, want %q", role, writes[role], want)
		}
	}
	for role, want := range map[string][]string{
		"kuryr-cni": {"kuryrports", "pods"},
		"kuryr-node": {
			"endpointslices", "kuryrnetworks", "kuryrportpools", "kuryrports", "namespaces", "nodes", "pods", "services",
		},
		"kuryr-controller": {"endpointslices", "kuryrloadbalancers", "kuryrloadbalancers/status", "kuryrnetworks", "kuryrnetworks/status", "kuryrportpools", "kuryrportpools/status", "kuryrports", "kuryrports/status", "namespaces", "networkpolicies", "nodes", "pods", "servicecidrs", "services"},
	} {
		slices.Sort(reads[role])
		if !slices.Equal(reads[role], want) {
			t.Errorf("%s reads %q, want %q", role, reads[role], want)
		}
	}
	for _, w := range writes["kuryr-controller"] {
		if _, resource, _ := strings.Cut(w, " "); !strings.HasPrefix(resource, "kuryr") && w != "patch pods/status" && w != "patch services/status" && resource != "events" {
			t.Errorf("the controller may %s", w)
		}
	}
}

// Who balances is one value for Raven and for the nodes, whose pods are others with another one.
func TestWhoBalances(t *testing.T) {
	t.Parallel()
	hashes, ravens := map[string]bool{}, map[string]string{}
	for _, set := range [][]string{{"loadBalancers=node"}, {"loadBalancers=node", "node.config.node.services=true"}, {"loadBalancers=sdn", "node.config.node.services=true"}, {"node.config.node.services=true"}, nil} {
		all := slices.Clone(set)
		if !strings.Contains(strings.Join(set, " "), "services") {
			all = append(all, "services=false")
		}
		manifests, _ := render(t, all...)
		var of struct{ Data map[string]string }
		for _, m := range manifests {
			switch m.Object.GetKind() {
			case "ConfigMap":
				if err := yaml.Unmarshal([]byte(m.Text), &of); err != nil {
					t.Fatal(err)
				}
			case "Deployment":
				if m.Object.GetName() == "kuryr-controller" {
					hash, _, _ := unstructured.NestedString(m.Object.Object, "spec", "template", "metadata", "annotations", "openstack.org/config")
					by := append(set, "")[0]
					if !strings.HasPrefix(by, "loadBalancers=") {
						by = ""
					}
					for other, has := range ravens {
						if (has == hash) != (other == by) {
							t.Errorf("%q and %q: Raven has the configurations %q and %q", other, by, has, hash)
						}
					}
					ravens[by] = hash
				}
			case "DaemonSet":
				hash, _, _ := unstructured.NestedString(m.Object.Object, "spec", "template", "metadata", "annotations", "openstack.org/config")
				if hashes[hash] || (hash != "") != (set != nil) {
					t.Errorf("%q: pods of configuration %q", set, hash)
				}
				hashes[hash] = true
				if strings.Contains(m.Text, "key: node.yaml") != (set != nil) {
					t.Errorf("%q: which file have nodes? %s", set, m.Text)
				}
			}
		}
		raven, err := config.Parse("kuryr.yaml", []byte(of.Data["kuryr.yaml"]))
		node, failed := config.Parse("node.yaml", []byte(of.Data["node.yaml"]))
		want := config.LoadBalancersSDN
		if slices.Contains(set, "loadBalancers=node") {
			want = config.LoadBalancersNode
		}
		if err != nil || failed != nil || raven.Controller.LoadBalancers != want || node.Node.LoadBalancers != want || node.Node.Services != slices.Contains(set, "node.config.node.services=true") {
			t.Errorf("%q: %q and %q, %v, %v", set, raven.Controller.LoadBalancers, node.Node.LoadBalancers, err, failed)
		}
	}
}

// Nodes' daemons may look at Services where they realise them, however the setting is written.
func TestRightsOfNodeServices(t *testing.T) {
	t.Parallel()
	for name, set := range map[string][]string{
		"": {"services=false"}, "off": {"node.config.node.services=false"},
		"else": {"node.config.log.level=debug", "services=false"}, "on": {"node.config.node.services=true"},
	} {
		_, objects := render(t, set...)
		if rights := nodeReads(objects); slices.Contains(rights, "services") != (name == "on") || slices.Contains(rights, "endpointslices") != (name == "on") {
			t.Errorf("%q: nodes read %q", name, rights)
		}
	}
	for values, want := range map[string]bool{
		`node: {config: {"node.services": true}}`: true, `{services: false, node: {config: null}}`: false,
		`{services: false, node: {config: {node: null}}}`: false, `node: {config: null}`: true,
		`node: {config: {node: null}}`: true, `services: true`: true, `config: {controller: {services: true}}`: false,
	} {
		v, err := Defaults()
		if err == nil {
			err = v.Merge([]byte(values))
		}
		if err != nil {
			t.Fatal(err)
		}
		manifests, err := Render(Release{Namespace: "kuryr-system", Values: v})
		if got := slices.ContainsFunc(manifests, func(m Manifest) bool {
			return m.Object.GetKind() == "ClusterRole" && m.Object.GetName() == "kuryr-node" && strings.Contains(m.Text, "endpointslices")
		}); err != nil || got != want {
			t.Errorf("%s: %v, want %v; %v", values, got, want, err)
		}
	}
}

// nodeReads are what nodes' daemons may read.
func nodeReads(objects []runtime.Object) (all []string) {
	for _, o := range objects {
		if role, is := o.(*rbacv1.ClusterRole); is && role.Name == "kuryr-node" {
			for _, r := range role.Rules {
				if slices.Contains(r.Verbs, "get") {
					all = append(all, r.Resources...)
				}
			}
		}
	}
	return all
}

// A node's daemon writes of its Node's status the conditions alone: each other field that there is, is one that the policy compares.
func TestNodeStatusIsKept(t *testing.T) {
	t.Parallel()
	manifests, _ := render(t)
	i := slices.IndexFunc(manifests, func(m Manifest) bool {
		return m.Object.GetKind() == "ValidatingAdmissionPolicy" && m.Object.GetName() == "kuryr-node-self"
	})
	if i < 0 {
		t.Fatal("no policy kuryr-node-self")
	}
	status := reflect.TypeFor[corev1.NodeStatus]()
	for n := range status.NumField() {
		name, _, _ := strings.Cut(status.Field(n).Tag.Get("json"), ",")
		if compared := "object.status.?" + name + " == oldObject.status.?" + name; name != "conditions" && !strings.Contains(manifests[i].Text, compared) {
			t.Errorf("a daemon may write status.%s", name)
		}
	}
}

// The configuration that pods get is one that Kuryr reads.
func TestConfigurationIsRead(t *testing.T) {
	t.Parallel()
	for name, set := range ways {
		_, objects := render(t, set...)
		for _, o := range objects {
			c, ok := o.(*corev1.ConfigMap)
			if !ok {
				continue
			}
			path := filepath.Join(t.TempDir(), "kuryr.yaml")
			if err := os.WriteFile(path, []byte(c.Data["kuryr.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := config.Load(config.Source{Path: path, MustBe: true})
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, c.Data["kuryr.yaml"])
				continue
			}
			neutron := slices.Contains(set, "provider=neutron")
			if installation := map[bool]string{false: "kubernetes"}[neutron]; cfg.Installation != installation || cfg.Controller.Namespace != "kuryr-system" || (cfg.Provider == config.ProviderNeutron) != neutron || (cfg.Provider == config.ProviderSDN) == neutron {
				t.Errorf("%s: installation %q, provider %q", name, cfg.Installation, cfg.Provider)
			}
			if neutron && cfg.Neutron.Cloud != "openstack" {
				t.Errorf("%s: cloud %q", name, cfg.Neutron.Cloud)
			}
			if conf := c.Data["raven.conf"]; strings.HasPrefix(name, "everything") && neutron && conf != "[DEFAULT]\ndebug = true\n" {
				t.Errorf("%s: raven.conf %q", name, conf)
			}
		}
	}
}

// The nodes' daemons read their own part of the ConfigMap and nothing of Raven's; another one makes new pods of theirs, and of nobody else.
func TestConfigurationOfNodes(t *testing.T) {
	t.Parallel()
	type found struct {
		cfg          config.Config
		nodes, raven string // what makes new pods
		mounted      bool
	}
	with := func(set ...string) (f found) {
		t.Helper()
		_, objects := render(t, append(set, "services=false")...)
		text := ""
		for _, o := range objects {
			switch o := o.(type) {
			case *corev1.ConfigMap:
				text = o.Data["node.yaml"]
			case *appsv1.Deployment:
				if o.Name == "kuryr-controller" {
					f.raven = o.Spec.Template.Annotations["openstack.org/config"]
				}
			case *appsv1.DaemonSet:
				f.nodes = o.Spec.Template.Annotations["openstack.org/config"]
				i := slices.IndexFunc(o.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
					return v.ConfigMap != nil && v.ConfigMap.Name == "kuryr" && slices.Equal(v.ConfigMap.Items, []corev1.KeyToPath{{Key: "node.yaml", Path: "kuryr.yaml"}})
				})
				f.mounted = i >= 0 && slices.ContainsFunc(o.Spec.Template.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
					return m.Name == o.Spec.Template.Spec.Volumes[i].Name && m.MountPath+"/kuryr.yaml" == config.DefaultPath
				})
			}
		}
		path := filepath.Join(t.TempDir(), "kuryr.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if f.cfg, err = config.Load(config.Source{Path: path, MustBe: true}); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return f
	}
	none := with("config.log.level=debug")
	some := with("config.log.level=debug", "node.config.node.wait_active=30s", "node.config.bind.integration_bridge=br-pods")
	other := with("config.log.level=debug", "node.config.node.wait_active=31s", "node.config.bind.integration_bridge=br-pods")
	if none.mounted || none.nodes != "" {
		t.Errorf("mounted %v, annotated %q where nothing is set", none.mounted, none.nodes)
	}
	if !some.mounted || some.cfg.Node.WaitActive != 30*time.Second || some.cfg.Bind.IntegrationBridge != "br-pods" || some.cfg.Log.Level != config.Default().Log.Level {
		t.Errorf("mounted %v, read %+v, %+v, %+v", some.mounted, some.cfg.Node, some.cfg.Bind, some.cfg.Log)
	}
	if some.nodes == other.nodes || some.raven != other.raven || some.raven != none.raven {
		t.Errorf("the nodes' %q and %q, Raven's %q, %q and %q", some.nodes, other.nodes, none.raven, some.raven, other.raven)
	}
}

// Each of Kuryr's pods tells whether it is ready, so that a rollout ends where a version is not; and none is killed for being slow.
func TestProbes(t *testing.T) {
	t.Parallel()
	for name, set := range ways {
		_, objects := render(t, set...)
		for _, o := range objects {
			var spec corev1.PodSpec
			switch o := o.(type) {
			case *appsv1.Deployment:
				spec = o.Spec.Template.Spec
			case *appsv1.DaemonSet:
				spec = o.Spec.Template.Spec
			default:
				continue
			}
			for _, c := range spec.Containers {
				p := c.ReadinessProbe
				if p == nil || (p.Exec == nil) == (p.HTTPGet == nil) || p.TimeoutSeconds < 5 || c.LivenessProbe != nil || c.StartupProbe != nil {
					t.Errorf("%s: container %s: readiness %+v, liveness %+v, startup %+v", name, c.Name, p, c.LivenessProbe, c.StartupProbe)
				}
			}
		}
	}
}

// The embedded SDN runs where its store is, and Raven beside it.
func TestStoreStays(t *testing.T) {
	t.Parallel()
	_, objects := render(t)
	for _, o := range objects {
		d, ok := o.(*appsv1.Deployment)
		if !ok || d.Name != sdnName {
			continue
		}
		if terms := d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(terms) != 1 ||
			len(terms[0].MatchExpressions) != 1 || terms[0].MatchExpressions[0].Key != LabelSDN || terms[0].MatchExpressions[0].Operator != corev1.NodeSelectorOpExists {
			t.Errorf("it runs on %+v", terms)
		}
		return
	}
	t.Error("no SDN")
}

// A change of the configuration is a change of the pods that have it.
func TestConfigurationMakesNewPods(t *testing.T) {
	t.Parallel()
	template := func(set ...string) string {
		_, objects := render(t, set...)
		for _, o := range objects {
			if d, ok := o.(*appsv1.Deployment); ok && d.Name == "kuryr-controller" {
				return d.Spec.Template.Annotations["openstack.org/config"]
			}
		}
		t.Fatal("no controller")
		return ""
	}
	if a, b, c := template(), template("config.log.level=debug"), template("ravenConf=[DEFAULT]"); a == "" || a == b || a == c || b == c || a != template() {
		t.Errorf("%q, %q, %q", a, b, c)
	}
}

func TestTextIsApplicable(t *testing.T) {
	t.Parallel()
	manifests, _ := render(t, ways["everything"]...)
	again := 0
	for text := range strings.SplitSeq("\n"+Text(manifests), "\n---") { // the end of a line before it is that line's
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(text+"\n"), &object); err != nil {
			t.Fatal(err)
		}
		if again >= len(manifests) || !reflect.DeepEqual(object, manifests[again].Object.Object) {
			t.Errorf("document %d is not what is applied:\n%s", again, text)
		}
		again++
	}
	if again != len(manifests) || manifests[0].Object.GetKind() != "Namespace" || manifests[1].Object.GetKind() != "CustomResourceDefinition" {
		t.Errorf("%d documents of %d manifests, the first a %s", again, len(manifests), manifests[0].Object.GetKind())
	}
}

// policyOf returns a rendered admission policy with its binding, nil for none.
func policyOf(t *testing.T, objects []runtime.Object, name string) *admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	var found *admissionv1.ValidatingAdmissionPolicy
	denies := false
	for _, o := range objects {
		switch o := o.(type) {
		case *admissionv1.ValidatingAdmissionPolicy:
			if o.Name == name {
				found = o
			}
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			if o.Spec.PolicyName == name {
				denies = slices.Equal(o.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny})
			}
		}
	}
	if found != nil && (!denies || found.Spec.FailurePolicy == nil || *found.Spec.FailurePolicy != admissionv1.Fail) {
		t.Errorf("policy %s does not deny, or is passed over where it fails: %+v", name, found.Spec)
	}
	return found
}

// Every kind that there is a definition of, with its status, is one that Raven alone writes.
func TestEveryKindIsRavens(t *testing.T) {
	t.Parallel()
	_, objects := render(t)
	policy := policyOf(t, objects, "kuryr-resources")
	if policy == nil {
		t.Fatal("no policy kuryr-resources")
	}
	rules := policy.Spec.MatchConstraints.ResourceRules
	if len(rules) != 1 {
		t.Fatalf("rules %+v", rules)
	}
	writes := []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}
	if !slices.Equal(rules[0].Operations, writes) || !slices.Equal(rules[0].APIVersions, []string{"*"}) {
		t.Errorf("rule %+v", rules[0])
	}
	kinds := 0
	for _, o := range objects {
		crd, is := o.(*apiextensionsv1.CustomResourceDefinition)
		if !is {
			continue
		}
		kinds++
		if !slices.Equal(rules[0].APIGroups, []string{crd.Spec.Group}) {
			t.Errorf("groups %q, want %s", rules[0].APIGroups, crd.Spec.Group)
		}
		for _, resource := range []string{crd.Spec.Names.Plural, crd.Spec.Names.Plural + "/status"} {
			if !slices.Contains(rules[0].Resources, resource) {
				t.Errorf("anybody writes %s whom RBAC lets", resource)
			}
		}
	}
	if kinds < 4 {
		t.Errorf("%d kinds", kinds)
	}
}

// Endpoints on the nodes' network are judged where nodes balance and pods are kept from that network,
// however the settings are written.
func TestEndpointsAreJudged(t *testing.T) {
	t.Parallel()
	const (
		nested = "config={controller: {underlay_isolation: true, node_networks: [192.0.2.0/24, '2001:db8::/64']}}"
		off    = "config={controller: {underlay_isolation: false, node_networks: [192.0.2.0/24]}}"
		dotted = "config={controller.underlay_isolation: true, controller.node_networks: [192.0.2.0/24, '2001:db8::/64']}"
		both   = "config={controller.underlay_isolation: true, " +
			"controller: {load_balancers: node, node_networks: [192.0.2.0/24]}}"
	)
	for _, row := range []struct {
		set  []string
		want string
	}{
		{nil, ""},
		{[]string{nested}, ""},
		{[]string{nested, "loadBalancers=sdn"}, ""},
		{[]string{"loadBalancers=node"}, ""},
		{[]string{"loadBalancers=node", off}, ""},
		{[]string{nested, "loadBalancers=node"}, "[192.0.2.0/24 2001:db8::/64]"},
		{[]string{"loadBalancers=node", dotted}, "[192.0.2.0/24 2001:db8::/64]"},
		{[]string{both}, "[192.0.2.0/24]"},
	} {
		_, objects := render(t, append([]string{"provider=neutron"}, row.set...)...)
		policy := policyOf(t, objects, "kuryr-endpoints")
		if (policy != nil) != (row.want != "") {
			t.Errorf("%q: there is a policy: %t", row.set, policy != nil)
			continue
		}
		if policy != nil && !strings.HasPrefix(policy.Spec.Variables[0].Expression, `"`+row.want+`".`) {
			t.Errorf("%q: networks %s", row.set, policy.Spec.Variables[0].Expression)
		}
	}
}
