package raven

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// annotated is a Service of type LoadBalancer with these annotations of cloud-provider-openstack and no others, each as "key=value".
func annotated(all ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		exposedService(s)
		s.Annotations = map[string]string{}
		for _, one := range all {
			key, value, _ := strings.Cut(one, "=")
			s.Annotations[balancerPrefix+key] = value
		}
	}
}

// newOutside is a cluster on an external network that subnets can be made on, which those of the embedded SDN's own are not.
func newOutside(t *testing.T) *cluster {
	t.Helper()
	c := newServing(t, nil)
	n, err := c.sdn.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: "outside"}, External: true})
	c.must(err)
	c.cfg.PublicNetwork = string(n.ID)
	_, err = c.sdn.EnsureSubnet(t.Context(), sdn.SubnetSpec{Base: sdn.Base{Name: "way out"}, Network: n.ID, CIDR: netip.MustParsePrefix("192.0.2.0/28")})
	c.must(err)
	_, err = c.sdn.UpdateRouter(t.Context(), c.raven.ground.Router, sdn.RouterPatch{Gateway: &sdn.ExternalGateway{Network: n.ID, SNAT: true}})
	c.must(err)
	c.start()
	return c
}

// publicSubnet makes a subnet of the public network.
func (c *cluster) publicSubnet(name, cidr string, tags ...string) sdn.Subnet {
	c.t.Helper()
	s, err := c.sdn.EnsureSubnet(c.t.Context(), sdn.SubnetSpec{Base: sdn.Base{Name: name, Tags: tags}, Network: c.raven.ground.Public, CIDR: netip.MustParsePrefix(cidr)})
	c.must(err)
	return s
}

// reached wants a Service to be reached at an address of the range, and gives it.
func (c *cluster) reached(name, cidr string) string {
	c.t.Helper()
	c.wholeServices()
	got := c.ingress(name)
	if a, err := netip.ParseAddr(got); err != nil || !netip.MustParsePrefix(cidr).Contains(a) {
		c.t.Errorf("%s is reached at %q, want an address of %s", name, got, cidr)
	}
	return got
}

// A Service says by id of which subnet its floating IP is. Another one has another address; one that is taken away leaves the address, which any subnet is right for.
func TestFloatingIPOfASubnet(t *testing.T) {
	t.Parallel()
	c := newOutside(t)
	one, other := c.publicSubnet("one", "203.0.113.0/28"), c.publicSubnet("other", "198.51.100.0/28")
	c.service("web", annotated("floating-subnet-id="+string(one.ID)), "10.96.0.10")
	c.settle()
	c.reached("web", "203.0.113.0/28")
	asked := c.faults.asked["EnsureFloatingIP"]
	c.change("web", func(s *corev1.Service) { s.Labels = map[string]string{"seen": "yes"} })
	c.settle()
	if now := c.faults.asked["EnsureFloatingIP"]; now != asked {
		t.Errorf("nothing has changed, and the SDN was asked %d times", now-asked)
	}
	c.change("web", annotated("floating-subnet-id="+string(other.ID), "floating-subnet=one")) // the id counts
	c.settle()
	moved := c.reached("web", "198.51.100.0/28")
	c.change("web", annotated())
	c.settle()
	if got := c.reached("web", "198.51.100.0/28"); got != moved {
		t.Errorf("without the annotation it has gone from %s to %s", moved, got)
	}
	if len(c.floats()) != 1 {
		t.Errorf("the floating IPs %v", c.floats())
	}
	c.change("web", func(s *corev1.Service) {
		annotated("floating-subnet-id=" + string(one.ID))(s)
		s.Spec.LoadBalancerIP = "203.0.113.9"
	})
	c.settle()
	if got := c.reached("web", "203.0.113.0/28"); got != "203.0.113.9" {
		t.Errorf("asked for by address it is at %s", got)
	}
}

// Of subnets that are named by names and tags the first with an address left gives it; a floating IP that is of one stays there.
func TestFloatingIPOfNamedSubnets(t *testing.T) {
	t.Parallel()
	c := newOutside(t)
	c.publicSubnet("dmz-1", "203.0.113.0/30", "dmz") // has room for one
	c.publicSubnet("dmz-2", "203.0.113.16/30", "dmz")
	c.publicSubnet("office", "198.51.100.0/28", "dmz", "inside")
	c.service("a", annotated("floating-subnet=dmz-*"), "10.96.0.10")
	c.settle()
	c.service("b", annotated("floating-subnet=~dmz-[0-9]", "floating-subnet-tags=x,dmz"), "10.96.0.11")
	c.settle()
	a, b := c.reached("a", "203.0.113.0/27"), c.reached("b", "203.0.113.0/27")
	c.service("c", annotated("floating-subnet=!dmz-*", "floating-subnet-tags=&inside,dmz"), "10.96.0.12")
	c.settle()
	c.reached("c", "198.51.100.0/28")
	c.change("b", annotated("floating-subnet=dmz-?")) // another wish that this one is right for
	c.settle()
	c.start() // another process looks at all of it once more
	c.settle()
	if c.reached("a", "203.0.113.0/27") != a || c.reached("b", "203.0.113.0/27") != b {
		t.Errorf("they were at %s and %s, and are at %s and %s", a, b, c.ingress("a"), c.ingress("b"))
	}
	rounds := func() { // what fails is tried again for ever
		for range 5 {
			c.round()
			c.now = c.now.Add(time.Second)
		}
	}
	for name, of := range map[string]struct{ wish, told string }{
		"full":    {"floating-subnet=dmz-*", "no free address"},
		"none":    {"floating-subnet=nowhere", "has none of the floating IP's family"},
		"wrong":   {"floating-subnet=~[", "is no pattern of names"},
		"foreign": {"floating-subnet-id=" + c.network("default").Status.Subnets[0].ID, "is not of network"},
	} {
		c.service(name, annotated(of.wish), map[string]string{"full": "10.96.1.1", "none": "10.96.1.2", "wrong": "10.96.1.3", "foreign": "10.96.1.4"}[name])
		c.slice(name, name, 80, "10.128.0.5")
		rounds()
		if lb := c.klb(name); c.ingress(name) != "" || metaTrue(lb, v1.ConditionFloatingIP) || !metaTrue(lb, v1.ConditionProgrammed) || !c.events.has(name+" "+core.EventFailed, of.told) {
			t.Errorf("%s: at %q, %+v, Events %q", name, c.ingress(name), lb.Status, c.events.all)
		}
	}
	c.change("none", annotated())
	rounds()
	if c.ingress("none") == "" {
		t.Errorf("without the annotation it has no address: %+v", c.klb("none").Status)
	}
}

// A floating IP stays when the subnets are named or tagged otherwise, or the Service changes in something else; another wish moves it, unless it is to be kept.
func TestFloatingIPOfARenamedSubnet(t *testing.T) {
	t.Parallel()
	c := newOutside(t)
	c.cfg.Audit = time.Hour
	c.start()
	one, _ := c.publicSubnet("dmz", "203.0.113.0/28", "fast"), c.publicSubnet("office", "198.51.100.0/28")
	c.service("name", annotated("floating-subnet=dmz"), "10.96.0.10")
	c.service("tag", annotated("floating-subnet-tags=fast"), "10.96.0.11")
	c.service("kept", annotated("floating-subnet=dmz", "keep-floatingip=true"), "10.96.0.12")
	c.settle()
	before := map[string]string{}
	for _, name := range []string{"name", "tag", "kept"} {
		before[name] = c.reached(name, "203.0.113.0/28")
	}
	stay := func(when string) {
		t.Helper()
		c.settle()
		for name, at := range before {
			if got := c.reached(name, "203.0.113.0/28"); got != at {
				t.Errorf("%s: %s was at %s, and is at %s", when, name, at, got)
			}
		}
	}
	other := "elsewhere"
	_, err := c.sdn.UpdateSubnet(t.Context(), one.ID, sdn.SubnetPatch{Patch: sdn.Patch{Name: &other, Tags: &[]string{"slow"}}})
	c.must(err)
	_, err = c.sdn.EnsureSubnet(t.Context(), sdn.SubnetSpec{Base: sdn.Base{Name: "dmz", Tags: []string{"fast"}}, Network: c.raven.ground.Public, CIDR: netip.MustParsePrefix("192.0.2.32/28")})
	c.must(err)
	c.now = c.now.Add(2 * time.Hour)
	stay("at an audit")
	for name := range before {
		c.change(name, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	}
	stay("after another change")
	c.start()
	stay("after a start")
	c.change("kept", annotated("floating-subnet=office", "keep-floatingip=true"))
	stay("kept, of another wish")
	c.change("name", annotated("floating-subnet=office"))
	c.settle()
	c.reached("name", "198.51.100.0/28")
	if len(c.floats()) != len(before) {
		t.Errorf("the floating IPs %v", c.floats())
	}
}

// Patterns are those of cloud-provider-openstack.
func TestPatternsOfSubnets(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]bool{
		"": true, "test-123": true, "test-*": true, "*": true, "test-???": true, "{prod,test}-1{0,2}3": true, "test-[0-9]23": true, "test-[!a-c]23": true, "test-[^a-c]23": true, "~test-.*": true, "~.*": true, "~test-[0-9]+": true,
		"test": false, "est-*": false, "test-[!0-9]23": false, "test-?": false, "other*": false, "~other.*": false, "~test": false, "test-123.": false, "{prod,other}-*": false, "~": false,
	} {
		for prefix, negated := range map[string]bool{"": false, "!": true} {
			if pattern == "" && negated {
				continue
			}
			fits, err := namePattern(prefix + pattern)
			if err != nil || fits("test-123") != (want != negated) {
				t.Errorf("%q: %v", prefix+pattern, err)
			}
		}
	}
	for _, pattern := range []string{"[", "~[", "~(", "{a", "!~*"} {
		if _, err := namePattern(pattern); err == nil || !strings.Contains(err.Error(), "is no pattern") {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	for pattern, want := range map[string]bool{
		"": true, "alice": true, "alice,bob": true, "alice, peter": true, " peter bob ": true, "&alice,bob": true, "&bob": true, "!peter": true, "!&alice,peter": true,
		"peter": false, "&alice,peter": false, "!alice": false, "!alice,peter": false, "!&alice,bob": false,
	} {
		if tagPattern(pattern)([]string{"alice", "bob"}) != want {
			t.Errorf("tags %q", pattern)
		}
	}
}
