//go:build e2e

package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// whole is a cluster of one node with all of Kuryr: the embedded SDN, Raven and the
// node's daemon, each with the rights that the manifests give it.
type whole struct {
	*rig
	node                    *kuryrNode
	api                     client.Client
	installed               bool
	dir                     string         // with the tokens, and the authority's certificate
	standing                int            // pods that run all the time
	settings                []string       // of Raven, besides those of every test
	daemonSettings          []string       // of the node's daemon, the same
	more, daemonMore        []string       // the same, until the next reset
	failpoint               string         // at which the Raven that is started next is killed; "" is none
	front                   *kubelab.Front // by which programs that start ask the API server; nil is none
	sdnDaemon, raven, claim *privatehost.Service
}

// boot is for Options.Booted. The first time there is nobody yet whose tokens the daemons would have.
func (w *whole) boot(ctx context.Context, node *kubelab.Node) error {
	w.node.Node = node
	if err := w.node.plugins(ctx); err != nil || !w.installed {
		return err
	}
	return errors.Join(w.startSDN(ctx), w.startRaven(ctx), w.startDaemon(ctx))
}

func (w *whole) startSDN(ctx context.Context) (err error) {
	w.sdnDaemon, err = w.node.StartService(
		ctx, "kuryr-sdn", []string{"KURYR_INSTALLATION=kubernetes"},
		[]string{kuryr, "sdn", "--host", w.node.Name},
		w.node.answers("/run/kuryr/kuryr.sock", "/readyz"),
	)
	return err
}

// account is how a program of the node asks the API server.
func (w *whole) account(name string) []string {
	server := w.Endpoint()
	if w.front != nil {
		server = w.front.Endpoint()
	}
	return []string{
		"--kubernetes-api-server", server, "--kubernetes-ca-file", filepath.Join(w.dir, "ca"),
		"--kubernetes-token-file", filepath.Join(w.dir, name),
	}
}

func (w *whole) startRaven(ctx context.Context) (err error) {
	program, env := dying(w.failpoint)
	w.raven, err = w.node.StartService(ctx, "kuryr-controller", env, append([]string{
		program, "controller", "--host", w.node.Name, "--installation", "kubernetes", "--provider",
		"sdn", "--controller-namespace", system, "--controller-listen", "",
		"--controller-leader-election=false", "--controller-pool-ttl", "2s",
		"--controller-pool-minimum", "2", "--controller-pool-batch", "5",
	}, slices.Concat(w.account("kuryr-controller"), w.settings, w.more)...), nil)
	return err
}

// reset restarts Raven with its settings and more.
func (w *whole) reset(more ...string) {
	w.Helper()
	w.more = more
	w.must(errors.Join(w.raven.Stop(syscall.SIGTERM, limit), w.startRaven(w.ctx)))
}

func (w *whole) startDaemon(ctx context.Context) (err error) {
	argv := slices.Concat([]string{kuryr, "node"}, w.account("kuryr-node"), w.daemonSettings, w.daemonMore)
	w.claim, err = w.node.StartService(ctx, "kuryr-node", []string{"NODE_NAME=" + w.node.Name}, argv,
		w.node.answers("/run/kuryr/kuryr-node.sock", "/healthz"))
	return err
}

func startFamilies(t *testing.T, reason string, families kubelab.Families, settings ...string) *whole {
	w := &whole{node: &kuryrNode{}, settings: settings}
	w.rig = start(t, reason, kubelab.Options{Nodes: 1, Families: families, Booted: w.boot})
	return w.run()
}

// run starts Kuryr on the cluster's node.
func (w *whole) run() *whole {
	w.Helper()
	w.prepare()
	w.must(w.startSDN(w.ctx))
	w.must(w.startRaven(w.ctx))
	w.must(w.startDaemon(w.ctx))
	w.must(w.WaitReady(w.ctx))
	return w
}

// prepare lays down the manifests and what the daemons need of the cluster.
func (w *whole) prepare() {
	w.Helper()
	// What the manifests would run is run here by hand, so that it can be killed.
	const nowhere = "nodeSelector.runs=nowhere"
	w.install(false, "node."+nowhere, "sdn."+nowhere, "controller."+nowhere, nodeServices)
	w.api = w.rig.api(nil)
	w.dir = w.Central.Dir()
	for file, text := range map[string][]byte{
		"ca":               w.Config.CAData,
		"kuryr-controller": []byte(w.token("kuryr-controller", nil).BearerToken),
		"kuryr-node":       []byte(w.nodeToken(w.node.Name).BearerToken),
	} {
		w.must(os.WriteFile(filepath.Join(w.dir, file), text, 0o600))
	}
	w.installed = true
}

// namespace makes one, whose first pod will have a network made for it.
func (w *whole) namespace(name string) {
	w.Helper()
	w.must(w.api.Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	w.must(w.WaitAccount(w.ctx, name))
}

// erase deletes something in the SDN, as somebody does who is not Raven.
func (w *whole) erase(path string) {
	w.Helper()
	if err := w.node.sdn(w.ctx, http.MethodDelete, path, nil, nil); !errors.Is(err, io.EOF) { // the answer is empty
		w.Fatal(err)
	}
}

// sameAddresses compares a pod's addresses with its port's. The pod's are in the order of the
// cluster's families, the port's in the SDN's.
func sameAddresses(p corev1.Pod, port kuryrv1.KuryrPort) error {
	var ips []string
	for _, s := range port.Spec.Network.Subnets {
		ips = append(ips, s.IPs...)
	}
	has := slices.Sorted(slices.Values(addresses(p)))
	slices.Sort(ips)
	if !slices.Equal(ips, has) || len(ips) == 0 {
		return fmt.Errorf("pod %s has the addresses %v, its port %v", p.Name, has, ips)
	}
	return nil
}

// agree waits until cluster, SDN and pods tell the same: each pod that needs one has a
// bound port with its address and names it, no other port is bound, and the SDN has the
// ports that the cluster has.
func (w *whole) agree(pods int) {
	w.Helper()
	pods += w.standing
	w.until(func(ctx context.Context) error {
		var all corev1.PodList
		var ports kuryrv1.KuryrPortList
		if err := errors.Join(w.api.List(ctx, &all), w.api.List(ctx, &ports)); err != nil {
			return err
		}
		bound := map[string]kuryrv1.KuryrPort{}
		var objects []string
		for _, p := range ports.Items {
			objects = append(objects, p.Name)
			if pod := p.Status.Pod; pod != nil {
				if other, twice := bound[string(pod.UID)]; twice {
					return fmt.Errorf("pod %s has the ports %s and %s", pod.Name, other.Name, p.Name)
				}
				bound[string(pod.UID)] = p
			} else if p.Labels[kuryrv1.LabelPortStatus] == string(kuryrv1.PortBound) {
				return fmt.Errorf("port %s is bound to nobody", p.Name)
			}
		}
		n := 0
		for _, p := range all.Items {
			if p.Spec.HostNetwork {
				continue
			}
			n++
			port, is := bound[string(p.UID)]
			if !is || port.Labels[kuryrv1.LabelPortStatus] != string(kuryrv1.PortBound) {
				return fmt.Errorf("pod %s has no port", p.Name)
			}
			if err := sameAddresses(p, port); err != nil {
				return err
			}
			if !strings.Contains(p.Annotations[kuryrv1.AnnotationVIF], "/kuryrports/"+port.Name+`"`) {
				return fmt.Errorf("pod %s has the port %s and says %q", p.Name, port.Name, p.Annotations[kuryrv1.AnnotationVIF])
			}
		}
		if n != pods || len(bound) != pods {
			return fmt.Errorf("%d pods, %d bound ports, want %d", n, len(bound), pods)
		}
		return w.sameInSDN(ctx, objects)
	})
}

// sameInSDN complains of ports of pods that the SDN has and the cluster has not, and the other way round.
func (w *whole) sameInSDN(ctx context.Context, objects []string) error {
	var there struct {
		Ports []struct{ ID, DeviceOwner string }
	}
	if err := w.node.sdn(ctx, http.MethodGet, "ports?device_owner=compute:kuryr", nil, &there); err != nil {
		return err
	}
	var found []string
	for _, p := range there.Ports {
		found = append(found, p.ID)
	}
	slices.Sort(objects)
	slices.Sort(found)
	if !slices.Equal(objects, found) {
		return fmt.Errorf("the SDN has %d ports, the cluster %d", len(found), len(objects))
	}
	return nil
}

// forgotten waits until nothing is left of a namespace: no network, no pool, no port.
func (w *whole) forgotten(namespace string) {
	w.Helper()
	w.within(2*time.Minute, func(ctx context.Context) error {
		var networks kuryrv1.KuryrNetworkList
		var pools kuryrv1.KuryrPortPoolList
		if err := errors.Join(w.api.List(ctx, &networks), w.api.List(ctx, &pools)); err != nil {
			return err
		}
		known := map[string]bool{}
		for _, n := range networks.Items {
			if n.Spec.Namespace == namespace {
				return fmt.Errorf("the network %s is left: %+v", n.Name, n.Status.Conditions)
			}
			known[n.Status.Network] = true
		}
		for _, p := range pools.Items {
			if !known[p.Spec.Network] {
				return fmt.Errorf("the pool %s is left: %+v", p.Name, p.Status)
			}
		}
		var there struct{ Networks []struct{ Name string } }
		if err := w.node.sdn(ctx, http.MethodGet, "networks", nil, &there); err != nil {
			return err
		}
		for _, n := range there.Networks {
			if strings.Contains(n.Name, namespace) {
				return fmt.Errorf("the SDN has the network %s still", n.Name)
			}
		}
		return nil
	})
}

// kills ends Kuryr's daemons one after the other, as an administrator would never do, until stop is closed.
func (w *whole) kills(stop <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		case <-time.After(time.Second):
		}
		var err error
		switch i % 3 {
		case 0:
			err = errors.Join(w.claim.Stop(syscall.SIGKILL, limit), w.startDaemon(w.ctx))
		case 1:
			err = errors.Join(w.raven.Stop(syscall.SIGKILL, limit), w.startRaven(w.ctx))
		case 2:
			err = errors.Join(w.sdnDaemon.Stop(syscall.SIGKILL, limit), w.startSDN(w.ctx))
		}
		if err != nil {
			return err
		}
	}
}

// probed is a pod that the kubelet asks whether it is ready, from the node.
func probed(p *corev1.Pod) *corev1.Pod {
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1,
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)},
		},
	}
	return p
}

// reach checks that a pod reaches its node and what is behind it.
func (w *whole) reach(p corev1.Pod) {
	w.Helper()
	for _, to := range []string{w.node.Address.String(), kubelab.Nodes.Addr().String()} {
		w.until(func(ctx context.Context) error {
			if _, err := w.Exec(ctx, p.Namespace, p.Name, "ping", "-c1", "-W5", to); err != nil {
				return fmt.Errorf("%s does not reach %s: %w", p.Name, to, err)
			}
			return nil
		})
	}
}

// tells checks what the node's daemon tells of itself.
func (w *whole) tells(attachments int) {
	w.Helper()
	attachments += w.standing
	const socket = "/run/kuryr/kuryr-node.sock"
	w.until(func(ctx context.Context) error { // a deletion is complete when the API has heard of it
		said := w.node.Exec(ctx, kuryr, "--socket", socket, "status", "-o", "json")
		var status struct {
			Ready   bool
			Host    string
			Objects map[string]int
		}
		if err := json.Unmarshal([]byte(said.Stdout), &status); err != nil || !status.Ready ||
			status.Host != w.node.Name || status.Objects["attachment"] != attachments {
			return fmt.Errorf("status of %d attachments: %w, %s", attachments, err, said)
		}
		return nil
	})
	if said := w.node.Exec(
		w.ctx, "curl", "-s", "--unix-socket", socket, "http://kuryr/metrics",
	); !strings.Contains(said.Stdout, `kuryr_cni_requests_total{outcome="ok",verb="ADD"}`) {
		w.Errorf("metrics: %s", said)
	}
}

// Kuryr's processes are killed and the node reboots while a kubelet's pods of two namespaces come
// and go: each pod has its port, pods talk, and in the end nothing is left over.
func TestCluster(t *testing.T) {
	t.Parallel()
	w := startFamilies(t, "Kuryr's processes are killed, and the node reboots", kubelab.IPv4)
	w.create("default", serverPod("first", "")) // with which the network comes into the kernel, to stay
	w.running("default", "", 1)
	w.gone("default")
	w.agree(0)
	before := w.look()

	w.namespace("blue")
	w.create("default", probed(serverPod("a", "")), serverPod("b", ""))
	w.create("blue", probed(serverPod("c", "")))
	a, other := w.running("default", "", 2)["a"], w.running("blue", "", 1)["c"]
	w.agree(3)

	// Without any of Kuryr's processes the pods go on; one that is made or deleted
	// meanwhile comes right when they are back.
	for _, s := range []*privatehost.Service{w.claim, w.raven, w.sdnDaemon} {
		w.must(s.Stop(syscall.SIGKILL, limit))
	}
	w.talks(a, other)
	w.create("default", serverPod("later", ""))
	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, "b", metav1.DeleteOptions{}))
	w.absent("default", "b")
	w.must(errors.Join(w.startSDN(w.ctx), w.startRaven(w.ctx), w.startDaemon(w.ctx)))
	later := w.running("default", "app=later", 1)["later"]
	w.talks(later, other)
	w.agree(3)

	stop, killed := make(chan struct{}), make(chan error, 1)
	go func() { killed <- w.kills(stop) }()
	w.scale(20, func(more int) {
		if more > 0 {
			return // the killing goes on
		}
		close(stop)
		w.must(<-killed)
		w.agree(3)
	})

	w.must(w.node.Reboot(w.ctx))
	a = w.again(a, func(corev1.Pod) error { return nil })
	later = w.again(later, func(corev1.Pod) error { return nil })
	other = w.again(other, func(corev1.Pod) error { return nil })
	w.talks(a, later)
	w.talks(a, other)
	w.agree(3)

	w.must(w.Client.CoreV1().Namespaces().Delete(w.ctx, "blue", metav1.DeleteOptions{}))
	w.gone("default")
	w.forgotten("blue")
	w.agree(0)
	if left := w.left(before, privatehost.Links, privatehost.Namespaces); len(left) > 0 {
		t.Errorf("left when all pods have gone:\n%s", strings.Join(left, "\n"))
	}
}
