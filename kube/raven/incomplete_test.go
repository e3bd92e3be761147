package raven

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"sync"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// incompleteSDN is an SDN whose answers are changed.
type incompleteSDN struct {
	sdn.Provider
	mu     sync.Mutex
	bulk   func(*sdn.Port) // the first port of the next EnsurePorts; nil changes none
	port   func(*sdn.Port) // what Port returns
	noNet  bool            // the next EnsureNetwork returns no id
	ranges bool            // the next FindSubnets returns no ranges
	float  bool            // the next EnsureFloatingIP returns no address
	broken sdn.ID          // the port that bulk changed
}

func (p *incompleteSDN) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	ports, err := p.Provider.EnsurePorts(ctx, specs)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.bulk != nil {
		p.broken = ports[0].ID
		p.bulk(&ports[0])
		p.bulk = nil
	}
	return ports, err
}

func (p *incompleteSDN) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	port, err := p.Provider.Port(ctx, id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.port != nil {
		p.port(&port)
	}
	return port, err
}

func (p *incompleteSDN) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	n, err := p.Provider.EnsureNetwork(ctx, spec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.noNet {
		n.ID, p.noNet = "", false
	}
	return n, err
}

func (p *incompleteSDN) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.Provider.FindSubnets(ctx, q)
	if !p.ranges {
		return found
	}
	p.ranges = false
	return func(yield func(sdn.Subnet, error) bool) {
		for s, err := range found {
			s.CIDR = netip.Prefix{}
			if !yield(s, err) {
				return
			}
		}
	}
}

func (p *incompleteSDN) EnsureFloatingIP(ctx context.Context, spec sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	f, err := p.Provider.EnsureFloatingIP(ctx, spec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.float {
		f.Address, p.float = netip.Addr{}, false
	}
	return f, err
}

// TestIncompleteFloatingIP checks that a pod's floating IP without an address is requested again.
func TestIncompleteFloatingIP(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	provider := &incompleteSDN{Provider: c.sdn, float: true}
	c.sdn = provider
	c.start()
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowFloatingIPs: "new"})
	c.pod("blue", "p", "n1", map[string]string{v1.AnnotationFloatingIP: "new"})
	c.settle()
	c.check() // which compares the floating IPs with what the ports say
	if provider.float || !c.events.has("p "+core.EventFailed, "no address") {
		t.Errorf("requested: %v, events %q", !provider.float, c.events.all)
	}
}

// TestIncompleteNetwork checks that a network without an id, and one whose subnets have no ranges,
// is requested again, with an Event, before pods get ports of it.
func TestIncompleteNetwork(t *testing.T) {
	t.Parallel()
	for event, change := range map[string]func(*incompleteSDN){
		"no id": func(p *incompleteSDN) { p.noNet = true }, "no range": func(p *incompleteSDN) { p.ranges = true },
	} {
		t.Run(event, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, nil)
			provider := &incompleteSDN{Provider: c.sdn}
			c.sdn = provider
			c.start()
			c.settle()
			change(provider)
			c.addNode("n1", nil)
			c.namespace("blue", nil)
			c.pod("blue", "p", "n1", nil)
			c.settle()
			c.check()
			n := c.networkOf("blue")
			_, err := netip.ParsePrefix(n.Status.Subnets[0].CIDR)
			if err != nil || !c.events.has(n.Name+" "+core.EventFailed, event) {
				t.Errorf("status %+v, %v, events %q", n.Status, err, c.events.all)
			}
			if len(c.bound()) != 1 {
				t.Errorf("%d pods have ports", len(c.bound()))
			}
		})
	}
}

// TestIncompleteSubnet checks that ports of a network whose subnets are returned without ranges
// wait for the ranges.
func TestIncompleteSubnet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	provider := &incompleteSDN{Provider: c.sdn}
	c.sdn = provider
	c.start()
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	c.pod("blue", "a", "n1", nil)
	c.settle()
	c.raven.ForgetSubnets(sdn.ID(c.networkOf("blue").Status.Network))
	provider.ranges = true
	for i := range 4 { // more than are free
		c.pod("blue", fmt.Sprint("b", i), "n1", nil)
	}
	c.settle()
	c.check()
	if len(c.bound()) != 5 || !c.events.has(c.networkPool("blue")+" "+core.EventFailed, "no range") {
		t.Errorf("%d pods have ports, events %q", len(c.bound()), c.events.all)
	}
	for _, p := range c.ports() {
		if p.Spec.Network.Subnets[0].CIDR == "" {
			t.Errorf("port %s has no range: %+v", p.Name, p.Spec)
		}
	}
}

// TestIncompletePort checks that a port which the SDN returns in a form that no pod can use is
// deleted and replaced, with an Event, and that no KuryrPort shows it.
func TestIncompletePort(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*sdn.Port)
		event  string
		stays  bool // the SDN's port is complete, and found again by its key
	}{
		"no addresses":     {change: func(p *sdn.Port) { p.Addresses = nil }, event: "no address"},
		"an empty address": {change: func(p *sdn.Port) { p.Addresses[0].Addr = netip.Addr{} }, event: "no address"},
		"another subnet":   {change: func(p *sdn.Port) { p.Addresses[0].Subnet = "other" }, event: "no address on subnet"},
		"no MAC":           {change: func(p *sdn.Port) { p.MAC = net.HardwareAddr{} }, event: "no MAC address"},
		"another network":  {change: func(p *sdn.Port) { p.Network = "other" }, event: `the network "other"`},
		"no id":            {change: func(p *sdn.Port) { p.ID = "" }, event: "no id", stays: true},
	} {
		for of, annotations := range map[string]map[string]string{
			"pool": nil, "dedicated": {v1.AnnotationMAC: "fa:16:3e:00:00:01"},
		} {
			t.Run(name+" "+of, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, nil)
				provider := &incompleteSDN{Provider: c.sdn, bulk: row.change}
				c.sdn = provider
				c.start()
				c.addNode("n1", nil)
				c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
				c.pod("blue", "p", "n1", annotations)
				c.settle()
				c.check()
				if provider.broken == "" {
					t.Fatal("no port was returned incomplete")
				}
				if _, err := c.sdn.Port(t.Context(), provider.broken); sdn.IsNotFound(err) == row.stays {
					t.Errorf("the SDN's port: %v", err)
				}
				if len(c.bound()) != 1 {
					t.Errorf("%d pods have ports", len(c.bound()))
				}
				pool := c.pools()[0]
				if !c.events.has(pool.Name+" "+core.EventFailed, row.event) || !core.IsReady(pool.Status.Conditions) {
					t.Errorf("conditions %+v, events %q", pool.Status.Conditions, c.events.all)
				}
			})
		}
	}
}

// givenUp checks that a port without addresses has left the SDN, with an Event.
func (c *cluster) givenUp(port string) {
	c.t.Helper()
	if _, err := c.sdn.Port(c.t.Context(), sdn.ID(port)); !sdn.IsNotFound(err) {
		c.t.Errorf("the SDN's port: %v", err)
	}
	if !c.events.has(port+" "+core.EventFailed, "no address") {
		c.t.Errorf("events %q", c.events.all)
	}
}

// TestIncompletePortOfOlderRelease checks that a KuryrPort without addresses leaves its pool.
func TestIncompletePortOfOlderRelease(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	c.pod("blue", "p", "n1", nil)
	c.settle()
	pool := c.pools()[0]
	ports, err := c.sdn.EnsurePorts(t.Context(), []sdn.PortSpec{{
		Base:    sdn.Base{Key: c.raven.Key(v1.KeyKindPort, pool.Name+".old")},
		Network: sdn.ID(pool.Spec.Network), DeviceID: pool.Name, DeviceOwner: sdn.OwnerContainer, WithoutAddresses: true,
	}})
	c.must(err)
	old := c.ports()[0]
	old.ObjectMeta = metav1.ObjectMeta{
		Name: string(ports[0].ID), UID: c.uid(), Finalizers: old.Finalizers, OwnerReferences: old.OwnerReferences,
		Labels: map[string]string{
			v1.LabelNode: old.Labels[v1.LabelNode], v1.LabelPool: pool.Name, v1.LabelPortStatus: string(v1.PortAvailable),
		},
	}
	old.Spec.ID, old.Spec.Address, old.Spec.Network.Subnets = old.Name, ports[0].MAC.String(), nil
	old.Status = v1.KuryrPortStatus{}
	c.must(c.api.Create(t.Context(), &old))
	c.settle()
	c.check() // which looks at the addresses of all KuryrPorts
	c.givenUp(old.Name)
}

// TestIncompletePortIsNotRestored checks that an edited KuryrPort whose port has lost its addresses
// in the SDN is given up: it does not become one without addresses.
func TestIncompletePortIsNotRestored(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	provider := &incompleteSDN{Provider: c.sdn}
	c.sdn = provider
	c.start()
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	c.pod("blue", "p", "n1", nil)
	c.settle()
	for _, p := range c.ports() {
		if p.Status.Pod == nil {
			provider.port = func(p *sdn.Port) { p.Addresses = nil }
			p.Spec.Network.MTU++
			c.must(c.api.Update(t.Context(), &p))
			c.settle()
			provider.port = nil
			c.givenUp(p.Name)
			c.check()
			return
		}
	}
	t.Fatal("no port is free")
}
