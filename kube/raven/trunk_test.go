package raven

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (p faulty) AttachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.Subport) (out []sdn.Subport, err error) {
	err = p.change("AttachSubports", func() (err error) { out, err = p.Provider.AttachSubports(ctx, trunk, ports); return err })
	return out, err
}

func (p faulty) DetachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.ID) error {
	return p.change("DetachSubports", func() error { return p.Provider.DetachSubports(ctx, trunk, ports) })
}

// bareHost is the embedded SDN as if it served every host, where a port is to be bound to one.
type bareHost struct{ sdn.Provider }

func (p bareHost) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	specs = slices.Clone(specs)
	for i := range specs {
		if specs[i].Host != "" {
			specs[i].Host = "sdn"
		}
	}
	return p.Provider.EnsurePorts(ctx, specs)
}

// machines is a cluster whose nodes are virtual machines of the SDN, with trunks by their names.
type machines struct {
	*cluster
	network sdn.Network
	trunks  map[string]sdn.ID
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	c := newCluster(t, nil)
	c.sdn = bareHost{c.sdn.(anyHost).Provider}
	made, err := c.sdn.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: "workers"}, Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}})
	c.must(err)
	c.cfg.Nested, c.cfg.NodeSubnets = v1.NestedVLAN, []string{string(made.Subnets[0])}
	c.start()
	return &machines{c, made, map[string]sdn.ID{}}
}

// machine adds a node with a port of its own; trunked says whether that one has a trunk.
func (m *machines) machine(name, address string, trunked bool, labels map[string]string) {
	m.t.Helper()
	m.must(m.api.Create(m.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: m.uid(), Labels: labels},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}},
	}))
	m.port(name, address)
	if trunked {
		m.trunk(name)
	}
}

func (m *machines) port(name, address string) {
	m.t.Helper()
	a := netip.MustParseAddr(address)
	ports, err := m.sdn.EnsurePorts(m.t.Context(), []sdn.PortSpec{{
		Base: sdn.Base{Key: sdn.Key{Owner: "nova", Kind: "port", Name: name}}, Network: m.network.ID, MAC: macOf(a), DeviceID: name, DeviceOwner: "compute:nova", Addresses: []sdn.Address{{Subnet: m.network.Subnets[0], Addr: a}},
	}})
	m.must(err)
	m.trunks["port of "+name] = ports[0].ID
}

func (m *machines) trunk(name string) {
	m.t.Helper()
	trunk, err := m.sdn.EnsureTrunk(m.t.Context(), sdn.TrunkSpec{Base: sdn.Base{Key: sdn.Key{Owner: "nova", Kind: "trunk", Name: name}}, Parent: m.trunks["port of "+name]})
	m.must(err)
	m.trunks[name] = trunk.ID
}

func macOf(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0xfa, 0x16, 0x3e, 0, b[2], b[3]}
}

func (m *machines) subports(node string) map[string]int {
	m.t.Helper()
	trunk, err := m.sdn.Trunk(m.t.Context(), m.trunks[node])
	m.must(err)
	all := map[string]int{}
	for _, s := range trunk.Subports {
		all[string(s.Port)] = s.VLAN
	}
	return all
}

// checkTrunk compares a node's trunk with its KuryrPorts, and how they say that they are plugged; it gives their number.
func (m *machines) checkTrunk(node, address string) int {
	m.t.Helper()
	m.check()
	has := m.subports(node)
	n := 0
	for _, p := range m.ports() {
		if p.Spec.Node != node {
			continue
		}
		n++
		vif := p.Spec.VIF
		if vlan := has[p.Name]; vif.Type != sdn.VIFVLAN || vlan == 0 || vif.Details[sdn.DetailVLAN] != strconv.Itoa(vlan) || vif.Details[sdn.DetailParentMAC] != macOf(netip.MustParseAddr(address)).String() {
			m.t.Errorf("port %s has VLAN %d of %s's trunk, and is plugged by %+v", p.Name, vlan, node, vif)
		}
	}
	if len(has) != n {
		m.t.Errorf("the trunk of %s has %v, and there are %d KuryrPorts", node, has, n)
	}
	return n
}

func (m *machines) poolOn(node string) *v1.KuryrPortPool {
	m.t.Helper()
	for _, p := range m.pools() {
		if p.Spec.Node == node {
			return &p
		}
	}
	m.t.Fatalf("%s has no pool", node)
	return nil
}

// Each node's ports are in its own trunk, by one call a batch; a node whose label says so has ports that are bound to it.
func TestPortsInTrunks(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	m.machine("n2", "192.0.2.12", true, nil)
	m.machine("iron", "192.0.2.13", false, map[string]string{v1.LabelNested: v1.NestedNone})
	m.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
	for _, node := range []string{"n1", "n2", "iron"} {
		m.pod("default", "of-"+node, node, nil)
	}
	m.pod("blue", "wishes", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:11:11:11"})
	m.settle()
	if m.checkTrunk("n1", "192.0.2.11") < 4 || m.checkTrunk("n2", "192.0.2.12") < 3 || len(m.bound()) != 4 {
		t.Errorf("bound are %v", m.bound())
	}
	if p := m.portWith("iron", "of-iron"); p.Spec.VIF.Type == sdn.VIFVLAN || p.Spec.VIF.Type == sdn.VIFUnbound || m.poolOn("iron").Spec.Trunk != "" {
		t.Errorf("iron is no virtual machine: %+v", p.Spec.VIF)
	}
	if p := m.poolOn("n2"); p.Spec.Trunk != string(m.trunks["n2"]) {
		t.Errorf("the pool of n2 says trunk %q, not %q", p.Spec.Trunk, m.trunks["n2"])
	}
	m.faults.asked = nil
	for i := range 4 {
		m.pod("default", fmt.Sprint("more", i), "n2", nil)
	}
	m.settle()
	made, attached := m.faults.asked["EnsurePorts"], m.faults.asked["AttachSubports"]
	if m.checkTrunk("n2", "192.0.2.12"); made == 0 || attached != made {
		t.Errorf("%d calls for ports and %d for subports", made, attached)
	}
	m.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-n1"}})
	m.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "wishes"}})
	m.settle()
	m.now = m.now.Add(time.Hour)
	m.settle()
	if n := m.checkTrunk("n1", "192.0.2.11"); n != 0 {
		t.Errorf("%d ports of n1 are left", n)
	}
}

// What is not there a condition and an Event tell, and when it is there ports come.
func TestTrunkIsNotThere(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.must(m.api.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: m.uid()}}))
	m.pod("default", "web", "n1", nil)
	tells := func(says string) {
		t.Helper()
		m.rounds(2)
		p := m.poolOn("n1")
		if c := p.Status.Conditions; core.IsReady(c) || len(c) == 0 || !m.events.has(p.Name, core.EventFailed, says) || len(m.ports()) > 0 || len(p.Status.Pending) > 0 {
			t.Errorf("want %q: conditions %+v, Events %q", says, c, m.events.all)
		}
	}
	label := func(value string) {
		t.Helper()
		n := m.node("n1")
		n.Labels = map[string]string{v1.LabelNested: value}
		m.must(m.api.Update(t.Context(), n))
	}
	tells("tells no address yet (InternalIP)")
	n := m.node("n1")
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.11"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.12"}}
	m.must(m.api.Status().Update(t.Context(), n))
	tells("no port on controller.worker_nodes_subnets has an address of the node n1")
	m.port("n1", "192.0.2.11")
	tells("has none: nested nodes need one")
	m.port("another", "192.0.2.12")
	tells("2 ports on controller.worker_nodes_subnets")
	label("macvlan")
	tells("want vlan or none")
	m.must(m.sdn.DeletePorts(t.Context(), []sdn.ID{m.trunks["port of another"]}))
	label(v1.NestedVLAN)
	m.trunk("n1")
	m.settle()
	if m.checkTrunk("n1", "192.0.2.11"); m.bound()["web"] == "" {
		t.Error("the pod has no port")
	}
	m.raven.cfg.NodeSubnets = nil
	for i := range 9 {
		m.pod("default", fmt.Sprint("more", i), "n1", nil)
	}
	m.rounds(2)
	if p := m.poolOn("n1"); !m.events.has(p.Name, "controller.worker_nodes_subnets", "is needed for nested nodes such as n1") {
		t.Errorf("nobody tells which setting is missing: %q", m.events.all)
	}
}

// A killed Raven leaves no port outside a trunk, none in it that nobody knows, and none that cannot be deleted.
func TestKilledAtTrunk(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(m *machines){
		"pods": func(m *machines) {
			for i := range 4 {
				m.pod("default", fmt.Sprint("web", i), "n1", nil)
			}
		},
		"all goes": func(m *machines) {
			m.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"}})
			m.settle()
			m.now = m.now.Add(time.Hour)
		},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", name, lost), func(t *testing.T) {
				t.Parallel()
				eachKill(t, lost, func() (*cluster, func()) {
					m := newMachines(t)
					m.machine("n1", "192.0.2.11", true, nil)
					m.pod("default", "old", "n1", nil)
					m.settle()
					act(m)
					return m.cluster, func() {
						m.checkTrunk("n1", "192.0.2.11")
						var pods corev1.PodList
						m.list(&pods)
						for _, p := range pods.Items {
							if m.bound()[p.Name] == "" {
								t.Errorf("pod %s has no port", p.Name)
							}
						}
					}
				})
			})
		}
	}
}

// A call that chose a VLAN which another has by then fails whole, and is repeated; nothing is made twice.
func TestVLANIsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	m.pod("default", "web", "n1", nil)
	m.faults.problem = func(method string) error {
		if method != "AttachSubports" {
			return nil
		}
		return sdn.Conflict(sdn.Exists, "trunk", "subports[0].vlan", "VLAN 7 is port x's")
	}
	m.rounds(1)
	if p := m.poolOn("n1"); len(m.ports()) > 0 || len(p.Status.Pending) == 0 {
		t.Fatalf("%d ports, pending %v", len(m.ports()), p.Status.Pending)
	}
	m.faults.problem = nil
	m.settle()
	if m.checkTrunk("n1", "192.0.2.11"); m.bound()["web"] == "" {
		t.Errorf("bound %v", m.bound())
	}
}

// A trunk that is full takes nothing, and leaves no ports behind.
func TestTrunkIsFull(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	m.pod("default", "web", "n1", nil)
	m.faults.problem = func(method string) error {
		if method == "AttachSubports" {
			return sdn.Exhausted(sdn.NoVLANs, "trunk", "all its 4094 VLANs are taken")
		}
		return nil
	}
	m.rounds(3)
	m.check()
	if p := m.poolOn("n1"); core.IsReady(p.Status.Conditions) || p.Status.Conditions[0].Reason != v1.ReasonExhausted || len(m.ports()) > 0 {
		t.Errorf("conditions %+v", p.Status.Conditions)
	}
	m.faults.problem = nil
	m.settle()
	if m.checkTrunk("n1", "192.0.2.11"); m.bound()["web"] == "" {
		t.Error("the pod has no port")
	}
}

// What somebody does to the subports by hand is undone, at their VLANs; a port without an object goes, also out of the trunk; an object that was edited says again how it is plugged.
func TestTrunkIsAudited(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	m.pod("default", "web", "n1", nil)
	m.cfg.Audit = time.Hour
	m.start()
	m.settle()
	has := m.portWith("n1", "web")
	vlan := m.subports("n1")[has.Name]
	m.must(m.sdn.DetachSubports(t.Context(), m.trunks["n1"], []sdn.ID{sdn.ID(has.Name)}))
	free := m.portWith("n1", "")
	m.must(m.sdn.DetachSubports(t.Context(), m.trunks["n1"], []sdn.ID{sdn.ID(free.Name)}))
	other := 1 + free.Generation%4000
	for slices.Contains([]int{vlan, m.subports("n1")[free.Name]}, int(other)) {
		other++
	}
	_, err := m.sdn.AttachSubports(t.Context(), m.trunks["n1"], []sdn.Subport{{Port: sdn.ID(free.Name), VLAN: int(other)}})
	m.must(err)
	m.now = m.now.Add(2 * time.Hour)
	m.settle()
	if m.checkTrunk("n1", "192.0.2.11"); m.subports("n1")[has.Name] != vlan {
		t.Errorf("the pod's port had VLAN %d, now %v", vlan, m.subports("n1"))
	}
	edited := m.portWith("n1", "web")
	edited.Spec.VIF = v1.PortVIF{Type: sdn.VIFVLAN, Details: map[string]string{sdn.DetailVLAN: "4000", sdn.DetailParentMAC: "fa:16:3e:00:00:00"}}
	edited.Generation = 5
	m.must(m.api.Update(t.Context(), edited))
	m.settle()
	m.checkTrunk("n1", "192.0.2.11")
	torn := m.portWith("n1", "")
	torn.Finalizers = nil
	m.must(m.api.Update(t.Context(), torn))
	m.remove(torn)
	m.settle()
	if m.checkTrunk("n1", "192.0.2.11"); m.subports("n1")[torn.Name] != 0 {
		t.Error("the port without an object is still in the trunk")
	}
}

// A node that has another trunk, or none any more, gets its ports there when its pods have gone: until then they keep theirs, and no port is made.
func TestNodeLeavesItsTrunk(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	old := m.pod("default", "old", "n1", nil)
	m.settle()
	was, ports := m.bound()["old"], len(m.subports("n1"))
	n := m.node("n1")
	n.Labels = map[string]string{v1.LabelNested: v1.NestedNone}
	m.must(m.api.Update(t.Context(), n))
	for i := range ports { // more than there are
		m.pod("default", fmt.Sprint("new", i), "n1", nil)
	}
	m.rounds(6)
	if m.bound()["old"] != was {
		t.Errorf("the pod had %s, now %v", was, m.bound())
	}
	if p := m.poolOn("n1"); p.Spec.Trunk == "" || core.IsReady(p.Status.Conditions) || !p.DeletionTimestamp.IsZero() {
		t.Errorf("the pool: %+v", p)
	}
	if now := len(m.subports("n1")); now == 0 || now > ports {
		t.Errorf("the trunk had %d ports, now %d", ports, now)
	}
	for i := range ports {
		m.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("new", i)}})
	}
	m.remove(old)
	m.settle()
	m.pod("default", "last", "n1", nil)
	m.settle()
	if n := len(m.subports("n1")); n != 0 || m.bound()["last"] == "" || m.poolOn("n1").Spec.Trunk != "" {
		t.Errorf("%d subports are left; %v", n, m.bound())
	}
	m.check()
}

// A setting that was lost for a while costs nobody a port.
func TestNestedIsLost(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	m.pod("default", "old", "n1", nil)
	m.settle()
	was, has := m.bound()["old"], m.portWith("n1", "old").Name
	vlan := m.subports("n1")[has]
	for _, nested := range []string{v1.NestedNone, v1.NestedVLAN} {
		n := m.node("n1")
		n.Labels = map[string]string{v1.LabelNested: nested}
		m.must(m.api.Update(t.Context(), n))
		m.rounds(4)
	}
	m.settle()
	if now := m.subports("n1"); m.bound()["old"] != was || now[has] != vlan || !core.IsReady(m.poolOn("n1").Status.Conditions) {
		t.Errorf("the pod had %s and VLAN %d, now %v of %v", was, vlan, m.bound(), now)
	}
	m.checkTrunk("n1", "192.0.2.11")
}

// A look that does not see yet which trunk the pool is in, and sees the pool's ports, deletes no pool.
func TestTrunkBehindACache(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	m.pod("default", "old", "n1", nil)
	m.settle()
	w, err := pools{m.raven}.look(t.Context(), m.poolOn("n1").Name)
	m.must(err)
	for _, p := range w.ports {
		p.Status.Pod = nil
	}
	w.pool.Spec.Trunk, w.pool.ResourceVersion = "", "1"
	if err := w.nest(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("error %v", err)
	}
	if p := m.poolOn("n1"); !p.DeletionTimestamp.IsZero() {
		t.Error("the pool goes")
	}
}

// A trunk that was made anew is found when the pool is looked at: what was in the one before goes.
func TestTrunkIsAnother(t *testing.T) {
	t.Parallel()
	m := newMachines(t)
	m.machine("n1", "192.0.2.11", true, nil)
	old := m.pod("default", "old", "n1", nil)
	m.settle()
	m.must(m.sdn.DeleteTrunk(t.Context(), m.trunks["n1"]))
	m.trunk("n1")
	m.raven.memory.suspects(m.poolOn("n1").Name)
	m.rounds(3)
	m.remove(old)
	m.pod("default", "new", "n1", nil)
	m.settle()
	if n := m.checkTrunk("n1", "192.0.2.11"); n == 0 || m.bound()["new"] == "" || m.poolOn("n1").Spec.Trunk != string(m.trunks["n1"]) {
		t.Errorf("%d ports, %v", n, m.bound())
	}
}
