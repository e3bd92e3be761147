//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// A leader that loses its Lease ends, whether the API server is away or somebody else
// takes it; another goes on where it was, nothing is made twice, and pods that run notice
// nothing.
func TestLeader(t *testing.T) {
	t.Parallel()
	w := startFronted(t, "the leader is cut off from the API server")
	w.reset("--controller-leader-election=true")
	front := w.front
	w.front = nil
	w.create("default", serverPod("a", ""), serverPod("b", ""))
	pods := w.running("default", "", 2)
	first, holder := w.raven, w.holder("")
	w.must(w.startRaven(w.ctx))
	second := w.raven

	// Ports for these are being made when the leader's API server goes: the SDN makes
	// them, and the leader can tell nobody.
	w.namespace("blue")
	w.create("blue", serverPod("p0", ""))
	w.running("blue", "", 1)
	const many = 12
	w.must(syscall.Kill(-w.sdnDaemon.Pid(), syscall.SIGSTOP))
	for i := range many - 1 {
		w.create("blue", serverPod(fmt.Sprint("p", i+1), ""))
	}
	asked := w.asked("blue")
	begin := time.Now()
	front.Cut()
	w.must(syscall.Kill(-w.sdnDaemon.Pid(), syscall.SIGCONT))
	w.ends(first)
	w.Logf("the leader ends %s after it was cut off", time.Since(begin).Round(10*time.Millisecond))
	w.midway("blue", asked, holder)
	w.running("blue", "", many)
	w.Logf("the pods that it was at are ready %s after it was cut off", time.Since(begin).Round(10*time.Millisecond))
	holder = w.holder(holder)
	w.untouched(pods)
	w.agree(2 + many)
	w.once("blue")

	w.fenced(second, holder)
	w.untouched(pods)
	w.agree(2 + many + 2)
	w.once("fenced")

	for _, namespace := range []string{"blue", "fenced"} {
		w.must(w.Client.CoreV1().Namespaces().Delete(w.ctx, namespace, metav1.DeleteOptions{}))
	}
	w.gone("default")
	w.forgotten("blue")
	w.forgotten("fenced")
	w.agree(0)
}

// asked waits until Raven asks the SDN for ports of a namespace's pool, and gives their keys.
func (w *whole) asked(namespace string) (pending []kuryrv1.PendingPort) {
	w.Helper()
	w.until(func(ctx context.Context) error {
		p, err := w.pool(ctx, namespace)
		if err != nil {
			return err
		}
		if pending = p.Status.Pending; len(pending) == 0 {
			return errors.New("Raven asks for no port")
		}
		return nil
	})
	return pending
}

// midway checks that the leader which has ended has left work half done, and that nobody
// has led since: the SDN has ports that Kubernetes has not.
func (w *whole) midway(namespace string, asked []kuryrv1.PendingPort, holder string) {
	w.Helper()
	p, err := w.pool(w.ctx, namespace)
	w.must(err)
	var told kuryrv1.KuryrPortList
	w.must(w.api.List(w.ctx, &told))
	var there struct{ Ports []struct{ ID, Name string } }
	w.must(w.node.sdn(w.ctx, http.MethodGet, "ports?name=kuryr-pool/"+p.Name, nil, &there))
	lease, err := w.Client.CoordinationV1().Leases(system).Get(w.ctx, "kuryr-controller", metav1.GetOptions{})
	w.must(err)
	if now := *lease.Spec.HolderIdentity; now != holder {
		w.Errorf("%q has the Lease before %q has ended", now, holder)
	}
	if !slices.Equal(p.Status.Pending, asked) {
		w.Errorf("pending are %v, and the leader had asked for %v when it was cut off", p.Status.Pending, asked)
	}
	orphans := 0
	for _, port := range there.Ports {
		if !slices.ContainsFunc(told.Items, func(o kuryrv1.KuryrPort) bool { return o.Name == port.ID }) {
			orphans++
		}
	}
	if orphans < len(asked) {
		w.Errorf(
			"the SDN has %d ports that Kubernetes has not been told of, want the %d that were "+
				"asked for",
			orphans, len(asked),
		)
	}
}

// holder waits until another than before has the Lease, and gives who.
func (w *whole) holder(before string) (now string) {
	w.Helper()
	w.within(time.Minute, func(ctx context.Context) error {
		lease, err := w.Client.CoordinationV1().Leases(system).Get(ctx, "kuryr-controller", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now = *lease.Spec.HolderIdentity; now == before || now == "" {
			return fmt.Errorf("%q has the Lease", now)
		}
		return nil
	})
	return now
}

// ends waits until a Raven has ended by itself.
func (w *whole) ends(raven *privatehost.Service) {
	w.Helper()
	select {
	case <-raven.Gone():
	case <-w.ctx.Done():
		w.Fatal("a leader without its Lease goes on")
	}
}

// untouched checks that pods are as they were, and talk.
func (w *whole) untouched(pods map[string]corev1.Pod) {
	w.Helper()
	for name, was := range pods {
		now, err := w.Client.CoreV1().Pods(was.Namespace).Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		if now.UID != was.UID || now.Status.PodIP != was.Status.PodIP || now.Status.ContainerStatuses[0].RestartCount != 0 ||
			now.Annotations[kuryrv1.AnnotationVIF] != was.Annotations[kuryrv1.AnnotationVIF] {
			w.Errorf("pod %s was %+v and is %+v", name, was.Status, now.Status)
		}
	}
	w.talks(pods["a"], pods["b"])
}

// once checks that the SDN has one network for a namespace.
func (w *whole) once(namespace string) {
	w.Helper()
	var there struct{ Networks []struct{ ID, Name string } }
	w.must(w.node.sdn(w.ctx, http.MethodGet, "networks", nil, &there))
	count := 0
	for _, n := range there.Networks {
		if strings.Contains(n.Name, namespace) {
			count++
		}
	}
	if count != 1 {
		w.Errorf("the SDN has %d networks for the namespace %s: %+v", count, namespace, there.Networks)
	}
}

// fenced has somebody else take the Lease: while he has it no Raven does anything, and
// pods that find a port come and go; when he lets it go one leads again.
func (w *whole) fenced(leader *privatehost.Service, holder string) {
	w.Helper()
	w.free("default", func(n int) bool { return n >= 1 })
	leases := w.Client.CoordinationV1().Leases(system)
	take := func(spec string) {
		w.Helper()
		_, err := leases.Patch(
			w.ctx, "kuryr-controller", types.MergePatchType, []byte(`{"spec": `+spec+`}`),
			metav1.PatchOptions{},
		)
		w.must(err)
	}
	now := time.Now().UTC().Format(metav1.RFC3339Micro)
	take(fmt.Sprintf(
		`{"holderIdentity": "hostile", "leaseDurationSeconds": 3600, "acquireTime": %q, `+
			`"renewTime": %q}`,
		now, now,
	))
	w.ends(leader)
	w.must(w.startRaven(w.ctx)) // as a Deployment does
	w.namespace("fenced")
	w.create("fenced", serverPod("f", ""))
	w.create("default", serverPod("warm", ""))
	w.running("default", "app=warm", 1)
	if _, err := w.pool(w.ctx, "fenced"); err == nil {
		w.Error("a Raven without the Lease has made a pool")
	}
	if h := w.holder(holder); h != "hostile" {
		w.Errorf("%s has taken the Lease of one who has it for an hour", h)
	}
	begin := time.Now()
	take(`{"holderIdentity": ""}`)
	w.running("fenced", "", 1)
	w.Logf(
		"a pod that waited for a leader is ready %s after the Lease was let go",
		time.Since(begin).Round(10*time.Millisecond),
	)
}
