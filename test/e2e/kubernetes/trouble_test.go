//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/internal/atomicfile"
	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// startFronted is startFamilies for IPv4, with a front before the API server for what is started from then on.
func startFronted(t *testing.T, reason string) *whole {
	t.Helper()
	w := startFamilies(t, reason, kubelab.IPv4)
	front, err := w.NewFront(w.ctx)
	w.must(err)
	t.Cleanup(front.Close)
	w.front = front
	return w
}

// What Kuryr asks is slow, or refuses it, or is away, while a kubelet's pods come and go:
// none of its processes ends, each pod has its port in the end, and nothing is left over.
func TestTrouble(t *testing.T) {
	t.Parallel()
	w := startFronted(t, "the API server and the SDN are slow or stopped")
	w.reset("--controller-pool-minimum", "4")
	w.must(errors.Join(w.claim.Stop(syscall.SIGTERM, limit), w.startDaemon(w.ctx)))
	w.create("default", serverPod("first", "")) // with which the network comes into the kernel, to stay
	w.running("default", "", 1)
	w.gone("default")
	w.agree(0)
	before := w.look()

	w.create("default", serverPod("stays", "")) // as a pool that no pod needs goes
	w.running("default", "", 1)
	w.slowly()
	w.refusedForAWhile()
	w.withoutSDN()

	w.gone("default")
	w.must(w.Client.CoreV1().Namespaces().Delete(w.ctx, "late", metav1.DeleteOptions{}))
	w.forgotten("late")
	w.agree(0)
	w.living()
	if left := w.left(before, privatehost.Links, privatehost.Namespaces); len(left) > 0 {
		t.Errorf("left when all pods have gone:\n%s", strings.Join(left, "\n"))
	}
}

// living checks that none of the daemons has ended by itself.
func (w *whole) living() {
	w.Helper()
	for name, s := range map[string]*privatehost.Service{
		"Raven": w.raven, "the node's daemon": w.claim, "the SDN": w.sdnDaemon,
	} {
		select {
		case <-s.Gone():
			w.Errorf("%s has ended", name)
		default:
		}
	}
}

// free waits until a namespace's pool has so many ports that no pod has, and none that is being made or deleted.
func (w *whole) free(namespace string, want func(int) bool) (count int) {
	w.Helper()
	w.within(time.Minute, func(ctx context.Context) error {
		pool, err := w.pool(ctx, namespace)
		if err != nil {
			return err
		}
		var all kuryrv1.KuryrPortList
		if err := w.api.List(ctx, &all, client.MatchingLabels{kuryrv1.LabelPool: pool.Name}); err != nil {
			return err
		}
		now, err := w.pool(ctx, namespace)
		if err != nil {
			return err
		}
		if len(now.Status.Pending) > 0 || now.ResourceVersion != pool.ResourceVersion {
			return fmt.Errorf("the pool of %s is at work: %+v", namespace, now.Status)
		}
		count = 0
		for _, p := range all.Items {
			switch status := p.Labels[kuryrv1.LabelPortStatus]; status {
			case string(kuryrv1.PortAvailable):
				count++
			case string(kuryrv1.PortBound):
			default:
				return fmt.Errorf("a port of the pool of %s is %s", namespace, status)
			}
		}
		if !want(count) {
			return fmt.Errorf("the pool of %s has %d free ports", namespace, count)
		}
		return nil
	})
	return count
}

// pool is the one of a namespace's pods without wishes.
func (w *whole) pool(ctx context.Context, namespace string) (*kuryrv1.KuryrPortPool, error) {
	var networks kuryrv1.KuryrNetworkList
	var pools kuryrv1.KuryrPortPoolList
	if err := errors.Join(w.api.List(ctx, &networks), w.api.List(ctx, &pools)); err != nil {
		return nil, err
	}
	for _, n := range networks.Items {
		if n.Spec.Namespace != namespace || n.Status.Network == "" {
			continue
		}
		for i := range pools.Items {
			if pools.Items[i].Name == kuryrv1.PoolName(kuryrv1.PoolKey(&n, w.node.Name)) {
				return &pools.Items[i], nil
			}
		}
	}
	return nil, fmt.Errorf("namespace %s has no pool yet", namespace)
}

// adds are the ADDs that the node's daemon has answered, and those of them that took less than two seconds.
func (w *whole) adds() (all, quick int) {
	w.Helper()
	said := w.node.Exec(w.ctx, "curl", "-s", "--unix-socket", "/run/kuryr/kuryr-node.sock", "http://kuryr/metrics").Stdout
	value := func(series string) int {
		found := regexp.MustCompile(
			regexp.QuoteMeta("kuryr_cni_request_duration_seconds"+series) + ` (\d+)`,
		).FindStringSubmatch(said)
		if found == nil {
			return 0
		}
		n, err := strconv.Atoi(found[1])
		w.must(err)
		return n
	}
	return value(`_count{verb="ADD"}`), value(`_bucket{verb="ADD",le="2"}`)
}

// slowly has every request come to the API server late. Pods that find a port in their
// pool wait for none of them; those of a new namespace for all that Raven writes.
func (w *whole) slowly() {
	w.Helper()
	const late = 3 * time.Second
	w.free("default", func(n int) bool { return n >= 4 })
	all, quick := w.adds()
	w.front.Delay(late)
	begin := time.Now()
	w.create("default", serverPod("a", ""), serverPod("b", ""))
	pods := w.running("default", "", 3)
	w.Logf(
		"two pods are ready after %s, each request of Kuryr's being %s late",
		time.Since(begin).Round(10*time.Millisecond), late,
	)
	nowAll, nowQuick := w.adds()
	if nowAll-all < 2 || nowQuick-quick != nowAll-all {
		w.Errorf(
			"of %d ADDs from a pool with free ports %d took less than %s: the others have waited "+
				"for the API server",
			nowAll-all, nowQuick-quick, late,
		)
	}

	w.namespace("late")
	begin = time.Now()
	w.create("late", serverPod("c", ""))
	c := w.running("late", "", 1)["c"]
	w.Logf("the first pod of a namespace is ready after %s", time.Since(begin).Round(10*time.Millisecond))
	if lastAll, lastQuick := w.adds(); lastAll-nowAll == lastQuick-nowQuick {
		w.Error("the ADD that waited for Raven took no longer: what is measured here is not what takes long")
	}
	w.talks(pods["a"], c)
	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, "b", metav1.DeleteOptions{}))
	w.absent("default", "b")
	w.agree(3)
	w.front.Delay(0)
	w.living()
}

// refusedForAWhile has the API server refuse the tokens that Raven and the node's daemon
// have, for longer than it takes them to ask. Then the kubelet, which is who does it in a
// cluster, writes new ones over them: both go on, with all that has happened meanwhile.
func (w *whole) refusedForAWhile() {
	w.Helper()
	raven, daemon := w.raven.Pid(), w.claim.Pid()
	accounts := w.Client.CoreV1().ServiceAccounts(system)
	programs := []string{"kuryr-controller", "kuryr-node"}
	said := map[string]int{} // how long their logs are
	var old []string
	for _, name := range programs {
		token, err := os.ReadFile(filepath.Join(w.dir, name))
		w.must(err)
		old = append(old, string(token))
		log, err := os.ReadFile(filepath.Join(w.node.Dir(), name+".log"))
		w.must(err)
		said[name] = len(log)
		account, err := accounts.Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		w.must(accounts.Delete(w.ctx, name, metav1.DeleteOptions{}))
		account.ResourceVersion, account.UID = "", "" // a token is of the account with this UID
		_, err = accounts.Create(w.ctx, account, metav1.CreateOptions{})
		w.must(err)
	}
	for _, token := range old {
		w.refuses(token)
	}
	w.front.Cut() // a watch that was let in would go on
	w.front.Mend()
	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, "a", metav1.DeleteOptions{}))
	w.absent("default", "a")
	w.create("default", serverPod("d", ""))
	for _, name := range programs {
		w.within(time.Minute, func(context.Context) error {
			log, err := os.ReadFile(filepath.Join(w.node.Dir(), name+".log"))
			if err == nil && !strings.Contains(string(log[said[name]:]), "Unauthorized") {
				err = fmt.Errorf("%s has not been refused", name)
			}
			return err
		})
	}

	of := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "kuryr-node-" + w.node.Name}
	for name, token := range map[string]string{
		"kuryr-controller": w.token("kuryr-controller", nil).BearerToken,
		"kuryr-node":       w.token("kuryr-node", of).BearerToken,
	} {
		file := filepath.Join(w.dir, name)
		w.must(atomicfile.WriteFile(file, []byte(token), 0o600))
	}
	begin := time.Now()
	d := w.running("default", "", 2)["d"]
	w.Logf(
		"a pod made while the tokens were refused is ready %s after there are new ones",
		time.Since(begin).Round(10*time.Millisecond),
	)
	w.namespace("trusted") // which is Raven's to give a network
	w.create("trusted", serverPod("e", ""))
	w.talks(w.running("trusted", "", 1)["e"], d)
	w.agree(4)
	w.living()
	if raven != w.raven.Pid() || daemon != w.claim.Pid() {
		w.Error("who was refused was started again")
	}
}

// refuses waits until the API server takes a token no longer, which it remembers for some seconds.
func (w *whole) refuses(token string) {
	w.Helper()
	config := rest.AnonymousClientConfig(w.Config)
	config.BearerToken, config.QPS = token, -1
	who, err := kubernetes.NewForConfig(config)
	w.must(err)
	w.until(func(ctx context.Context) error {
		_, err := who.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		if !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("the token of an account that has gone is not refused: %w", err)
		}
		return nil
	})
}

// withoutSDN takes the SDN away for longer than a call of it is waited for, while a
// namespace goes and more pods come than there are free ports.
func (w *whole) withoutSDN() {
	w.Helper()
	const away = 20 * time.Second
	free := w.free("default", func(n int) bool { return n == 4 }) // the minimum: no more are made, and none goes
	d := w.running("default", "", 2)["d"]
	w.must(w.sdnDaemon.Stop(syscall.SIGKILL, limit))
	over := time.After(away)
	w.must(w.Client.CoreV1().Namespaces().Delete(w.ctx, "trusted", metav1.DeleteOptions{}))
	for i := range free + 3 {
		w.create("default", serverPod(fmt.Sprint("x", i), ""))
	}
	c := w.running("late", "", 1)["c"]
	count := func() (n int) {
		list, err := w.Client.CoreV1().Pods("default").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		for _, p := range list.Items {
			if ready(p) {
				n++
			}
		}
		return n
	}
	w.must(kubelab.Until(w.ctx, w.Client.CoreV1().Pods("default"), metav1.ListOptions{}, func(list *corev1.PodList) error {
		if n := count(); n < free+2 {
			return fmt.Errorf("%d of %d pods for which there are ports are ready", n, free+2)
		}
		return nil
	}))
	w.talks(c, d)
	w.absent("trusted", "e")
	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, "x0", metav1.DeleteOptions{}))
	w.absent("default", "x0")
	<-over
	if n := count(); n > free+2 {
		w.Errorf("%d pods are ready, and without an SDN there were ports for %d", n, free+2)
	}
	w.must(w.startSDN(w.ctx))
	begin := time.Now()
	w.running("default", "", free+4)
	w.Logf("pods that waited for the SDN are ready %s after it is back", time.Since(begin).Round(10*time.Millisecond))
	w.forgotten("trusted")
	w.Logf("the namespace that went meanwhile is forgotten %s after it", time.Since(begin).Round(10*time.Millisecond))
	w.agree(free + 5)
}
