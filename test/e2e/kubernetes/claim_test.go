//go:build e2e

package kubernetes_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/agent/claim"
	"github.com/kuryr/kuryr/kube/agent/condition"
	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// unplugged plugs nothing.
type unplugged struct{}

func (unplugged) Plug(context.Context, bind.Interface) (bind.Result, error) {
	return bind.Result{}, nil
}

func (unplugged) Unplug(context.Context, sdn.Port) error { return nil }

func (unplugged) State(context.Context, sdn.Port) (bind.State, error) { return bind.Whole, nil }

// A node's claimant on a real API server, which is killed meanwhile, with the rights that
// the manifests give it: what it writes is taken as it is meant.
func TestClaimant(t *testing.T) {
	t.Parallel()
	r := start(t, "the API server is killed", kubelab.Options{APIOnly: true})
	r.install(false)
	const name = "node1"
	api := r.api(nil)
	daemon, err := client.NewWithWatch(r.nodeToken(name), client.Options{Scheme: api.Scheme()})
	r.must(err)
	automount := false
	r.must(api.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	r.must(client.IgnoreAlreadyExists(api.Create(r.ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}, AutomountServiceAccountToken: &automount,
	})))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	r.must(api.Create(r.ctx, pod))
	var namespace corev1.Namespace
	r.must(api.Get(r.ctx, client.ObjectKey{Name: "default"}, &namespace))
	network := &kuryrv1.KuryrNetwork{Spec: kuryrv1.KuryrNetworkSpec{Namespace: "default", UID: namespace.UID}}
	network.Name = kuryrv1.NetworkName("default", namespace.UID)
	r.must(api.Create(r.ctx, network))
	network.Status = kuryrv1.KuryrNetworkStatus{
		Network: "net", Subnets: []kuryrv1.NetworkSubnet{{ID: "subnet", CIDR: "10.1.0.0/16"}},
	}
	r.must(api.Status().Update(r.ctx, network))
	pool := &kuryrv1.KuryrPortPool{Spec: kuryrv1.PoolKey(network, name)}
	pool.Spec.Batch = 1
	pool.Name, pool.Labels = kuryrv1.PoolName(pool.Spec), map[string]string{kuryrv1.LabelNode: kuryrv1.NodeLabel(name)}
	r.must(api.Create(r.ctx, pool))
	newPort := func(id string) {
		r.Helper()
		r.must(api.Create(r.ctx, &kuryrv1.KuryrPort{
			ObjectMeta: metav1.ObjectMeta{Name: id, Finalizers: []string{kuryrv1.Finalizer}, Labels: map[string]string{
				kuryrv1.LabelNode: kuryrv1.NodeLabel(name), kuryrv1.LabelPool: pool.Name,
				kuryrv1.LabelPortStatus: string(kuryrv1.PortAvailable),
			}},
			Spec: kuryrv1.KuryrPortSpec{
				ID: id, Active: true, Address: "fa:16:3e:00:00:01", Node: name, Pool: pool.Name,
				VIF: kuryrv1.PortVIF{Type: "bridge"},
				Network: kuryrv1.PortNetwork{ID: "net", MTU: 1450, Subnets: []kuryrv1.PortSubnet{
					{ID: "subnet", CIDR: "10.1.0.0/16", IPs: []string{"10.1.0.9"}},
				}},
			},
		}))
	}

	keeper := condition.New(daemon, name, nil)
	c, err := claim.Open(claim.Config{Client: daemon, Node: name, Own: keeper.See})
	r.must(err)
	store, err := reconcile.Open(reconcile.Config{Path: filepath.Join(t.TempDir(), "agent.db"), Volatile: true})
	r.must(err)
	server, err := agent.New(agent.Config{Source: c, Binder: unplugged{}, Store: store, State: t.TempDir()})
	r.must(err)
	r.must(store.Start(r.ctx))
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 3)
	go func() { ended <- c.Run(running) }()
	go func() { keeper.Run(running); ended <- nil }()
	go func() { store.Run(running); ended <- nil }()
	defer func() {
		stop()
		for range cap(ended) {
			r.must(<-ended)
		}
		r.must(store.Close())
	}()
	select {
	case <-c.Started():
	case <-r.ctx.Done():
		t.Fatal("it does not start")
	}
	keeper.Set(true, condition.ReasonReady, "kuryr node gives pods their ports")
	eventually := func(what string, is func() bool) {
		r.Helper()
		for !is() {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-r.ctx.Done():
				t.Fatal("it does not come: " + what)
			}
		}
	}
	says := func(id string, status kuryrv1.PortStatus, container string) {
		r.Helper()
		var p kuryrv1.KuryrPort
		eventually(id+" is "+string(status)+" of "+container, func() bool {
			if api.Get(r.ctx, client.ObjectKey{Name: id}, &p) != nil {
				return false
			}
			is := ""
			if p.Status.Pod != nil {
				is = p.Status.Pod.Container
			}
			return p.Labels[kuryrv1.LabelPortStatus] == string(status) && is == container
		})
	}
	eventually("the node's network", func() bool {
		var n corev1.Node
		if api.Get(r.ctx, client.ObjectKey{Name: name}, &n) != nil {
			return false
		}
		for _, is := range n.Status.Conditions {
			if is.Type == corev1.NodeNetworkUnavailable {
				return is.Status == corev1.ConditionFalse
			}
		}
		return false
	})

	// On the empty pool it waits for the port by watch.
	netns := filepath.Join(t.TempDir(), "netns")
	r.must(os.WriteFile(netns, nil, 0o600))
	call := func(verb, container string) error {
		_, err := server.Do(r.ctx, cni.Call{
			Verb: verb, Container: container, Interface: "eth0", Namespace: netns,
			Config: []byte(`{"cniVersion": "1.1.0", "name": "kuryr", "type": "kuryr"}`),
			Args:   "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID=" + string(pod.UID),
		})
		return err
	}
	got := make(chan error, 1)
	go func() { got <- call(cni.Add, "c1") }()
	newPort("p1")
	r.must(<-got)
	says("p1", kuryrv1.PortBound, "c1")
	eventually("the annotation", func() bool {
		return api.Get(r.ctx, client.ObjectKeyFromObject(pod), pod) == nil &&
			strings.Contains(pod.Annotations[kuryrv1.AnnotationVIF], "/kuryrports/p1")
	})

	// While the API server is away it gives back and claims; the next one hears of it.
	r.must(r.StopAPIServer(syscall.SIGKILL))
	r.must(call(cni.Del, "c1"))
	if err := call(cni.Add, "c2"); err != nil {
		t.Error(err)
	}
	r.must(r.StartAPIServer(r.ctx))
	says("p1", kuryrv1.PortBound, "c2")

	// Given up, it goes when the pod has gone.
	r.must(api.Delete(r.ctx, &kuryrv1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: "p1"}}))
	newPort("p2")
	r.must(api.Delete(r.ctx, &kuryrv1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: "p2"}}))
	says("p2", kuryrv1.PortDeleting, "")
	says("p1", kuryrv1.PortBound, "c2")
	r.must(call(cni.Del, "c2"))
	says("p1", kuryrv1.PortDeleting, "")
}
