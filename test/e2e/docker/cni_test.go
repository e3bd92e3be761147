//go:build e2e

package docker_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// A container of Docker and one of a CNI runtime are on one network, of one daemon. The
// plugin is called as podman calls it.
func TestNetworkOfDockerAndCNI(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	if onNeutron || onShared {
		t.Skip("kuryr up has the embedded SDN")
	}
	r := newRig(t)
	r.must(t, kuryr, "network", "create", "both", "--subnet", "10.77.0.0/24")
	t.Cleanup(func() { r.must(t, kuryr, "network", "delete", "both") })
	r.network(t, "both", "--subnet", "10.77.0.0/24", "-o", "neutron.net.name=both")
	web := r.run(t, "web", "both")

	r.must(t, "ip", "netns", "add", "podman")
	t.Cleanup(func() { r.must(t, "sh", "-ec", "ip netns del podman; umount /run/netns; rmdir /run/netns") })
	call := func(verb string) string {
		t.Helper()
		return r.must(t, "sh", "-c", fmt.Sprintf(`echo '{"cniVersion": "1.0.0", "name": "both", "type": "kuryr"}' |
			CNI_COMMAND=%s CNI_CONTAINERID=db CNI_NETNS=/run/netns/podman CNI_IFNAME=eth0 %s`,
			verb, filepath.Join(filepath.Dir(kuryr), "kuryr-cni")))
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if out := call("ADD"); json.Unmarshal([]byte(out), &result) != nil || len(result.IPs) != 1 {
		t.Fatalf("ADD: %s", out)
	}
	t.Cleanup(func() { call("DEL") })
	db := func(argv ...string) privatehost.Result {
		return r.sh(append([]string{"ip", "netns", "exec", "podman"}, argv...)...)
	}
	for to, from := range map[netip.Addr]runner{web.ip4: db, result.IPs[0].Address.Addr(): web.in} {
		if res := ping(from, to); !res.OK() {
			t.Errorf("%s is not reached: %s", to, res)
		}
	}
	if res := ping(db, out4); !res.OK() {
		t.Errorf("the container of the CNI runtime has no way out: %s", res)
	}
}
