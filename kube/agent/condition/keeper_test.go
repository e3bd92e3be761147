package condition

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kuryr/kuryr/kube/agent/feed"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// testTimeout is how long a test waits for what must come, also on a loaded machine.
const testTimeout = time.Minute

// api has its lists by list: the fake knows no streamed ones.
type api struct {
	client.WithWatch
	watches atomic.Int32 // begun
}

func (*api) IsWatchListSemanticsUnSupported() bool { return true }

func (a *api) Watch(ctx context.Context, l client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
	w, err := a.WithWatch.Watch(ctx, l, o...)
	a.watches.Add(1)
	return w, err
}

// follow passes the Nodes to the Keeper, as the allocator does with its own. It returns when they are
// watched: the fake reports no change between a list and the watch after it.
func follow(ctx context.Context, t *testing.T, c *api, k *Keeper) {
	t.Helper()
	f := feed.New(feed.Config{
		Client: c, List: &corev1.NodeList{}, Log: slog.New(slog.DiscardHandler),
		Events: feed.Events{Set: func(o client.Object) { k.See(o.(*corev1.Node)) }, Drop: func(types.NamespacedName) {}},
	})
	go f.Run(ctx)
	for end := time.Now().Add(testTimeout); c.watches.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the Nodes are not watched")
		}
	}
}

// TestVersions has a watch report a version that is older than the answer to a write, which is no
// reason to write again, and a change by others before the answer to the write that preceded it.
func TestVersions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	first := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}}
	inner := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithStatusSubresource(first).WithObjects(first).Build()
	writes, meanwhile := 0, func() {}
	k := New(interceptor.NewClient(inner, interceptor.Funcs{
		SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption,
		) error {
			writes++
			err := c.SubResource(sub).Patch(ctx, o, p, opts...)
			meanwhile()
			return err
		},
	}), "n1", nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	get := func() *corev1.Node {
		n := &corev1.Node{}
		must(inner.Get(ctx, client.ObjectKey{Name: "n1"}, n))
		return n
	}
	before := get()
	k.See(before)
	must(k.tell(ctx))
	k.See(before)
	must(k.tell(ctx))
	if writes != 1 {
		t.Errorf("%d writes, want 1: an old version is reported after the write", writes)
	}

	meanwhile = func() {
		meanwhile = func() {}
		n := get()
		n.Status.Conditions = nil
		must(inner.Status().Update(ctx, n))
		k.See(n)
	}
	k.Set(true, ReasonReady, "ready")
	must(k.tell(ctx))
	must(k.tell(ctx))
	if is := get().Status.Conditions; len(is) != 1 || is[0].Reason != ReasonReady {
		t.Errorf("the conditions are %+v: a change before the answer to the last write stays", is)
	}

	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u2", ResourceVersion: "1"}}
	if k.See(again); k.is.Reason != "" {
		t.Errorf("the condition of the Node that was deleted counts for its successor: %+v", k.is)
	}
}

// TestKeeper writes the condition over failures, sets right what others write, leaves the other conditions, and tells of its end.
func TestKeeper(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated"},
	}}}
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	var failures, writes atomic.Int32
	failures.Store(2)
	inner := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithStatusSubresource(node).WithObjects(node, other).Build()
	faulty := &api{WithWatch: interceptor.NewClient(inner, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if failures.Add(-1) >= 0 {
				return errors.New("made up")
			}
			writes.Add(1)
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})}
	k := New(faulty, "n1", nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	follow(ctx, t, faulty, k)
	go func() { defer close(done); k.Run(ctx) }()
	get := func() (c corev1.NodeCondition, ready bool) {
		n := &corev1.Node{}
		if err := inner.Get(context.Background(), client.ObjectKey{Name: "n1"}, n); err != nil {
			t.Fatal(err)
		}
		for _, is := range n.Status.Conditions {
			switch is.Type {
			case corev1.NodeNetworkUnavailable:
				c = is
			case corev1.NodeReady:
				ready = is.Status == corev1.ConditionTrue
			}
		}
		return c, ready
	}
	says := func(status corev1.ConditionStatus, reason string) {
		t.Helper()
		for end := time.Now().Add(testTimeout); ; time.Sleep(2 * time.Millisecond) {
			if c, ready := get(); c.Status == status && c.Reason == reason && ready {
				return
			} else if time.Now().After(end) {
				t.Fatalf("the node says %+v, ready %v", c, ready)
			}
		}
	}
	says(corev1.ConditionTrue, ReasonStarted)
	k.Set(true, ReasonReady, "kuryr node gives ports")
	says(corev1.ConditionFalse, ReasonReady)
	before := writes.Load()
	k.Set(true, ReasonReady, "kuryr node gives ports") // once is enough
	n := &corev1.Node{}
	if err := inner.Get(t.Context(), client.ObjectKey{Name: "n1"}, n); err != nil {
		t.Fatal(err)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := inner.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	says(corev1.ConditionFalse, ReasonReady)
	if got := writes.Load() - before; got != 1 {
		t.Errorf("%d writes for one change", got)
	}
	cancel()
	<-done
	says(corev1.ConditionTrue, ReasonStopped)
	if err := inner.Get(context.Background(), client.ObjectKey{Name: "n2"}, n); err != nil || len(n.Status.Conditions) != 0 {
		t.Errorf("another node says %+v, error %v", n.Status.Conditions, err)
	}
}

// TestHandedOver leaves a node that Raven is to claim for as one that has its network, even if that was said a moment before.
func TestHandedOver(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	inner := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithStatusSubresource(node).WithObjects(node).Build()
	all := &api{WithWatch: inner}
	k := New(all, "n1", nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	follow(ctx, t, all, k)
	go func() { defer close(done); k.Run(ctx) }()
	says := func(want string) {
		t.Helper()
		is := ""
		for end := time.Now().Add(testTimeout); is != want; time.Sleep(2 * time.Millisecond) {
			n := &corev1.Node{}
			if err := inner.Get(context.Background(), client.ObjectKey{Name: "n1"}, n); err != nil {
				t.Fatal(err)
			}
			for _, c := range n.Status.Conditions {
				is = string(c.Status) + " " + c.Reason
			}
			if time.Now().After(end) {
				t.Fatalf("the node says %q, want %q", is, want)
			}
		}
	}
	says("True " + ReasonStarted)
	n := &corev1.Node{}
	if err := inner.Get(t.Context(), client.ObjectKey{Name: "n1"}, n); err != nil {
		t.Fatal(err)
	}
	n.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	if err := inner.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-done
	says("False " + ReasonRaven)
}
