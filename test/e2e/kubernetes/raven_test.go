//go:build e2e

package kubernetes_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// ravens are controllers on a real API server, with the rights that the manifests give
// them and the store of the embedded SDN. The only node has no daemon, so that they claim
// the ports themselves.
type ravens struct {
	*rig
	dir     string
	api     client.Client
	sdn     *exec.Cmd
	program string   // "" is kuryr
	env     []string // of what is started, besides the test's own
}

func startRavens(t *testing.T, reason string, families kubelab.Families) *ravens {
	opts := kubelab.Options{APIOnly: true, Families: families}
	r := &ravens{rig: start(t, reason, opts), dir: t.TempDir()}
	r.install(false)
	r.api = r.rig.api(nil)
	token := r.token("kuryr-controller", nil).BearerToken
	for file, text := range map[string][]byte{"ca": r.Config.CAData, "token": []byte(token)} {
		r.must(os.WriteFile(filepath.Join(r.dir, file), text, 0o600))
	}
	r.must(r.api.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "here", Labels: map[string]string{kuryrv1.LabelClaimant: kuryrv1.ClaimantRaven},
	}}))
	r.sdn = r.kuryr(
		"sdn", "--store-only", "--state-dir", filepath.Join(r.dir, "sdn"), "--run-dir",
		filepath.Join(r.dir, "run"), "--host", "here",
	)
	return r
}

// kuryr starts a program that ends with the test at the latest.
func (r *ravens) kuryr(args ...string) *exec.Cmd {
	r.Helper()
	log, err := os.Create(filepath.Join(r.dir, fmt.Sprintf("%s.%d.log", args[0], time.Now().UnixNano())))
	r.must(err)
	c := exec.Command(cmp.Or(r.program, kuryr), args...)
	c.Env = append(os.Environ(), r.env...)
	c.Stdout, c.Stderr = log, log
	r.must(c.Start())
	r.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && r.Failed() {
			r.Logf("%s:\n%s", args[0], text[max(0, len(text)-6000):])
		}
	})
	return c
}

func (r *ravens) controller(more ...string) *exec.Cmd {
	r.Helper()
	in := func(name string) string { return filepath.Join(r.dir, name) }
	return r.kuryr(append([]string{
		"controller", "--provider", "sdn", "--state-dir", in("controller"), "--run-dir", in("run"), "--host", "here",
		"--kubernetes-api-server", r.Config.Host, "--kubernetes-ca-file", in("ca"), "--kubernetes-token-file", in("token"),
		"--controller-namespace", system, "--controller-listen", "", "--controller-pool-ttl", "2s",
		"--controller-pool-batch", "5", "--controller-pool-minimum", "2",
	}, more...)...)
}

func (r *ravens) kill(c *exec.Cmd) {
	r.Helper()
	r.must(c.Process.Kill())
	_ = c.Wait()
}

// namespace makes one with what a controller manager would put into it.
func (r *ravens) namespace(name string) {
	r.Helper()
	r.must(r.api.Create(r.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	r.must(r.api.Create(r.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}))
}

// vanish deletes a namespace that has no pods, as a controller manager would.
func (r *ravens) vanish(name string) {
	r.Helper()
	ns, err := r.Client.CoreV1().Namespaces().Get(r.ctx, name, metav1.GetOptions{})
	r.must(err)
	r.must(r.Client.CoreV1().Namespaces().Delete(r.ctx, name, metav1.DeleteOptions{}))
	ns.Spec.Finalizers = nil
	ns.ResourceVersion = ""
	_, err = r.Client.CoreV1().Namespaces().Finalize(r.ctx, ns, metav1.UpdateOptions{})
	r.must(err)
}

func (r *ravens) pods(namespace string, n int) {
	r.Helper()
	for i := range n {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("p", i)}, Spec: serverSpec()}
		p.Spec.NodeName = "here"
		r.must(r.api.Create(r.ctx, p))
	}
}

func (r *ravens) deletePods(namespace string) {
	r.Helper()
	r.must(r.api.DeleteAllOf(r.ctx, &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
}

// eventually waits until f has nothing to complain of. It looks again and again, as what
// it looks at is of several sorts.
func (r *ravens) eventually(what string, f func() error) {
	r.Helper()
	var err error
	for {
		if err = f(); err == nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.ctx.Done():
			r.Fatalf("%s: %v", what, err)
		}
	}
}

// wired complains of pods without a port of their own.
func (r *ravens) wired(namespace string, want int) error {
	var pods corev1.PodList
	var ports kuryrv1.KuryrPortList
	if err := errors.Join(r.api.List(r.ctx, &pods, client.InNamespace(namespace)), r.api.List(r.ctx, &ports)); err != nil {
		return err
	}
	of := map[string]string{}
	for _, p := range ports.Items {
		if p.Status.Pod != nil && p.Status.Pod.Namespace == namespace {
			if other := of[string(p.Status.Pod.UID)]; other != "" {
				r.Fatalf("pod %s has the ports %s and %s", p.Status.Pod.Name, other, p.Name)
			}
			of[string(p.Status.Pod.UID)] = p.Name
		}
	}
	for _, p := range pods.Items {
		if port := of[string(p.UID)]; port == "" || !strings.Contains(p.Annotations[kuryrv1.AnnotationVIF], port) {
			return fmt.Errorf("pod %s has port %q and annotation %q", p.Name, port, p.Annotations[kuryrv1.AnnotationVIF])
		}
	}
	if len(pods.Items) != want || len(of) != want {
		return fmt.Errorf("%d pods, %d bound ports, want %d", len(pods.Items), len(of), want)
	}
	return nil
}

// alike complains of ports of the SDN and of Kubernetes that do not match one another.
func (r *ravens) alike() error {
	var ports kuryrv1.KuryrPortList
	if err := r.api.List(r.ctx, &ports); err != nil {
		return err
	}
	var objects, found []string
	for _, p := range ports.Items {
		objects = append(objects, p.Name)
	}
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(
		ctx, kuryr, "--socket", filepath.Join(r.dir, "run", "kuryr.sock"), "port", "list", "-o",
		"json",
	).Output()
	if err != nil {
		return err
	}
	var all []struct {
		ID          string `json:"id"`
		DeviceOwner string `json:"device_owner"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return err
	}
	for _, p := range all {
		if p.DeviceOwner == "compute:kuryr" {
			found = append(found, p.ID)
		}
	}
	slices.Sort(objects)
	slices.Sort(found)
	if !slices.Equal(objects, found) {
		return fmt.Errorf("the SDN has %d ports, Kubernetes %d", len(found), len(objects))
	}
	return nil
}

// networks complains unless there are so many KuryrNetworks, all ready.
func (r *ravens) networks(want int) error {
	var all kuryrv1.KuryrNetworkList
	if err := r.api.List(r.ctx, &all); err != nil {
		return err
	}
	for _, n := range all.Items {
		if len(n.Status.Conditions) == 0 || n.Status.Conditions[0].Status != metav1.ConditionTrue {
			return fmt.Errorf("network %s: %+v", n.Name, n.Status.Conditions)
		}
	}
	if len(all.Items) != want {
		return fmt.Errorf("%d networks, want %d", len(all.Items), want)
	}
	return nil
}

// Raven on a real API server, killed again and again while pods come and go: every pod
// has a port, and in the end nothing is left.
func TestRaven(t *testing.T) {
	t.Parallel()
	r := startRavens(t, "Ravens and the API server are killed", kubelab.IPv4)
	const pods = 40
	leader := r.controller("--controller-leader-election=false")
	r.eventually("the network of the namespace default", func() error { return r.networks(1) })
	r.namespace("blue")
	begin := time.Now()
	r.pods("blue", pods)
	r.eventually("pods have ports", func() error { return r.wired("blue", pods) })
	t.Logf("%d pods have ports after %s", pods, time.Since(begin).Round(10*time.Millisecond))
	r.eventually("SDN and resources", r.alike)

	for round := range 4 {
		r.deletePods("blue")
		r.pods("blue", pods)
		time.Sleep(time.Duration(100*(round+1)) * time.Millisecond)
		r.kill(leader)
		leader = r.controller("--controller-leader-election=false")
	}
	r.eventually("pods have ports after kills", func() error { return r.wired("blue", pods) })
	r.eventually("SDN and resources after kills", r.alike)

	r.must(r.StopAPIServer(syscall.SIGKILL))
	r.must(r.StartAPIServer(r.ctx))
	r.deletePods("blue")
	r.vanish("blue")
	r.eventually("blue is gone", func() error {
		var ports kuryrv1.KuryrPortList
		var pools kuryrv1.KuryrPortPoolList
		if err := errors.Join(r.api.List(r.ctx, &ports), r.api.List(r.ctx, &pools), r.networks(1), r.alike()); err != nil {
			return err
		}
		if n := len(ports.Items) + len(pools.Items); n > 0 {
			return fmt.Errorf("%d ports and %d pools are left", len(ports.Items), len(pools.Items))
		}
		return nil
	})
}

// Of two replicas one leads; when it ends it gives the Lease back, and the other goes on.
// One that is killed keeps the Lease until its time is over; what it had begun the next
// one finishes, and makes nothing twice.
func TestRavenStandby(t *testing.T) {
	t.Parallel()
	r := startRavens(t, "Ravens are killed", kubelab.IPv4)
	first := r.controller()
	r.eventually("the network of the namespace default", func() error { return r.networks(1) })
	second := r.controller()
	r.namespace("blue")
	r.must(first.Process.Signal(syscall.SIGTERM))
	if err := first.Wait(); err != nil {
		t.Errorf("the leader ended with %v", err)
	}
	begin := time.Now()
	r.pods("blue", 3)
	r.eventually("the standby leads", func() error { return r.wired("blue", 3) })
	t.Logf("the standby's first ports come %s after the leader's end", time.Since(begin).Round(10*time.Millisecond))

	r.controller()
	r.namespace("green")
	r.pods("green", 30)
	r.eventually("the leader has begun", func() error {
		var ports kuryrv1.KuryrPortList
		if err := r.api.List(r.ctx, &ports); err != nil {
			return err
		}
		for _, p := range ports.Items {
			if p.Status.Pod != nil && p.Status.Pod.Namespace == "green" {
				return nil
			}
		}
		return errors.New("no port")
	})
	r.kill(second)
	begin = time.Now()
	r.eventually("another leads after a kill", func() error { return r.wired("green", 30) })
	t.Logf("all ports are there %s after the leader was killed", time.Since(begin).Round(10*time.Millisecond))
	r.eventually("nothing is there twice", r.alike)
}
