//go:build e2e

package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	authenticationv1 "k8s.io/api/authentication/v1"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/install"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

const system = "kuryr-system"

// api is a client with Kuryr's types; who is nil is the administrator.
func (r *rig) api(who *rest.Config) client.Client {
	r.Helper()
	s := runtime.NewScheme()
	r.must(scheme.AddToScheme(s))
	r.must(kuryrv1.AddToScheme(s))
	if who == nil {
		who = r.Config
	}
	c, err := client.New(who, client.Options{Scheme: s})
	r.must(err)
	return c
}

// install applies Kuryr's manifests as "kuryr install kubernetes --apply" does, and counts what was done.
func (r *rig) install(dryRun bool, set ...string) map[string]int {
	r.Helper()
	v, err := install.Defaults()
	r.must(err)
	for _, s := range append([]string{"createNamespace=true"}, set...) {
		key, value, _ := strings.Cut(s, "=")
		r.must(v.Set(key, value))
	}
	manifests, err := install.Render(install.Release{Namespace: system, Values: v})
	r.must(err)
	counts := map[string]int{}
	r.must(install.Applier{API: r.api(nil), DryRun: dryRun, Said: func(what, kind, name string) {
		counts[what]++
		if what != install.Created {
			r.Logf("%s %s %s", what, kind, name)
		}
	}}.Apply(r.ctx, manifests))
	return counts
}

// until asks again until there is no complaint; policies and definitions take a moment to be in force.
func (r *rig) until(complaint func(ctx context.Context) error) {
	r.Helper()
	r.within(30*time.Second, complaint)
}

func (r *rig) within(limit time.Duration, complaint func(ctx context.Context) error) {
	r.Helper()
	var last error
	err := wait.PollUntilContextTimeout(r.ctx, 100*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		// What the end of the time itself breaks off says nothing.
		if err := complaint(ctx); err == nil || last == nil || ctx.Err() == nil {
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		r.Fatalf("%v: %v", err, last)
	}
}

// Applied twice is applied once, a dry run leaves nothing, and another configuration changes what has it.
func TestInstall(t *testing.T) {
	t.Parallel()
	r := start(t, kubelab.Options{APIOnly: true})
	dry := r.install(true)
	if _, err := r.Client.CoreV1().Namespaces().Get(r.ctx, system, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run has made the namespace: %v", err)
	}
	made := r.install(false)
	if len(dry) != 1 || len(made) != 1 || made[install.Created] != dry[install.Created] || made[install.Created] < 20 {
		t.Errorf("a dry run says %v, then was %v", dry, made)
	}
	if again := r.install(false); len(again) != 1 || again[install.Unchanged] != made[install.Created] {
		t.Errorf("once more: %v", again)
	}
	const debug = "config.log.level=debug"
	if dry := r.install(true, debug); dry[install.Changed] != 2 || dry[install.Unchanged] != made[install.Created]-2 {
		t.Errorf("a dry run of another configuration: %v", dry)
	}
	if changed := r.install(false, debug); changed[install.Changed] != 2 { // the ConfigMap and Raven's Deployment
		t.Errorf("another configuration: %v", changed)
	}
	if neutron := r.install(false, "provider=neutron"); neutron[install.Changed] == 0 {
		t.Errorf("another SDN: %v", neutron)
	}
}

// port is a KuryrPort of a node.
func kuryrPort(name, node string, status kuryrv1.PortStatus) *kuryrv1.KuryrPort {
	return &kuryrv1.KuryrPort{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{kuryrv1.Finalizer}, Labels: map[string]string{
			kuryrv1.LabelPortStatus: string(status), kuryrv1.LabelNode: node, kuryrv1.LabelPool: "pool",
		}},
		Spec: kuryrv1.KuryrPortSpec{
			ID: name, Active: true, Address: "fa:16:3e:bf:84:ff", Node: node, Pool: "pool", VIF: kuryrv1.PortVIF{Type: "bridge"},
			Network: kuryrv1.PortNetwork{ID: "net", MTU: 1500, Subnets: []kuryrv1.PortSubnet{{ID: "s4", CIDR: "10.1.0.0/16", Gateway: "10.1.0.1", IPs: []string{"10.1.0.5"}}}},
		},
	}
}

// nodeToken is how the daemon of a node asks: by the token of its pod, which is bound to that pod and so to the node.
func (r *rig) nodeToken(node string) *rest.Config {
	r.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kuryr-node-" + node, Namespace: system},
		Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, ServiceAccountName: "kuryr-node", Containers: []corev1.Container{{Name: "node", Image: "none"}}},
	}
	pod, err := r.Client.CoreV1().Pods(system).Create(r.ctx, pod, metav1.CreateOptions{})
	r.must(err)
	return r.token("kuryr-node", &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID})
}

func (r *rig) token(account string, bound *authenticationv1.BoundObjectReference) *rest.Config {
	r.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	answer, err := r.Client.CoreV1().ServiceAccounts(system).CreateToken(r.ctx, account, request, metav1.CreateOptions{})
	r.must(err)
	config := rest.AnonymousClientConfig(r.Config)
	config.BearerToken, config.QPS, config.Dial = answer.Status.Token, -1, r.Config.Dial
	return config
}

// What Raven's token may write of pods is the annotation that names their port, on nodes that are its own.
func TestControllerRights(t *testing.T) {
	t.Parallel()
	r := start(t, kubelab.Options{APIOnly: true})
	r.install(false)
	admin := r.api(nil)
	for node, claimant := range map[string]string{"ravens": kuryrv1.ClaimantRaven, "daemons": ""} {
		r.must(admin.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{kuryrv1.LabelClaimant: claimant}}}))
		r.must(admin.Create(r.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-" + node, Namespace: system, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"a": "b"}},
			Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "kuryr-cni", Containers: []corev1.Container{{Name: "web", Image: "none"}}},
		}))
	}
	raven := r.api(r.token("kuryr-controller", nil))
	write := func(pod, patch string) error {
		return raven.Status().Patch(r.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: system}}, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	const vif = `{"metadata":{"annotations":{"openstack.org/kuryr-vif":"{}"}}}`
	// The policies are in force once what they forbid is refused.
	r.until(func(context.Context) error {
		// Another text each time: what changes nothing is let through.
		if write("web-ravens", fmt.Sprintf(`{"status":{"message":%q}}`, time.Now())) == nil || write("web-daemons", vif) == nil {
			return fmt.Errorf("not yet in force")
		}
		return nil
	})
	for _, c := range []struct{ what, pod, patch, says string }{ // says "" is allowed
		{"the annotation", "web-ravens", vif, ""},
		{"the annotation, taken away", "web-ravens", `{"metadata":{"annotations":{"openstack.org/kuryr-vif":null}}}`, ""},
		{"another annotation", "web-ravens", `{"metadata":{"annotations":{"a":"c"}}}`, "no annotation but"},
		{"a wish", "web-ravens", `{"metadata":{"annotations":{"openstack.org/kuryr-floating-ip":"new"}}}`, "no annotation but"},
		{"a label", "web-ravens", `{"metadata":{"labels":{"app":"db"}}}`, "no labels"},
		{"the phase", "web-ravens", `{"status":{"phase":"Running"}}`, "annotation alone"},
		{"a daemon's pod", "web-daemons", vif, "node daemons has not the label"},
	} {
		err := write(c.pod, c.patch)
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", c.what, err, c.says)
		}
	}
	// Of a Service it writes where that is reached, and nothing else.
	r.must(admin.Create(r.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: system, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}))
	for _, c := range []struct{ what, patch, says string }{
		{"where it is reached", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.7","ipMode":"VIP"}]}}}`, ""},
		{"a label", `{"metadata":{"labels":{"app":"db"}}}`, "status.loadBalancer alone"},
		{"an annotation", `{"metadata":{"annotations":{"a":"b"}}}`, "status.loadBalancer alone"},
		{"a condition", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"a","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "status.loadBalancer alone"},
	} {
		err := raven.Status().Patch(r.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: system}}, client.RawPatch(types.MergePatchType, []byte(c.patch)))
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s of a Service: %v; want %q", c.what, err, c.says)
		}
	}
	// A node that is made Raven's is so at once, or soon.
	r.must(admin.Patch(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "daemons"}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"openstack.org/kuryr-claimant":"raven"}}}`))))
	r.until(func(context.Context) error { return write("web-daemons", vif) })
}

// What the token of a node's daemon may write is its own node's, whatever it tries.
func TestNodeRights(t *testing.T) {
	t.Parallel()
	r := start(t, kubelab.Options{APIOnly: true})
	r.install(false)
	admin := r.api(nil)
	for node, claimant := range map[string]string{"node1": "", "node2": kuryrv1.ClaimantRaven} {
		r.must(admin.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{kuryrv1.LabelClaimant: claimant}}}))
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-" + node, Namespace: system, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"a": "b"}},
			Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "kuryr-cni", Containers: []corev1.Container{{Name: "web", Image: "none"}}},
		}
		r.must(admin.Create(r.ctx, pod))
	}
	ports := map[string]*kuryrv1.KuryrPort{
		"mine": kuryrPort("mine", "node1", kuryrv1.PortAvailable), "going": kuryrPort("going", "node1", kuryrv1.PortBound), "gone": kuryrPort("gone", "node1", kuryrv1.PortDeleting),
		"dedicated": kuryrPort("dedicated", "node1", kuryrv1.PortBound), "others": kuryrPort("others", "node2", kuryrv1.PortAvailable),
	}
	ports["dedicated"].Spec.Dedicated = "a-pods-uid"
	for _, p := range ports {
		r.must(admin.Create(r.ctx, p))
	}
	r.must(admin.Delete(r.ctx, ports["going"]))
	daemon := r.api(r.nodeToken("node1"))
	port := func(name string) client.Object { return &kuryrv1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	pod := func(name string) client.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system}}
	}
	node := func(name string) client.Object { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	label := func(status string) string {
		return `{"metadata":{"labels":{"openstack.org/portStatus":"` + status + `"}}}`
	}
	const (
		main, status = false, true
		vif          = `{"metadata":{"annotations":{"openstack.org/kuryr-vif":"{}"}}}`
		bound        = `{"status":{"portStatus":"bound","pod":{"namespace":"a","name":"b","uid":"c","container":"d","interface":"eth0","since":"2026-11-22T15:00:00Z"}}}`
		unavailable  = `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"KuryrIsUp","message":""}]}}`
	)
	write := func(api client.Client, o client.Object, sub bool, patch string) error {
		kind := types.MergePatchType
		if strings.HasPrefix(patch, `{"status":{"conditions"`) {
			kind = types.StrategicMergePatchType
		}
		if sub {
			return api.Status().Patch(r.ctx, o, client.RawPatch(kind, []byte(patch)))
		}
		return api.Patch(r.ctx, o, client.RawPatch(kind, []byte(patch)))
	}
	// The policies are in force once what they forbid is refused.
	r.until(func(context.Context) error {
		for _, err := range []error{write(daemon, port("others"), main, `{"metadata":{"labels":{"a":"b"}}}`), write(daemon, pod("web-node2"), status, `{"metadata":{"annotations":{"a":"c"}}}`), write(daemon, node("node2"), status, unavailable)} {
			if err == nil {
				return fmt.Errorf("not yet in force")
			}
		}
		return nil
	})
	for _, c := range []struct {
		what   string
		object client.Object
		sub    bool
		patch  string
		says   string // "" is allowed
	}{
		{"bound", port("mine"), main, label("bound"), ""},
		{"its status", port("mine"), status, bound, ""},
		{"given back", port("mine"), main, label("available"), ""},
		{"given up, while Raven wants it", port("mine"), main, label("deleting"), "only a dedicated port"},
		{"made", port("mine"), main, label("created"), "available, bound or deleting"},
		{"label taken away", port("mine"), main, `{"metadata":{"labels":{"openstack.org/portStatus":null}}}`, "available, bound or deleting"},
		{"another label", port("mine"), main, `{"metadata":{"labels":{"openstack.org/node":"node2"}}}`, "no label but"},
		{"a new label", port("mine"), main, `{"metadata":{"labels":{"a":"b"}}}`, "no label but"},
		{"the address", port("mine"), main, `{"spec":{"address":"fa:16:3e:00:00:01"}}`, "Raven alone"},
		{"an annotation", port("mine"), main, `{"metadata":{"annotations":{"a":"b"}}}`, "no annotation but"},
		{"the finalizer", port("mine"), main, `{"metadata":{"finalizers":null}}`, "no finalizers"},
		{"an owner", port("mine"), main, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"b"}]}}`, "no owners"},
		{"another's label", port("others"), main, label("bound"), "is of node node2, the token of node node1"},
		{"another's status", port("others"), status, bound, "is of node node2"},
		{"given up, being deleted", port("going"), main, label("deleting"), ""},
		{"back from deleting", port("gone"), main, label("available"), "nothing else"},
		{"given up, dedicated", port("dedicated"), main, label("deleting"), ""},
		{"a pod's annotation", pod("web-node1"), status, vif, ""},
		{"a pod's other annotation", pod("web-node1"), status, `{"metadata":{"annotations":{"a":"c"}}}`, "no annotation but"},
		{"a pod's other annotation taken away", pod("web-node1"), status, `{"metadata":{"annotations":{"a":null}}}`, "no annotation but"},
		{"a pod's label", pod("web-node1"), status, `{"metadata":{"labels":{"app":"db"}}}`, "no label but"},
		{"a pod's phase", pod("web-node1"), status, `{"status":{"phase":"Failed"}}`, "annotation alone"},
		{"a pod itself", pod("web-node1"), main, vif, "cannot patch resource"},
		{"another node's pod", pod("web-node2"), status, vif, "the pod is not on node node1"},
		{"its node's network", node("node1"), status, unavailable, ""},
		{"its node's capacity", node("node1"), status, `{"status":{"capacity":{"cpu":"99"}}}`, "NetworkUnavailable"},
		{"its node's readiness", node("node1"), status, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"A","message":""}]}}`, "NetworkUnavailable"},
		{"its node's labels", node("node1"), status, `{"metadata":{"labels":{"a":"b"}}}`, "no label but"},
		{"another node's network", node("node2"), status, unavailable, "this is not node node1"},
		{"a node itself", node("node1"), main, `{"metadata":{"labels":{"a":"b"}}}`, "cannot patch resource"},
	} {
		err := write(daemon, c.object, c.sub, c.patch)
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", c.what, err, c.says)
		}
	}
	for what, err := range map[string]error{
		"makes a port":    daemon.Create(r.ctx, kuryrPort("new", "node1", kuryrv1.PortAvailable)),
		"deletes a port":  daemon.Delete(r.ctx, port("mine")),
		"reads secrets":   daemon.List(r.ctx, &corev1.SecretList{}),
		"makes an event":  daemon.Create(r.ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: system}}),
		"makes a network": daemon.Create(r.ctx, &kuryrv1.KuryrNetwork{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kuryrv1.KuryrNetworkSpec{Namespace: "a", UID: "b"}}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("a daemon %s: %v", what, err)
		}
	}
	// A token of the account that is of no pod is of no node.
	if err := write(r.api(r.token("kuryr-node", nil)), port("mine"), main, label("bound")); err == nil || !strings.Contains(err.Error(), "not bound to a node") {
		t.Errorf("a token without a node: %v", err)
	}
	// The others' rights.
	cni := r.api(r.token("kuryr-cni", nil))
	if err := cni.Get(r.ctx, client.ObjectKey{Name: "mine"}, &kuryrv1.KuryrPort{}); err != nil {
		t.Errorf("kuryr-cni reads a port: %v", err)
	}
	if err := write(cni, port("mine"), main, label("bound")); !apierrors.IsForbidden(err) {
		t.Errorf("kuryr-cni writes a port: %v", err)
	}
	raven := r.api(r.token("kuryr-controller", nil))
	if err := raven.List(r.ctx, &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("Raven reads secrets: %v", err)
	}
	r.must(raven.Create(r.ctx, kuryrPort("of-raven", "node2", kuryrv1.PortCreated)))
	if err := write(raven, port("of-raven"), main, label("available")); err != nil {
		t.Errorf("Raven labels a port: %v", err)
	}
	if err := write(raven, pod("web-node2"), status, vif); err != nil {
		t.Errorf("Raven writes a pod's annotation: %v", err)
	}
	if err := write(raven, pod("web-node2"), main, vif); !apierrors.IsForbidden(err) {
		t.Errorf("Raven changes a pod: %v", err)
	}
}

// Who owns a namespace, or may even edit all of them, does not choose what it is in the SDN.
func TestNamespaceAnnotations(t *testing.T) {
	t.Parallel()
	r := start(t, kubelab.Options{APIOnly: true})
	r.install(false)
	admin := r.api(nil)
	r.must(admin.Create(r.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "owner"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces", "nodes", "namespaces/status"}, Verbs: []string{"*"}},
	}}))
	r.must(admin.Create(r.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "owner"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "owner"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "owner"}},
	}))
	config, err := r.UserConfig("owner")
	r.must(err)
	owner := r.api(config)
	granted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "granted", Annotations: map[string]string{kuryrv1.AnnotationProject: "blue"}}}
	r.must(admin.Create(r.ctx, granted))
	r.until(func(ctx context.Context) error {
		err := owner.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Annotations: map[string]string{kuryrv1.AnnotationProject: "red"}}}, client.DryRunAll)
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("made with an annotation: %w", err)
		}
		return nil
	})
	patch := func(api client.Client, o client.Object, sub bool, text string) error {
		p := client.RawPatch(types.MergePatchType, []byte(text))
		if sub {
			return api.Status().Patch(r.ctx, o, p)
		}
		return api.Patch(r.ctx, o, p)
	}
	namespace := func() client.Object { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "granted"}} }
	r.must(admin.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}))
	for _, c := range []struct {
		what   string
		object client.Object
		sub    bool
		patch  string
		ok     bool
	}{
		{"another annotation", namespace(), false, `{"metadata":{"annotations":{"a":"b"}}}`, true},
		{"a label", namespace(), false, `{"metadata":{"labels":{"a":"b"}}}`, true},
		{"the same value", namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-project":"blue"}}}`, true},
		{"another project", namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-project":"red"}}}`, false},
		{"another project by way of the status", namespace(), true, `{"metadata":{"annotations":{"openstack.org/kuryr-project":"red"}}}`, false},
		{"no project", namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-project":null}}}`, false},
		{"a grant", namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-allow-addresses":"any"}}}`, false},
		{"a node's claimant", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, false, `{"metadata":{"labels":{"openstack.org/kuryr-claimant":"raven"}}}`, false},
		{"a node's label", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, false, `{"metadata":{"labels":{"a":"b"}}}`, true},
	} {
		if err := patch(owner, c.object, c.sub, c.patch); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "only who may create KuryrNetworks") {
			t.Errorf("the owner sets %s: %v, want ok %v", c.what, err, c.ok)
		}
	}
	if err := patch(admin, namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-project":"red"}}}`); err != nil {
		t.Errorf("the administrator: %v", err)
	}
}

// Every rule of the resources on a real API server.
func TestResourceRules(t *testing.T) {
	t.Parallel()
	r := start(t, kubelab.Options{APIOnly: true})
	r.resources()
	api := r.api(nil)
	pool := func(change func(*kuryrv1.KuryrPortPoolSpec)) client.Object {
		p := &kuryrv1.KuryrPortPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: kuryrv1.KuryrPortPoolSpec{
			Node: "node1", Network: "net", Minimum: 1, Batch: 5, Subnets: []string{"a", "b"}, SecurityGroups: []string{"g"}, ProjectID: "p", Trunk: "trunk",
		}}
		change(&p.Spec)
		return p
	}
	trunkless := func(trunk string) client.Object {
		p := pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Trunk = trunk })
		p.SetName("trunkless")
		return p
	}
	port := func(change func(*kuryrv1.KuryrPort)) client.Object {
		p := kuryrPort("port", "node1", kuryrv1.PortCreated)
		change(p)
		return p
	}
	network := func(change func(*kuryrv1.KuryrNetworkSpec)) client.Object {
		n := &kuryrv1.KuryrNetwork{ObjectMeta: metav1.ObjectMeta{Name: "network"}, Spec: kuryrv1.KuryrNetworkSpec{Namespace: "a", UID: "u"}}
		change(&n.Spec)
		return n
	}
	balancer := func(change func(*kuryrv1.KuryrLoadBalancerSpec)) client.Object {
		lb := &kuryrv1.KuryrLoadBalancer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: kuryrv1.KuryrLoadBalancerSpec{
			ServiceUID: "u", Type: "ClusterIP", VIPs: []string{"10.96.0.5"}, Ports: []kuryrv1.LoadBalancerPort{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 80}},
		}}
		change(&lb.Spec)
		return lb
	}
	made := []client.Object{
		pool(func(*kuryrv1.KuryrPortPoolSpec) {}), trunkless(""), port(func(*kuryrv1.KuryrPort) {}), network(func(*kuryrv1.KuryrNetworkSpec) {}), balancer(func(*kuryrv1.KuryrLoadBalancerSpec) {}),
	}
	for _, o := range made {
		r.must(api.Create(r.ctx, o))
	}
	for _, c := range []struct {
		says   string // "" is allowed
		create bool
		object client.Object
	}{
		{"minimum must not be above maximum", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Minimum, s.Maximum = 3, 2 })},
		{"spec.batch", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Batch = 0 })},
		{"spec.minimum", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Minimum = -1 })},
		{"spec.node", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Node = "" })},
		{"Duplicate value", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.SecurityGroups = []string{"a", "a"} })},
		{"", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Minimum, s.Maximum, s.Batch = 2, 20, 4 })},
		{"", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Subnets = []string{"b", "a"} })}, // a set
		{"keeps its node", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Node = "node2" })},
		{"keeps its network", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Network = "b" })},
		{"keeps its trunk", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Trunk = "t" })},
		{"keeps its trunk", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Trunk = "" })},
		{"", false, trunkless("t")},
		{"keeps its project", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.ProjectID = "" })},
		{"keeps its subnets", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Subnets = nil })},
		{"keeps its security groups", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.SecurityGroups = []string{"g", "h"} })},

		{"the port's id for a name", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.ID = "other" })},
		{"spec.address", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.Address = "FA-16" })},
		{"spec.network.mtu", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.Network.MTU = 70000 })},
		{"must be a range such as", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.Network.Subnets[0].CIDR = "10.1.0.0" })},
		{"must be addresses without a length", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.Network.Subnets[0].IPs = []string{"10.1.0.5/16"} })},
		{"", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.SecurityGroups = []string{"g"} })},
		{"keeps its node", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.Node = "node2" })},
		{"keeps its pool", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.Pool = "other" })},
		{"stays one pod's", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.Dedicated = "u" })},

		{"must be named", true, network(func(s *kuryrv1.KuryrNetworkSpec) { s.Subnets = []string{"a"} })},
		{"spec.namespace", true, network(func(s *kuryrv1.KuryrNetworkSpec) { s.Namespace = "" })},
		{"is another object", false, network(func(s *kuryrv1.KuryrNetworkSpec) { s.ProjectID = "p" })},

		{"", false, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = append(s.VIPs, "fd00:96::5") })},
		{"", false, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) {
			s.Type, s.FloatingIP = "LoadBalancer", &kuryrv1.LoadBalancerFloatingIP{Address: "203.0.113.7"}
		})},
		{"another Service has another", false, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.ServiceUID = "v" })},
		{"one of each family", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = append(s.VIPs, "10.96.0.6") })},
		{"want addresses", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = []string{"None"} })},
		{"spec.vips", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = nil })},
		{"only a Service of type LoadBalancer", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.FloatingIP = &kuryrv1.LoadBalancerFloatingIP{} })},
		{"Duplicate value", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.Ports[1].Protocol = "TCP" })},
		{"spec.ports[0].port", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.Ports[0].Port = 70000 })},
	} {
		var err error
		if c.create {
			c.object.SetName(c.object.GetName() + "-2")
			if p, ok := c.object.(*kuryrv1.KuryrPort); ok && p.Spec.ID == "port" {
				p.Spec.ID = p.Name
			}
			err = api.Create(r.ctx, c.object, client.DryRunAll)
		} else {
			there := c.object.DeepCopyObject().(client.Object)
			r.must(api.Get(r.ctx, client.ObjectKeyFromObject(there), there))
			c.object.SetResourceVersion(there.GetResourceVersion())
			err = api.Update(r.ctx, c.object, client.DryRunAll)
		}
		if (c.says == "") != (err == nil) || err != nil && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%T, made %v: %v; want %q", c.object, c.create, err, c.says)
		}
	}
	// What is no value of the life of a port is refused in the status.
	err := api.Status().Patch(r.ctx, port(func(*kuryrv1.KuryrPort) {}), client.RawPatch(types.MergePatchType, []byte(`{"status":{"portStatus":"lost"}}`)))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "portStatus") {
		t.Errorf("a status that is none: %v", err)
	}
}

// One step of versions: the next release's definitions take what the first release stored, and its install stores that anew, so that the old version can go.
func TestVersionStep(t *testing.T) {
	t.Parallel()
	r := start(t, kubelab.Options{APIOnly: true})
	r.resources()
	api := r.api(nil)
	var first kuryrv1.KuryrPort
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "kube", "api", "v1", "testdata", "first", "kuryrport.json"))
	r.must(err)
	r.must(json.Unmarshal(text, &first))
	const ports = 3
	for i := range ports {
		p := first.DeepCopy()
		p.Name = fmt.Sprintf("%s-%d", first.Name, i)
		p.Spec.ID = p.Name
		r.must(api.Create(r.ctx, p))
	}

	const name = "kuryrports.openstack.org"
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	get := func() (versions []any, stored []string) {
		t.Helper()
		r.must(api.Get(r.ctx, client.ObjectKey{Name: name}, definition))
		versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
		r.must(err)
		stored, _, err = unstructured.NestedStringSlice(definition.Object, "status", "storedVersions")
		r.must(err)
		return versions, stored
	}
	set := func(versions ...any) error {
		t.Helper()
		r.must(unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"))
		return api.Update(r.ctx, definition)
	}
	versions, stored := get()
	if len(versions) != 1 || !slices.Equal(stored, []string{"v1"}) {
		t.Fatalf("%d versions, stored %v", len(versions), stored)
	}
	old := versions[0].(map[string]any)
	next := runtime.DeepCopyJSON(old)
	next["name"] = "v2"
	old["storage"] = false
	r.must(unstructured.SetNestedField(next, map[string]any{"type": "string"}, "schema", "openAPIV3Schema", "properties", "spec", "properties", "later"))
	r.must(set(old, next))

	list := func(version string) (*unstructured.UnstructuredList, error) {
		l := &unstructured.UnstructuredList{}
		l.SetAPIVersion("openstack.org/" + version)
		l.SetKind("KuryrPortList")
		return l, api.List(r.ctx, l)
	}
	r.until(func(context.Context) error {
		l, err := list("v2")
		if err == nil && len(l.Items) != ports {
			err = fmt.Errorf("%d ports in v2, not %d", len(l.Items), ports)
		}
		return err
	})
	l, err := list("v2")
	r.must(err)
	for _, p := range l.Items {
		if p.GetAPIVersion() != "openstack.org/v2" || p.Object["spec"].(map[string]any)["address"] != first.Spec.Address {
			t.Errorf("%s %s: %v", p.GetAPIVersion(), p.GetName(), p.Object["spec"])
		}
	}
	if _, stored := get(); !slices.Equal(stored, []string{"v1", "v2"}) {
		t.Fatalf("stored %v", stored)
	}
	if err := set(next); err == nil || !strings.Contains(err.Error(), "storedVersions") {
		t.Fatalf("v1 is left out while objects are stored so: %v", err)
	}
	applier := install.Applier{API: api}
	for again, want := range []int{ports, 0} {
		if n, err := applier.Migrate(r.ctx, name); err != nil || n != want {
			t.Errorf("time %d: %d objects stored anew, %v; want %d", again, n, err, want)
		}
	}
	if _, stored := get(); !slices.Equal(stored, []string{"v2"}) {
		t.Errorf("stored %v", stored)
	}
	var now kuryrv1.KuryrPort // an older process still reads v1
	r.must(api.Get(r.ctx, client.ObjectKey{Name: first.Name + "-0"}, &now))
	if now.Spec.Address != first.Spec.Address || now.Spec.Network.Subnets[0].IPs[0] != first.Spec.Network.Subnets[0].IPs[0] {
		t.Errorf("in v1: %+v", now.Spec)
	}
	get()
	if err := set(next); err != nil {
		t.Errorf("v1 is left out: %v", err)
	}
	r.until(func(context.Context) error {
		l, err := list("v2")
		if err == nil && len(l.Items) != ports {
			err = fmt.Errorf("%d ports", len(l.Items))
		}
		return err
	})
}
