//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	authenticationv1 "k8s.io/api/authentication/v1"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// port is a KuryrPort of a node.
func kuryrPort(name, node string, status kuryrv1.PortStatus) *kuryrv1.KuryrPort {
	return &kuryrv1.KuryrPort{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{kuryrv1.Finalizer}, Labels: map[string]string{
			kuryrv1.LabelPortStatus: string(status), kuryrv1.LabelNode: node, kuryrv1.LabelPool: "pool",
		}},
		Spec: kuryrv1.KuryrPortSpec{
			ID: name, Active: true, Address: "fa:16:3e:bf:84:ff", Node: node, Pool: "pool", VIF: kuryrv1.PortVIF{Type: "bridge"},
			Network: kuryrv1.PortNetwork{ID: "net", MTU: 1500, Subnets: []kuryrv1.PortSubnet{
				{ID: "s4", CIDR: "10.1.0.0/16", Gateway: "10.1.0.1", IPs: []string{"10.1.0.5"}},
			}},
		},
	}
}

// nodeToken is how the daemon of a node asks: by the token of its pod, which is bound to that pod and so to the node.
func (r *rig) nodeToken(node string) *rest.Config {
	r.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kuryr-node-" + node, Namespace: system},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, ServiceAccountName: "kuryr-node",
			Containers: []corev1.Container{{Name: "node", Image: "none"}},
		},
	}
	pod, err := r.Client.CoreV1().Pods(system).Create(r.ctx, pod, metav1.CreateOptions{})
	r.must(err)
	return r.token("kuryr-node", &authenticationv1.BoundObjectReference{
		Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
	})
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
		r.must(admin.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: node, Labels: map[string]string{kuryrv1.LabelClaimant: claimant},
		}}))
		r.must(admin.Create(r.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-" + node, Namespace: system, Labels: map[string]string{"app": "web"},
				Annotations: map[string]string{"a": "b"},
			},
			Spec: corev1.PodSpec{
				NodeName: node, ServiceAccountName: "kuryr-cni",
				Containers: []corev1.Container{{Name: "web", Image: "none"}},
			},
		}))
	}
	raven := r.api(r.token("kuryr-controller", nil))
	write := func(pod, patch string) error {
		return raven.Status().Patch(
			r.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: system}},
			client.RawPatch(types.MergePatchType, []byte(patch)),
		)
	}
	const vif = `{"metadata":{"annotations":{"openstack.org/kuryr-vif":"{}"}}}`
	// The policies are in force once what they forbid is refused.
	r.until(func(context.Context) error {
		// Another text each time: what changes nothing is let through.
		if write("web-ravens", fmt.Sprintf(`{"status":{"message":%q}}`, time.Now())) == nil ||
			write("web-daemons", vif) == nil {
			return fmt.Errorf("not yet in force")
		}
		return nil
	})
	for _, c := range []struct{ what, pod, patch, says string }{ // says "" is allowed
		{"the annotation", "web-ravens", vif, ""},
		{"the annotation, taken away", "web-ravens", `{"metadata":{"annotations":{"openstack.org/kuryr-vif":null}}}`, ""},
		{"another annotation", "web-ravens", `{"metadata":{"annotations":{"a":"c"}}}`, "no annotation but"},
		{
			"a wish", "web-ravens",
			`{"metadata":{"annotations":{"openstack.org/kuryr-floating-ip":"new"}}}`,
			"no annotation but",
		},
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
		{
			"a condition",
			`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"a","message":"",` +
				`"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
			"status.loadBalancer alone",
		},
	} {
		err := raven.Status().Patch(
			r.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: system}},
			client.RawPatch(types.MergePatchType, []byte(c.patch)),
		)
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s of a Service: %v; want %q", c.what, err, c.says)
		}
	}
	// A node that is made Raven's is so at once, or soon.
	r.must(admin.Patch(
		r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "daemons"}},
		client.RawPatch(types.MergePatchType, []byte(
			`{"metadata":{"labels":{"openstack.org/kuryr-claimant":"raven"}}}`,
		)),
	))
	r.until(func(context.Context) error { return write("web-daemons", vif) })
}

// What the token of a node's daemon may write is its own node's, whatever it tries.
func TestNodeRights(t *testing.T) {
	t.Parallel()
	r := shareAPI(t)
	admin := r.api(nil)
	for node, claimant := range map[string]string{"node1": "", "node2": kuryrv1.ClaimantRaven} {
		r.must(admin.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: node, Labels: map[string]string{kuryrv1.LabelClaimant: claimant},
		}}))
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-" + node, Namespace: system, Labels: map[string]string{"app": "web"},
				Annotations: map[string]string{"a": "b"},
			},
			Spec: corev1.PodSpec{
				NodeName: node, ServiceAccountName: "kuryr-cni",
				Containers: []corev1.Container{{Name: "web", Image: "none"}},
			},
		}
		r.must(admin.Create(r.ctx, pod))
	}
	ports := map[string]*kuryrv1.KuryrPort{
		"mine":      kuryrPort("mine", "node1", kuryrv1.PortAvailable),
		"going":     kuryrPort("going", "node1", kuryrv1.PortBound),
		"gone":      kuryrPort("gone", "node1", kuryrv1.PortDeleting),
		"dedicated": kuryrPort("dedicated", "node1", kuryrv1.PortBound),
		"others":    kuryrPort("others", "node2", kuryrv1.PortAvailable),
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
		bound        = `{"status":{"portStatus":"bound","pod":{"namespace":"a","name":"b",` +
			`"uid":"c","container":"d","interface":"eth0","since":"2026-11-22T15:00:00Z"}}}`
		unavailable = `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False",` +
			`"reason":"KuryrIsUp","message":""}]}}`
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
		for _, err := range []error{
			write(daemon, port("others"), main, `{"metadata":{"labels":{"a":"b"}}}`),
			write(daemon, pod("web-node2"), status, `{"metadata":{"annotations":{"a":"c"}}}`),
			write(daemon, node("node2"), status, unavailable),
		} {
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
		{
			"label taken away", port("mine"), main,
			`{"metadata":{"labels":{"openstack.org/portStatus":null}}}`,
			"available, bound or deleting",
		},
		{"another label", port("mine"), main, `{"metadata":{"labels":{"openstack.org/node":"node2"}}}`, "no label but"},
		{"a new label", port("mine"), main, `{"metadata":{"labels":{"a":"b"}}}`, "no label but"},
		{"the address", port("mine"), main, `{"spec":{"address":"fa:16:3e:00:00:01"}}`, "Raven alone"},
		{"an annotation", port("mine"), main, `{"metadata":{"annotations":{"a":"b"}}}`, "no annotation but"},
		{"the finalizer", port("mine"), main, `{"metadata":{"finalizers":null}}`, "no finalizers"},
		{
			"an owner", port("mine"), main,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a",` +
				`"uid":"b"}]}}`,
			"no owners",
		},
		{"another's label", port("others"), main, label("bound"), "is of node node2, the token of node node1"},
		{"another's status", port("others"), status, bound, "is of node node2"},
		{"given up, being deleted", port("going"), main, label("deleting"), ""},
		{"back from deleting", port("gone"), main, label("available"), "nothing else"},
		{"given up, dedicated", port("dedicated"), main, label("deleting"), ""},
		{"a pod's annotation", pod("web-node1"), status, vif, ""},
		{"a pod's other annotation", pod("web-node1"), status, `{"metadata":{"annotations":{"a":"c"}}}`, "no annotation but"},
		{
			"a pod's other annotation taken away", pod("web-node1"), status,
			`{"metadata":{"annotations":{"a":null}}}`, "no annotation but",
		},
		{"a pod's label", pod("web-node1"), status, `{"metadata":{"labels":{"app":"db"}}}`, "no label but"},
		{"a pod's phase", pod("web-node1"), status, `{"status":{"phase":"Failed"}}`, "annotation alone"},
		{"a pod itself", pod("web-node1"), main, vif, "cannot patch resource"},
		{"another node's pod", pod("web-node2"), status, vif, "the pod is not on node node1"},
		{"its node's network", node("node1"), status, unavailable, ""},
		{"its node's capacity", node("node1"), status, `{"status":{"capacity":{"cpu":"99"}}}`, "NetworkUnavailable"},
		{
			"its node's readiness", node("node1"), status,
			`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"A",` +
				`"message":""}]}}`,
			"NetworkUnavailable",
		},
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
		"makes a port":   daemon.Create(r.ctx, kuryrPort("new", "node1", kuryrv1.PortAvailable)),
		"deletes a port": daemon.Delete(r.ctx, port("mine")),
		"reads secrets":  daemon.List(r.ctx, &corev1.SecretList{}),
		"makes an event": daemon.Create(r.ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: system}}),
		"makes a network": daemon.Create(r.ctx, &kuryrv1.KuryrNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec:       kuryrv1.KuryrNetworkSpec{Namespace: "a", UID: "b"},
		}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("a daemon %s: %v", what, err)
		}
	}
	// A token of the account that is of no pod is of no node.
	if err := write(
		r.api(r.token("kuryr-node", nil)), port("mine"), main, label("bound"),
	); err == nil || !strings.Contains(err.Error(), "not bound to a node") {
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
	r.must(admin.Create(r.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{
		Name: "owner",
	}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces", "nodes", "namespaces/status"}, Verbs: []string{"*"}},
	}}))
	r.must(admin.Create(r.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "owner"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "owner"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "owner"}},
	}))
	config, err := r.UserConfig("owner")
	r.must(err)
	owner := r.api(config)
	granted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "granted", Annotations: map[string]string{kuryrv1.AnnotationProject: "blue"},
	}}
	r.must(admin.Create(r.ctx, granted))
	r.until(func(ctx context.Context) error {
		err := owner.Create(
			ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				GenerateName: "probe-",
				Annotations:  map[string]string{kuryrv1.AnnotationProject: "red"},
			}},
			client.DryRunAll,
		)
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
		{
			"another project by way of the status", namespace(), true,
			`{"metadata":{"annotations":{"openstack.org/kuryr-project":"red"}}}`, false,
		},
		{"no project", namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-project":null}}}`, false},
		{"a grant", namespace(), false, `{"metadata":{"annotations":{"openstack.org/kuryr-allow-addresses":"any"}}}`, false},
		{
			"a node's claimant", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}, false,
			`{"metadata":{"labels":{"openstack.org/kuryr-claimant":"raven"}}}`, false,
		},
		{
			"a node's label", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}, false,
			`{"metadata":{"labels":{"a":"b"}}}`, true,
		},
	} {
		if err := patch(owner, c.object, c.sub, c.patch); (err == nil) != c.ok || err != nil &&
			!strings.Contains(err.Error(), "only who may create KuryrNetworks") {
			t.Errorf("the owner sets %s: %v, want ok %v", c.what, err, c.ok)
		}
	}
	if err := patch(
		admin, namespace(), false,
		`{"metadata":{"annotations":{"openstack.org/kuryr-project":"red"}}}`,
	); err != nil {
		t.Errorf("the administrator: %v", err)
	}
}

// tenant is a user who may do everything in one namespace, and what cluster roles allow besides.
func (r *rig) tenant(namespace string, cluster ...rbacv1.PolicyRule) client.Client {
	r.Helper()
	admin := r.api(nil)
	r.must(admin.Create(r.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: namespace}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "tenant-" + namespace}, Rules: cluster}
	r.must(admin.Create(r.ctx, role))
	r.must(admin.Create(r.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	}))
	r.must(admin.Create(r.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: namespace}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}))
	config, err := r.UserConfig(namespace)
	r.must(err)
	return r.api(config)
}

// A user that may write all kinds in a namespace, or even Kuryr's ports in the whole cluster, writes
// none of Kuryr's resources, nor their status. Raven does, an administrator, and the garbage
// collector what is its own.
func TestResourcesAreRavens(t *testing.T) {
	t.Parallel()
	r := start(t, "a user that may write Kuryr's ports in the whole cluster", kubelab.Options{APIOnly: true})
	r.install(false)
	admin, raven := r.api(nil), r.api(r.token("kuryr-controller", nil))
	evil := r.tenant("evil", rbacv1.PolicyRule{
		APIGroups: []string{"openstack.org"}, Verbs: []string{"create", "update", "patch", "delete", "get", "list"},
		Resources: []string{
			"kuryrports", "kuryrports/status", "kuryrportpools", "kuryrportpools/status", "kuryrnetworks/status",
			"kuryrloadbalancers", "kuryrloadbalancers/status",
		},
	})
	config, err := r.UserConfig("system:serviceaccount:kube-system:generic-garbage-collector")
	r.must(err)
	collector := r.api(config)
	balancer := func(name string) *kuryrv1.KuryrLoadBalancer {
		return &kuryrv1.KuryrLoadBalancer{
			ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: name, Finalizers: []string{kuryrv1.Finalizer}},
			Spec:       kuryrv1.KuryrLoadBalancerSpec{ServiceUID: "u", Type: "ClusterIP", VIPs: []string{"10.96.0.10"}},
		}
	}
	pool := &kuryrv1.KuryrPortPool{
		ObjectMeta: metav1.ObjectMeta{Name: "pool"},
		Spec:       kuryrv1.KuryrPortPoolSpec{Node: "node1", Network: "net", Subnets: []string{"s4"}, Batch: 1},
	}
	network := &kuryrv1.KuryrNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "network"}, Spec: kuryrv1.KuryrNetworkSpec{Namespace: "evil", UID: "u"},
	}
	r.until(func(ctx context.Context) error {
		if err := evil.Create(ctx, balancer("probe"), client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a tenant makes a KuryrLoadBalancer: %w", err)
		}
		return nil
	})
	objects := map[string]client.Object{
		"balancer": balancer("web"), "port": kuryrPort("port", "node1", kuryrv1.PortAvailable),
		"pool": pool, "network": network,
	}
	for what, o := range objects {
		if err := evil.Create(r.ctx, o.DeepCopyObject().(client.Object)); !apierrors.IsForbidden(err) {
			t.Errorf("a tenant makes a %s: %v", what, err)
		}
		if err := raven.Create(r.ctx, o); err != nil {
			t.Errorf("Raven makes a %s: %v", what, err)
		}
	}
	const main, status = false, true
	write := func(api client.Client, o client.Object, sub bool, patch string) error {
		o = o.DeepCopyObject().(client.Object)
		if sub {
			return api.Status().Patch(r.ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
		}
		return api.Patch(r.ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	for _, c := range []struct {
		object string
		sub    bool
		patch  string
	}{
		{"balancer", main, `{"spec":{"vips":["10.96.0.11"]}}`},
		{"balancer", main, `{"metadata":{"finalizers":null}}`},
		{"balancer", main, `{"metadata":{"annotations":{"a":"b"}}}`},
		{"balancer", status, `{"status":{"members":7}}`},
		{"balancer", status, `{"status":{"shares":[{"id":"x","inherited":"y"}]}}`},
		{"port", main, `{"metadata":{"labels":{"openstack.org/portStatus":"deleting"}}}`},
		{"port", status, `{"status":{"portStatus":"bound"}}`},
		{"pool", main, `{"spec":{"minimum":5}}`},
		{"pool", status, `{"status":{"available":5}}`},
		{"network", status, `{"status":{"network":"other"}}`},
	} {
		err := write(evil, objects[c.object], c.sub, c.patch)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only Raven") {
			t.Errorf("a tenant writes a %s, status %t, %s: %v", c.object, c.sub, c.patch, err)
		}
		for who, api := range map[string]client.Client{"Raven": raven, "an administrator": admin} {
			if err := write(api, objects[c.object], c.sub, c.patch); err != nil {
				t.Errorf("%s writes a %s, status %t, %s: %v", who, c.object, c.sub, c.patch, err)
			}
		}
	}
	r.must(raven.Create(r.ctx, balancer("owned")))
	if err := write(collector, balancer("owned"), main, `{"metadata":{"finalizers":null}}`); err != nil {
		t.Errorf("the garbage collector takes a finalizer: %v", err)
	}
	if err := evil.Delete(r.ctx, balancer("owned")); err != nil {
		t.Errorf("a tenant deletes what is in its namespace: %v", err)
	}
	// A node's daemon is judged by the policy of its own node's ports.
	r.must(admin.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}))
	daemon := r.api(r.nodeToken("node1"))
	const label = `{"metadata":{"labels":{"openstack.org/portStatus":"available"}}}`
	mine := kuryrPort("mine", "node1", kuryrv1.PortBound)
	r.must(raven.Create(r.ctx, mine))
	if err := write(daemon, mine, main, label); err != nil {
		t.Errorf("a node's daemon labels its port: %v", err)
	}
}

// Where nodes balance and pods are kept from the nodes' network, a tenant makes no endpoints there: not
// as slices and not as Endpoints, which are mirrored. The control plane does, an administrator, and
// a namespace that is granted them; what is there already may stay.
func TestEndpointsOfTheNodesNetwork(t *testing.T) {
	t.Parallel()
	r := start(t, "installs the rules for nodes that balance", kubelab.Options{APIOnly: true})
	evil, other := r.tenant("evil"), r.tenant("other")
	admin := r.api(nil)
	slice := func(namespace, name string, addresses ...string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{
				discoveryv1.LabelServiceName: "x", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: addresses}},
		}
	}
	before := slice("evil", "before", "192.0.2.5")
	r.must(evil.Create(r.ctx, before))
	r.install(false, "provider=neutron", "loadBalancers=node", "config.controller.underlay_isolation=true",
		`config.controller.node_networks=[192.0.2.0/24, "2001:db8:2::/64"]`)
	const grant = `{"metadata":{"annotations":{"openstack.org/kuryr-allow-endpoints":"192.0.2.7, 192.0.2.16/28"}}}`
	granted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	r.must(admin.Patch(r.ctx, granted, client.RawPatch(types.MergePatchType, []byte(grant))))
	r.until(func(ctx context.Context) error {
		if err := evil.Create(ctx, slice("evil", "probe", "192.0.2.1"), client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a tenant makes an endpoint on the nodes' network: %w", err)
		}
		return nil
	})
	before.Endpoints[0].Zone = new("a")
	if err := evil.Update(r.ctx, before); err != nil {
		t.Errorf("another zone of an endpoint that is there: %v", err)
	}
	before.Endpoints = append(before.Endpoints, discoveryv1.Endpoint{Addresses: []string{"192.0.2.6"}})
	if err := evil.Update(r.ctx, before); !apierrors.IsForbidden(err) {
		t.Errorf("one more address: %v", err)
	}
	endpoints := func(namespace, name, ready, not string) client.Object { // which Kubernetes mirrors as a slice
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Endpoints", "metadata": map[string]any{"namespace": namespace, "name": name},
			"subsets": []any{map[string]any{
				"addresses":         []any{map[string]any{"ip": ready}},
				"notReadyAddresses": []any{map[string]any{"ip": not}},
			}},
		}}
	}
	config, err := r.UserConfig("system:serviceaccount:kube-system:endpointslice-controller")
	r.must(err)
	control := r.api(config)
	six := slice("evil", "six", "2001:db8:2::1")
	six.AddressType = discoveryv1.AddressTypeIPv6
	for _, c := range []struct {
		what   string
		api    client.Client
		object client.Object
		ok     bool
	}{
		{"a kubelet", evil, slice("evil", "kubelet", "192.0.2.1"), false},
		{"a second one", evil, slice("evil", "second", "10.128.0.5", "192.0.2.1"), false},
		{"IPv6", evil, six, false},
		{"Endpoints", evil, endpoints("evil", "e", "192.0.2.1", "10.128.0.5"), false},
		{"Endpoints that are not ready", evil, endpoints("evil", "f", "10.128.0.5", "192.0.2.1"), false},
		{"outside", evil, slice("evil", "outside", "198.51.100.1"), true},
		{"pods", evil, endpoints("evil", "g", "10.128.0.5", "10.128.0.6"), true},
		{"not granted", other, slice("other", "no", "192.0.2.8"), false},
		{"granted", other, slice("other", "yes", "192.0.2.7"), true},
		{"a granted range", other, slice("other", "range", "192.0.2.17"), true},
		{"the control plane", control, slice("evil", "control", "192.0.2.1"), true},
		{"an administrator", admin, slice("evil", "admin", "192.0.2.1"), true},
	} {
		err := c.api.Create(r.ctx, c.object)
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "kept from the nodes' network") {
			t.Errorf("%s: %v, want ok %t", c.what, err, c.ok)
		}
	}
}
