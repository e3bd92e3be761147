//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	authenticationv1 "k8s.io/api/authentication/v1"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

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
	r := shareAPI(t)
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
	r := shareAPI(t)
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
	r := shareAPI(t)
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
	r.must(admin.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}))
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
		{"a node's claimant", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}, false, `{"metadata":{"labels":{"openstack.org/kuryr-claimant":"raven"}}}`, false},
		{"a node's label", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}, false, `{"metadata":{"labels":{"a":"b"}}}`, true},
	} {
		if err := patch(owner, c.object, c.sub, c.patch); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "only who may create KuryrNetworks") {
			t.Errorf("the owner sets %s: %v, want ok %v", c.what, err, c.ok)
		}
	}
	if err := patch(admin, namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-project":"red"}}}`); err != nil {
		t.Errorf("the administrator: %v", err)
	}
}
