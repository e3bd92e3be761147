package raven

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A namespace's first pod brings its network, its pool and its port; with the namespace all of it goes.
func TestFromThePodToThePort(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	c.settle()
	var nets v1.KuryrNetworkList
	if c.list(&nets); len(nets.Items) != 1 || nets.Items[0].Spec.Namespace != "default" {
		t.Fatalf("networks before there is a pod: %v", nets.Items)
	}
	web := c.pod("blue", "web", "n1", nil)
	c.settle()
	c.check()
	address, err := netip.ParseAddr(c.bound()["web"])
	if err != nil || !netip.MustParsePrefix("10.128.0.0/9").Contains(address) {
		t.Errorf("the pod has %q: %v", c.bound()["web"], err)
	}
	pool := c.pools()[0]
	if pool.Status.Bound != 1 || pool.Status.Available != 3 || !core.IsReady(pool.Status.Conditions) {
		t.Errorf("pool %+v", pool.Status)
	}
	p := c.ports()[0]
	if p.Spec.Node != "n1" || p.Spec.VIF.Type != sdn.VIFBridge || p.Spec.Network.MTU == 0 || p.Spec.Network.Subnets[0].Gateway == "" || len(p.OwnerReferences) != 1 {
		t.Errorf("port %+v", p)
	}

	c.remove(web)
	var ns corev1.Namespace
	c.must(c.api.Get(t.Context(), core.Request("", "blue").NamespacedName, &ns))
	c.remove(&ns)
	c.settle()
	c.check()
	if len(c.ports())+len(c.pools()) != 0 {
		t.Errorf("left: %v, %v", c.ports(), c.pools())
	}

	// At once again under the same name: another network.
	c.namespace("blue", nil)
	c.pod("blue", "web", "n1", nil)
	c.settle()
	c.check()
	if c.bound()["web"] == "" {
		t.Error("the pod of the namespace made again has no port")
	}
}

// kills are scenarios during which Raven is killed at every one of its writes, before it has any effect and after, and begins anew.
var kills = map[string]func(c *cluster){
	"a pod": func(c *cluster) { c.namespace("blue", nil); c.pod("blue", "web", "n1", nil) },
	"pods with wishes": func(c *cluster) {
		c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true", v1.AnnotationAllowFloatingIPs: "new"})
		c.pod("blue", "web", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01", v1.AnnotationFloatingIP: "new"})
	},
	"a pod with a floating IP goes": func(c *cluster) {
		c.namespace("blue", map[string]string{v1.AnnotationAllowFloatingIPs: "any"})
		web := c.pod("blue", "web", "n1", map[string]string{v1.AnnotationFloatingIP: "new"})
		c.settle()
		c.remove(web)
	},
	"a namespace's groups change": func(c *cluster) {
		c.annotate("green", map[string]string{v1.AnnotationSecurityGroups: c.group("web")})
	},
	"a pool shrinks": func(c *cluster) { c.now = c.now.Add(time.Hour) },
	"a node goes": func(c *cluster) {
		c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "green", Name: "old"}})
		c.remove(c.node("n2"))
	},
	"a namespace goes": func(c *cluster) {
		c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "green", Name: "old"}})
		c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "green"}})
	},
	"a namespace goes and comes": func(c *cluster) {
		c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "green", Name: "old"}})
		c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "green"}})
		c.namespace("green", nil)
		c.pod("green", "new", "n2", nil)
	},
}

func TestKilledAtEveryWrite(t *testing.T) {
	t.Parallel()
	for name, act := range kills {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", name, lost), func(t *testing.T) {
				t.Parallel()
				eachKill(t, lost, func() (*cluster, func()) {
					c := killCluster(t)
					act(c)
					return c, c.whole
				})
			})
		}
	}
}

// eachKill kills Raven at its first write of what begin has brought about, then, begun anew, at its second, until it has no more; the next Raven goes on, and whole tells whether all is right in the end.
func eachKill(t *testing.T, lost bool, begin func() (c *cluster, whole func())) {
	t.Helper()
	for at := 1; ; at++ {
		c, whole := begin()
		c.faults.writes, c.faults.kill, c.faults.lost = 0, at, lost
		c.settle()
		killed := c.faults.dead
		c.start()
		c.settle()
		whole()
		if t.Failed() {
			t.Fatalf("killed at write %d", at)
		}
		if !killed {
			if at < 4 {
				t.Fatalf("only %d writes", at)
			}
			return
		}
	}
}

// The SDN away only delays.
func TestSDNAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "a", "n1", nil)
	c.settle()
	c.faults.away = true
	for i := range 9 {
		c.pod("default", fmt.Sprint("b", i), "n1", nil)
	}
	for range 5 {
		if errs := c.round(); len(errs) == 0 && c.bound()["b8"] != "" {
			t.Fatal("ports without an SDN")
		}
		c.daemons()
		c.now = c.now.Add(core.CountsInterval)
	}
	if pool := c.pools()[0]; core.IsReady(pool.Status.Conditions) || pool.Status.Conditions[0].Reason != v1.ReasonSDN {
		t.Errorf("conditions %+v", pool.Status.Conditions)
	}
	c.faults.away = false
	c.settle()
	c.check()
	if len(c.bound()) != 10 {
		t.Errorf("%d pods have ports", len(c.bound()))
	}
}

// Many pods at once: each has a port, and a few calls of the API server and of the SDN have sufficed.
func TestManyPodsAtOnce(t *testing.T) {
	t.Parallel()
	const nodes, pods = 10, 200
	c := newCluster(t, func(cfg *Config) { cfg.Pool.Batch = 10 })
	for n := range nodes {
		c.addNode(fmt.Sprint("n", n), nil)
	}
	c.settle()
	c.faults.calls, c.faults.asked = nil, nil
	for i := range pods {
		c.pod("default", fmt.Sprint("p", i), fmt.Sprint("n", i%nodes), nil)
	}
	c.tellAll() // at once: pods that come one by one get their ports by batches
	c.settle()
	c.check()
	if len(c.bound()) != pods {
		t.Fatalf("%d pods have ports", len(c.bound()))
	}
	seen := map[string]bool{}
	for _, a := range c.bound() {
		if seen[a] {
			t.Errorf("%s twice", a)
		}
		seen[a] = true
	}
	total := 0
	for _, n := range c.faults.calls {
		total += n
	}
	// Each port is created, then made available by its status and its label.
	if perPod := float64(total) / pods; perPod > 4 {
		t.Errorf("%.2f writes of the API server for a pod: %v", perPod, c.faults.calls)
	}
	if n := c.faults.asked["EnsurePorts"]; n > 3*nodes {
		t.Errorf("%d bulk calls for %d pools", n, nodes)
	}
	t.Logf("API: %v\nSDN: %v", c.faults.calls, c.faults.asked)

	// They go and others come: no port is made for them.
	before := len(c.ports())
	var all corev1.PodList
	c.list(&all)
	for i := range all.Items {
		c.remove(&all.Items[i])
	}
	c.settle()
	for i := range pods {
		c.pod("default", fmt.Sprint("q", i), fmt.Sprint("n", i%nodes), nil)
	}
	c.settle()
	c.check()
	if after := len(c.ports()); after != before || len(c.bound()) != pods {
		t.Errorf("%d ports, then %d; %d bound", before, after, len(c.bound()))
	}
}

// What a pod wishes it gets where its namespace grants it, and else is told.
func TestWishes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowAddresses: "10.129.0.0/16,10.128.0.0/16", v1.AnnotationAllowMAC: "true", v1.AnnotationAllowFloatingIPs: "new"})
	c.namespace("poor", nil)
	c.pod("blue", "plain", "n1", nil)
	c.settle()
	cidr := netip.MustParsePrefix(c.ports()[0].Spec.Network.Subnets[0].CIDR)
	address := cidr.Addr().Next().Next().Next().Next().Next().Next().Next().Next().Next().String()
	fixed := c.pod("blue", "fixed", "n1", map[string]string{v1.AnnotationAddress: address, v1.AnnotationMAC: "fa:16:3e:00:00:01"})
	c.pod("poor", "greedy", "n1", map[string]string{v1.AnnotationAddress: address})
	c.pod("blue", "wrong", "n1", map[string]string{v1.AnnotationMAC: "nonsense"})
	c.settle()
	c.check()
	if got := c.bound()["fixed"]; got != address {
		t.Errorf("fixed has %q, want %s", got, address)
	}
	for _, p := range c.ports() {
		if p.Spec.Dedicated == fixed.UID && p.Spec.Address != "fa:16:3e:00:00:01" {
			t.Errorf("MAC %s", p.Spec.Address)
		}
	}
	if c.bound()["greedy"] != "" || !c.events.has("greedy", core.EventRefused, v1.AnnotationAllowAddresses) {
		t.Errorf("greedy has %q; %q", c.bound()["greedy"], c.events.all)
	}
	if c.bound()["wrong"] != "" || !c.events.has("wrong", core.EventRefused, v1.AnnotationMAC) {
		t.Errorf("wrong has %q", c.bound()["wrong"])
	}

	// Made again under its name, as a stateful set does, it has its address again.
	c.remove(fixed)
	c.pod("blue", "fixed", "n1", map[string]string{v1.AnnotationAddress: address})
	c.settle()
	c.check()
	if got := c.bound()["fixed"]; got != address {
		t.Errorf("fixed has %q the second time, want %s", got, address)
	}
	// Two of one address: the second waits and is told.
	c.pod("blue", "twin", "n1", map[string]string{v1.AnnotationAddress: address})
	c.round()
	if !c.events.has("twin", core.EventFailed) {
		t.Errorf("nobody tells the twin: %q", c.events.all)
	}
	if _, err := wishOf(map[string]string{v1.AnnotationFloatingIP: "some"}); err == nil || !strings.Contains(err.Error(), v1.AnnotationFloatingIP) {
		t.Errorf("a floating IP called some: %v", err)
	}
}

// A quota or a cap is told, the rest goes on, and when there is room again all is well.
func TestLimits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.MaxPorts = 6; cfg.Pool.Minimum, cfg.Pool.Batch = 0, 1 })
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	var first []*corev1.Pod
	for i := range 5 {
		first = append(first, c.pod("default", fmt.Sprint("a", i), "n1", nil))
	}
	c.settle()
	for i := range 3 {
		c.pod("default", fmt.Sprint("b", i), "n2", nil)
	}
	for range 6 {
		c.round()
		c.daemons()
		c.now = c.now.Add(core.CountsInterval)
	}
	if n := len(c.ports()); n != 6 || len(c.bound()) != 6 {
		t.Fatalf("%d ports, %d bound under a cap of 6", n, len(c.bound()))
	}
	if !c.events.has(core.EventShort, "cap") {
		t.Errorf("nobody is told: %q", c.events.all)
	}
	for _, p := range first {
		c.remove(p)
	}
	for range 3 {
		c.round()
		c.daemons()
	}
	c.now = c.now.Add(time.Hour) // what is idle goes
	c.settle()
	c.check()
	if len(c.bound()) != 3 {
		t.Errorf("%d bound after there is room", len(c.bound()))
	}
}

func TestQuotaOfTheSDN(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "a", "n1", nil)
	c.faults.problem = func(method string) error {
		if method == "EnsurePorts" {
			return &sdn.BulkError{Errs: []error{sdn.Exhausted(sdn.NoQuota, "port", "quota")}}
		}
		return nil
	}
	for range 4 {
		c.round()
		c.now = c.now.Add(core.CountsInterval)
	}
	if !c.events.has(core.EventShort, "quota") {
		t.Errorf("%q", c.events.all)
	}
	c.faults.problem = nil
	c.settle()
	c.check()
	if c.bound()["a"] == "" {
		t.Error("no port when there is quota again")
	}
}

// What somebody does by hand to what is Raven's is put right.
func TestByHand(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Audit = time.Hour })
	c.addNode("n1", nil)
	c.pod("default", "a", "n1", nil)
	c.settle()
	free := func() *v1.KuryrPort {
		for _, p := range c.ports() {
			if p.Status.Pod == nil && p.DeletionTimestamp.IsZero() {
				return &p
			}
		}
		t.Fatal("nothing is available")
		return nil
	}
	c.remove(free()) // kubectl delete
	c.settle()
	c.check()

	gone := free() // deleted in the SDN
	c.must(c.sdn.DeletePorts(t.Context(), []sdn.ID{sdn.ID(gone.Name)}))
	c.now = c.now.Add(2 * time.Hour)
	c.settle()
	c.check()

	torn := free() // its finalizer torn away
	torn.Finalizers = nil
	c.must(c.api.Update(t.Context(), torn))
	c.remove(torn)
	c.settle()
	c.check()

	edited := free()
	was := edited.DeepCopy()
	edited.Spec.Address = "fa:16:3e:ff:ff:ff"
	edited.Labels[v1.LabelNode] = "n9"
	c.must(c.api.Update(t.Context(), edited))
	c.settle()
	c.must(c.api.Get(t.Context(), core.Request("", was.Name).NamespacedName, edited))
	if edited.Spec.Address != was.Spec.Address || edited.Labels[v1.LabelNode] != "n1" {
		t.Errorf("%s on %s stays", edited.Spec.Address, edited.Labels[v1.LabelNode])
	}
	c.check()
}

// A pool that somebody deletes goes with its last pod, and is made again for those that wait.
func TestPoolDeletedByHand(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	web := c.pod("default", "web", "n1", nil)
	c.settle()
	c.remove(&c.pools()[0])
	c.pod("default", "next", "n1", nil)
	c.settle()
	if c.bound()["web"] == "" {
		t.Error("a pod that runs has lost its port")
	}
	c.remove(web)
	c.settle()
	c.whole()
}

// Where a node has no daemon Raven is the claimant.
func TestWithoutDaemon(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	n := c.node("n1")
	n.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	c.must(c.api.Update(t.Context(), n))
	a := c.pod("default", "a", "n1", nil)
	c.settle()
	c.check()
	if c.bound()["a"] == "" {
		t.Fatal("no port")
	}
	if c.faults.calls["patch Pod"] != 0 {
		t.Error("a pod is patched other than by its status: Raven has no right to do that")
	}
	c.must(c.api.Get(t.Context(), core.Request("default", "a").NamespacedName, a))
	var id string
	for _, p := range c.ports() {
		if p.Status.Pod != nil {
			id = p.Name
		}
	}
	if !strings.Contains(a.Annotations[v1.AnnotationVIF], "/apis/openstack.org/v1/kuryrports/"+id) {
		t.Errorf("annotation %q", a.Annotations[v1.AnnotationVIF])
	}
	c.remove(a)
	c.settle()
	c.check()
	if len(c.bound()) != 0 {
		t.Errorf("%v bound", c.bound())
	}
}

// A node that the SDN does not serve: its pool says so, and the pods of the others go on.
func TestNodeThatTheSDNDoesNotServe(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.sdn = c.sdn.(anyHost).Provider
	c.start()
	c.addNode("sdn", nil)
	c.addNode("other", nil)
	c.pod("default", "here", "sdn", nil)
	c.pod("default", "there", "other", nil)
	for range 6 {
		c.round()
		c.daemons()
	}
	if b := c.bound(); b["here"] == "" || b["there"] != "" {
		t.Errorf("bound %v", b)
	}
	const says = `this SDN serves "sdn" only, not "other"`
	for _, p := range c.pools() {
		if other := p.Spec.Node == "other"; core.IsReady(p.Status.Conditions) == other || other && !strings.Contains(p.Status.Conditions[0].Message, says) {
			t.Errorf("pool of node %s: %+v", p.Spec.Node, p.Status.Conditions)
		}
	}
	if !c.events.has(core.EventFailed, says) {
		t.Errorf("no Event tells it: %v", c.events)
	}
}

func TestNetworkPolicyIsNotEnforced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.policy("blue", "deny-all")
	c.settle()
	if !c.events.has("deny-all", core.EventUnserved, "does not enforce") {
		t.Errorf("nobody is told that a network policy filters nothing: %q", c.events.all)
	}
}
