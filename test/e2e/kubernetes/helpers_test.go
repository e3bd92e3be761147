//go:build e2e

// Package kubernetes_test drives a real Kubernetes by its API, with nodes whose kubelets
// and containerd run pods on Kuryr's networks, and checks what pods reach, the API's
// objects, the SDN and the kernel. It owns its clusters and nothing else on the machine,
// and must not look into Kuryr but by its commands and objects.
//
// KURYR_E2E_KUBERNETES names the folder that hack/kubernetes.sh prints, KURYR_BIN the
// program to test (bin/kuryr). The tests with Kubernetes' reference network say whether
// the cluster is sound.
package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// kuryr is the path of the program under test; kuryr-cni is beside it.
var kuryr string

// limit bounds a test; what takes longer has failed.
const limit = 5 * time.Minute

// port is where every pod of the tests answers HTTP with its name.
const port = 8080

func TestMain(m *testing.M) {
	kuryr = privatehost.Program("../../../bin/kuryr", "make build")
	if os.Getenv(kubelab.ProgramsEnv) == "" {
		fmt.Fprintf(os.Stderr, "%s is not set: run \"make e2e-kubernetes\"\n", kubelab.ProgramsEnv)
		os.Exit(1)
	}
	code := m.Run()
	closeShared()
	os.Exit(code)
}

// rig is a cluster as one test uses it.
type rig struct {
	*testing.T
	*kubelab.Cluster
	ctx context.Context
}

// start boots a cluster for one test alone. The test names its reason: without one it uses a
// shared cluster (shareNode, shareAPI).
func start(t *testing.T, reason string, opts kubelab.Options) *rig {
	t.Helper()
	begin := time.Now()
	c := kubelab.Start(t, opts)
	t.Logf("own cluster (%s): up after %s", reason, time.Since(begin).Round(10*time.Millisecond))
	return newRig(t, c)
}

func newRig(t *testing.T, c *kubelab.Cluster) *rig {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return &rig{T: t, Cluster: c, ctx: ctx}
}

// must ends the test where there is an error.
func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// dying is the program that is killed at a failpoint, with what tells it at which; with
// "" the program under test, which is not.
func dying(failpoint string) (program string, env []string) {
	if failpoint == "" {
		return kuryr, nil
	}
	return filepath.Join(filepath.Dir(kuryr), "kuryr-failpoints"), []string{"KURYR_FAILPOINT=" + failpoint}
}

// killed waits until a Raven is killed at its failpoint.
func (r *rig) killed(raven *privatehost.Service, failpoint string) {
	r.Helper()
	select {
	case <-raven.Gone():
		if signal := raven.Signal(); signal != syscall.SIGKILL {
			r.Fatalf("Raven was to be killed at %s and ended by %v", failpoint, signal)
		}
	case <-time.After(90 * time.Second):
		r.Fatalf("Raven does not come to %s", failpoint)
	}
}

// kubernetesUnserved has nobody serve the API servers' own Service, which Raven would else see to before the others.
func (r *rig) kubernetesUnserved() {
	r.Helper()
	r.until(func(ctx context.Context) error {
		own, err := r.Client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		own.Labels["service.kubernetes.io/service-proxy-name"] = "nobody"
		_, err = r.Client.CoreV1().Services("default").Update(ctx, own, metav1.UpdateOptions{})
		return err
	})
}

// grant gives the Services of a namespace all that there are grants for, as a cluster administrator.
func (r *rig) grant(namespace string) {
	r.Helper()
	annotations := map[string]string{
		kuryrv1.AnnotationAllowFloatingIPs: "any", kuryrv1.AnnotationAllowNetworks: "any",
		kuryrv1.AnnotationAllowLoadBalancers: "any",
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	r.must(err)
	r.until(func(ctx context.Context) error {
		_, err := r.Client.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// serverPod is a pod that answers HTTP with its name, on a node, or wherever the scheduler puts it.
func serverPod(name, node string) *corev1.Pod {
	spec := serverSpec()
	if node != "" {
		spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: spec}
}

func serverSpec() corev1.PodSpec {
	// Its first process waits for the server and is not it: signals of its own namespace would not end it.
	script := fmt.Sprintf(
		`mkdir -p /www; hostname >/www/index.html; echo serves as $(hostname); httpd -f -p %d -h `+
			`/www; exit`,
		port,
	)
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		Containers: []corev1.Container{{
			Name: "server", Image: kubelab.Busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"sh", "-c", script},
		}},
	}
}

// create makes pods in a namespace.
func (r *rig) create(namespace string, pods ...*corev1.Pod) {
	r.Helper()
	for _, p := range pods {
		_, err := r.Client.CoreV1().Pods(namespace).Create(r.ctx, p, metav1.CreateOptions{})
		r.must(err)
	}
}

// running waits until the pods that a selector chooses are count, all ready and with an
// address, and gives them by name.
func (r *rig) running(namespace, selector string, count int) map[string]corev1.Pod {
	r.Helper()
	found := map[string]corev1.Pod{}
	r.must(kubelab.Until(r.ctx, r.Client.CoreV1().Pods(
		namespace,
	), metav1.ListOptions{LabelSelector: selector}, func(list *corev1.PodList) error {
		clear(found)
		for _, p := range list.Items {
			if !ready(p) {
				return fmt.Errorf("pod %s/%s is not ready: %s %s", namespace, p.Name, p.Status.Phase, waiting(p))
			}
			found[p.Name] = p
		}
		if len(found) != count {
			return fmt.Errorf("%d pods in %s, not %d", len(found), namespace, count)
		}
		return nil
	}))
	return found
}

func ready(p corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.PodIP == "" {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// waiting says what the containers of a pod wait for.
func waiting(p corev1.Pod) string {
	var all []string
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			all = append(all, w.Reason+" "+w.Message)
		}
	}
	return strings.Join(all, ", ")
}

// gone deletes all pods of a namespace and waits until there are none.
func (r *rig) gone(namespace string) {
	r.Helper()
	soon := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}
	r.must(r.Client.CoreV1().Pods(namespace).DeleteCollection(r.ctx, soon, metav1.ListOptions{}))
	r.must(kubelab.Until(r.ctx, r.Client.CoreV1().Pods(namespace), metav1.ListOptions{}, func(list *corev1.PodList) error {
		if n := len(list.Items); n > 0 {
			return fmt.Errorf("%d pods are left in %s", n, namespace)
		}
		return nil
	}))
}

// talks checks that one pod gets the other's page, at each of its addresses. A server that does not
// listen yet is waited for: without a probe its pod is ready before.
func (r *rig) talks(from, to corev1.Pod) {
	r.Helper()
	for _, address := range addresses(to) {
		var page string
		var err error
		r.until(func(ctx context.Context) error {
			page, err = r.Exec(ctx, from.Namespace, from.Name, "timeout", "20", "wget", "-qO-", pageAt(address))
			if err != nil && strings.Contains(err.Error(), "Connection refused") {
				return err
			}
			return nil
		})
		if err != nil {
			r.Errorf("%s does not reach %s: %v", from.Name, to.Name, err)
		} else if page != to.Name {
			r.Errorf("at the address %s of %s answers %q", address, to.Name, page)
		}
	}
}

// pageAt is where a server pod answers.
func pageAt(address string) string {
	return "http://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/"
}

// addresses are those of a pod, one of each of the cluster's families.
func addresses(p corev1.Pod) (all []string) {
	for _, a := range p.Status.PodIPs {
		all = append(all, a.IP)
	}
	return all
}
