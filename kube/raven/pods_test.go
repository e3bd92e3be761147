package raven

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// names are the pods that have ports, sorted.
func (c *cluster) names() []string {
	var all []string
	for name := range c.bound() {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// rounds is for what never comes to rest, since something is tried again and again.
func (c *cluster) rounds(n int) {
	for range n {
		c.round()
		c.daemons()
		c.now = c.now.Add(core.CountsInterval)
	}
}

// existing makes a network of somebody else's.
func (c *cluster) existing(name, cidr string) sdn.ID {
	c.t.Helper()
	base := sdn.Base{Key: sdn.Key{Owner: "somebody", Kind: "test", Name: name}, Name: name}
	n, err := c.sdn.EnsureNetwork(c.t.Context(), sdn.NetworkSpec{Base: base, Subnets: []sdn.SubnetSpec{{Base: base, CIDR: netip.MustParsePrefix(cidr)}}})
	c.must(err)
	return n.ID
}

// ends is a pod whose containers have all ended.
func (c *cluster) ends(p *corev1.Pod, phase corev1.PodPhase) {
	c.t.Helper()
	c.must(c.api.Get(c.t.Context(), client.ObjectKeyFromObject(p), p))
	p.Status.Phase = phase
	c.must(c.api.Status().Update(c.t.Context(), p))
}

// A subnet without an address left keeps the pods waiting that are on it, and no others. Its pool says so, and an address that is freed goes to one of them.
func TestSubnetFull(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool.Minimum = 0 })
	c.addNode("n1", nil)
	const there = 5 // addresses of a /29 without the gateway's
	small := c.existing("small", "10.9.0.0/29")
	c.namespace("small", map[string]string{v1.AnnotationNetwork: string(small)})
	var pods []*corev1.Pod
	for i := range there + 2 {
		pods = append(pods, c.pod("small", fmt.Sprint("s", i), "n1", nil))
	}
	c.rounds(12)
	if n := len(c.bound()); n != there || !c.events.has(core.EventShort, "address") {
		t.Fatalf("%d pods have one of %d addresses; %q", n, there, c.events.all)
	}
	c.pod("default", "d", "n1", nil)
	c.rounds(3)
	if c.bound()["d"] == "" {
		t.Errorf("a pod of another namespace waits too: %v", c.names())
	}
	for _, p := range c.pools() {
		if full := p.Spec.Network == string(small); core.IsReady(p.Status.Conditions) == full || full && p.Status.Conditions[0].Reason != v1.ReasonExhausted {
			t.Errorf("pool %s: %+v", p.Name, p.Status.Conditions)
		}
	}
	gone := 0
	for _, p := range pods {
		if c.bound()[p.Name] != "" && gone < 2 {
			c.remove(p)
			gone++
		}
	}
	c.settle()
	c.check()
	if n := len(c.bound()); n != there+1 {
		t.Errorf("%v have ports when there is room again", c.names())
	}
}

// A pod that has ended, well or not, gives its address back while its object is still there, and is given none when Raven starts anew.
func TestCompletedPods(t *testing.T) {
	t.Parallel()
	for _, claimant := range []string{"", v1.ClaimantRaven} {
		c := newCluster(t, func(cfg *Config) { cfg.Pool = pool.Policy{Batch: 1, TTL: time.Minute} })
		c.addNode("n1", nil)
		n := c.node("n1")
		n.Labels = map[string]string{v1.LabelClaimant: claimant}
		c.must(c.api.Update(t.Context(), n))
		c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
		job := c.pod("blue", "job", "n1", nil)
		failed := c.pod("blue", "failed", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
		c.settle()
		was := c.bound()
		if len(was) != 2 {
			t.Fatalf("%q: %v", claimant, was)
		}
		c.ends(job, corev1.PodSucceeded)
		c.ends(failed, corev1.PodFailed)
		c.settle()
		next := c.pod("blue", "next", "n1", nil)
		c.settle()
		c.check()
		if now := c.bound(); len(now) != 1 || now["next"] != was["job"] {
			t.Errorf("%q: %v, then %v: the address of the pod that ended is not used again", claimant, was, now)
		}
		c.remove(next)
		c.settle()
		c.start()
		c.settle()
		c.now = c.now.Add(time.Hour)
		c.settle()
		c.check()
		if left := c.ports(); len(left) != 0 {
			t.Errorf("%q: ports for pods that have ended: %v", claimant, left)
		}
	}
}

// A pod, or its whole namespace, that goes while its port is being made leaves nothing behind, and is right when it comes again under its name.
func TestDeletedWhileBeingMade(t *testing.T) {
	t.Parallel()
	for _, wishes := range []map[string]string{nil, {v1.AnnotationMAC: "fa:16:3e:00:00:01"}} {
		for turns := 0; turns < 60; turns += 7 {
			c := newCluster(t, nil)
			c.addNode("n1", nil)
			grants := map[string]string{v1.AnnotationAllowMAC: "true"}
			c.namespace("blue", grants)
			before := c.pod("blue", "web", "n1", wishes)
			c.take(turns)
			var ns corev1.Namespace
			c.must(c.api.Get(t.Context(), core.Request("", "blue").NamespacedName, &ns))
			c.remove(before)
			c.remove(&ns)
			c.take(turns % 4)
			c.namespace("blue", grants)
			after := c.pod("blue", "web", "n1", wishes)
			c.settle()
			c.check()
			for _, p := range c.ports() {
				if p.Status.Pod != nil && p.Status.Pod.UID != after.UID || p.Spec.Dedicated == before.UID {
					t.Errorf("after %d turns, wishes %v: the pod that has gone has port %s", turns, wishes, p.Name)
				}
			}
			if c.bound()["web"] == "" {
				t.Errorf("after %d turns, wishes %v: the pod made again has no port", turns, wishes)
			}
		}
	}
}

// What a pool has survives a restart; other options of pools hold with the next start, for pools that are there too, and leave pods their ports.
func TestPoolOptions(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "a", "n1", nil)
	c.settle()
	ids := func() (all []string) {
		for _, p := range c.ports() {
			if p.DeletionTimestamp.IsZero() {
				all = append(all, p.Name)
			}
		}
		slices.Sort(all)
		return all
	}
	before, address := ids(), c.bound()["a"]
	c.start()
	c.faults.asked = nil
	c.settle()
	if after := ids(); len(before) != 4 || !slices.Equal(before, after) || c.faults.asked["EnsurePorts"] != 0 {
		t.Errorf("ports %v, after a restart %v; the SDN was asked %v", before, after, c.faults.asked)
	}
	for _, row := range []struct {
		policy    pool.Policy
		available int
	}{
		{pool.Policy{Minimum: 5, Batch: 6}, 9}, // three, and a batch
		{pool.Policy{Maximum: 3, Batch: 1}, 2},
		{pool.Policy{Batch: 1, TTL: time.Minute}, 0},
		{pool.Policy{Minimum: 1, Batch: 2}, 2},
	} {
		c.cfg.Pool = row.policy
		c.start()
		c.settle()
		c.now = c.now.Add(50 * time.Hour) // longer than a day: idle is idle
		c.settle()
		c.check()
		if p := c.pools()[0]; p.Status.Available != row.available || p.Status.Bound != 1 || c.bound()["a"] != address {
			t.Errorf("%+v: %d available, %d bound, want %d and 1; %v", row.policy, p.Status.Available, p.Status.Bound, row.available, c.bound())
		}
	}
}

// A namespace that names a project has its network, its subnet and its pods' ports there.
func TestProject(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationProject: "p1"})
	c.pod("blue", "web", "n1", nil)
	c.pod("default", "other", "n1", nil)
	c.settle()
	c.check()
	var nets v1.KuryrNetworkList
	c.list(&nets)
	for _, n := range nets.Items {
		want := map[string]string{"blue": "p1", "default": ""}[n.Spec.Namespace]
		network, err := c.sdn.Network(t.Context(), sdn.ID(n.Status.Network))
		if err != nil || network.Project != want || n.Spec.ProjectID != want {
			t.Errorf("network of %s: project %q, in the SDN %q, %v", n.Spec.Namespace, n.Spec.ProjectID, network.Project, err)
		}
		found := 0
		for p, err := range c.sdn.FindPorts(t.Context(), sdn.PortQuery{Networks: []sdn.ID{network.ID}, Match: sdn.Match{Kind: v1.KeyKindPort, Owner: c.sdn.Installation()}}) {
			if found++; err != nil || p.Project != want {
				t.Errorf("port %s of %s: project %q, %v", p.ID, n.Spec.Namespace, p.Project, err)
			}
		}
		if found == 0 {
			t.Errorf("no port of %s", n.Spec.Namespace)
		}
	}
	if c.bound()["web"] == "" || c.bound()["other"] == "" {
		t.Errorf("%v have ports", c.names())
	}
}

// A pod that wishes a floating IP has one on its port, is told which, and gives it back; one that is not granted it, or whose address is taken, is told so.
func TestFloatingIPs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowFloatingIPs: "any"})
	web := c.pod("blue", "web", "n1", map[string]string{v1.AnnotationFloatingIP: "new"})
	c.pod("default", "greedy", "n1", map[string]string{v1.AnnotationFloatingIP: "new"})
	c.settle()
	c.check()
	all := func() []sdn.FloatingIP {
		t.Helper()
		found, err := sdn.All(c.sdn.FindFloatingIPs(t.Context(), sdn.FloatingIPQuery{}))
		c.must(err)
		return found
	}
	has := all()
	if len(has) != 1 || c.bound()["web"] == "" || has[0].Target.Addr.String() != c.bound()["web"] || !c.events.has("web", core.EventMade, has[0].Address.String()) {
		t.Fatalf("floating IPs %+v, pods %v; %q", has, c.bound(), c.events.all)
	}
	for _, p := range c.ports() {
		if p.Spec.Dedicated == web.UID && (sdn.ID(p.Name) != has[0].Target.Port || p.Annotations[v1.AnnotationFloatingAddress] != has[0].Address.String()) {
			t.Errorf("port %s has %v, the floating IP %+v", p.Name, p.Annotations, has[0].Target)
		}
	}
	if c.bound()["greedy"] != "" || !c.events.has("greedy", core.EventRefused, v1.AnnotationAllowFloatingIPs) {
		t.Errorf("not granted: %v; %q", c.bound(), c.events.all)
	}

	address := has[0].Address.String()
	c.pod("blue", "twin", "n1", map[string]string{v1.AnnotationFloatingIP: address})
	c.rounds(2)
	if !c.events.has("twin", core.EventFailed, address) || len(all()) != 1 {
		t.Errorf("a floating IP that another has: %+v; %q", all(), c.events.all)
	}
	c.remove(web)
	c.settle()
	c.check()
	if has = all(); len(has) != 1 || has[0].Address.String() != address || has[0].Target.Addr.String() != c.bound()["twin"] {
		t.Errorf("given back and wished for, it is %+v; %v", has, c.bound())
	}
	c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "twin"}})
	c.settle()
	c.check()
	if has = all(); len(has) != 0 {
		t.Errorf("left: %+v", has)
	}
}

// The metrics of ports are those that the resources have, also after a restart, and to read them asks nothing of the SDN.
func TestCountsAreThePools(t *testing.T) {
	t.Parallel()
	var metrics *prometheus.Registry
	begin := func(cfg *Config) {
		metrics = prometheus.NewRegistry()
		cfg.Registerer = metrics
	}
	c := newCluster(t, begin)
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	c.pod("default", "a", "n1", nil)
	c.pod("default", "b", "n2", nil)
	c.settle()
	for range 2 {
		want := map[string]float64{"pending": 0, "leaving": 0}
		for _, p := range c.pools() {
			want["available"] += float64(p.Status.Available)
			want["bound"] += float64(p.Status.Bound)
		}
		c.faults.asked = nil
		families, err := metrics.Gather()
		c.must(err)
		is := map[string]float64{}
		for _, f := range families {
			if f.GetName() == "kuryr_raven_ports" {
				for _, m := range f.GetMetric() {
					is[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		if !maps.Equal(is, want) || want["bound"] != 2 || len(c.faults.asked) != 0 {
			t.Errorf("metrics %v, the pools have %v; the SDN was asked %v", is, want, c.faults.asked)
		}
		begin(&c.cfg)
		c.start()
		c.settle()
	}
}

// counted are a metric's values by its only label.
func counted(t *testing.T, metrics prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				all[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return all
}

// lookAtPool has Raven look at the one pool of a namespace's network once, whatever comes of it.
func (c *cluster) lookAtPool(namespace string) {
	c.t.Helper()
	c.tellAll()
	_, _ = (pools{c.raven}).Reconcile(c.t.Context(), core.Request("", c.networkPool(namespace)))
}

// noSubnets is an SDN that makes ports and tells nobody of its subnets.
type noSubnets struct{ sdn.Provider }

func (noSubnets) FindSubnets(context.Context, sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return func(yield func(sdn.Subnet, error) bool) {
		yield(sdn.Subnet{}, sdn.Unavailable(nil, "sdn", "it is away"))
	}
}

// Ports that the SDN has made count when it has made them, whatever becomes of their objects.
func TestMadeIsCounted(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	c := newCluster(t, func(cfg *Config) { cfg.Registerer, cfg.Pool = metrics, pool.Policy{Batch: 1} })
	c.addNode("n1", nil)
	c.pod("default", "a", "n1", nil)
	c.settle()
	was := counted(t, metrics, "kuryr_raven_ports_made_total")["ok"]
	c.raven.SDN = noSubnets{c.raven.SDN}
	c.raven.ForgetSubnets(sdn.ID(c.networkOf("default").Status.Network))
	c.pod("default", "b", "n1", nil)
	c.lookAtPool("default")
	if is := counted(t, metrics, "kuryr_raven_ports_made_total")["ok"]; is != was+1 || c.faults.asked["EnsurePorts"] < 2 {
		t.Errorf("%v ports are counted, before it were %v", is, was)
	}
}

// A pool that gets too few ports is counted once a look by what is in the way.
func TestShortIsCounted(t *testing.T) {
	t.Parallel()
	wish := map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"}
	for name, row := range map[string]struct {
		reason  string
		maximum int
		most    int
		wish    map[string]string
		err     error
	}{
		"maximum":       {reason: "maximum", maximum: 1},
		"cap":           {reason: "cap", most: 1},
		"cap on wishes": {reason: "cap", most: 1, wish: wish},
		"exhausted":     {reason: "exhausted", err: &sdn.BulkError{Errs: []error{sdn.Exhausted(sdn.NoQuota, "port", "quota")}}},
		"away":          {reason: "sdn", err: sdn.Unavailable(nil, "sdn", "it is away")},
		"too late":      {reason: "sdn", err: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			metrics := prometheus.NewRegistry()
			c := newCluster(t, func(cfg *Config) {
				cfg.Registerer, cfg.Pool, cfg.MaxPorts = metrics, pool.Policy{Batch: 1, Maximum: row.maximum}, row.most
			})
			c.annotate("default", map[string]string{v1.AnnotationAllowMAC: "true"})
			c.addNode("n1", nil)
			c.faults.problem = func(method string) error {
				if method == "EnsurePorts" {
					return row.err
				}
				return nil
			}
			c.pod("default", "a", "n1", nil)
			c.pod("default", "b", "n1", row.wish)
			c.rounds(3)
			was := counted(t, metrics, "kuryr_raven_pool_short_total")
			c.lookAtPool("default")
			is := counted(t, metrics, "kuryr_raven_pool_short_total")
			if len(is) != 1 || is[row.reason] != was[row.reason]+1 {
				t.Errorf("counted are %v, and before one more look %v", is, was)
			}
		})
	}
}

// A floating IP that cannot be deleted keeps its own port, and no other of the pool.
func TestFloatingIPThatStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true", v1.AnnotationAllowFloatingIPs: "new"})
	one := c.pod("blue", "one", "n1", map[string]string{v1.AnnotationFloatingIP: "new"})
	two := c.pod("blue", "two", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:02"})
	c.settle()
	c.faults.problem = func(method string) error {
		if method == "DeleteFloatingIP" {
			return sdn.Unavailable(nil, "floating IP", "not now")
		}
		return nil
	}
	c.remove(one)
	c.remove(two)
	c.rounds(6)
	left := map[types.UID]bool{}
	for _, p := range c.ports() {
		left[p.Spec.Dedicated] = true
	}
	if !left[one.UID] || left[two.UID] {
		t.Errorf("the port with the floating IP is there: %v; the other: %v", left[one.UID], left[two.UID])
	}
	c.faults.problem = nil
	c.settle()
	c.check()
}

// A wish that is annotated on a pod which has its port makes no second one, and the pod's owner is told when it counts. A pod that is made anew has it.
func TestWishOfAPodThatRuns(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowFloatingIPs: "new"})
	pod := c.pod("blue", "web", "n1", nil)
	c.settle()
	was := c.bound()["web"]
	c.must(c.api.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	pod.Annotations = map[string]string{v1.AnnotationFloatingIP: "new"}
	c.must(c.api.Update(t.Context(), pod))
	c.settle()
	for _, p := range c.ports() {
		if p.Spec.Dedicated != "" {
			t.Errorf("a port %s is made for it", p.Name)
		}
	}
	if c.bound()["web"] != was || !c.events.has("web", core.EventRefused, "made anew") || c.events.has("web", "has the floating IP") {
		t.Errorf("it had %s and has %s; %q", was, c.bound()["web"], c.events.all)
	}
	c.remove(pod)
	c.pod("blue", "web", "n1", map[string]string{v1.AnnotationFloatingIP: "new"})
	c.settle()
	c.check()
	if c.bound()["web"] == "" || !c.events.has("web", core.EventMade, "has the floating IP") {
		t.Errorf("made anew it has %q; %q", c.bound()["web"], c.events.all)
	}
}

// A wish that cannot be looked at, since Kubernetes or the SDN does not answer in time, is not refused: it is tried again.
func TestWishThatWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowAddresses: "any"})
	c.pod("blue", "plain", "n1", nil)
	c.settle()
	address := netip.MustParsePrefix(c.ports()[0].Spec.Network.Subnets[0].CIDR).Addr()
	for range 50 {
		address = address.Next()
	}
	c.pod("blue", "fixed", "n1", map[string]string{v1.AnnotationAddress: address.String()})
	asks := c.raven.SDN
	c.raven.SDN = slow{asks}
	c.now = c.now.Add(2 * core.SubnetAge) // what is known of subnets is too old
	c.tellAll()
	if again, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", c.networkPool("blue"))); err == nil && again.RequeueAfter == 0 {
		t.Error("it is not tried again")
	}
	if c.events.has("fixed", core.EventRefused) {
		t.Errorf("it is refused: %q", c.events.all)
	}
	c.raven.SDN = asks
	c.settle()
	c.check()
	if c.bound()["fixed"] != address.String() {
		t.Errorf("it has %q, want %s", c.bound()["fixed"], address)
	}
}

// slow is an SDN that does not tell subnets in time.
type slow struct{ sdn.Provider }

func (slow) FindSubnets(context.Context, sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return func(yield func(sdn.Subnet, error) bool) { yield(sdn.Subnet{}, context.DeadlineExceeded) }
}

// A wish that was refused is granted as soon as the namespace does.
func TestGrantedLater(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	c.pod("blue", "web", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
	c.settle()
	if c.bound()["web"] != "" {
		t.Fatal("it has a port with what is not granted")
	}
	c.annotate("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
	c.settle()
	c.whole()
}

// Pools that are gone are forgotten, also when the event of their end is looked at.
func TestPoolsThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	for range 3 {
		c.namespace("green", nil)
		pod := c.pod("green", "p", "n1", nil)
		c.settle()
		pool := c.networkPool("green")
		c.remove(pod)
		c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "green"}})
		c.settle()
		if _, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", pool)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.raven.memory.pools); n != len(c.pools()) {
		t.Errorf("%d pools are there and %d remembered", len(c.pools()), n)
	}
}
