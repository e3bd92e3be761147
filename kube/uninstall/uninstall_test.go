package uninstall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/install"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	clientgotesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const system = "kuryr-system"

// removal is a cluster with Kuryr. What the API server, the kubelets and Raven do of themselves happens with each write.
type removal struct {
	t     *testing.T
	api   client.WithWatch // nobody's
	raven bool             // it works, and starts anew with each write
	nodes bool             // kubelets do
	stuck bool             // ports are
	swept bool             // they run also the pods that sweep them
	dead  bool             // the node of the daemon is
	anew  bool             // Raven makes a network anew where it may
	late  bool             // a pod gets its port while nodes are cleared
	noPod error            // why no pod can be made
	now   func() time.Time
	log   []string // what was deleted, made and said, in order
}

func newRemoval(t *testing.T, ports ...*v1.KuryrPort) *removal {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), apiextensionsv1.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	c := &removal{t: t, raven: true, nodes: true, swept: true}
	name := func(o client.Object) []string { return []string{o.GetName()} }
	// A tracker that keeps no managed fields: nobody here looks at them, and they cost most of the time.
	tracker := clientgotesting.NewObjectTracker(s, serializer.NewCodecFactory(s).UniversalDecoder())
	c.api = fake.NewClientBuilder().WithScheme(s).WithObjectTracker(tracker).WithStatusSubresource(&corev1.Node{}, &v1.KuryrPort{}, &apiextensionsv1.CustomResourceDefinition{}).WithIndex(&apiextensionsv1.CustomResourceDefinition{}, "metadata.name", name).Build()
	manifests, err := Remover{Namespace: system}.installed()
	c.must(err)
	for _, m := range manifests {
		object := m.Object
		if object.GetKind() == "CustomResourceDefinition" {
			object.SetFinalizers([]string{"customresourcecleanup.apiextensions.k8s.io"})
		}
		c.must(c.api.Create(t.Context(), object))
		if k := object.GetKind(); k == "Deployment" || k == "DaemonSet" {
			c.must(c.api.Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: object.GetName() + "-1", Labels: map[string]string{"app.kubernetes.io/part-of": "kuryr", "app.kubernetes.io/name": object.GetName()}},
				Spec:       corev1.PodSpec{NodeName: "n1"},
			}))
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{install.LabelSDN: "", corev1.LabelOSStable: "linux"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "KuryrStopped"}}
	c.must(c.api.Create(t.Context(), node))
	held := metav1.ObjectMeta{Finalizers: []string{v1.Finalizer}}
	network, pool := &v1.KuryrNetwork{ObjectMeta: held}, &v1.KuryrPortPool{ObjectMeta: held}
	network.Name, pool.Name = "default-1", "n1-1"
	network.Status.Network = "id-of-default-1"
	c.must(c.api.Create(t.Context(), network))
	c.must(c.api.Create(t.Context(), pool))
	for _, p := range ports {
		c.must(c.api.Create(t.Context(), p))
	}
	c.renew(time.Now(), "raven-1")
	return c
}

func (c *removal) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *removal) renew(at time.Time, holder string) {
	c.t.Helper()
	renewed := metav1.NewMicroTime(at)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "kuryr-controller"}}
	_ = c.api.Delete(c.t.Context(), lease.DeepCopy())
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), RenewTime: &renewed}
	c.must(c.api.Create(c.t.Context(), lease))
}

// react is what others do when something was changed.
func (c *removal) react() {
	ctx := c.t.Context()
	missing := 0
	for _, of := range resources {
		var crd apiextensionsv1.CustomResourceDefinition
		if c.api.Get(ctx, client.ObjectKey{Name: of.crd}, &crd) != nil {
			missing++
			continue
		}
		if crd.DeletionTimestamp.IsZero() {
			continue
		}
		cleaning := controllerutil.ContainsFinalizer(&crd, apiextensionsv1.CustomResourceCleanupFinalizer)
		list := of.list()
		c.must(c.api.List(ctx, list))
		left := 0
		c.must(meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			if o.GetDeletionTimestamp().IsZero() && cleaning { // the API server
				if err := c.api.Delete(ctx, o); err != nil {
					return err
				}
				if err := c.api.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
					return client.IgnoreNotFound(err)
				}
			}
			// A Raven that starts ends where a kind is missing.
			if p, ok := o.(*v1.KuryrPort); !c.raven || missing > 0 || ok && (c.stuck || p.Status.Pod != nil) || o.GetDeletionTimestamp().IsZero() {
				left++
				return nil
			}
			o.SetFinalizers(nil)
			return c.api.Update(ctx, o)
		}))
		if left == 0 && cleaning {
			crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse}}
			c.must(c.api.Status().Update(ctx, &crd))
			controllerutil.RemoveFinalizer(&crd, apiextensionsv1.CustomResourceCleanupFinalizer)
			c.must(c.api.Update(ctx, &crd))
			cleaning = false
		}
		refused := !slices.ContainsFunc(crd.Status.Conditions, func(d apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return d.Status == apiextensionsv1.ConditionFalse
		})
		if of.held && c.anew && !cleaning && !refused { // as before Kubernetes 1.36
			o := of.object.DeepCopyObject().(client.Object)
			o.SetName("anew")
			o.SetFinalizers([]string{v1.Finalizer})
			c.must(client.IgnoreAlreadyExists(c.api.Create(ctx, o)))
		}
	}
	var pods corev1.PodList
	c.must(c.api.List(ctx, &pods))
	for i := range pods.Items {
		p := &pods.Items[i]
		owner := p.Labels["app.kubernetes.io/name"]
		switch {
		case owner == "kuryr-uninstall" && c.nodes && (c.swept || !slices.Equal(p.Spec.Containers[0].Args, sweeping)) && p.Status.Phase == "":
			p.Status.Phase = corev1.PodSucceeded
			c.must(c.api.Status().Update(ctx, p))
			if c.late {
				c.must(c.api.Create(ctx, aPort("late", "late")))
			}
		case owner == "kuryr-node" && c.dead:
		case owner != "kuryr-uninstall" && c.ends(owner, &appsv1.Deployment{}) && c.ends(owner, &appsv1.DaemonSet{}):
			c.must(c.api.Delete(ctx, p))
		}
	}
}

// ends tells whether pods of an owner go: with it, or before it.
func (c *removal) ends(owner string, object client.Object) bool {
	return c.api.Get(c.t.Context(), client.ObjectKey{Namespace: system, Name: owner}, object) != nil || !object.GetDeletionTimestamp().IsZero()
}

func (c *removal) remove(force bool, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	note := func(verb string, o client.Object, err error) error {
		if err == nil {
			kind, _ := c.api.GroupVersionKindFor(o)
			c.log = append(c.log, verb+" "+kind.Kind+" "+o.GetName())
			c.react()
		}
		return err
	}
	api := interceptor.NewClient(c.api, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, pod := o.(*corev1.Pod); pod && c.noPod != nil {
				return c.noPod
			}
			return note("create", o, w.Create(ctx, o, opts...))
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return note("delete", o, w.Delete(ctx, o, opts...))
		},
		DeleteAllOf: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteAllOfOption) error {
			if _, ends := ctx.Deadline(); !ends {
				c.t.Errorf("all of %T are deleted without a deadline", o)
			}
			return note("clear", o, w.DeleteAllOf(ctx, o, opts...))
		},
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return note("patch", o, w.Patch(ctx, o, p, opts...))
		},
	})
	return Remover{API: api, Namespace: system, Force: force, Now: c.now, Patience: 50 * time.Millisecond, Said: func(format string, args ...any) { c.log = append(c.log, "said "+fmt.Sprintf(format, args...)) }}.Remove(ctx)
}

// at is where in the log a line begins so.
func (c *removal) at(prefix string) int {
	return slices.IndexFunc(c.log, func(l string) bool { return strings.HasPrefix(l, prefix) })
}

// nothing tells that nothing of Kuryr's is left.
func (c *removal) nothing() {
	c.t.Helper()
	for _, list := range []client.ObjectList{
		&apiextensionsv1.CustomResourceDefinitionList{}, &v1.KuryrPortList{}, &v1.KuryrPortPoolList{}, &v1.KuryrNetworkList{}, &corev1.PodList{}, &appsv1.DeploymentList{}, &appsv1.DaemonSetList{},
		&corev1.ConfigMapList{}, &corev1.ServiceAccountList{}, &corev1.NamespaceList{}, &coordinationv1.LeaseList{},
	} {
		c.must(c.api.List(c.t.Context(), list))
		if n := meta.LenList(list); n > 0 {
			c.t.Errorf("%d of %T are left", n, list)
		}
	}
	var n corev1.Node
	c.must(c.api.Get(c.t.Context(), client.ObjectKey{Name: "n1"}, &n))
	if len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Type != corev1.NodeReady || len(n.Labels) != 1 {
		c.t.Errorf("the node: labels %v, conditions %+v", n.Labels, n.Status.Conditions)
	}
}

func aPort(name, pod string) *v1.KuryrPort {
	p := &v1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1.Finalizer}}}
	if pod != "" {
		p.Status.Pod = &v1.PortPod{Namespace: "default", Name: pod}
	}
	return p
}

// What is taken away goes in the order in which each part still has what it needs to go, and nothing is left.
func TestRemove(t *testing.T) {
	t.Parallel()
	c := newRemoval(t, aPort("p1", ""), aPort("p2", ""))
	if err := c.remove(false, time.Minute); err != nil {
		t.Fatal(err)
	}
	c.nothing()
	last := -1
	for _, line := range []string{
		"create Pod kuryr-uninstall-", "said node n1: container runtimes", "delete CustomResourceDefinition kuryrnetworks", "said kuryrnetworks.openstack.org: all are gone",
		"delete CustomResourceDefinition kuryrportpools", "delete CustomResourceDefinition kuryrports", "said kuryrports.openstack.org: all are gone", "delete DaemonSet kuryr-node",
		"said node n1: what balanced Services is out", "said node n1: nothing is said", "delete ClusterRole ", "delete Namespace",
	} {
		at := c.at(line)
		if at <= last {
			t.Errorf("%q is at %d, what comes before it at %d:\n%s", line, at, last, strings.Join(c.log, "\n"))
		}
		last = at
	}
	c.log = nil
	if err := c.remove(false, time.Minute); err != nil || c.at("delete") >= 0 || c.at("create") >= 0 || c.at("said nodes: there is no DaemonSet kuryr-node (any more) that tells") < 0 {
		t.Errorf("once more: %v\n%s", err, strings.Join(c.log, "\n"))
	}
}

// Where somebody would lose something it says so and changes nothing.
func TestRemoveRefuses(t *testing.T) {
	t.Parallel()
	many := []*v1.KuryrPort{}
	for i := range 7 {
		many = append(many, aPort(fmt.Sprint("p", i), fmt.Sprint("web", i)))
	}
	for name, row := range map[string]struct {
		ports  []*v1.KuryrPort
		holder string
		since  time.Duration
		says   string
	}{
		"pods":              {many, "raven-1", 0, "7 pods still have ports of Kuryr's, and would lose their network: default/web0, default/web1, default/web2, default/web3, default/web4 and 2 more"},
		"nobody leads":      {[]*v1.KuryrPort{aPort("p1", "")}, "", 0, "Raven does not work"},
		"Raven has stopped": {[]*v1.KuryrPort{aPort("p1", "")}, "raven-1", time.Minute, "it alone can take 1 networks, 1 pools and 1 ports from the SDN"},
		"no ports":          {nil, "raven-1", time.Minute, "it alone can take 1 networks, 1 pools and 0 ports from the SDN"},
	} {
		c := newRemoval(t, row.ports...)
		c.now = func() time.Time { return time.Now().Add(time.Hour) } // the API server's
		c.renew(c.now().Add(-row.since), row.holder)
		if err := c.remove(false, time.Minute); err == nil || !strings.Contains(err.Error(), row.says) || len(c.log) > 0 {
			t.Errorf("%s: %v\n%s", name, err, strings.Join(c.log, "\n"))
		}
	}
}

// What does not go is named, and nothing that it needs is taken away.
func TestRemoveStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRemoveStuck)
}

func testRemoveStuck(t *testing.T) {
	t.Helper()
	c := newRemoval(t, aPort("p1", ""))
	c.raven = false
	err := c.remove(false, 10*time.Second)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "kuryrnetworks.openstack.org: 1 objects are still there: default-1") || c.at("delete D") >= 0 {
		t.Errorf("Raven does nothing: %v\n%s", err, strings.Join(c.log, "\n"))
	}
	c.raven = true
	if err := c.remove(false, 10*time.Second); err != nil {
		t.Errorf("Raven is back: %v", err)
	}
	c.nothing()

	c = newRemoval(t)
	c.nodes = false
	if err := c.remove(false, 10*time.Second); err == nil || !strings.Contains(err.Error(), "nodes n1 still have Kuryr's conflist") || c.at("delete CustomResourceDefinition") >= 0 {
		t.Errorf("a kubelet does nothing: %v\n%s", err, strings.Join(c.log, "\n"))
	}
}

// By force all goes, whoever is there, and what stays in the SDN is named.
func TestRemoveForced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRemoveForced)
}

func testRemoveForced(t *testing.T) {
	t.Helper()
	for _, raven := range []bool{true, false} {
		c := newRemoval(t, aPort("p1", "web"), aPort("p2", ""))
		c.raven, c.nodes = raven, false
		c.renew(time.Now().Add(-time.Hour), "raven-1")
		if err := c.remove(true, 10*time.Second); err != nil {
			t.Fatalf("Raven %v: %v\n%s", raven, err, strings.Join(c.log, "\n"))
		}
		c.nothing()
		want := "said kuryrports.openstack.org: these stay in the SDN: p1"
		if !raven {
			want += " p2"
		}
		if !slices.Contains(c.log, want) || c.at("said nodes n1: they still have") < 0 || c.at("said nodes n1: what balanced Services stays") < 0 || (c.at("said kuryrnetworks.openstack.org: these stay in the SDN: id-of-default-1") >= 0) == raven || c.at("said kuryrportpools.openstack.org: these") >= 0 {
			t.Errorf("Raven %v: it does not say %q:\n%s", raven, want, strings.Join(c.log, "\n"))
		}
	}
}
