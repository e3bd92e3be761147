package raven

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/node"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clientgotesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// cluster is an API server that is a fake, an SDN that is real but for the kernel, and nodes' daemons that do what the contract between them and Raven says.
type cluster struct {
	t    testing.TB
	api  client.WithWatch // nobody's: nothing that goes through it is counted or fails
	sdn  sdn.Provider     // the same
	cfg  Config
	now  time.Time
	uids int

	turns
	faults faults
	raven  *Raven
	events *recorder
}

func newCluster(t testing.TB, change func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	c.chance()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), networkingv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	// A tracker that keeps no managed fields: nobody here looks at them, and they cost most of the time.
	tracker := clientgotesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(store{tracker, c}).WithStatusSubresource(&v1.KuryrPort{}, &v1.KuryrPortPool{}, &v1.KuryrNetwork{}, &v1.KuryrLoadBalancer{}, &corev1.Service{})
	for _, i := range slices.Concat(indexes, serviceIndexes) {
		b = b.WithIndex(i.Of, i.Name, i.Values)
	}
	c.api = b.Build()
	provider, err := local.Open(t.Context(), local.Options{Path: filepath.Join(t.TempDir(), "sdn.db"), Host: "sdn", NoSync: true, PortsPerNetwork: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	c.sdn = anyHost{provider}
	c.cfg = Config{
		Ranges: []Range{{netip.MustParsePrefix("10.128.0.0/9"), 16}}, ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		Pool: pool.Policy{Minimum: 2, Batch: 4, TTL: 10 * time.Minute},
	}
	if change != nil {
		change(&c.cfg)
	}
	c.namespace("default", c.cfg.everything())
	c.start()
	return c
}

// everything grants the Services of a namespace all that there are grants for: tests of what is not
// granted have a namespace of their own.
func (c Config) everything() map[string]string {
	if !c.Services {
		return nil
	}
	return map[string]string{
		v1.AnnotationAllowFloatingIPs: core.Any, v1.AnnotationAllowKeptFloatingIPs: "100",
		v1.AnnotationAllowNetworks: core.Any, v1.AnnotationAllowLoadBalancers: core.Any,
		v1.AnnotationAllowCertificates: core.Any,
	}
}

// anyHost is the embedded SDN as if it served every host.
type anyHost struct{ sdn.Provider }

func (p anyHost) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Host = "sdn"
	}
	return p.Provider.EnsurePorts(ctx, specs)
}

// recorder keeps Events.
type recorder struct {
	mu  sync.Mutex
	all []string
}

func (r *recorder) Eventf(about, _ runtime.Object, _, reason, action, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := ""
	if o, ok := about.(client.Object); ok {
		name = o.GetName()
	}
	action, _, _ = strings.Cut(action, "-") // the text's hash
	r.all = append(r.all, fmt.Sprintf("%s %s/%s %s", name, reason, action, fmt.Sprintf(note, args...)))
}

func (r *recorder) has(words ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.all, func(line string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
	})
}

// start begins a new Raven: a process of its own, that knows what is in Kubernetes and in the SDN and nothing else.
func (c *cluster) start() {
	c.t.Helper()
	c.faults.dead, c.faults.kill = false, 0
	for range 3 { // a kill may come in Prepare too
		if c.begin() == nil {
			return
		}
	}
	c.t.Fatal("Raven does not start")
}

func (c *cluster) begin() error {
	c.t.Helper()
	cfg := c.cfg
	cfg.Provider, cfg.Live = faulty{c.sdn, &c.faults}, c.api
	c.events = &recorder{}
	r, err := New(cfg, c.faultyAPI(), c.events)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Now = func() time.Time { return c.now }
	c.raven = r
	c.streams = nil
	c.fill()
	if err := r.prepare(c.t.Context()); err != nil {
		return err
	}
	c.watch()
	return nil
}

func (c *cluster) uid() types.UID {
	c.faults.mu.Lock()
	defer c.faults.mu.Unlock()
	c.uids++
	return types.UID(fmt.Sprintf("%08d-0000-4000-8000-000000000000", c.uids))
}

// daemons are all nodes' daemons: each claims ports for its pods, gives up what is not wanted, and takes back what pods have had that are gone. They know what Raven's caches do.
func (c *cluster) daemons() {
	ctx := c.t.Context()
	node := func(name string) *corev1.Node {
		var n corev1.Node
		if c.raven.Client.Get(ctx, types.NamespacedName{Name: name}, &n) != nil {
			return nil
		}
		return &n
	}
	live := map[types.UID]*corev1.Pod{}
	var pods corev1.PodList
	c.must(c.raven.Client.List(ctx, &pods))
	for i := range pods.Items {
		if core.Networked(&pods.Items[i]) && pods.Items[i].DeletionTimestamp.IsZero() {
			live[pods.Items[i].UID] = &pods.Items[i]
		}
	}
	has := map[types.UID]bool{}
	var all v1.KuryrPortList
	c.must(c.raven.Client.List(ctx, &all))
	ports := all.Items
	for i := range ports {
		p := &ports[i]
		node := node(p.Spec.Node)
		if node == nil || node.Labels[v1.LabelClaimant] == v1.ClaimantRaven {
			continue
		}
		if p.Status.Pod != nil {
			if live[p.Status.Pod.UID] != nil {
				has[p.Status.Pod.UID] = true
				continue
			}
			status := v1.PortAvailable
			if p.Spec.Dedicated != "" || !p.DeletionTimestamp.IsZero() {
				status = v1.PortDeleting
			}
			if p.Status.Pod, p.Status.PortStatus = nil, status; status == v1.PortAvailable {
				p.Status.SetAvailable(c.now)
			}
			c.must(c.api.Status().Update(ctx, p))
			p.Labels[v1.LabelPortStatus] = string(status)
			c.must(c.api.Update(ctx, p))
		} else if !p.DeletionTimestamp.IsZero() && p.Labels[v1.LabelPortStatus] != string(v1.PortDeleting) {
			p.Labels[v1.LabelPortStatus] = string(v1.PortDeleting)
			c.must(c.api.Update(ctx, p))
		}
	}
	ordered := pods.Items
	slices.SortFunc(ordered, func(a, b corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	for i := range ordered {
		pod := &ordered[i]
		node := node(pod.Spec.NodeName)
		if live[pod.UID] == nil || has[pod.UID] || node == nil || node.Labels[v1.LabelClaimant] == v1.ClaimantRaven {
			continue
		}
		n, err := c.raven.NetworkOf(ctx, pod.Namespace)
		if err != nil || n == nil {
			continue
		}
		name := v1.PoolName(v1.PoolKey(n, pod.Spec.NodeName))
		for j := range ports {
			p := &ports[j]
			if p.Spec.Pool != name || p.Status.Pod != nil || !p.DeletionTimestamp.IsZero() || p.Labels[v1.LabelPortStatus] != string(v1.PortAvailable) ||
				p.Spec.Dedicated != "" != v1.HasWishes(pod.Annotations) || p.Spec.Dedicated != "" && p.Spec.Dedicated != pod.UID {
				continue
			}
			p.Status.Pod = &v1.PortPod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Container: "c" + string(pod.UID), Interface: "eth0", Since: metav1.NewTime(c.now)}
			p.Status.PortStatus, p.Status.Released = v1.PortBound, nil
			c.must(c.api.Status().Update(ctx, p))
			p.Labels[v1.LabelPortStatus] = string(v1.PortBound)
			c.must(c.api.Update(ctx, p))
			break
		}
	}
}

// check compares the SDN as a whole with the resources, and every pod with its port.
func (c *cluster) check() {
	c.t.Helper()
	ctx := c.t.Context()
	owner := c.sdn.Installation()
	objects := map[string]v1.KuryrPort{}
	for _, p := range c.ports() {
		objects[p.Name] = p
	}
	found := map[string]bool{}
	for p, err := range c.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Owner: owner, Kind: v1.KeyKindPort}}) {
		c.must(err)
		found[string(p.ID)] = true
		o, ok := objects[string(p.ID)]
		if !ok {
			c.t.Errorf("the SDN has port %s (%s), and there is no KuryrPort", p.ID, p.Key)
			continue
		}
		if o.Spec.Address != p.MAC.String() || o.Spec.Network.ID != string(p.Network) || len(o.Spec.Network.Subnets) == 0 || o.Spec.Network.Subnets[0].IPs[0] != p.Addresses[0].Addr.String() {
			c.t.Errorf("port %+v and KuryrPort %+v differ", p, o.Spec)
		}
	}
	for id := range objects {
		if !found[id] {
			c.t.Errorf("KuryrPort %s has no port in the SDN", id)
		}
	}
	for f, err := range c.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Owner: owner}}) {
		c.must(err)
		if o, ok := objects[string(f.Target.Port)]; !ok || o.Spec.Dedicated == "" || o.Annotations[v1.AnnotationFloatingAddress] != f.Address.String() {
			c.t.Errorf("floating IP %s (%s) leads to %q, whose KuryrPort has %v", f.Address, f.Key, f.Target.Port, o.Annotations)
		}
	}
	networksOf := map[string]bool{}
	var nets v1.KuryrNetworkList
	c.list(&nets)
	for _, n := range nets.Items {
		networksOf[n.Status.Network] = true
	}
	for n, err := range c.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Owner: owner, Kind: v1.KeyKindNetwork}}) {
		c.must(err)
		if n.Key.Name != "services" && n.Key.Name != node.KeyName && !networksOf[string(n.ID)] {
			c.t.Errorf("the SDN has network %s (%s), and there is no KuryrNetwork", n.ID, n.Key)
		}
		delete(networksOf, string(n.ID))
	}
	for id := range networksOf {
		if _, err := c.sdn.Network(ctx, sdn.ID(id)); err != nil {
			c.t.Errorf("KuryrNetwork's network %s: %v", id, err)
		}
	}
	for _, p := range c.pools() {
		if len(p.Status.Pending) > 0 {
			c.t.Errorf("pool %s has %v pending", p.Name, p.Status.Pending)
		}
	}
}

// bound are the addresses of pods' ports, by the pods' names.
func (c *cluster) bound() map[string]string {
	all := map[string]string{}
	for _, p := range c.ports() {
		if p.Status.Pod != nil {
			all[p.Status.Pod.Name] = p.Spec.Network.Subnets[0].IPs[0]
		}
	}
	return all
}

// picture is all there is, to see whether something changes.
func (c *cluster) picture() string {
	var lines []string
	for _, p := range c.ports() {
		lines = append(lines, fmt.Sprint("port ", p.Name, p.ResourceVersion, p.Labels, p.DeletionTimestamp))
	}
	for _, p := range c.pools() {
		lines = append(lines, fmt.Sprint("pool ", p.Name, p.ResourceVersion, p.Status.Available, p.Status.Bound, p.Status.Pending, p.Status.Conditions))
	}
	var nets v1.KuryrNetworkList
	c.list(&nets)
	for _, n := range nets.Items {
		lines = append(lines, fmt.Sprint("network ", n.Name, n.ResourceVersion, n.Status.Conditions))
	}
	return strings.Join(lines, "\n")
}

func (c *cluster) list(l client.ObjectList, opts ...client.ListOption) {
	c.t.Helper()
	c.must(c.api.List(c.t.Context(), l, opts...))
}

func (c *cluster) ports() []v1.KuryrPort {
	var l v1.KuryrPortList
	c.list(&l)
	return l.Items
}

func (c *cluster) pools() []v1.KuryrPortPool {
	var l v1.KuryrPortPoolList
	c.list(&l)
	return l.Items
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) node(name string) *corev1.Node {
	var n corev1.Node
	if err := c.api.Get(c.t.Context(), types.NamespacedName{Name: name}, &n); err != nil {
		return nil
	}
	return &n
}

func (c *cluster) addNode(name string, annotations map[string]string) {
	c.t.Helper()
	c.must(c.api.Create(c.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: c.uid(), Annotations: annotations},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}))
}

func (c *cluster) namespace(name string, annotations map[string]string) {
	c.t.Helper()
	c.must(c.api.Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: c.uid(), Annotations: annotations}}))
}

func (c *cluster) pod(namespace, name, node string, annotations map[string]string) *corev1.Pod {
	c.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: c.uid(), Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	c.must(c.api.Create(c.t.Context(), p))
	return p
}

func (c *cluster) remove(o client.Object) {
	c.t.Helper()
	if err := c.delete(c.t.Context(), o); err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
}

func (c *cluster) policy(namespace, name string) {
	c.t.Helper()
	c.must(c.api.Create(c.t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: c.uid()}}))
}
