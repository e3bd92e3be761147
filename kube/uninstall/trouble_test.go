package uninstall

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What Raven makes anew of a kind without objects, before it is refused, goes too; and where ports stay all kinds do.
func TestRemoveHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRemoveHolds)
}

func testRemoveHolds(t *testing.T) {
	t.Helper()
	c := newRemoval(t, aPort("p1", ""))
	c.anew = true
	if err := c.remove(false, 10*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(c.log, "\n"))
	}
	c.nothing()

	c = newRemoval(t, aPort("p1", ""))
	c.stuck = true
	if err := c.remove(false, 10*time.Second); err == nil || !strings.Contains(err.Error(), "kuryrports.openstack.org: 1 objects are still there: p1") {
		t.Errorf("%v\n%s", err, strings.Join(c.log, "\n"))
	}
	c.stuck = false
	if err := c.remove(false, 10*time.Second); err != nil {
		t.Errorf("once more: %v\n%s", err, strings.Join(c.log, "\n"))
	}
	c.nothing()
}

// A pod that comes while nodes are cleared keeps its network, and the resources stay.
func TestRemoveLatePod(t *testing.T) {
	t.Parallel()
	c := newRemoval(t)
	c.late = true
	if err := c.remove(false, time.Minute); err == nil || !strings.Contains(err.Error(), "1 pods still have ports of Kuryr's, and would lose their network: default/late") || c.at("delete CustomResourceDefinition") >= 0 {
		t.Errorf("%v\n%s", err, strings.Join(c.log, "\n"))
	}
}

// A pod on a node that is away ends never: it is named, and by force all else goes.
func TestRemoveDeadNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRemoveDeadNode)
}

func testRemoveDeadNode(t *testing.T) {
	t.Helper()
	c := newRemoval(t)
	c.dead = true
	if err := c.remove(false, 10*time.Second); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the pods kuryr-node-1 (node n1) have not ended") {
		t.Errorf("%v\n%s", err, strings.Join(c.log, "\n"))
	}
	if err := c.remove(true, 10*time.Second); err != nil || c.at("said pods kuryr-node-1 (node n1): they have not ended") < 0 {
		t.Errorf("forced: %v\n%s", err, strings.Join(c.log, "\n"))
	}
	c.must(c.api.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "kuryr-node-1"}}))
	c.nothing()
}

// What the daemons had in the kernels of nodes goes after them, also when that is done again; until then their DaemonSet tells of it, and what else was installed stays.
func TestRemoveSweeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRemoveSweeps)
}

func testRemoveSweeps(t *testing.T) {
	t.Helper()
	c := newRemoval(t, aPort("p1", ""))
	c.must(c.api.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{corev1.LabelOSStable: "windows"}}}))
	c.swept = false
	for range 2 {
		if err := c.remove(false, 10*time.Second); err == nil || !strings.Contains(err.Error(), "nodes n1 still have in their kernel what balanced Services (is the kubelet there") || c.at("delete ClusterRole") >= 0 {
			t.Errorf("%v\n%s", err, strings.Join(c.log, "\n"))
		}
		var set appsv1.DaemonSet
		c.must(c.api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: nodeName}, &set))
		if set.DeletionTimestamp.IsZero() {
			t.Error("the DaemonSet is not being deleted")
		}
	}
	var daemons corev1.PodList
	c.must(c.api.List(t.Context(), &daemons))
	if len(daemons.Items) > 0 {
		t.Errorf("%d pods are left, which would bring it back", len(daemons.Items))
	}
	c.swept = true
	if err := c.remove(false, 10*time.Second); err != nil {
		t.Errorf("once more: %v\n%s", err, strings.Join(c.log, "\n"))
	}
	c.nothing()
}

// Where no pod can be made any more, as in a namespace that is being deleted, nothing keeps the DaemonSet, and the nodes are told that are not swept.
func TestRemoveInTerminatingNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRemoveInTerminatingNamespace)
}

func testRemoveInTerminatingNamespace(t *testing.T) {
	t.Helper()
	pods := schema.GroupResource{Resource: "pods"}
	terminating := apierrors.NewForbidden(pods, "", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, row := range []struct {
		why   error
		force bool
	}{{terminating, false}, {apierrors.NewForbidden(pods, "", errors.New("a policy says no")), true}} {
		c := newRemoval(t)
		c.swept = false
		if err := c.remove(false, 10*time.Second); err == nil {
			t.Fatal("it is not interrupted")
		}
		c.noPod = row.why
		if err := c.remove(false, 10*time.Second); (err != nil) != row.force {
			t.Errorf("%v: %v", row.why, err)
		}
		if row.force {
			if err := c.remove(true, 10*time.Second); err != nil {
				t.Errorf("forced: %v\n%s", err, strings.Join(c.log, "\n"))
			}
		}
		if c.at("said nodes n1: what balanced Services stays in their kernel") < 0 {
			t.Errorf("%v: it does not say what stays:\n%s", row.why, strings.Join(c.log, "\n"))
		}
		c.nothing()
	}
}

// The pod that sweeps a node has there what the daemon's has, and asks nobody in the cluster.
func TestSweepingPod(t *testing.T) {
	t.Parallel()
	c := newRemoval(t)
	var set appsv1.DaemonSet
	c.must(c.api.Get(t.Context(), client.ObjectKey{Namespace: system, Name: nodeName}, &set))
	daemon := set.Spec.Template.Spec
	p := Remover{Namespace: system}.sweepingPod(daemon, "n1")
	is := p.Spec.Containers[0]
	if p.Spec.NodeName != "n1" || !p.Spec.HostNetwork || *p.Spec.AutomountServiceAccountToken || is.Image != daemon.Containers[0].Image || !*is.SecurityContext.Privileged || is.ReadinessProbe != nil {
		t.Errorf("the pod %+v", p.Spec)
	}
	volumes := map[string]bool{}
	for _, v := range p.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range daemon.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("it has no volume %s", m.Name)
		}
	}
	if len(is.VolumeMounts) != len(volumes) || volumes["bin"] {
		t.Errorf("mounts %+v of the volumes %v", is.VolumeMounts, volumes)
	}
}

// In a namespace where nothing of Kuryr's is it would be left running.
func TestRemoveElsewhere(t *testing.T) {
	t.Parallel()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: system, Name: name} }
	c := newRemoval(t)
	r := Remover{API: c.api, Namespace: "blue"}
	if err := r.refuse(t.Context()); err == nil || !strings.Contains(err.Error(), "the namespace blue has no Deployment kuryr-controller") {
		t.Error(err)
	}
	r.Namespace = system
	for _, o := range []client.Object{&appsv1.Deployment{ObjectMeta: named(controllerName)}, &appsv1.DaemonSet{ObjectMeta: named(nodeName)}, &coordinationv1.Lease{ObjectMeta: named(controllerName)}} {
		if err := r.refuse(t.Context()); err != nil {
			t.Errorf("before %T goes: %v", o, err)
		}
		c.must(c.api.Delete(t.Context(), o))
	}
	if err := r.refuse(t.Context()); err == nil {
		t.Error("nothing is there")
	}
	r.Force = true
	if err := r.refuse(t.Context()); err != nil {
		t.Errorf("forced: %v", err)
	}
}

// Patience ends when nothing has gone for so long, however long all takes.
func TestPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r := Remover{Force: true, Patience: time.Minute}
		waiting, fewer, stop := r.patience(t.Context())
		defer stop()
		for left := 5; left > 0; left-- {
			fewer(left)
			time.Sleep(50 * time.Second)
		}
		fewer(5) // more is no progress
		<-waiting.Done()
		if took := time.Since(begin); took != 260*time.Second || !r.gaveUp(t.Context(), waiting) {
			t.Errorf("it ended after %s", took)
		}
	})
}
