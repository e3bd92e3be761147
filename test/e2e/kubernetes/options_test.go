//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// The rows of kuryr-kubernetes' own tests about pools and namespaces: options that are
// edited, and a Raven that is started again by them, give the pools other counts, and the
// pods that run go on; the same options change nothing; a namespace that goes with its
// pod right after they were made may be made again under its name.
func TestPeerRows(t *testing.T) {
	w := shareNode(t)
	w.namespaceAgain("again")

	w.create("default", serverPod("a", ""), serverPod("b", ""))
	pods := w.running("default", "", 2)
	talk := func() {
		t.Helper()
		w.talks(pods["a"], pods["b"])
	}
	exactly := func(want int) {
		t.Helper()
		w.until(func(ctx context.Context) error {
			pool, err := w.pool(ctx, "default")
			if err == nil && pool.Spec.Minimum != want {
				err = fmt.Errorf("the minimum is %d", pool.Spec.Minimum)
			}
			return err
		})
		w.free("default", func(n int) bool { return n == want })
		w.agree(2 + 1)
		talk()
	}
	exactly(2)
	w.reset("--controller-pool-minimum", "7", "--controller-pool-batch", "3")
	exactly(7)
	before := w.ports("default")
	w.reset("--controller-pool-minimum", "7", "--controller-pool-batch", "3")
	w.namespace("later") // when this has its pool, Raven has looked at what there is
	w.create("later", serverPod("c", ""))
	w.running("later", "", 1)
	if after := w.ports("default"); !slices.Equal(before, after) {
		t.Errorf("the same options have made the ports %v of %v", after, before)
	}
	w.gone("later")
	w.reset("--controller-pool-minimum", "1", "--controller-pool-maximum", "4")
	exactly(1)

	// No more than the maximum, until there is another.
	w.create("default", serverPod("d", ""), serverPod("e", ""), serverPod("f", ""))
	w.until(func(ctx context.Context) error {
		pool, err := w.pool(ctx, "default")
		if err == nil && (pool.Status.Bound != 4 || pool.Status.Available != 0) {
			err = fmt.Errorf("%d ports are bound and %d available of at most 4", pool.Status.Bound, pool.Status.Available)
		}
		return err
	})
	if n := len(w.ports("default")); n != 4 {
		t.Errorf("%d ports in a pool of at most 4", n)
	}
	w.reset("--controller-pool-minimum", "0", "--controller-pool-maximum", "5")
	w.running("default", "", 5)
	w.agree(5 + 1)
	talk()
}

// ports are the names of those of a namespace's pool that are not on their way out, sorted.
func (w *whole) ports(namespace string) (names []string) {
	w.Helper()
	pool, err := w.pool(w.ctx, namespace)
	w.must(err)
	var all kuryrv1.KuryrPortList
	w.must(w.api.List(w.ctx, &all, client.MatchingLabels{kuryrv1.LabelPool: pool.Name}))
	for _, p := range all.Items {
		if p.Labels[kuryrv1.LabelPortStatus] != string(kuryrv1.PortDeleting) && p.DeletionTimestamp.IsZero() {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// namespaceAgain makes a namespace and a pod and deletes them at once, and then both again under their names, to stay.
func (w *whole) namespaceAgain(name string) {
	w.Helper()
	begin := time.Now()
	w.namespace(name)
	w.create(name, serverPod("p", ""))
	w.must(w.Client.CoreV1().Namespaces().Delete(w.ctx, name, metav1.DeleteOptions{}))
	w.within(time.Minute, func(ctx context.Context) error {
		_, err := w.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is still there: %w", err)
		}
		return nil
	})
	w.namespace(name)
	w.create(name, serverPod("p", ""))
	w.running(name, "", 1)
	w.Logf("the pod of the second namespace %s is ready after %s", name, time.Since(begin).Round(10*time.Millisecond))
}
