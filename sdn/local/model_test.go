package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// model is a provider whose data path fails and is slow at random, with objects that clients change.
type model struct {
	*Provider
	fake     *fakeKernel
	routers  []sdn.ID
	networks []sdn.Network
	groups   []sdn.ID
	set      sdn.ID
	policy   sdn.ID
}

func newModel(t *testing.T) *model {
	t.Helper()
	ctx := t.Context()
	m := &model{fake: newFake()}
	m.Provider = openMemory(t, engine.NewMemory(), Options{Datapath: m.fake, Host: testHost, PortsPerNetwork: 400})
	for i := range 3 {
		r, err := m.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: m.Capabilities().ExternalNetwork, SNAT: true}})
		ok(t, err)
		n, err := m.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix(fmt.Sprintf("10.%d.0.0/24", i))}}})
		ok(t, err)
		m.routers, m.networks = append(m.routers, r.ID), append(m.networks, n)
	}
	set, err := m.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{})
	ok(t, err)
	policy, err := m.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{})
	ok(t, err)
	m.set, m.policy = set.ID, policy.ID
	for range 3 {
		g, err := m.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Rules: []sdn.Rule{{Direction: sdn.Ingress, RemoteSet: set.ID}}})
		ok(t, err)
		m.groups = append(m.groups, g.ID)
	}
	return m
}

// expected reports whether an error is one that a client may get.
func expected(err error) bool {
	return err == nil || sdn.IsUnavailable(err) || sdn.IsConflict(err) || sdn.IsNotFound(err) || sdn.IsInvalid(err) ||
		errors.Is(err, errInjected) || errors.Is(err, context.DeadlineExceeded)
}

// client makes random changes. A port whose creation is answered without an error is in the data path.
func (m *model) client(ctx context.Context, random *rand.Rand, name string) error {
	var mine []sdn.ID
	for range 30 {
		if err := m.step(ctx, random, name, &mine); !expected(err) {
			return err
		}
	}
	return nil
}

// step makes one random change.
func (m *model) step(ctx context.Context, random *rand.Rand, name string, mine *[]sdn.ID) (err error) {
	key := func(kind string) sdn.Base { return sdn.Base{Key: sdn.Key{Owner: "o", Kind: kind, Name: name}} }
	i, r := random.IntN(3), m.routers[random.IntN(3)]
	subnet := m.networks[i].Subnets[0]
	whole := ctx
	if random.IntN(6) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(300))*time.Microsecond)
		defer cancel()
	}
	switch random.IntN(13) {
	case 0:
		err = m.AttachSubnet(ctx, r, subnet, netip.Addr{})
	case 1:
		err = m.DetachSubnet(ctx, r, subnet)
	case 2, 3, 4:
		var made []sdn.Port
		made, err = m.EnsurePorts(ctx, []sdn.PortSpec{{Network: m.networks[i].ID, Host: testHost, Groups: m.groups[random.IntN(3):], QoSPolicy: m.policy}})
		for _, p := range made {
			if p.ID == "" {
				continue
			}
			*mine = append(*mine, p.ID)
			if err == nil && !m.fake.has(p.ID) {
				return fmt.Errorf("port %s was answered before the data path had it", p.ID)
			}
		}
	case 5:
		if len(*mine) > 0 {
			err, *mine = m.DeletePorts(ctx, (*mine)[:1]), (*mine)[1:]
		}
	case 6:
		rules := []sdn.Rule{{Direction: sdn.Egress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: uint16(1 + random.IntN(99))}}}
		if random.IntN(2) == 0 {
			rules = append(rules, sdn.Rule{Direction: sdn.Ingress, RemoteSet: m.set})
		}
		_, err = m.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{ID: m.groups[i], Rules: rules})
	case 7:
		_, err = m.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{ID: m.set, Prefixes: []netip.Prefix{prefix(fmt.Sprintf("192.0.2.%d/32", random.IntN(99)))}})
		if err == nil {
			_, err = m.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{ID: m.policy, Limits: sdn.Limits{EgressKbps: int64(1000 + random.IntN(9))}})
		}
	case 8:
		spec := sdn.PublicationSpec{Key: key("publication").Key}
		if len(*mine) > 0 {
			spec.Ports = []sdn.PublishedPort{{Host: netip.IPv4Unspecified(), Forward: sdn.Forward{
				Protocol: sdn.UDP, External: sdn.PortRange{First: uint16(1 + random.IntN(30))}, Target: sdn.Target{Port: (*mine)[0]},
				Internal: sdn.PortRange{First: 53},
			}}}
		}
		_, err = m.Publish(ctx, spec)
	case 9:
		spec := service(subnet, name, fmt.Sprintf("10.%d.0.200:%d", i, 1+random.IntN(99)))
		if _, err = m.ApplyLoadBalancer(ctx, spec); sdn.IsInvalid(err) { // its subnet stays
			err = nil
		}
	case 10:
		var l sdn.LoadBalancer
		var found bool
		l, found, err = sdn.First(m.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Owner: "o", Kind: "service", Names: []string{name}}}))
		if found {
			err = m.DeleteLoadBalancer(ctx, l.ID)
		}
	case 12:
		off := random.IntN(3) == 0
		switch random.IntN(3) {
		case 0:
			_, err = m.UpdateNetwork(ctx, m.networks[i].ID, sdn.NetworkPatch{Disabled: &off})
		case 1:
			_, err = m.UpdateRouter(ctx, r, sdn.RouterPatch{Disabled: &off})
		case 2:
			if len(*mine) > 0 {
				_, err = m.UpdatePort(ctx, (*mine)[0], sdn.PortPatch{Disabled: &off})
			}
		}
	case 11:
		if random.IntN(5) == 0 {
			_, err = m.Reconcile(whole)
		} else if len(*mine) > 0 {
			_, err = m.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: key("floatingip"), Network: m.Capabilities().ExternalNetwork, Target: sdn.Target{Port: (*mine)[0]}})
		}
	}
	return err
}

// has reports whether the data path has a port.
func (f *fakeKernel) has(port sdn.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.state {
		if _, has := d.ports[string(port)]; has {
			return true
		}
	}
	return false
}

// TestModel checks that the data path is what the store says after any sequence of concurrent changes,
// of its failures, of callers that give up and of comparisons of everything.
func TestModel(t *testing.T) {
	t.Parallel()
	runs := 8
	if testing.Short() {
		runs = 2
	}
	for seed := range runs {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(t)
			failures := rand.New(rand.NewPCG(uint64(seed), 1))
			m.fake.mu.Lock()
			m.fake.fail = func(string, string) error {
				if failures.IntN(8) == 0 {
					return errInjected
				}
				return nil
			}
			m.fake.mu.Unlock()
			var clients sync.WaitGroup
			for c := range 6 {
				clients.Go(func() {
					if err := m.client(t.Context(), rand.New(rand.NewPCG(uint64(seed), uint64(2+c))), fmt.Sprint(c)); err != nil {
						t.Error(err)
					}
				})
			}
			clients.Wait()
			m.fake.mu.Lock()
			m.fake.fail = nil
			m.fake.mu.Unlock()
			m.sync.work.Wait() // for callers that gave up
			if seed%2 == 0 {
				ok(t, m.sync.retry(t.Context()))
			} else {
				_, err := m.Reconcile(t.Context())
				ok(t, err)
			}
			checkSum(t, m.Provider)
			m.sync.mu.Lock()
			defer m.sync.mu.Unlock()
			for id, d := range m.sync.domains {
				if len(d.busy)+len(d.failed) > 0 || d.next != nil {
					t.Errorf("domain %s has %d busy and %d failed parts", id, len(d.busy), len(d.failed))
				}
			}
		})
	}
}

// A data path that refuses one caller's part does not fail the others that share its round.
func TestErrorsAreOfTheirCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, bad := portSpec(w, 0), portSpec(w, 0)
	bad.MAC = []byte{2, 0, 0, 0, 0, 9}
	w.fake.refuse = func(mac string) bool { return mac == "02:00:00:00:00:09" }
	making := func(spec sdn.PortSpec) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.EnsurePorts(ctx, []sdn.PortSpec{spec})
			return err
		}
	}
	for i, err := range settleAll(t, making(good), making(bad), making(good)) {
		if refused := i == 1; sdn.IsUnavailable(err) != refused || !refused && err != nil {
			t.Errorf("caller %d got %v", i, err)
		}
	}
	w.fake.mu.Lock()
	n := len(w.fake.state[string(w.routers[0])].ports)
	w.fake.mu.Unlock()
	if n != 2 {
		t.Errorf("the data path has %d ports, want those of two callers", n)
	}
	w.fake.refuse = nil
	ok(t, w.sync.retry(t.Context()))
	checkSum(t, w.Provider)
}

// What the data path refuses does not keep other parts of its domain from recovering.
func TestRefusedPartFailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refused := map[string]bool{"02:00:00:00:00:02": true, "02:00:00:00:00:05": true}
	w.fake.refuse = func(mac string) bool { return refused[mac] }
	w.refuse = "ports"
	var specs []sdn.PortSpec
	for i := range byte(9) {
		spec := portSpec(w, 0)
		spec.MAC = []byte{2, 0, 0, 0, 0, i}
		specs = append(specs, spec)
	}
	made, err := w.EnsurePorts(t.Context(), specs)
	if !sdn.IsUnavailable(err) {
		t.Fatalf("got %v, want unavailable", err)
	}
	w.refuse = ""
	if err := w.sync.retry(t.Context()); !errors.Is(err, errInjected) {
		t.Errorf("the retry of refused ports returned %v", err)
	}
	for i, p := range made {
		port, err := w.Port(t.Context(), p.ID)
		ok(t, err)
		if active := !refused[port.MAC.String()]; active != (port.Status == sdn.PortActive) || active != w.fake.has(p.ID) {
			t.Errorf("port %d is %v", i, port.Status)
		}
	}
	clear(refused)
	ok(t, w.sync.retry(t.Context()))
	checkSum(t, w.Provider)
}

func portSpec(w *world, network int) sdn.PortSpec {
	return sdn.PortSpec{Network: w.networks[network].ID, Host: testHost}
}

// Callers that come while a round is at work share the next one.
func TestGrouped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	spec := portSpec(w, 0)
	inside, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	calls := 0
	w.fake.mu.Lock()
	w.fake.fail = func(call, _ string) error {
		calls++
		once.Do(func() { close(inside); <-proceed })
		return nil
	}
	w.fake.mu.Unlock()
	var all sync.WaitGroup
	ensure := func() {
		if _, err := w.EnsurePorts(t.Context(), []sdn.PortSpec{spec}); err != nil {
			t.Error(err)
		}
	}
	all.Go(ensure)
	<-inside
	for range 63 {
		all.Go(ensure)
	}
	waiting := func() int {
		w.sync.mu.Lock()
		defer w.sync.mu.Unlock()
		if d := w.sync.domains[w.routers[0]]; d.next != nil {
			return len(d.next.claims)
		}
		return 0
	}
	for deadline := time.Now().Add(time.Minute); waiting() < 63 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	close(proceed)
	all.Wait()
	if calls != 2 {
		t.Errorf("64 callers cost %d calls, want 2", calls)
	}
	checkSum(t, w.Provider)
}
