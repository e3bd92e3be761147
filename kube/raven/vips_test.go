package raven

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

// cidrs gives the cluster ranges of ClusterIPs, each later than those before it.
func (c *cluster) cidrs(name string, all ...string) *networkingv1.ServiceCIDR {
	c.t.Helper()
	c.now = c.now.Add(time.Second)
	o := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(c.now)}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: all}}
	c.must(c.api.Create(c.t.Context(), o))
	return o
}

// vipSubnets are those of the VIP network.
func (c *cluster) vipSubnets() (all []string) {
	c.t.Helper()
	there, err := c.raven.vipSubnetsThere(c.t.Context())
	c.must(err)
	for _, s := range there {
		all = append(all, s.CIDR.String())
	}
	return all
}

func (c *cluster) wantVIPSubnets(want ...string) {
	c.t.Helper()
	if got := c.vipSubnets(); !slices.Equal(got, want) {
		c.t.Errorf("the VIP network has %v, want %v", got, want)
	}
}

// unserved checks that a Service is told why it has no VIP, which is not tried again.
func (c *cluster) unserved(name string, words ...string) {
	c.t.Helper()
	lb := c.klb(name)
	i := slices.IndexFunc(lb.Status.Conditions, func(o metav1.Condition) bool { return o.Type == v1.ConditionReady })
	if i < 0 || lb.Status.Conditions[i].Status != metav1.ConditionFalse || lb.Status.Conditions[i].Reason != v1.ReasonInvalid {
		c.t.Errorf("load balancer %s: %+v", name, lb.Status)
	}
	if !c.events.has(append(words, name+" "+core.EventUnserved)...) {
		c.t.Errorf("no Event on %s of %q: %q", name, words, c.events.all)
	}
}

// A range that cannot be served is the trouble of its own Services: those of others are served, of later ones too, and the next Raven begins.
func TestServiceRangeThatCannotBe(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.ServiceRanges = prefixesOf("10.96.0.0/16") })
	c.cidrs("kubernetes", "10.96.0.0/16")
	pods := c.cidrs("a-pods", "10.200.0.0/24") // of their range
	c.cidrs("b-rest", "10.97.0.0/16")          // leaves nothing of the subnet that serves
	for name, vip := range map[string]string{"web": "10.96.0.10", "lost": "10.200.0.10", "late": "10.97.0.10"} {
		c.service(name, nil, vip)
	}
	check := func() {
		t.Helper()
		c.settle()
		c.wantBalancers("10.100.0.10: 6:80>", "10.96.0.10: 6:80>")
		c.wantVIPSubnets("10.96.0.0/15", "10.100.0.0/23")
		c.unserved("lost", "10.200.0.0/24", "the pods' range")
		c.unserved("late", "10.97.0.0/16", "leave no address", "want another range")
	}
	c.settle()
	c.cidrs("c-good", "10.100.0.0/24")
	c.service("far", nil, "10.100.0.10")
	check()
	asked := c.faults.asked["FindSubnets"]
	c.slice("lost-1", "lost", 8080, "10.128.0.5")
	c.settle()
	if n := c.faults.asked["FindSubnets"] - asked; n != 0 {
		t.Errorf("a Service that cannot be served has the SDN be asked %d times", n)
	}
	c.start()
	check()
	c.addNode("n1", nil)
	c.pod("default", "p", "n1", nil)
	c.settle()
	if c.bound()["p"] == "" {
		t.Error("a pod has no port")
	}

	c.remove(c.serviceNow("lost"))
	c.remove(c.serviceNow("late"))
	c.remove(pods)
	c.settle()
	c.wholeServices()
}

// The subnet of a range that has gone goes when Raven begins, but not while there is a VIP on it.
func TestServiceRangeGoes(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.ServiceRanges = prefixesOf("10.96.0.0/16") })
	c.cidrs("kubernetes", "10.96.0.0/16")
	more := c.cidrs("more", "10.100.0.0/24")
	c.start()
	c.service("far", nil, "10.100.0.10")
	c.settle()
	c.wantVIPSubnets("10.96.0.0/15", "10.100.0.0/23")
	c.remove(more)
	c.start()
	c.wantVIPSubnets("10.96.0.0/15", "10.100.0.0/23")
	c.wantBalancers("10.100.0.10: 6:80>")
	c.settle()
	c.remove(c.serviceNow("far"))
	c.settle()
	c.wantBalancers()
	c.faults.problem = func(method string) error {
		if method == "DetachSubnet" {
			return &sdn.Error{Kind: sdn.KindDenied, Noun: "router", Detail: "not yours"}
		}
		return nil
	}
	c.start() // it is in nobody's way
	c.wantVIPSubnets("10.96.0.0/15", "10.100.0.0/23")
	c.faults.problem = nil
	c.start()
	c.wantVIPSubnets("10.96.0.0/15")
	if r, err := c.sdn.Router(t.Context(), c.raven.ground.Router); err != nil || slices.ContainsFunc(r.Interfaces, func(l sdn.RouterInterface) bool {
		return netip.MustParsePrefix("10.100.0.0/23").Contains(l.Addr)
	}) {
		t.Errorf("the router has the legs %+v, %v", r.Interfaces, err)
	}
}

// A subnet that the SDN refuses keeps neither Raven from its start nor other Services from theirs, and is asked for again.
func TestServiceRangeTheSDNRefuses(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.ServiceRanges = prefixesOf("10.96.0.0/16") })
	c.cidrs("kubernetes", "10.96.0.0/16")
	c.cidrs("more", "10.100.0.0/24")
	c.faults.problem = func(method string) error {
		if method == "EnsureSubnet" {
			return sdn.Exhausted(sdn.NoQuota, "subnet", "no more than that")
		}
		return nil
	}
	c.service("web", nil, "10.96.0.10")
	c.service("far", nil, "10.100.0.10")
	for range 2 {
		for range 3 {
			c.round()
		}
		c.wantBalancers("10.96.0.10: 6:80>")
		if lb := c.klb("far"); core.IsReady(lb.Status.Conditions) || !strings.Contains(lb.Status.Conditions[0].Message, "no more than that") {
			t.Errorf("%+v", lb.Status)
		}
		c.start()
	}
	c.faults.problem = nil
	c.settle()
	c.wholeServices()
	c.wantVIPSubnets("10.96.0.0/15", "10.100.0.0/23")
}

// A new range in a subnet that is there is served when the SDN gives none of its addresses away any more, and not before; those that the subnet served go on.
func TestServiceRangeInASubnetThatIsThere(t *testing.T) {
	t.Parallel()
	for method, skip := range map[string]int{"UpdateSubnet": 0, "FindSubnets": 1} { // the plan is made by the first look
		c := newServing(t, func(cfg *Config) { cfg.ServiceRanges = prefixesOf("10.96.0.0/16") })
		c.cidrs("kubernetes", "10.96.0.0/16")
		c.settle()
		c.cidrs("more", "10.97.0.0/24")
		c.service("web", nil, "10.96.0.10")
		c.service("near", nil, "10.97.0.10")
		calls := 0
		c.faults.problem = func(of string) error {
			if of != method {
				return nil
			}
			if calls++; calls > skip {
				return errAway
			}
			return nil
		}
		c.round()
		if calls <= skip {
			t.Fatalf("%s was called %d times", method, calls)
		}
		c.wantBalancers("10.96.0.10: 6:80>")
		c.faults.problem = nil
		c.settle()
		c.wantBalancers("10.96.0.10: 6:80>", "10.97.0.10: 6:80>")
		c.wantVIPSubnets("10.96.0.0/15")
		there, err := c.raven.vipSubnetsThere(t.Context())
		c.must(err)
		if overlap(there[0].Ranges, prefixesOf("10.96.0.0/16", "10.97.0.0/24")) {
			t.Errorf("%s failed, and the SDN gives away %v", method, there[0].Ranges)
		}
	}
}

// A subnet from before that cannot go is the trouble of the range whose place it has.
func TestServiceRangeWhosePlaceIsTaken(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.cidrs("kubernetes", "10.96.0.0/12")
	c.cidrs("more", "10.94.0.0/24")
	c.cfg.Services = true
	c.faults.problem = func(method string) error {
		if method == "DetachSubnet" {
			return &sdn.Error{Kind: sdn.KindDenied, Noun: "router", Detail: "not yours"}
		}
		return nil
	}
	c.start()
	c.service("web", nil, "10.96.0.10")
	c.service("far", nil, "10.94.0.10")
	c.round()
	c.wantBalancers("10.94.0.10: 6:80>")
	if lb := c.klb("web"); !strings.Contains(lb.Status.Conditions[0].Message, "10.96.0.0/12") || !strings.Contains(lb.Status.Conditions[0].Message, "not yours") {
		t.Errorf("%+v", lb.Status)
	}
	c.faults.problem = nil
	c.settle()
	c.wholeServices()
	c.wantVIPSubnets("10.94.0.0/23", "10.96.0.0/11")
}

// While the subnet of a new range is made, nobody is held up: neither Services of others, nor those who work on more of that range.
func TestServicesDoNotWaitForANewRange(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.ServiceRanges = prefixesOf("10.96.0.0/16") })
	c.cidrs("kubernetes", "10.96.0.0/16")
	c.cidrs("more", "10.100.0.0/24")
	c.service("web", nil, "10.96.0.10")
	c.service("far", nil, "10.100.0.10")
	c.service("farther", nil, "10.100.0.11")
	c.tellAll()
	for _, name := range []string{"web", "far", "farther"} {
		_, err := services{c.raven}.Reconcile(t.Context(), core.Request("default", name))
		c.must(err)
	}
	c.tellAll()
	entered, leave := make(chan struct{}), make(chan struct{})
	c.faults.problem = func(method string) error {
		if method == "EnsureSubnet" {
			close(entered)
			<-leave
		}
		return nil
	}
	look := func(name string) (ctrl.Result, error) {
		return balancers{c.raven}.Reconcile(t.Context(), core.Request("default", name))
	}
	far := make(chan error)
	go func() {
		_, err := look("far")
		far <- err
	}()
	select {
	case <-entered:
	case err := <-far:
		t.Fatal("the SDN was not asked for a subnet: ", err)
	}
	if again, err := look("farther"); err != nil || again.RequeueAfter != pendingPause {
		t.Errorf("another one of the range: %v, %v", again, err)
	}
	if _, err := look("web"); err != nil {
		t.Error(err)
	}
	c.wantBalancers("10.96.0.10: 6:80>")
	if len(c.raven.vipClaims()) == 0 {
		t.Error("no claims of the VIP network")
	}
	close(leave)
	c.must(<-far)
	c.faults.problem = nil
	c.settle()
	c.wholeServices()
}

// Where nodes balance, a range that cannot be is led nowhere, and others are.
func TestServiceRangeThatCannotBeOfNodes(t *testing.T) {
	t.Parallel()
	c := farCluster(t, func(cfg *Config) { cfg.NodeBalanced = true })
	c.cidrs("kubernetes", "10.96.0.0/16")
	c.start()
	c.addNode("n1", nil)
	c.ready("n1", corev1.ConditionTrue)
	c.cidrs("pods", "10.200.0.0/24")
	c.cidrs("part", "10.96.4.0/24") // of what is led there already
	c.cidrs("more", "10.100.0.0/24")
	for range 2 {
		c.settle()
		hop := c.own("n1").Spec.Network.Subnets[0].IPs[0]
		if got, want := c.routes(), []string{"10.100.0.0/24 " + hop, "10.96.0.0/16 " + hop}; !slices.Equal(got, want) {
			t.Errorf("routes %q, want %q", got, want)
		}
		c.start()
	}
}
