package raven

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Of who shares load balancers and is torn away without a word nothing is left there, whether it was a user or the owner. Where the object alone was lost all is as it was.
func TestTornAwayWhileSharing(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		act  func(c *cluster, web sdn.ID)
		want []string
	}{
		"a user": {func(c *cluster, _ sdn.ID) { c.torn("app") }, []string{"80>10.128.0.5:80 82>"}},
		"all users": {func(c *cluster, _ sdn.ID) {
			c.torn("app")
			c.torn("api")
		}, []string{"80>10.128.0.5:80"}},
		"a user, as the owner goes": {func(c *cluster, _ sdn.ID) {
			c.torn("app")
			c.remove(c.serviceNow("web"))
		}, []string{"82>"}},
		"a user that asks for another": {func(c *cluster, _ sdn.ID) {
			c.change("app", func(s *corev1.Service) { s.Annotations = nil })
			c.lose("app", nil)
		}, []string{"80>10.128.0.5:80 82>", "81>"}},
		"the owner": {func(c *cluster, _ sdn.ID) { c.torn("web") }, []string{"81> 82>"}},
		"the owner and a user": {func(c *cluster, _ sdn.ID) {
			c.torn("web")
			c.torn("app")
		}, []string{"82>"}},
		"the owner, then a user": {func(c *cluster, _ sdn.ID) {
			c.torn("web")
			c.settle()
			c.torn("app")
		}, []string{"82>"}},
		"the owner as it waits for a user that is torn away": {func(c *cluster, _ sdn.ID) {
			c.remove(c.serviceNow("web"))
			c.settle()
			c.torn("app")
		}, []string{"82>"}},
		"the status of the owner, as it goes": {func(c *cluster, _ sdn.ID) {
			lb := c.klb("web")
			lb.Status = v1.KuryrLoadBalancerStatus{}
			c.must(c.api.Status().Update(c.t.Context(), lb))
			c.must(c.api.Delete(c.t.Context(), lb))
			c.remove(c.serviceNow("web"))
		}, []string{"81> 82>"}},
		"the object of a user": {func(c *cluster, _ sdn.ID) { c.lose("app", nil) }, []string{"80>10.128.0.5:80 81> 82>"}},
		"the object of the owner, and a user goes": {func(c *cluster, _ sdn.ID) {
			c.lose("web", nil)
			c.settle()
			c.remove(c.serviceNow("app"))
		}, []string{"80>10.128.0.5:80 82>"}},
	} {
		for _, away := range []bool{false, true} {
			c, web := newOwner(t)
			c.service("app", sharing(web.ID, 81), "10.96.0.11")
			c.service("api", sharing(web.ID, 82), "10.96.0.12")
			c.settle()
			of.act(c, web.ID)
			if away {
				c.start()
			}
			check := func() {
				t.Helper()
				c.settle()
				c.wantOutside(of.want...)
			}
			check()
			c.start() // which has the host's other load balancer go
			check()
			c.wholeServices()
			var lbs v1.KuryrLoadBalancerList
			c.list(&lbs)
			for _, lb := range lbs.Items {
				for _, g := range lb.Status.Guests {
					if c.klb(g.Name) == nil {
						t.Errorf("%s knows of the guest %s, which has gone", lb.Name, g.Name)
					}
				}
			}
			if t.Failed() {
				t.Fatalf("%s, while Raven is away: %v", name, away)
			}
		}
	}
}

// madeAnew has the SDN refuse to change what is a Service's own.
type madeAnew struct {
	sdn.Provider
	on *bool
}

func (p madeAnew) ApplyLoadBalancer(ctx context.Context, s sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	if *p.on && !s.Shared && strings.HasSuffix(s.Key.Name, ".own") {
		return sdn.LoadBalancer{}, sdn.Conflict(sdn.Immutable, "load balancer", "flavor", "it cannot be another")
	}
	return p.Provider.ApplyLoadBalancer(ctx, s)
}

// Who comes to share a load balancer at the moment in which that is to go, of which who has it go does not know yet, either is there in time and keeps it, or is not taken in: nobody who was served
// loses it.
func TestGuestComesAsTheLoadBalancerGoes(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		first func(c *cluster) // who has the load balancer in the end
		host  string
		act   func(c *cluster, anew *bool)
		told  string // the guest is told, as it is not taken in; "" is that it is
	}{
		"the owner is of another type": {func(*cluster) {}, "web", func(c *cluster, _ *bool) {
			c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
		}, ""},
		"it is made anew": {func(*cluster) {}, "web", func(c *cluster, anew *bool) {
			*anew = true
			c.slice("web", "web", 80, "10.128.0.9")
		}, ""},
		"the last of an orphan asks for another": {func(c *cluster) {
			c.torn("web")
			c.settle()
		}, "app", func(c *cluster, _ *bool) {
			c.change("app", func(s *corev1.Service) { s.Annotations = nil })
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, web := newOwner(t)
			anew := false
			c.sdn = madeAnew{c.sdn, &anew}
			c.start()
			c.settle()
			if of.host != "web" {
				c.service(of.host, sharing(web.ID, 81), "10.96.0.11")
				c.settle()
			}
			of.first(c)
			of.act(c, &anew)
			c.service("new", sharing(web.ID, 83), "10.96.0.13")
			c.tellAll()
			for _, name := range []string{of.host, "new"} {
				_, err := services{c.raven}.Reconcile(t.Context(), core.Request("default", name))
				c.must(err)
			}
			c.tellAll()
			look := func(name string) {
				_, _ = balancers{c.raven}.Reconcile(t.Context(), core.Request("default", name))
			}
			came := false
			c.raven.Client = interceptor.NewClient(c.raven.Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					err := w.Get(ctx, key, o, opts...)
					if _, ok := o.(*v1.KuryrLoadBalancer); ok && key.Name == of.host && !came {
						came = true // the host knows what it is now, and the guest comes
						look("new")
					}
					return err
				},
			})
			look(of.host)
			served := core.IsReady(c.klb("new").Status.Conditions)
			if !came || served != (of.told == "") {
				t.Errorf("it came: %v, and is served: %v", came, served)
			}
			c.settle()
			if of.told != "" {
				if !c.events.has("new ", of.told) {
					t.Errorf("it is not told that %s: %q", of.told, c.events.all)
				}
				return
			}
			if lb := c.klb("new"); !core.IsReady(lb.Status.Conditions) || !slices.ContainsFunc(c.outside(), func(ports string) bool { return strings.Contains(ports, "83>") }) {
				t.Errorf("it has lost what it was served by: %+v; outside %q", lb.Status, c.outside())
			}
			if _, err := c.sdn.LoadBalancer(t.Context(), web.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// unready is at work on what is taken from a load balancer, for a few looks, as Octavia is.
type unready struct {
	sdn.Provider
	left *int
}

func (p unready) ApplyLoadBalancer(ctx context.Context, s sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	b, err := p.Provider.ApplyLoadBalancer(ctx, s)
	if err == nil && s.Shared && len(s.Listeners) == 0 && *p.left > 0 {
		*p.left--
		b.Status = sdn.LoadBalancerStatus{RetryAfter: pendingPause, Message: "at work"}
	}
	return b, err
}

// An owner whose status was lost, and that goes, keeps its floating IP for whoever shares the VIP, however many looks that takes and wherever Raven is killed; as the Service has said, it stays
// after the last.
func TestOwnerKeepsTheFloatingIP(t *testing.T) {
	t.Parallel()
	lost := func(t *testing.T, looks int, keep bool) (c *cluster, whole func()) {
		c, web := newOwner(t)
		c.sdn = unready{c.sdn, &looks}
		c.start()
		c.service("app", sharing(web.ID, 81), "10.96.0.11")
		c.settle()
		if keep {
			c.change("web", func(s *corev1.Service) { s.Annotations = map[string]string{balancerPrefix + "keep-floatingip": "true"} })
		}
		c.settle()
		address := c.ingress("web")
		c.must(c.delete(t.Context(), c.klb("web")))
		lb := c.klb("web")
		lb.Status = v1.KuryrLoadBalancerStatus{}
		c.must(c.api.Status().Update(t.Context(), lb))
		c.remove(c.serviceNow("web"))
		return c, func() {
			c.t.Helper()
			c.wholeServices()
			c.wantOutside("81>")
			if c.ingress("app") != address || c.floats()[address] != web.VIPs[0].Addr.String() {
				c.t.Errorf("app says %q, which was %q; floating IPs %v", c.ingress("app"), address, c.floats())
			}
			c.remove(c.serviceNow("app"))
			c.settle()
			c.wantOutside()
			if leads, kept := c.floats()[address]; kept != keep || leads != "" {
				c.t.Errorf("of the floating IP %s is left %v; to be kept: %v", address, c.floats(), keep)
			}
		}
	}
	for _, looks := range []int{0, 3} {
		c, whole := lost(t, looks, true)
		c.settle()
		whole()
		for _, unheard := range []bool{false, true} {
			eachKill(t, unheard, func() (*cluster, func()) { return lost(t, looks, !unheard) })
		}
	}
}

// Where who asked to share goes too, the owner's floating IP goes with its VIP, though the owner's status was lost.
func TestFloatingIPOfAnOwnerWithoutUsers(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	for _, name := range []string{"app", "web"} {
		c.must(c.delete(t.Context(), c.klb(name)))
		c.remove(c.serviceNow(name))
	}
	lb := c.klb("web")
	lb.Status = v1.KuryrLoadBalancerStatus{}
	c.must(c.api.Status().Update(t.Context(), lb))
	c.tellAll()
	if _, err := (balancers{c.raven}).Reconcile(t.Context(), core.Request("default", "web")); err != nil { // before app has gone
		t.Log(err)
	}
	c.settle()
	c.wantOutside()
	if len(c.floats()) != 0 {
		t.Errorf("floating IPs are left: %v", c.floats())
	}
}

// What nobody stands for any more is not for another namespace to have: there it is not shared, and it goes.
func TestOrphanIsNotAnotherNamespaces(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		c, web := newOwner(t)
		c.namespace("green", nil)
		c.torn("web")
		far := c.service("far", sharing(web.ID, 85), "10.96.0.40")
		c.remove(far)
		far.ObjectMeta.Namespace, far.ResourceVersion, far.UID = "green", "", c.uid()
		c.must(c.api.Create(t.Context(), far))
		if away {
			c.start()
		}
		c.tellAll()
		_, err := services{c.raven}.Reconcile(t.Context(), core.Request("green", "far"))
		c.must(err)
		c.tellAll()
		_, _ = balancers{c.raven}.Reconcile(t.Context(), core.Request("green", "far")) // before it is seen that nobody stands for it
		told := c.events.has("far", "of another namespace")
		c.settle()
		var lbs v1.KuryrLoadBalancerList
		c.list(&lbs)
		if len(lbs.Items) != 1 || len(lbs.Items[0].Status.Shares) != 0 || core.IsReady(lbs.Items[0].Status.Conditions) {
			t.Errorf("another namespace has %+v", lbs.Items)
		}
		if !told {
			t.Errorf("it is not told: %q", c.events.all)
		}
		c.start() // which looks for what nobody stands for
		c.settle()
		c.wantOutside()
		if len(c.floats()) != 0 {
			t.Errorf("floating IPs are left: %v", c.floats())
		}
	}
}

// An owner whose KuryrLoadBalancer is deleted, and whose Service stays, has its VIP again, with those who
// share it: it does not wait for their end, and all keep their address.
func TestOwnersObjectIsDeletedAndItsServiceStays(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(c *cluster){
		"deleted": func(c *cluster) { c.must(c.delete(c.t.Context(), c.klb("web"))) },
		"another type and back": func(c *cluster) {
			was := c.serviceNow("web").Spec
			c.change("web", func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
			})
			c.settle()
			c.wantOutside("81>")
			c.change("web", func(s *corev1.Service) { s.Spec = was })
		},
		"headless by label, and not": func(c *cluster) {
			c.change("web", func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} })
			c.settle()
			c.wantOutside("81>")
			c.change("web", func(s *corev1.Service) { s.Labels = nil })
		},
		"deleted, then a restart": func(c *cluster) {
			c.must(c.delete(c.t.Context(), c.klb("web")))
			c.start()
		},
	} {
		begin := func() (c *cluster, whole func()) {
			c, web := newOwner(t)
			c.service("app", sharing(web.ID, 81), "10.96.0.11")
			c.settle()
			address := c.ingress("web")
			act(c)
			return c, func() {
				c.t.Helper()
				c.wholeServices()
				c.wantOutside("80>10.128.0.5:80 81>")
				if c.ingress("web") != address || c.ingress("app") != address || len(c.floats()) != 1 {
					t.Errorf("%s: web says %q, app %q, want %q; floating IPs %v",
						name, c.ingress("web"), c.ingress("app"), address, c.floats())
				}
				if _, err := c.sdn.LoadBalancer(t.Context(), web.ID); err != nil {
					t.Errorf("%s: it was recreated: %v", name, err)
				}
				if lb := c.klb("web"); len(lb.Status.Guests) != 1 || lb.Status.Guests[0].Name != "app" {
					t.Errorf("%s: web knows the users %+v", name, lb.Status.Guests)
				}
			}
		}
		c, whole := begin()
		c.settle()
		whole()
		if name == "deleted" {
			eachKill(t, false, begin)
		}
	}

	// One that is to have no VIP of its own any more waits for the users of the one it had, and tells.
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	c.must(c.delete(t.Context(), c.klb("web")))
	c.settle()
	c.now = c.now.Add(heldPause)
	c.settle()
	c.wantOutside("81>")
	if !c.events.has("web "+core.EventUnserved, "was deleted, and has not gone yet", "share it: app") {
		t.Errorf("web is not told what it waits for: %q", c.events.all)
	}
	c.remove(c.serviceNow("app"))
	c.settle()
	c.wholeServices()
	c.wantOutside()
}

// An owner that goes keeps its VIP for its only user, whose KuryrLoadBalancer was torn away and is
// recreated.
func TestOwnerGoesAsItsUserIsRecreated(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		c, web := newOwner(t)
		c.service("app", sharing(web.ID, 81), "10.96.0.11")
		c.settle()
		address := c.ingress("app")
		if waits {
			c.remove(c.serviceNow("web"))
			c.settle()
		}
		c.lose("app", nil)
		if !waits {
			c.must(c.delete(t.Context(), c.klb("web")))
			c.remove(c.serviceNow("web"))
		}
		c.tellAll()
		for range 2 {
			_, err := balancers{c.raven}.Reconcile(t.Context(), core.Request("default", "web")) // before app is back
			if c.wantOutside("81>"); core.HasFailure(err) {
				t.Error(err)
			}
			c.tellAll()
		}
		if lb := c.klb("web"); lb == nil || !slices.ContainsFunc(lb.Status.Conditions, func(of metav1.Condition) bool {
			return of.Reason == v1.ReasonInUse && strings.Contains(of.Message, "app")
		}) {
			t.Errorf("web does not tell that it waits for app: %+v", lb)
		}
		c.settle()
		c.wholeServices()
		c.wantOutside("81>")
		if c.ingress("app") != address || c.floats()[address] != web.VIPs[0].Addr.String() {
			t.Errorf("app says %q, which was %q; floating IPs %v", c.ingress("app"), address, c.floats())
		}
		c.remove(c.serviceNow("app"))
		c.settle()
		c.wantOutside()
		if len(c.floats()) != 0 {
			t.Errorf("floating IPs are left: %v", c.floats())
		}
	}
}

// An owner waits for the users of its VIP no longer than there is that VIP, which is deleted in the SDN.
func TestOwnerWaitsForNothing(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.cfg.Audit = time.Hour
	c.start()
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	c.remove(c.serviceNow("web"))
	c.settle()
	c.wantOutside("81>")
	c.must(c.sdn.DeleteLoadBalancer(t.Context(), web.ID))
	c.settle()
	c.now = c.now.Add(c.cfg.Audit)
	c.rounds(8)
	if lb := c.klb("web"); lb != nil {
		t.Errorf("it waits: %+v", lb.Status)
	}
	if len(c.floats()) != 0 {
		t.Errorf("floating IPs are left: %v", c.floats())
	}
	if lb := c.klb("app"); core.IsReady(lb.Status.Conditions) {
		t.Errorf("app shares what has gone: %+v", lb.Status)
	}
	c.service("web", exposedService, "10.96.0.10")
	c.rounds(8)
	c.wantOutside("80>10.128.0.5:80")
}

// An owner that goes tells of its ClusterIP until that has gone from the SDN.
func TestOwnerTellsOfWhatIsThere(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	c.must(c.delete(t.Context(), c.klb("web")))
	lb := c.klb("web")
	own := func(of v1.LoadBalancerOfVIP) bool { return of.Own }
	lb.Status.LoadBalancers = slices.DeleteFunc(lb.Status.LoadBalancers, own)
	c.must(c.api.Status().Update(t.Context(), lb))
	c.remove(c.serviceNow("web"))
	c.tellAll()
	c.faults.problem = func(method string) error {
		if method == "FindLoadBalancers" {
			return sdn.Unavailable(nil, "load balancer", "no answer")
		}
		return nil
	}
	_, err := balancers{c.raven}.Reconcile(t.Context(), core.Request("default", "web"))
	is := c.klb("web").Status
	if err == nil || len(is.LoadBalancers) != 1 || is.LoadBalancers[0].VIP != "10.96.0.10" {
		t.Errorf("nothing was deleted (%v), and it tells of %+v", err, is.LoadBalancers)
	}
	c.faults.problem = nil
	c.settle()
	c.wholeServices()
	c.wantOutside("81>")
	if is = c.klb("web").Status; len(is.LoadBalancers) != 1 || !is.LoadBalancers[0].Own {
		t.Errorf("its ClusterIP was deleted, and it tells of %+v", is.LoadBalancers)
	}
}

// A Service that waits for a ClusterIP is looked at as soon as an owner that goes has released it, though it
// stays for its users.
func TestOwnerReleasesItsClusterIP(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	was := c.klb("web")
	c.remove(c.serviceNow("web"))
	c.settle()
	c.service("next", nil, "10.96.0.10")
	c.settle()
	is, next := c.klb("web"), core.Request("default", "next")
	if told := c.enqueued("loadbalancers", change{was, is}); !slices.Contains(told, next) {
		t.Errorf("as the ClusterIP is let go of %v are looked at, want %v", told, next)
	}
	if told := c.enqueued("loadbalancers", change{is, is}); slices.Contains(told, next) {
		t.Errorf("as nothing is let go of %v are looked at", told)
	}
	c.wholeServices()
}
