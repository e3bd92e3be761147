//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// shared are the clusters that outlive their first test. closeShared closes them.
var shared []*kubelab.Cluster

func closeShared() {
	for _, c := range shared {
		c.Close()
	}
}

// share boots a shared cluster.
func share(t *testing.T, opts kubelab.Options) *rig {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, err := kubelab.New(ctx, opts)
	if err != nil {
		t.Fatalf("start a shared cluster: %v", err)
	}
	shared = append(shared, c)
	t.Logf("shared cluster: up after %s", time.Since(begin).Round(10*time.Millisecond))
	return newRig(t, c)
}

// apiServer is the API server, with Kuryr's manifests, that shareAPI boots.
var apiServer struct {
	sync.Mutex
	*kubelab.Cluster
}

// shareAPI returns an API server on which Kuryr is installed. Tests on it may be parallel: each
// names its objects so that they are its own.
func shareAPI(t *testing.T) *rig {
	t.Helper()
	apiServer.Lock()
	defer apiServer.Unlock()
	if apiServer.Cluster == nil {
		r := share(t, kubelab.Options{APIOnly: true})
		r.install(false)
		apiServer.Cluster = r.Cluster
	}
	t.Cleanup(func() { apiServer.Report(t) })
	return newRig(t, apiServer.Cluster)
}

// singleNode is the cluster that shareNode boots, and what there was after the boot.
var singleNode struct {
	whole
	before []string
	failed bool // the boot was tried and did not end
}

// shareNode returns a cluster of one dual-stack node without kube-proxy, on which Kuryr serves pods
// and Services. After the test its objects are deleted, and Kuryr must keep nothing of them: no
// port, load balancer, interface or rule. Tests on it are not parallel.
func shareNode(t *testing.T) *whole {
	t.Helper()
	w := &singleNode.whole
	if singleNode.before == nil {
		if singleNode.failed {
			t.Fatal("the shared cluster did not start: see the first test that failed")
		}
		singleNode.failed = true
		bootSingleNode(t)
		singleNode.failed = false
	}
	w.rig = newRig(t, w.Cluster)
	t.Cleanup(func() {
		defer w.Report(t)
		ctx, cancel := context.WithTimeout(context.Background(), limit) // the test's has ended
		defer cancel()
		w.rig = &rig{T: t, Cluster: w.Cluster, ctx: ctx}
		w.clean()
	})
	return w
}

func bootSingleNode(t *testing.T) {
	t.Helper()
	w := &singleNode.whole
	*w = whole{node: &kuryrNode{}, settings: ravenServices, daemonSettings: daemonServices}
	opts := talkOptions(w.boot)
	if programs := os.Getenv(upstreamEnv); programs != "" {
		opts.Egress, opts.Images = true, append(opts.Images, upstreamImages(t, programs)...)
	}
	w.rig = share(t, opts)
	begin := time.Now()
	t.Cleanup(func() {
		if singleNode.before == nil {
			w.Report(t)
		}
	})
	w.run()
	w.must(w.Central.Exec(w.ctx, "ip", "route", "replace", floatingRange, "via", w.node.Address.String()).Err())
	w.must(w.DeployDNS(w.ctx))
	w.must(w.WaitDNS(w.ctx))
	w.standing = 1
	// The network of the namespace default stays after its first pod.
	w.create("default", serverPod("first", ""))
	w.running("default", "", 1)
	w.gone("default")
	w.agree(0)
	w.until(func(context.Context) error {
		if err := w.settled(); err != nil {
			return err
		}
		rules := w.rules()
		for _, protocol := range []string{"tcp", "udp"} {
			vip := kubelab.ServiceDNS + " . " + protocol + " . 53 . "
			if !slices.ContainsFunc(rules, func(line string) bool { return strings.HasPrefix(line, vip) }) {
				return fmt.Errorf("the kernel does not lead to CoreDNS by %s:\n%s", protocol, strings.Join(rules, "\n"))
			}
		}
		return nil
	})
	singleNode.before = w.inventory()
	t.Logf("Kuryr and CoreDNS: up after %s", time.Since(begin).Round(10*time.Millisecond))
}

// clean deletes what the test has created in the API, and waits until Kuryr has removed what
// belonged to it.
func (w *whole) clean() {
	w.Helper()
	begin := time.Now()
	if len(w.more) > 0 {
		w.reset()
	}
	if len(w.daemonMore) > 0 {
		w.resetDaemon()
	}
	w.gone("default")
	var namespaces corev1.NamespaceList
	w.must(w.api.List(w.ctx, &namespaces))
	for _, n := range namespaces.Items {
		if strings.HasPrefix(n.Name, "kube-") || n.Name == "default" || n.Name == system {
			continue
		}
		w.gone(n.Name) // a namespace without pods is deleted at the first attempt
		w.must(client.IgnoreNotFound(w.api.Delete(w.ctx, &n)))
	}
	w.within(90*time.Second, func(context.Context) error {
		var left []string
		for _, line := range w.inventory() {
			if !slices.Contains(singleNode.before, line) {
				left = append(left, line)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left after the test:\n%s", strings.Join(left, "\n"))
		}
		return w.settled()
	})
	w.agree(0)
	w.Logf("nothing is left after %s", time.Since(begin).Round(10*time.Millisecond))
}

// inventory lists what there is in the API, in the SDN and in the node's kernel. Ports that wait in
// a pool are not listed: agree compares them.
func (w *whole) inventory() (all []string) {
	w.Helper()
	for _, list := range []client.ObjectList{
		&corev1.NamespaceList{}, &corev1.PodList{}, &corev1.ServiceList{},
		&kuryrv1.KuryrNetworkList{}, &kuryrv1.KuryrPortPoolList{}, &kuryrv1.KuryrLoadBalancerList{},
	} {
		w.must(w.api.List(w.ctx, list))
		w.must(meta.EachListItem(list, func(o runtime.Object) error {
			is, err := meta.Accessor(o)
			if err == nil {
				all = append(all, fmt.Sprintf("%T %s/%s", o, is.GetNamespace(), is.GetName()))
			}
			return err
		}))
	}
	sdn := steps{ravens: &ravens{rig: w.rig, api: w.api}, asker: w.node.UnixClient("/run/kuryr/sdn.sock")}
	for _, line := range sdn.things() {
		// The VIP subnet of a namespace, with its router port, stays as long as the namespace.
		if !strings.Contains(line, " kuryr-lb-default ") && !strings.HasSuffix(line, " network:router_interface") {
			all = append(all, "SDN: "+line)
		}
	}
	kernel := w.look()[0]
	for section, lines := range map[string][]string{
		"rules": w.rules(), "tables": strings.Split(w.tables(), "\n"), privatehost.Links: kernel[privatehost.Links],
		privatehost.Addresses: kernel[privatehost.Addresses], privatehost.Namespaces: kernel[privatehost.Namespaces],
	} {
		for _, line := range lines {
			all = append(all, section+": "+line)
		}
	}
	return all
}
