//go:build linux

package claim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// On an empty pool each waits for one port, in order, and who gives up takes none.
func TestEmptyPool(t *testing.T) {
	var pods []client.Object
	const n = 5
	for i := range n + 1 {
		pods = append(pods, aPod(fmt.Sprint("p", i), fmt.Sprint("u", i)))
	}
	w := newWorld(t, pods...)
	w.begun()
	waiting := func(n int) {
		eventually(t, fmt.Sprint(n, " wait"), func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			l := w.waiting[topic{ofPorts, aPool().Name}]
			return l == nil && n == 0 || l != nil && l.Len() == n
		})
	}
	if err := w.givesUp(ask("short", "p5", "u5")); !sdn.IsExhausted(err) || !strings.Contains(err.Error(), "quota of ports reached") {
		t.Errorf("error %v", err)
	}
	order := make(chan int, n)
	for i := range n {
		go func() {
			if _, err := w.Claim(t.Context(), ask(fmt.Sprint("c", i), fmt.Sprint("p", i), "")); err != nil {
				t.Error(err)
			}
			order <- i
		}()
		waiting(i + 1)
	}
	for i := range n {
		must(t, w.api.Create(t.Context(), aPort(i)))
		if got := <-order; got != i {
			t.Errorf("%d comes before %d", got, i)
		}
		waiting(n - i - 1)
	}
}

// Who waits for a port of a pod that is deleted meanwhile, gracefully or at once, waits no longer: the kubelet's DEL comes only then. Others wait on.
func TestDeletedWhileWaiting(t *testing.T) {
	kept := aPod("graceful", "ug")
	kept.Finalizers = []string{"test/kept"} // so that it is being deleted for a while
	w := newWorld(t, kept, aPod("forced", "uf"), aPod("other", "uo"))
	w.begun()
	ends := map[string]chan error{}
	for name, uid := range map[string]string{"graceful": "ug", "forced": "uf", "other": "uo"} {
		end := make(chan error, 1)
		ends[name] = end
		go func() { _, err := w.Claim(t.Context(), ask("c-"+name, name, uid)); end <- err }()
	}
	eventually(t, "three wait", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		l := w.waiting[topic{ofPorts, aPool().Name}]
		return l != nil && l.Len() == 3
	})
	for _, name := range []string{"graceful", "forced"} {
		must(t, w.api.Delete(t.Context(), w.api.pod(t, name)))
		select {
		case err := <-ends[name]:
			if !sdn.IsConflict(err) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testTimeout):
			t.Fatalf("%s waits on", name)
		}
	}
	if _, err := w.Claim(t.Context(), ask("again", "graceful", "ug")); !sdn.IsConflict(err) {
		t.Errorf("asked again: %v", err)
	}
	must(t, w.api.Create(t.Context(), aPort(1)))
	must(t, <-ends["other"])
}

// So do those of a static pod, which the kubelet calls otherwise than the API, and of a runtime that tells no UID; but not for a mirror, nor another pod, that is made anew.
func TestDeletedUnderAnotherName(t *testing.T) {
	mirror := func(uid string) *corev1.Pod {
		p := aPod("static", uid)
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		return p
	}
	w := newWorld(t, mirror("m1"), aPod("plain", "up"))
	w.begun()
	ends := map[string]chan error{"static": make(chan error, 1), "plain": make(chan error, 1)}
	for name, uid := range map[string]string{"static": "hash", "plain": ""} {
		go func() { _, err := w.Claim(t.Context(), ask("c-"+name, name, uid)); ends[name] <- err }()
	}
	eventually(t, "both wait", func() bool { return w.View().Waiting == 2 })
	set := w.lockedSet(func(o client.Object) { w.setPod(o.(*corev1.Pod)) })
	set(mirror("m2")) // as a watch tells it that has missed the end of the first
	set(aPod("plain", "up2"))
	if n := w.View().Waiting; n != 2 {
		t.Fatalf("%d wait for pods that were made anew", n)
	}
	leaving := mirror("m2")
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	set(leaving)
	w.locked(w.dropPod)(client.ObjectKey{Namespace: namespace, Name: "plain"})
	for name, end := range ends {
		select {
		case err := <-end:
			if !sdn.IsConflict(err) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testTimeout):
			t.Fatalf("%s waits on", name)
		}
	}
}

// Who has waited for long, and whose pod is not there any more, does not wait for it again.
func TestNoSecondPatience(t *testing.T) {
	w := newWorld(t, aPod("a", "ua"))
	w.wait = time.Millisecond
	w.restart()
	w.begun()
	end := make(chan error, 1)
	go func() { _, err := w.Claim(t.Context(), ask("c", "a", "ua")); end <- err }()
	eventually(t, "it has waited for long", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		l := w.waiting[topic{ofPorts, aPool().Name}]
		return l != nil && l.Front().Value.(*waiter).over
	})
	w.mu.Lock()
	w.index.dropPod(client.ObjectKey{Namespace: namespace, Name: "a"})
	w.reconsider([]topic{{ofPorts, aPool().Name}})
	w.mu.Unlock()
	select {
	case err := <-end:
		if !sdn.IsNotFound(err) {
			t.Errorf("error %v", err)
		}
	case <-time.After(testTimeout):
		t.Fatal("it waits on")
	}
}

// Who waits for a port of its network's pool waits for one of another when the groups of its namespace change, also behind one whose namespace stays.
func TestWaitersFollowTheirNetwork(t *testing.T) {
	w := newWorld(t)
	w.begun()
	must(t, w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "beside", UID: "ns-beside"}}))
	beside := aNetwork()
	beside.Name, beside.UID, beside.Spec = "beside.1", "kn-beside", v1.KuryrNetworkSpec{Namespace: "beside", UID: "ns-beside"}
	must(t, w.api.Create(t.Context(), beside))
	pod := aPod("b", "ub")
	pod.Namespace = "beside"
	must(t, w.api.Create(t.Context(), pod))
	must(t, w.api.Create(t.Context(), aPod("a", "ua")))
	ends := map[string]chan error{"a": make(chan error, 1), "b": make(chan error, 1)}
	old := topic{ofPorts, aPool().Name}
	waits := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " wait for the pool"), func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			l := w.waiting[old]
			return l != nil && l.Len() == n
		})
	}
	for i, name := range []string{"a", "b"} {
		a := ask("c"+name, name, "u"+name)
		if name == "b" {
			a.Pod.Namespace = "beside"
		}
		go func() { _, err := w.Claim(t.Context(), a); ends[name] <- err }()
		waits(i + 1)
	}
	beside.Status.SecurityGroups = []string{"g"}
	must(t, w.api.Status().Update(t.Context(), beside))
	waits(1)
	p := aPort(1)
	p.Spec.Pool = v1.PoolName(v1.PoolKey(beside, thisNode))
	must(t, w.api.Create(t.Context(), p))
	must(t, <-ends["b"])
	must(t, w.api.Create(t.Context(), aPort(2)))
	must(t, <-ends["a"])
}

// A pod of which the watch tells later than the kubelet is waited for, and so are its namespace's network and its port.
func TestEverythingComesLate(t *testing.T) {
	w := newWorld(t)
	w.begun()
	w.api.remove(t, aNetwork())
	eventually(t, "no network", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.index.networks) == 0 })
	done := make(chan error, 1)
	go func() {
		_, err := w.Claim(t.Context(), ask("c", "late", "ul"))
		done <- err
	}()
	at := func(is subject) {
		eventually(t, fmt.Sprint("waits for ", is), func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			for topic := range w.waiting {
				return topic.of == is
			}
			return false
		})
	}
	at(ofPod)
	late := aPod("late", "ul")
	late.Annotations = map[string]string{v1.AnnotationAddress: "10.1.0.7"}
	must(t, w.api.Create(t.Context(), late))
	at(ofOwn)
	late.Annotations = nil
	must(t, w.api.Update(t.Context(), late))
	at(ofNetwork)
	must(t, w.api.Create(t.Context(), aNetwork()))
	at(ofPorts)
	must(t, w.api.Create(t.Context(), dedicated(aPort(8), "another")))
	must(t, w.api.Create(t.Context(), aPort(7)))
	must(t, <-done)
}

// TestWatchAfterDeletion checks the fake API: a watch that starts after an object was deleted
// reports the deletion, then the recreated object, which has the same UID in these tests.
func TestWatchAfterDeletion(t *testing.T) {
	deletions := map[string]func(*api, *v1.KuryrNetwork) error{
		"removed": func(a *api, n *v1.KuryrNetwork) error { a.remove(t, n); return nil },
		"deleted": func(a *api, n *v1.KuryrNetwork) error { return a.Delete(t.Context(), n) },
	}
	for name, deletion := range deletions {
		t.Run(name, func(t *testing.T) {
			a := newAPI(aNetwork())
			must(t, deletion(a, aNetwork()))
			watched, err := a.daemon().Watch(t.Context(), &v1.KuryrNetworkList{})
			must(t, err)
			defer watched.Stop()
			must(t, a.Create(t.Context(), aNetwork()))
			for _, want := range []watch.EventType{watch.Deleted, watch.Added} {
				select {
				case e := <-watched.ResultChan():
					if e.Type != want || e.Object.(client.Object).GetName() != aNetwork().Name {
						t.Errorf("event %s of %T, want %s", e.Type, e.Object, want)
					}
				case <-time.After(testTimeout):
					t.Fatalf("the watch does not report %s", want)
				}
			}
		})
	}
}
