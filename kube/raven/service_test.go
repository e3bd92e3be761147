package raven

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// A Service's life: its VIP, its endpoints, and its end.
func TestFromTheServiceToTheLoadBalancer(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	web := c.service("web", nil, "10.96.0.1")
	c.settle()
	c.wantBalancers("10.96.0.1: 6:80>")
	c.slice("web-1", "web", 8080, "10.128.0.5", "10.128.0.6")
	c.slice("web-2", "web", 9090, "10.128.0.6", "192.0.2.1") // another target port, and the host's network
	c.settle()
	c.wantBalancers("10.96.0.1: 6:80>10.128.0.5:8080,10.128.0.6:8080,10.128.0.6:9090,192.0.2.1:9090")
	c.now = c.now.Add(core.CountsInterval)
	c.settle()
	if lb := c.klb("web"); lb.Status.Members != 3 || len(lb.Finalizers) != 1 || len(c.serviceNow("web").Finalizers) != 0 {
		t.Errorf("status %+v", lb.Status)
	}
	c.wholeServices()

	torn := c.klb("web")
	torn.Finalizers = nil
	c.must(c.api.Update(t.Context(), torn))
	c.settle()
	if lb := c.klb("web"); len(lb.Finalizers) != 1 {
		t.Error("the finalizer was torn away, and is not back: its end would leave load balancers in the SDN")
	}

	asked := c.faults.asked["ApplyLoadBalancer"]
	c.slice("web-1", "web", 8080, "10.128.0.6", "10.128.0.5") // the same in another order
	c.change("web", func(s *corev1.Service) { s.Labels = map[string]string{"seen": "yes"} })
	c.settle()
	if now := c.faults.asked["ApplyLoadBalancer"]; now != asked {
		t.Errorf("the SDN was asked %d times for what it has", now-asked)
	}
	c.slice("web-1", "web", 8080)
	c.change("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	c.settle()
	c.wantBalancers("10.96.0.1: 6:81>10.128.0.6:9090,192.0.2.1:9090")

	c.remove(web)
	c.settle()
	c.wantBalancers()
	if c.klb("web") != nil {
		t.Error("the KuryrLoadBalancer is there")
	}
}

// undrained has load balancers whose members cannot drain, as those of OVN.
type undrained struct{ sdn.Provider }

func (p undrained) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.LoadBalancer.Drain = false
	return can
}

// An endpoint that terminates and serves while others are ready drains, where the SDN knows that, and is not counted. Each step is one change, and the end of one that goes at once, or does not drain, is one in all.
func TestEndpointsDrain(t *testing.T) {
	t.Parallel()
	for _, drain := range []bool{true, false} {
		c := newServing(t, nil)
		if !drain {
			c.sdn = undrained{c.sdn}
			c.start()
		}
		c.service("web", nil, "10.96.0.1")
		for _, step := range []struct {
			endpoints, drained, undrained string
			asks, undrainedAsks           int
			members                       int
		}{
			{"10.128.0.5 10.128.0.6 10.128.0.7", "10.128.0.5:80,10.128.0.6:80,10.128.0.7:80", "10.128.0.5:80,10.128.0.6:80,10.128.0.7:80", 1, 1, 3},
			{"10.128.0.5 10.128.0.6", "10.128.0.5:80,10.128.0.6:80", "10.128.0.5:80,10.128.0.6:80", 1, 1, 2},
			{"10.128.0.5 ~10.128.0.6", "10.128.0.5:80,~10.128.0.6:80", "10.128.0.5:80", 1, 1, 1},
			{"10.128.0.5", "10.128.0.5:80", "10.128.0.5:80", 1, 0, 1},
			{"~10.128.0.5", "10.128.0.5:80", "10.128.0.5:80", 0, 0, 1},
			{"10.128.0.8 ~10.128.0.5", "10.128.0.8:80,~10.128.0.5:80", "10.128.0.8:80", 1, 1, 1},
		} {
			want, asks := step.drained, step.asks
			if !drain {
				want, asks = step.undrained, step.undrainedAsks
			}
			before := c.faults.asked["ApplyLoadBalancer"]
			c.slice("web-1", "web", 80, strings.Fields(step.endpoints)...)
			c.settle()
			c.wantBalancers("10.96.0.1: 6:80>" + want)
			if n := c.faults.asked["ApplyLoadBalancer"] - before; n != asks {
				t.Errorf("drain %t, %s: the SDN was asked %d times, want %d", drain, step.endpoints, n, asks)
			}
			c.now = c.now.Add(core.CountsInterval)
			c.settle()
			if n := c.klb("web").Status.Members; n != step.members {
				t.Errorf("drain %t, %s: %d members are told of, want %d", drain, step.endpoints, n, step.members)
			}
		}
		c.wholeServices()
	}
}

// What slices say of their endpoints is so with publishNotReadyAddresses too, by which the control plane calls all of its own ready: a hand-made one that is not has no connections, as with kube-proxy.
func TestPublishNotReadyAddresses(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("web", func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }, "10.96.0.10")
	c.slice("web-1", "web", 80, "10.128.0.5", "~10.128.0.6")
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80,~10.128.0.6:80")
	c.wholeServices()
}

// A Service made again under its name at once has a load balancer of its own, and so has one with another ClusterIP under the same UID.
func TestServiceMadeAgain(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	web := c.service("web", exposedService, "10.96.0.10")
	c.slice("web", "web", 80, "10.128.0.5")
	c.settle()
	before := c.klb("web").UID
	c.remove(web)
	c.service("web", exposedService, "10.96.0.10")
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
	if c.klb("web").UID == before {
		t.Error("the KuryrLoadBalancer is the old one")
	}
	c.change("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "", nil
	})
	c.change("web", func(s *corev1.Service) {
		exposedService(s)
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.20", []string{"10.96.0.20"}
	})
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.20: 6:80>10.128.0.5:80")
}

// An endpoint made by hand that is the Service's own ClusterIP is none, and the others answer.
func TestServiceThatIsItsOwnEndpoint(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("web", nil, "10.96.0.10")
	c.slice("web-1", "web", 80, "10.96.0.10", "10.128.0.5", "10.96.0.11")
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80,10.96.0.11:80")
	if !c.events.has("web "+core.EventUnserved, "a VIP of the Service itself") {
		t.Errorf("Events %q", c.events.all)
	}
}

// Families come and go, each with its endpoints; what the other has goes on.
func TestFamiliesOfServices(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(c *Config) {
		c.ServiceRanges = append(c.ServiceRanges, netip.MustParsePrefix("fd00:96::/112"))
	})
	c.service("web", exposedService, "10.96.0.10")
	c.slice("web-4", "web", 80, "10.128.0.5")
	c.slice("web-6", "web", 80, "fd00:1::5")
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
	was := c.klb("web").Status.LoadBalancers[0].ID
	c.change("web", func(s *corev1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:96::a") })
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80", "fd00:96::a: 6:80>[fd00:1::5]:80")
	if c.klb("web").Status.LoadBalancers[0].ID != was {
		t.Error("the first family's load balancer is another")
	}
	c.change("web", func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] })
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
}

// A range of ClusterIPs that comes later gets its subnet with the first Service of it.
func TestServiceRangeComesLater(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.cidrs("kubernetes", "10.96.0.0/16")
	c.start()
	c.service("web", nil, "10.97.0.10")
	c.settle()
	if lb := c.klb("web"); core.IsReady(lb.Status.Conditions) || lb.Status.Conditions[0].Reason != v1.ReasonPending {
		t.Fatalf("a ClusterIP of no range: %+v", lb.Status)
	}
	c.cidrs("more", "10.100.0.0/24", "10.97.0.0/24")
	c.service("far", nil, "10.100.0.10")
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.100.0.10: 6:80>", "10.97.0.10: 6:80>")
	for s, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{}) {
		c.must(err)
		for _, p := range prefixesOf("10.96.0.0/16", "10.100.0.0/24", "10.97.0.0/24") {
			if s.CIDR.Overlaps(p) && s.Key.Kind == v1.KeyKindSubnet && overlap(s.Ranges, []netip.Prefix{p}) {
				t.Errorf("subnet %s gives away %v, of %s", s.CIDR, s.Ranges, p)
			}
		}
	}
}

// Who has ours no more: by label, by type, by the class, by the setting.
func TestServicesOfOthers(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	other := "example.org/theirs"
	for i, change := range []func(*corev1.Service){
		func(s *corev1.Service) { s.Labels = map[string]string{labelProxyName: "x"} },
		func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} },
		func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		},
		func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "", nil
		},
		func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerClass = &other },
	} {
		c.service(fmt.Sprint("s", i), change, fmt.Sprintf("10.96.0.%d", 10+i))
	}
	c.service("web", exposedService, "10.96.0.20")
	c.settle()
	c.wantBalancers("10.96.0.14: 6:80>", "10.96.0.20: 6:80>")
	if len(c.floats()) != 1 || c.ingress("s4") != "" {
		t.Errorf("floating IPs %v", c.floats())
	}
	c.cfg.Services = false // back to kube-proxy
	c.start()
	c.settle()
	c.wantBalancers()
	if len(c.floats()) != 0 || c.ingress("web") != "" || c.klb("web") != nil {
		t.Errorf("left: %v, ingress %q", c.floats(), c.ingress("web"))
	}
}

// What was deleted in the SDN is made anew: at the start, and by the audit.
func TestLoadBalancerDeletedBehindRavensBack(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(c *Config) { c.Audit = time.Hour })
	c.service("web", exposedService, "10.96.0.10")
	c.slice("web", "web", 80, "10.128.0.5")
	c.settle()
	for _, again := range []func(){c.start, func() { c.now = c.now.Add(time.Hour) }} {
		for lb, err := range c.sdn.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{}) {
			c.must(err)
			c.must(c.sdn.DeleteLoadBalancer(t.Context(), lb.ID))
		}
		c.settle()
		c.wantBalancers()
		again()
		c.settle()
		c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
		c.wholeServices()
	}
}

// One that the SDN refuses, or is at work on for minutes, holds up no other.
func TestEachServiceByItself(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	c.cfg.Provider = nil
	stuck := map[string]error{"10.96.0.10": sdn.Exhausted(sdn.NoQuota, "load balancer", "the project's quota is used up"), "10.96.0.11": nil}
	c.sdn = stuckLBs{c.sdn, stuck}
	c.start()
	for i, name := range []string{"full", "slow", "fine"} {
		c.service(name, nil, fmt.Sprintf("10.96.0.%d", 10+i))
	}
	for range 100 {
		c.round()
		c.now = c.now.Add(time.Second)
	}
	c.wantBalancers("10.96.0.12: 6:80>")
	for name, reason := range map[string]string{"full": v1.ReasonExhausted, "slow": v1.ReasonPending} {
		if lb := c.klb(name); core.IsReady(lb.Status.Conditions) || lb.Status.Conditions[0].Reason != reason {
			t.Errorf("%s: %+v", name, lb.Status)
		}
	}
	if n := c.faults.asked["ApplyLoadBalancer"]; n > 60 {
		t.Errorf("the SDN was asked %d times in 100 seconds", n)
	}
	clear(stuck)
	c.now = c.now.Add(lastRetry)
	c.settle()
	c.wholeServices()
}

// nearby has load balancers that reach pods alone from floating IPs, as those of OVN do.
type nearby struct{ sdn.Provider }

func (p nearby) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.LoadBalancer.AnyMember = false
	return can
}

// Endpoints beyond the SDN are members; what floating IPs do not reach is told once, however often endpoints change, in both families.
func TestEndpointsOutOfReachAreToldOnce(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.ServiceRanges = prefixesOf("10.96.0.0/16", "fd00:96::/112") })
	c.sdn = nearby{c.sdn}
	c.start()
	told := func() (count int) {
		for _, e := range c.events.all {
			if strings.Contains(e, "not all endpoints are served") {
				count++
			}
		}
		return count
	}
	c.service("web", nil, "10.96.0.10", "fd00:96::10")
	c.slice("web-6", "web", 80, "2001:db8::1")
	c.slice("web-4", "web", 80, "192.0.2.1")
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>192.0.2.1:80", "fd00:96::10: 6:80>[2001:db8::1]:80")
	if told() > 0 {
		t.Errorf("all are served, and it is told: %q", c.events.all)
	}
	c.change("web", exposedService)
	for i := range 5 {
		c.slice("web-4", "web", 80, "192.0.2.1", fmt.Sprintf("192.0.2.%d", 2+i))
		c.settle()
	}
	if told() != 1 {
		t.Errorf("told %d times: %q", told(), c.events.all)
	}
	c.wantBalancers("10.96.0.10: 6:80>192.0.2.1:80,192.0.2.6:80", "fd00:96::10: 6:80>[2001:db8::1]:80")
}

// serviceKills are scenarios during which Raven is killed at every one of its writes.
var serviceKills = map[string]func(c *cluster){
	"a Service":              func(c *cluster) { c.service("new", nil, "10.96.0.11"); c.slice("new", "new", 80, "10.128.0.5") },
	"one with a floating IP": func(c *cluster) { c.service("new", exposedService, "10.96.0.11") },
	"a Service goes":         func(c *cluster) { c.remove(c.serviceNow("old")) },
	"one goes and comes": func(c *cluster) {
		c.remove(c.serviceNow("old"))
		c.service("old", exposedService, "10.96.0.10")
	},
	"the type changes": func(c *cluster) {
		c.change("old", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	},
	"another address is asked for": func(c *cluster) {
		other := netip.MustParseAddr(c.ingress("old")).Next().Next().String()
		c.change("old", func(s *corev1.Service) { s.Spec.LoadBalancerIP = other })
	},
	"the ClusterIP changes": func(c *cluster) {
		c.change("old", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.20", []string{"10.96.0.20"} })
	},
}

func TestKilledAtEveryWriteOfServices(t *testing.T) {
	t.Parallel()
	for name, act := range serviceKills {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", name, lost), func(t *testing.T) {
				t.Parallel()
				for at := 1; ; at++ {
					c := newServing(t, nil)
					c.service("old", exposedService, "10.96.0.10")
					c.slice("old", "old", 80, "10.128.0.5")
					c.settle()
					act(c)
					c.faults.writes, c.faults.kill, c.faults.lost = 0, at, lost
					c.settle()
					killed := c.faults.dead
					c.start()
					c.settle()
					c.wholeServices()
					if t.Failed() {
						t.Fatalf("killed at write %d", at)
					}
					if !killed {
						if at < 3 {
							t.Fatalf("only %d writes", at)
						}
						return
					}
				}
			})
		}
	}
}

// Whatever befalls a request, all is right in the end.
func TestTroubleAtEveryRequestOfServices(t *testing.T) {
	t.Parallel()
	for scenario, act := range serviceKills {
		for name, of := range troubles {
			t.Run(scenario+", "+name, func(t *testing.T) {
				t.Parallel()
				for at := 0; ; {
					c := newServing(t, nil)
					c.service("old", exposedService, "10.96.0.10")
					c.settle()
					if at += 3; at == 3 {
						at = 1 + c.rand.IntN(3)
					}
					c.faults.trouble = of
					c.faults.trouble.from = at
					act(c)
					c.settle()
					c.wholeServices()
					if t.Failed() {
						t.Fatalf("at request %d", at)
					}
					if c.faults.trouble.seen < at {
						return
					}
				}
			})
		}
	}
}

// A change of one Service of many costs no more than one of few.
func TestOneServiceOfMany(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	for i := range 60 {
		c.service(fmt.Sprint("s", i), exposedService, fmt.Sprintf("10.96.1.%d", i+1))
		c.slice(fmt.Sprint("s", i), fmt.Sprint("s", i), 80, "10.128.0.5")
	}
	c.settle()
	c.faults.asked, c.faults.calls = nil, nil
	c.slice("s7", "s7", 80, "10.128.0.5", "10.128.0.6")
	c.settle()
	total := 0
	for _, n := range c.faults.asked {
		total += n
	}
	if total != 1 || c.faults.asked["ApplyLoadBalancer"] != 1 {
		t.Errorf("one endpoint more asked the SDN for %v", c.faults.asked)
	}
	c.faults.asked, c.faults.calls = nil, nil
	c.service("one", nil, "10.96.2.1")
	c.settle()
	if n := c.faults.asked["ApplyLoadBalancer"]; n != 1 || len(c.faults.asked) != 1 {
		t.Errorf("one Service more asked the SDN for %v", c.faults.asked)
	}
	for what, n := range c.faults.calls {
		if n > 2 {
			t.Errorf("one Service more asked the API server %d times to %s", n, what)
		}
	}
}

// A cluster that had Raven before it served Services gets a VIP network that is large enough, wherever Raven is killed; and switched off it keeps that.
func TestVIPNetworkIsMadeLarger(t *testing.T) {
	t.Parallel()
	for at := 0; ; at++ {
		c := newCluster(t, nil)
		cidrs := func() (all []string) {
			for s, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{}) {
				c.must(err)
				if s.CIDR.Overlaps(netip.MustParsePrefix("10.96.0.0/12")) {
					all = append(all, fmt.Sprint(s.CIDR, " ", s.Gateway))
				}
			}
			return all
		}
		if got := cidrs(); !slices.Equal(got, []string{"10.96.0.0/12 10.111.255.254"}) {
			t.Fatalf("without Services %q", got)
		}
		c.cfg.Services = true
		c.faults.writes, c.faults.kill, c.faults.lost = 0, at, at%2 == 0
		_ = c.begin()
		killed := c.faults.dead
		c.start()
		if got := cidrs(); !slices.Equal(got, []string{"10.96.0.0/11 10.127.255.254"}) {
			t.Fatalf("killed at write %d: %q", at, got)
		}
		for r, err := range c.sdn.FindRouters(t.Context(), sdn.RouterQuery{}) {
			c.must(err)
			if len(r.Interfaces) != 1 {
				t.Errorf("killed at write %d: the router has legs %+v", at, r.Interfaces)
			}
		}
		c.cfg.Services = false
		c.start()
		if got := cidrs(); !slices.Equal(got, []string{"10.96.0.0/11 10.127.255.254"}) {
			t.Fatalf("switched off %q", got)
		}
		if at > 0 && !killed {
			if at < 4 {
				t.Fatalf("only %d writes", at)
			}
			return
		}
	}
}
