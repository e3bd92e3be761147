//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// stackLimit bounds a test on Neutron, whose every port takes it half a second.
const stackLimit = 8 * time.Minute

// stack is a cluster whose nodes are compute hosts of an OpenStack. The control plane's host, on which Raven runs, has Neutron's credentials by a file of its own; a
// node has Open vSwitch, ovn-controller and the token of its daemon.
type stack struct {
	*rig
	lab       *neutronlab.Lab
	api       client.Client
	workers   []*worker
	raven     *privatehost.Service
	installed bool
	dir       string // with the tokens, and the authority's certificate
	network   map[string]string
}

// worker is a node of the stack.
type worker struct {
	kuryrNode
	host  *neutronlab.Host
	claim *privatehost.Service
}

func startStack(t *testing.T, nodes int) *stack {
	t.Helper()
	begin := time.Now()
	s := &stack{lab: neutronlab.Start(t, neutronlab.Options{Keystone: true})}
	ctx, cancel := context.WithTimeout(t.Context(), stackLimit)
	t.Cleanup(cancel)
	_, err := s.lab.ExternalNetwork(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		s.workers = append(s.workers, &worker{host: s.lab.Guest(fmt.Sprint("node", i+1))})
	}
	t.Logf("Neutron is up after %s", time.Since(begin).Round(10*time.Millisecond))
	s.rig = &rig{T: t, ctx: ctx, Cluster: kubelab.Start(t, kubelab.Options{Nodes: nodes, Central: s.lab.Central, Booted: s.boot})}
	t.Logf("the cluster is up after %s", time.Since(begin).Round(10*time.Millisecond))
	// What the manifests would run is run here by hand, so that it can be killed.
	const nowhere = "nodeSelector.runs=nowhere"
	s.install(false, "provider=neutron", "node."+nowhere, "controller."+nowhere)
	s.api = s.rig.api(nil)
	s.dir = s.Central.Dir()
	s.keep("ca", s.Config.CAData)
	s.keep("kuryr-controller", []byte(s.token("kuryr-controller", nil).BearerToken))
	for _, w := range s.workers {
		s.keep(w.Name, []byte(s.nodeToken(w.Name).BearerToken))
	}
	s.installed = true
	s.must(s.startRaven())
	for _, w := range s.workers {
		s.must(s.startDaemon(s.ctx, w))
	}
	s.must(s.WaitReady(s.ctx))
	t.Logf("the nodes are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	return s
}

func (s *stack) keep(file string, text []byte) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.dir, file), text, 0o600))
}

// boot is for Options.Booted. The first time there is nobody yet whose tokens the daemons would have.
func (s *stack) boot(ctx context.Context, node *kubelab.Node) error {
	w := s.workers[node.Number-1]
	w.Node = node
	if err := errors.Join(w.host.Equip(ctx, node.Host), w.plugins(ctx)); err != nil || !s.installed {
		return err
	}
	return s.startDaemon(ctx, w)
}

// account is how a program asks the API server.
func (s *stack) account(name string) []string {
	return []string{"--kubernetes-api-server", s.Endpoint(), "--kubernetes-ca-file", filepath.Join(s.dir, "ca"), "--kubernetes-token-file", filepath.Join(s.dir, name)}
}

func (s *stack) startRaven() (err error) {
	s.raven, err = s.Central.StartService(s.ctx, "kuryr-controller", []string{
		"KURYR_NEUTRON_CLOUDS_FILE=" + s.lab.CloudsFile(), "KURYR_NEUTRON_CLOUD=" + neutronlab.CloudCredential,
	}, append([]string{
		kuryr, "controller", "--provider", "neutron", "--controller-namespace", system, "--controller-listen", "",
		"--controller-leader-election=false", "--controller-pool-ttl", "2s", "--controller-pool-minimum", "2", "--controller-pool-batch", "3",
	}, s.account("kuryr-controller")...), nil)
	return err
}

func (s *stack) startDaemon(ctx context.Context, w *worker) (err error) {
	w.claim, err = w.StartService(ctx, "kuryr-node", []string{"NODE_NAME=" + w.Name}, append([]string{kuryr, "node"}, s.account(w.Name)...), w.answers("/run/kuryr/kuryr-node.sock", "/healthz"))
	return err
}

// ports are Neutron's ports of pods, by id.
func (s *stack) ports(ctx context.Context) (map[string]neutronlab.Object, error) {
	all, err := s.lab.API().List(ctx, "ports", "device_owner=compute:kuryr")
	found := map[string]neutronlab.Object{}
	for _, p := range all {
		found[p.ID()] = p
	}
	return found, err
}

// agree waits until cluster and Neutron tell the same: each pod has a bound port with its address, bound to its node's host and active, and Neutron has the ports that the cluster has.
func (s *stack) agree(pods int) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		var all corev1.PodList
		var objects kuryrv1.KuryrPortList
		if err := errors.Join(s.api.List(ctx, &all), s.api.List(ctx, &objects)); err != nil {
			return err
		}
		there, err := s.ports(ctx)
		if err != nil {
			return err
		}
		if len(there) != len(objects.Items) {
			return fmt.Errorf("Neutron has %d ports, the cluster %d", len(there), len(objects.Items))
		}
		of := map[string]kuryrv1.KuryrPort{}
		for _, o := range objects.Items {
			p := there[o.Name]
			if p == nil {
				return fmt.Errorf("Neutron has no port %s", o.Name)
			}
			if host := p.Text("binding:host_id"); host != o.Spec.Node {
				return fmt.Errorf("port %s of node %s is bound to host %q", o.Name, o.Spec.Node, host)
			}
			if o.Status.Pod != nil {
				of[string(o.Status.Pod.UID)] = o
			}
		}
		n := 0
		for _, p := range all.Items {
			if p.Spec.HostNetwork {
				continue
			}
			n++
			o, is := of[string(p.UID)]
			if !is || o.Labels[kuryrv1.LabelPortStatus] != string(kuryrv1.PortBound) {
				return fmt.Errorf("pod %s has no port", p.Name)
			}
			if ips := o.Spec.Network.Subnets[0].IPs; !slices.Equal(ips, []string{p.Status.PodIP}) {
				return fmt.Errorf("pod %s has the address %s, its port %v", p.Name, p.Status.PodIP, ips)
			}
			if o.Spec.Node != p.Spec.NodeName {
				return fmt.Errorf("pod %s on %s has a port of %s", p.Name, p.Spec.NodeName, o.Spec.Node)
			}
			if status := there[o.Name].Text("status"); status != "ACTIVE" {
				return fmt.Errorf("the port of pod %s is %s", p.Name, status)
			}
			if !strings.Contains(p.Annotations[kuryrv1.AnnotationVIF], "/kuryrports/"+o.Name+`"`) {
				return fmt.Errorf("pod %s has the port %s and says %q", p.Name, o.Name, p.Annotations[kuryrv1.AnnotationVIF])
			}
		}
		if n != pods || len(of) != pods {
			return fmt.Errorf("%d pods, %d bound ports, want %d", n, len(of), pods)
		}
		return nil
	})
}

// namespace makes one, whose first pod will have a network made for it.
func (s *stack) namespace(name string, annotations map[string]string) {
	s.Helper()
	s.must(s.api.Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}))
	s.must(s.WaitAccount(s.ctx, name))
}

// Pods of two nodes are ports of Neutron, bound to their node's host, and talk to one another across nodes and namespaces.
func TestNeutron(t *testing.T) {
	s := startStack(t, 2)
	begin := time.Now()
	s.namespace("blue", nil)
	s.create("default", serverPod("a", "node1"), serverPod("b", "node2"))
	s.create("blue", serverPod("c", "node2"))
	pods, blue := s.running("default", "", 2), s.running("blue", "", 1)
	t.Logf("the pods of two namespaces are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	a, b, c := pods["a"], pods["b"], blue["c"]
	s.agree(3)
	s.talks(a, b)
	s.talks(b, a)
	s.talks(a, c)
	s.talks(c, a)
	s.talks(b, c)
}
