//go:build e2e

package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// podNetwork is the SDN's network that a node's pods are on where no Raven gives namespaces theirs.
const (
	podNetwork = "pods"
	podSubnet  = "10.20.0.0/24"
)

// kuryrNode is a node whose pods are on podNetwork of its own embedded SDN.
type kuryrNode struct {
	*kubelab.Node
	daemon  *privatehost.Service
	network string // the network's id, which outlives reboots
}

// boot is for Options.Booted.
func (n *kuryrNode) boot(ctx context.Context, node *kubelab.Node) error {
	n.Node = node
	if err := n.plugins(ctx); err != nil {
		return err
	}
	if err := n.start(ctx); err != nil || n.network != "" {
		return err
	}
	made, err := n.create(ctx, "network", map[string]any{"name": podNetwork})
	if err != nil {
		return err
	}
	n.network = made
	_, err = n.create(ctx, "subnet", map[string]any{"network_id": made, "ip_version": 4, "cidr": podSubnet})
	return err
}

// plugins lays down those of CNI.
func (n *kuryrNode) plugins(ctx context.Context) error {
	for from, to := range map[string]string{
		filepath.Join(filepath.Dir(kuryr), "kuryr-cni"):     filepath.Join(kubelab.PluginFolder, "kuryr"),
		filepath.Join(filepath.Dir(kuryr), "kuryr-cni-api"): filepath.Join(kubelab.PluginFolder, "kuryr-cni-api"),
		// containerd asks for it itself
		"/usr/lib/cni/loopback": filepath.Join(kubelab.PluginFolder, "loopback"),
	} {
		if r := n.Exec(ctx, "cp", from, to); !r.OK() {
			return r.Err()
		}
	}
	return nil
}

// start starts kuryr node and returns when it is ready.
func (n *kuryrNode) start(ctx context.Context) error {
	argv := []string{
		kuryr, "node", "--node-conflist",
		filepath.Join(kubelab.ConfigurationFolder, "10-kuryr.conflist"), "--node-network",
		podNetwork,
	}
	var err error
	n.daemon, err = n.StartService(ctx, "kuryr-node", nil, argv, n.answers("/run/kuryr/kuryr.sock", "/readyz"))
	return err
}

// answers tells whether a path at a socket of the node is answered well.
func (n *kuryrNode) answers(socket, path string) func(context.Context) bool {
	client := n.UnixClient(socket)
	return func(ctx context.Context) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kuryr"+path, nil)
		if err != nil {
			return false
		}
		answer, err := client.Do(request)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}
}

// sdn asks the node's SDN, and reads the answer into v.
func (n *kuryrNode) sdn(ctx context.Context, method, path string, body, v any) error {
	var text []byte
	if body != nil { // which nothing that is deleted may have
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://kuryr/v2.0/"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	answer, err := n.UnixClient("/run/kuryr/sdn.sock").Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		said, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, said)
	}
	return json.NewDecoder(answer.Body).Decode(v)
}

func (n *kuryrNode) create(ctx context.Context, noun string, object map[string]any) (string, error) {
	var made map[string]struct{ ID string }
	key := strings.ReplaceAll(noun, "-", "_")
	err := n.sdn(ctx, http.MethodPost, noun+"s", map[string]any{key: object}, &made)
	return made[key].ID, err
}

// ports are the addresses of the SDN's ports for containers, sorted.
func (n *kuryrNode) ports(ctx context.Context) ([]string, error) {
	var all struct {
		Ports []struct {
			Device string `json:"device_id"`
			Fixed  []struct {
				Address string `json:"ip_address"`
			} `json:"fixed_ips"`
		}
	}
	if err := n.sdn(ctx, http.MethodGet, "ports", nil, &all); err != nil {
		return nil, err
	}
	var addresses []string
	for _, p := range all.Ports {
		if strings.HasPrefix(p.Device, "cni/") {
			for _, f := range p.Fixed {
				addresses = append(addresses, f.Address)
			}
		}
	}
	slices.Sort(addresses)
	return addresses, nil
}

// A kubelet's pods on a network of the embedded SDN, without Raven: each has a port, and
// nothing of what dies on the node (kuryr node, containerd, the node itself) loses or
// leaves one.
func TestNamedNetwork(t *testing.T) {
	t.Parallel()
	n := &kuryrNode{}
	const reason = "no Raven runs, and the node reboots"
	r := start(t, reason, kubelab.Options{Nodes: 1, Booted: n.boot})
	r.must(r.WaitReady(r.ctx))
	r.create("default", serverPod("first", "")) // with which the network comes into the kernel, to stay
	r.running("default", "", 1)
	r.gone("default")
	r.agree(n, 0)
	before := r.look()
	r.create("default", serverPod("a", ""), serverPod("b", ""))
	pods := r.running("default", "", 2)
	a, b := pods["a"], pods["b"]
	for _, p := range pods {
		if address, err := netip.ParseAddr(p.Status.PodIP); err != nil ||
			!netip.MustParsePrefix(podSubnet).Contains(address) {
			t.Errorf("pod %s has the address %q, not one of %s", p.Name, p.Status.PodIP, podSubnet)
		}
	}
	r.agree(n, 2)
	r.talks(a, b)
	r.talks(b, a)
	r.streams(a)
	r.containerDies(b)
	r.agree(n, 2)

	// Killed, it leaves the pods as they are; a pod made meanwhile is there when it is
	// back, and one deleted meanwhile leaves nothing.
	r.must(n.daemon.Stop(syscall.SIGKILL, limit))
	r.talks(a, b)
	r.create("default", serverPod("later", ""))
	r.must(r.Client.CoreV1().Pods("default").Delete(r.ctx, "b", metav1.DeleteOptions{}))
	r.absent("default", "b")
	r.must(n.start(r.ctx))
	later := r.running("default", "app=later", 1)["later"]
	r.talks(later, a)
	r.agree(n, 2)

	r.must(n.Reboot(r.ctx))
	now := r.again(a, func(corev1.Pod) error { return nil })
	r.talks(now, r.again(later, func(corev1.Pod) error { return nil }))
	r.agree(n, 2)

	r.scale(20, func(more int) { r.agree(n, 2+more) })
	r.gone("default")
	r.agree(n, 0)
	if left := r.left(before, privatehost.Links, privatehost.Namespaces); len(left) > 0 {
		t.Errorf("left when all pods have gone:\n%s", strings.Join(left, "\n"))
	}
}

// agree waits until the SDN's ports are those of the namespace's pods, which are count.
func (r *rig) agree(n *kuryrNode, count int) {
	r.Helper()
	err := errors.New("")
	for deadline := time.Now().Add(time.Minute); err != nil &&
		time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		err = func() error {
			ports, err := n.ports(r.ctx)
			if err != nil {
				return err
			}
			list, err := r.Client.CoreV1().Pods("default").List(r.ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var pods []string
			for _, p := range list.Items {
				pods = append(pods, p.Status.PodIP)
			}
			slices.Sort(pods)
			if !slices.Equal(ports, pods) || len(pods) != count {
				return fmt.Errorf("the SDN has ports for %v, the %d pods have %v", ports, count, pods)
			}
			return nil
		}()
	}
	r.must(err)
}

// absent waits until a pod has gone.
func (r *rig) absent(namespace, name string) {
	r.Helper()
	r.must(kubelab.Until(r.ctx, r.Client.CoreV1().Pods(namespace), metav1.ListOptions{
		FieldSelector: "metadata.name=" + name,
	}, func(list *corev1.PodList) error {
		if len(list.Items) > 0 {
			return fmt.Errorf("pod %s is still there", name)
		}
		return nil
	}))
}

// scale has a deployment of count pods come and go beside what is there; agree is called
// when they are there and when they have gone, with their count.
func (r *rig) scale(count int, agree func(more int)) {
	r.Helper()
	labels := map[string]string{"app": "many"}
	many := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "many"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(count)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: serverSpec()},
	}}
	begin := time.Now()
	_, err := r.Client.AppsV1().Deployments("default").Create(r.ctx, many, metav1.CreateOptions{})
	r.must(err)
	r.running("default", "app=many", count)
	r.Logf("%d pods are ready after %s", count, time.Since(begin).Round(10*time.Millisecond))
	agree(count)
	r.must(r.Client.AppsV1().Deployments("default").Delete(r.ctx, "many", metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationForeground),
	}))
	r.must(kubelab.Until(r.ctx, r.Client.CoreV1().Pods(
		"default",
	), metav1.ListOptions{LabelSelector: "app=many"}, func(list *corev1.PodList) error {
		if len(list.Items) > 0 {
			return fmt.Errorf("%d pods are left", len(list.Items))
		}
		return nil
	}))
	agree(0)
}
