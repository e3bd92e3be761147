//go:build linux

package wiring

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/nstest"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// What Raven writes of a port in a trunk is all that a node needs to plug it: a VLAN link on the interface with the MAC of the machine's own port. A kernel without such links says which module is missing.
func TestSubport(t *testing.T) {
	nstest.Require(t)
	w, err := Of(&v1.KuryrPortSpec{
		ID: "0a1b2c3d-0000-4000-8000-000000000001", Address: "fa:16:3e:00:00:01", Node: "n1",
		Network: v1.PortNetwork{ID: "net", MTU: 1400, Subnets: []v1.PortSubnet{{ID: "s", CIDR: "10.1.0.0/24", Gateway: "10.1.0.1", IPs: []string{"10.1.0.5"}}}},
		VIF:     v1.PortVIF{Type: sdn.VIFVLAN, Details: map[string]string{sdn.DetailVLAN: "101", sdn.DetailParentMAC: "fa:16:3e:aa:aa:01", "trunk_id": "t"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	machine, pod := nstest.New(t), nstest.New(t)
	nstest.Do(t, machine, func() {
		mac := net.HardwareAddr{0xfa, 0x16, 0x3e, 0xaa, 0xaa, 1}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ens3", HardwareAddr: mac}, PeerName: "vm"}); err != nil {
			t.Error(err)
			return
		}
		b, err := bind.New(bind.Config{})
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = b.Close() }()
		_, err = b.Plug(t.Context(), bind.Interface{Port: w.Port, MTU: w.MTU, Subnets: w.Subnets, Namespace: fmt.Sprintf("/proc/self/fd/%d", int(pod)), Name: "eth0"})
		if err != nil && (!sdn.IsUnsupported(err) || !strings.Contains(err.Error(), "8021q")) {
			t.Errorf("plugging: %v", err)
		}
		if err != nil {
			return
		}
		nstest.Do(t, pod, func() {
			l, err := netlink.LinkByName("eth0")
			if v, ok := l.(*netlink.Vlan); err != nil || !ok || v.VlanId != 101 || l.Attrs().MTU != 1400 || l.Attrs().HardwareAddr.String() != "fa:16:3e:00:00:01" {
				t.Errorf("the pod has %+v, %v", l, err)
			}
		})
	})
}
