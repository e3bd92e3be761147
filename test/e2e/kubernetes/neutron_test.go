//go:build e2e

package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
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
	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// stackLimit bounds a test on Neutron, whose every port takes it half a second.
const stackLimit = 12 * time.Minute

// stack is a cluster whose nodes are compute hosts of an OpenStack. The control plane's
// host, on which Raven runs, has Neutron's credentials by a file of its own; a node has
// Open vSwitch, ovn-controller and the token of its daemon.
type stack struct {
	*rig
	lab       *neutronlab.Lab
	api       client.Client
	workers   []*worker
	raven     *privatehost.Service
	settings  []string // of Raven, besides those of every test
	daemons   []string // the same of the nodes' daemons
	failpoint string   // at which the Raven that is started next is killed; "" is none
	installed bool
	dir       string // with the tokens, and the authority's certificate
}

// worker is a node of the stack.
type worker struct {
	kuryrNode
	host  *neutronlab.Host
	claim *privatehost.Service
}

// newStack starts Neutron and a cluster whose nodes are its hosts, without Kuryr.
func newStack(t *testing.T, reason string, cloud neutronlab.Options, cluster kubelab.Options) *stack {
	t.Helper()
	begin := time.Now()
	s := &stack{lab: neutronlab.Start(t, cloud)}
	ctx, cancel := context.WithTimeout(t.Context(), stackLimit)
	t.Cleanup(cancel)
	if _, err := s.lab.ExternalNetwork(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range cluster.Nodes {
		s.workers = append(s.workers, &worker{host: s.lab.Guest(fmt.Sprint("node", i+1))})
	}
	cluster.Central, cluster.Booted = s.lab.Central, s.boot
	// as two nodes and Neutron may need on two cores
	s.rig = &rig{T: t, ctx: ctx, Cluster: kubelab.Start(t, cluster)}
	s.api = s.rig.api(nil)
	s.dir = s.Central.Dir()
	t.Logf("own Neutron and cluster (%s): up after %s", reason, time.Since(begin).Round(10*time.Millisecond))
	return s
}

// startStack is newStack with Kuryr, whose processes are run by hand, so that they can be
// killed. Daemon are settings of the nodes' daemons, settings Raven's.
func startStack(t *testing.T, reason string, opts kubelab.Options, daemon []string, settings ...string) *stack {
	t.Helper()
	s := newStack(t, reason, neutronlab.Options{Keystone: true}, opts)
	s.daemons, s.settings = daemon, settings
	s.run()
	return s
}

// run installs Kuryr and starts its processes.
func (s *stack) run() {
	s.Helper()
	begin := time.Now()
	const nowhere = "nodeSelector.runs=nowhere"
	s.install(false, "provider=neutron", "node."+nowhere, "controller."+nowhere, nodeServices)
	s.keep("ca", s.Config.CAData)
	s.keep("kuryr-controller", []byte(s.token("kuryr-controller", nil).BearerToken))
	for _, w := range s.workers {
		s.keep(w.Name, []byte(s.nodeToken(w.Name).BearerToken))
		s.must(w.plugins(s.ctx))
	}
	s.installed = true
	s.must(s.startRaven())
	for _, w := range s.workers {
		s.must(s.startDaemon(s.ctx, w))
	}
	s.must(s.WaitReady(s.ctx))
	s.Logf("the nodes are ready %s later", time.Since(begin).Round(10*time.Millisecond))
}

func (s *stack) keep(file string, text []byte) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.dir, file), text, 0o600))
}

// boot is for Options.Booted. The first time there is nobody yet whose tokens the daemons would have.
func (s *stack) boot(ctx context.Context, node *kubelab.Node) error {
	w := s.workers[node.Number-1]
	w.Node = node
	if err := w.host.Equip(ctx, node.Host); err != nil || !s.installed {
		return err
	}
	return errors.Join(w.plugins(ctx), s.startDaemon(ctx, w))
}

// leadBack has the central host lead between the nodes and Neutron's external network,
// where routers' gateways are: by it nodes answer pods that ask at the nodes' own
// addresses. A node that is rebooted has no such way.
func (s *stack) leadBack() {
	s.Helper()
	s.must(s.Central.Exec(s.ctx, "sysctl", "-qw", "net.ipv4.ip_forward=1").Err())
	for _, w := range s.workers {
		s.must(
			w.Exec(
				s.ctx, "ip", "route", "replace", neutronlab.External.Masked().String(), "via",
				kubelab.Nodes.Addr().String(),
			).Err(),
		)
	}
}

// account is how a program asks the API server.
func (s *stack) account(name string) []string {
	return []string{
		"--kubernetes-api-server", s.Endpoint(), "--kubernetes-ca-file", filepath.Join(s.dir, "ca"),
		"--kubernetes-token-file", filepath.Join(s.dir, name),
	}
}

func (s *stack) startRaven(flags ...string) (err error) {
	program, env := dying(s.failpoint)
	s.raven, err = s.Central.StartService(s.ctx, "kuryr-controller", append(env,
		"KURYR_NEUTRON_CLOUDS_FILE="+s.lab.CloudsFile(), "KURYR_NEUTRON_CLOUD="+neutronlab.CloudCredential,
	), append([]string{
		program, "controller", "--provider", "neutron", "--controller-namespace", system, "--controller-listen", "",
		"--controller-leader-election=false", "--controller-pool-ttl", "2s",
		"--controller-pool-minimum", "2", "--controller-pool-batch", "3",
	}, slices.Concat(s.account("kuryr-controller"), s.settings, flags)...), nil)
	return err
}

// prepared waits until the Raven that was started last has all that it needs of Neutron.
func (s *stack) prepared() {
	s.Helper()
	s.until(func(context.Context) error {
		log, err := os.ReadFile(filepath.Join(s.Central.Dir(), "kuryr-controller.log"))
		if last := bytes.LastIndex(log, []byte("msg=starting")); err == nil &&
			!bytes.Contains(log[max(last, 0):], []byte(`msg="prepared:`)) {
			err = errors.New("Raven is not prepared yet")
		}
		return err
	})
}

func (s *stack) startDaemon(ctx context.Context, w *worker) (err error) {
	w.claim, err = w.StartService(
		ctx, "kuryr-node", []string{"NODE_NAME=" + w.Name},
		append([]string{kuryr, "node"}, slices.Concat(s.account(w.Name), s.daemons)...),
		w.answers("/run/kuryr/kuryr-node.sock", "/healthz"),
	)
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

// agree waits until cluster and Neutron tell the same: each pod has a bound port with its
// address, bound to its node's host and active, and Neutron has the ports that the
// cluster has.
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
			if err := sameAddresses(p, o); err != nil {
				return err
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

// warm waits until a node has so many ports ready for pods of a namespace.
func (s *stack) warm(namespace, node string, count int) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		var ports kuryrv1.KuryrPortList
		if err := s.api.List(ctx, &ports); err != nil {
			return err
		}
		n := 0
		for _, p := range ports.Items {
			if p.Spec.Node == node && strings.HasSuffix(p.Spec.Network.Name, namespace) &&
				p.Labels[kuryrv1.LabelPortStatus] == string(kuryrv1.PortAvailable) {
				n++
			}
		}
		if n < count {
			return fmt.Errorf("%d ports are ready on %s for %s, want %d", n, node, namespace, count)
		}
		return nil
	})
}

// switched are the ports of a node's integration bridge, sorted.
func (w *worker) switched(ctx context.Context) ([]string, error) {
	said := w.host.VSwitch(ctx, "list-ports", neutronlab.IntegrationBridge)
	found := strings.Fields(said.Stdout)
	slices.Sort(found)
	return found, said.Err()
}

// plugged checks that of a node's pods nothing but so many ports are in its switch.
func (s *stack) plugged(w *worker, count int) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		ports, err := w.switched(ctx)
		ports = slices.DeleteFunc(ports, func(name string) bool { return !strings.HasPrefix(name, "tap") })
		if err == nil && len(ports) != count {
			err = fmt.Errorf("the switch of %s has %v, want %d ports", w.Name, ports, count)
		}
		return err
	})
}

// kills ends Kuryr's daemons one after the other until stop is closed.
func (s *stack) kills(stop <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		case <-time.After(2 * time.Second):
		}
		var err error
		if at := i % (len(s.workers) + 1); at < len(s.workers) {
			w := s.workers[at]
			err = errors.Join(w.claim.Stop(syscall.SIGKILL, limit), s.startDaemon(s.ctx, w))
		} else {
			err = errors.Join(s.raven.Stop(syscall.SIGKILL, limit), s.startRaven())
		}
		if err != nil {
			return err
		}
	}
}

// forgotten waits until nothing is left of a namespace: no network, no pool, and in Neutron nothing of its name.
func (s *stack) forgotten(namespace string) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		var networks kuryrv1.KuryrNetworkList
		if err := s.api.List(ctx, &networks); err != nil {
			return err
		}
		for _, n := range networks.Items {
			if n.Spec.Namespace == namespace {
				return fmt.Errorf("the network %s is left: %+v", n.Name, n.Status.Conditions)
			}
		}
		left, err := s.lab.API().List(ctx, "networks", "name=kuryr-ns-"+namespace)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("Neutron has the network of %s still", namespace)
		}
		return err
	})
}

// wish has pods with wishes come and go: an address and a MAC, a security group that lets nothing in, a floating IP.
func (s *stack) wish(from corev1.Pod) {
	s.Helper()
	group, err := s.lab.API().Create(s.ctx, "security-groups", neutronlab.Object{
		"name": "closed", "project_id": s.lab.Project(),
	})
	s.must(err)
	s.namespace("granted", map[string]string{
		kuryrv1.AnnotationAllowAddresses: "any", kuryrv1.AnnotationAllowMAC: "true",
		kuryrv1.AnnotationAllowSecurityGroups: group.ID(),
		kuryrv1.AnnotationAllowFloatingIPs:    "new",
	})
	s.create("granted", serverPod("plain", "node2"))
	plain := s.running("granted", "", 1)["plain"]
	at, err := netip.ParseAddr(plain.Status.PodIP)
	s.must(err)
	four := at.As4()
	four[2], four[3] = 7, 7
	address := netip.AddrFrom4(four).String()
	const mac = "fa:16:3e:00:07:07"
	wishing := func(name, node string, wishes map[string]string) *corev1.Pod {
		p := serverPod(name, node)
		p.Annotations = wishes
		return p
	}
	s.create("granted", wishing("fixed", "node1", map[string]string{
		kuryrv1.AnnotationAddress: address, kuryrv1.AnnotationMAC: mac,
	}),
		wishing("closed", "node1", map[string]string{kuryrv1.AnnotationSecurityGroups: group.ID()}),
		wishing("public", "node2", map[string]string{kuryrv1.AnnotationFloatingIP: "new"}))
	pods := s.running("granted", "", 4)
	fixed, closed, public := pods["fixed"], pods["closed"], pods["public"]
	if has, err := s.Exec(
		s.ctx, "granted", "fixed", "cat", "/sys/class/net/eth0/address",
	); fixed.Status.PodIP != address || has != mac || err != nil {
		s.Errorf("address %s, MAC %s, %v; want %s, %s", fixed.Status.PodIP, has, err, address, mac)
	}
	s.talks(plain, fixed)
	s.talks(fixed, from)
	s.talks(closed, plain)
	if _, err := s.Exec(s.ctx, "granted", "plain", "timeout", "2", "wget", "-qO-", fmt.Sprintf(
		"http://%s:%d/", closed.Status.PodIP, port,
	)); err == nil {
		s.Error("a pod is reached whose security group lets nothing in")
	}
	s.fromNodes(fixed, closed, public)
	s.reachedByFloating(public)
	s.must(s.Client.CoreV1().Namespaces().Delete(s.ctx, "granted", metav1.DeleteOptions{}))
	s.forgotten("granted")
	s.must(s.lab.API().Delete(s.ctx, "security-groups", group.ID()))
	if left, err := s.lab.API().List(s.ctx, "floatingips", ""); err != nil || len(left) > 0 {
		s.Errorf("floating IPs of pods that are gone: %v, %v", left, err)
	}
}

// reachedByFloating checks that the outside reaches a pod by the floating IP that it was given.
func (s *stack) reachedByFloating(p corev1.Pod) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		all, err := s.lab.API().List(ctx, "floatingips", "")
		if err != nil {
			return err
		}
		if len(all) != 1 {
			return fmt.Errorf("%d floating IPs", len(all))
		}
		if said := s.Central.Exec(ctx, "curl", "-s", "-m", "2", fmt.Sprintf(
			"http://%s:%d/", all[0].Text("floating_ip_address"), port,
		)); said.Out() != p.Name {
			return fmt.Errorf("by its floating IP the pod says %s", said)
		}
		return nil
	})
}

// away has Neutron away: a pod with a port of the pool starts, one that needs a new
// network waits, what goes is forgotten later.
func (s *stack) away(with corev1.Pod) {
	s.Helper()
	s.prepared()
	s.warm("default", "node1", 2)
	s.must(s.lab.StopNeutron(syscall.SIGKILL))
	begin := time.Now()
	s.create("default", serverPod("warm", "node1"))
	warm := s.running("default", "app=warm", 1)["warm"]
	s.Logf("without Neutron a pod is ready after %s", time.Since(begin).Round(10*time.Millisecond))
	s.talks(warm, with)
	s.namespace("cold", nil)
	s.create("cold", serverPod("cold", "node2"))
	s.must(s.Client.CoreV1().Pods("default").Delete(s.ctx, "warm", metav1.DeleteOptions{}))
	s.absent("default", "warm")
	s.until(func(ctx context.Context) error {
		events, err := s.Client.EventsV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Kind == "KuryrNetwork" && strings.HasPrefix(e.Regarding.Name, "cold.") {
				return nil
			}
		}
		return errors.New("no Event says that the network waits")
	})
	s.must(s.lab.StartNeutron(s.ctx))
	begin = time.Now()
	s.talks(s.running("cold", "", 1)["cold"], with)
	s.Logf("the pod that needed Neutron is ready %s after it came back", time.Since(begin).Round(10*time.Millisecond))
	s.must(s.Client.CoreV1().Namespaces().Delete(s.ctx, "cold", metav1.DeleteOptions{}))
	s.forgotten("cold")
}

// Pods of two nodes are ports of Neutron, bound to their node's host, and talk to one
// another across nodes and namespaces; whatever dies or is away meanwhile, in the end
// nothing is left over in Neutron, the cluster, the switches and the kernel.
func TestNeutron(t *testing.T) {
	s := startStack(
		t, "Kuryr and Neutron are killed, and a node reboots",
		kubelab.Options{Nodes: 2, Families: kubelab.IPv4}, nil,
	)
	s.create("default", serverPod("first", "node1"), serverPod("second", "node2"))
	s.running("default", "", 2)
	s.gone("default")
	s.agree(0)
	before := s.look()

	begin := time.Now()
	s.namespace("blue", nil)
	s.create("default", probed(serverPod("a", "node1")), serverPod("b", "node2"))
	s.create("blue", probed(serverPod("c", "node2")))
	pods, blue := s.running("default", "", 2), s.running("blue", "", 1)
	t.Logf("the pods of two namespaces are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	a, b, c := pods["a"], pods["b"], blue["c"]
	s.agree(3)
	s.talks(a, b)
	s.talks(b, a)
	s.talks(a, c)
	s.talks(c, a)
	s.talks(b, c)
	s.fromNodes(a, b, c)
	s.streams(a)
	s.largest(a, b)
	s.isolated(a, b, c)
	s.agree(3)
	if _, err := s.Exec(s.ctx, "default", "a", "ping", "-c1", "-W10", kubelab.Nodes.Addr().String()); err != nil {
		t.Errorf("a pod does not reach the API server's host: %v", err)
	}
	s.wish(a)

	stop, killed := make(chan struct{}), make(chan error, 1)
	go func() { killed <- s.kills(stop) }()
	s.scale(10, func(more int) {
		if more > 0 {
			return // the killing goes on
		}
		close(stop)
		s.must(<-killed)
		s.agree(3)
	})
	s.away(c)
	s.agree(3)

	s.must(s.Nodes[0].Reboot(s.ctx))
	a = s.again(a, func(corev1.Pod) error { return nil })
	s.talks(a, b)
	s.talks(c, a)
	s.fromNodes(a, b, c)
	s.agree(3)

	s.must(s.Client.CoreV1().Namespaces().Delete(s.ctx, "blue", metav1.DeleteOptions{}))
	s.gone("default")
	s.forgotten("blue")
	s.agree(0)
	for _, w := range s.workers {
		s.plugged(w, 1) // the node's own
	}
	if left := s.left(before, privatehost.Links, privatehost.Namespaces); len(left) > 0 {
		t.Errorf("left when all pods have gone:\n%s", strings.Join(left, "\n"))
	}
}

// fromNodes checks that each node reaches pods on every node.
func (s *stack) fromNodes(pods ...corev1.Pod) {
	s.Helper()
	for _, w := range s.workers {
		for _, p := range pods {
			for _, address := range addresses(p) {
				if said := w.Exec(s.ctx, "curl", "-g", "-s", "-m", "20", pageAt(address)); said.Out() != p.Name {
					s.Errorf("from %s the pod %s (%s) on %s says %s", w.Name, p.Name, address, p.Spec.NodeName, said)
				}
			}
		}
	}
}

// isolated checks what underlay_isolation closes to pods that run, that nodes and other
// pods reach them all the same, and that all is as before without it.
func (s *stack) isolated(from corev1.Pod, others ...corev1.Pod) {
	s.Helper()
	const kubelet = 10250
	other := netip.AddrPortFrom(kubelab.Nodes.Addr(), elsewhere)
	s.greet(s.Central, other)
	closed := map[string]netip.AddrPort{"a host of the nodes' network": other}
	var ports kuryrv1.KuryrPortList
	s.must(s.api.List(s.ctx, &ports, client.MatchingLabels{kuryrv1.LabelForNode: "true"}))
	for _, p := range ports.Items {
		at, err := netip.ParseAddr(p.Spec.Network.Subnets[0].IPs[0])
		s.must(err)
		closed["the own port of "+p.Spec.Node] = netip.AddrPortFrom(at, kubelet)
	}
	if len(ports.Items) != len(s.workers) {
		s.Errorf("%d nodes have %d ports of their own", len(s.workers), len(ports.Items))
	}
	reaches := func(isolated bool) {
		s.Helper()
		s.until(func(context.Context) error {
			for what, at := range closed {
				if err := s.connects(from, at); (err == nil) == isolated {
					return errors.Join(
						fmt.Errorf(
							"isolated %v: %s reaches %s (%s): %v", isolated, from.Name, what, at,
							err == nil,
						),
						err,
					)
				}
			}
			return nil
		})
		if err := s.connects(from, netip.AddrPortFrom(kubelab.Nodes.Addr(), kubelab.Port)); err != nil {
			s.Errorf("isolated %v: %s does not reach the API server: %v", isolated, from.Name, err)
		}
		s.fromNodes(append(others, from)...)
		for _, p := range others {
			s.talks(from, p)
		}
	}
	reaches(false)
	for _, isolated := range []bool{true, false} {
		begin := time.Now()
		s.must(s.raven.Stop(syscall.SIGTERM, limit))
		s.must(s.startRaven(
			fmt.Sprint("--controller-underlay-isolation=", isolated), "--controller-node-networks",
			kubelab.Nodes.Masked().String(),
		))
		reaches(isolated)
		s.Logf("isolated %v after %s", isolated, time.Since(begin).Round(10*time.Millisecond))
	}
}

// largest checks that pods of two nodes have the MTU that Neutron tells, and that packets as large as that pass.
func (s *stack) largest(from, to corev1.Pod) {
	s.Helper()
	networks, err := s.lab.API().List(s.ctx, "networks", "name=kuryr-ns-"+from.Namespace)
	s.must(err)
	if len(networks) != 1 {
		s.Fatalf("%d networks of the namespace %s", len(networks), from.Namespace)
	}
	want, _ := networks[0]["mtu"].(float64)
	if mtu, err := s.Exec(
		s.ctx, from.Namespace, from.Name, "cat", "/sys/class/net/eth0/mtu",
	); err != nil || mtu != fmt.Sprint(want) || want == 0 {
		s.Errorf("a pod's MTU is %s, %v; Neutron's network has %v", mtu, err, want)
	}
	const headers = 28 // of IPv4 and ICMP
	if _, err := s.Exec(
		s.ctx, from.Namespace, from.Name, "ping", "-c1", "-W10", "-s", fmt.Sprint(want-headers),
		to.Status.PodIP,
	); err != nil {
		s.Errorf("a packet of %v bytes does not pass: %v", want, err)
	}
}

// What "kuryr install kubernetes --provider neutron" applies runs as it is: Raven has the
// credentials of the Secret, which no node's daemon can see, and the node becomes ready
// and its pods have ports of Neutron.
func TestNeutronDeployed(t *testing.T) {
	s := newStack(t, "Kuryr runs in pods", neutronlab.Options{Keystone: true}, kubelab.Options{Nodes: 1})
	node := s.workers[0]
	s.must(node.Exec(s.ctx, "cp", "/usr/lib/cni/loopback", filepath.Join(kubelab.PluginFolder, "loopback")).Err())
	s.image(node.Node, "kuryr/kuryr:e2e")
	clouds, err := os.ReadFile(s.lab.CloudsFile())
	s.must(err)
	s.must(s.api.Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: system, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}))
	s.must(s.api.Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "kuryr-cloud"},
		Data:       map[string][]byte{"clouds.yaml": clouds},
	}))
	begin := time.Now()
	// The node has the machine's /usr, and nothing that serves ClusterIPs.
	s.install(false, "createNamespace=false", "provider=neutron", "neutron.cloud="+
		neutronlab.CloudCredential, "controller.replicas=1", "image.tag=e2e", "node.specDir=",
		"apiServer.host="+kubelab.Nodes.Addr().String(), fmt.Sprint("apiServer.port=", kubelab.Port))
	s.must(s.WaitReady(s.ctx))
	s.running(system, "", 2)
	t.Logf(
		"the node is ready and Raven works %s after the manifests were applied",
		time.Since(begin).Round(10*time.Millisecond),
	)
	s.create("default", probed(serverPod("a", "")), serverPod("b", ""))
	pods := s.running("default", "", 2)
	s.talks(pods["a"], pods["b"])
	s.agree(2)
	s.fromNodes(pods["a"], pods["b"])
	daemon := s.running(system, "app.kubernetes.io/name=kuryr-node", 1)
	for _, p := range daemon {
		for _, v := range p.Spec.Volumes {
			if v.Secret != nil {
				t.Errorf("the node's daemon has the Secret %s", v.Secret.SecretName)
			}
		}
	}
	s.gone("default")
	s.agree(0)
}
