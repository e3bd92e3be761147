package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/kuryr/kuryr/datapath/nft"
)

// ofProxy begin the names of kube-proxy's chains of iptables. The kubelet has others that
// begin with KUBE-, which stay.
var ofProxy = []string{
	"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-",
	"KUBE-FW-", "KUBE-PROXY-", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER",
}

// GatherServices reads what of Services is in the kernel, in the network namespace of the
// caller. ours is the name of Kuryr's table. Rules of the legacy iptables it does not
// see.
func GatherServices(ours string) (f ServiceFacts) {
	c, err := nft.Dial(0)
	if err != nil {
		return ServiceFacts{Err: err}
	}
	defer func() { _ = c.Close() }()
	tables, err := c.ListTables()
	f.Err = err
	for _, t := range tables {
		f.Kuryr = f.Kuryr || t.Name == ours
		if t.Name == "kube-proxy" {
			f.Proxy = append(f.Proxy, fmt.Sprintf(
				"the nftables table %s kube-proxy",
				map[bool]string{true: "ip6", false: "ip"}[t.Family == nftables.TableFamilyIPv6],
			))
		}
	}
	chains, err := c.ListChains()
	f.Err = errors.Join(f.Err, err)
	n := 0
	for _, chain := range chains {
		if slices.ContainsFunc(ofProxy, func(p string) bool { return strings.HasPrefix(chain.Name, p) }) {
			n++
		}
	}
	if n > 0 {
		f.Proxy = append(f.Proxy, fmt.Sprintf("%d chains of iptables", n))
	}
	if _, err := netlink.LinkByName("kube-ipvs0"); err == nil {
		f.Proxy = append(f.Proxy, "the link kube-ipvs0")
	}
	// Two lines of heading, one of columns, then a line each.
	if text, err := os.ReadFile("/proc/thread-self/net/ip_vs"); err == nil && strings.Count(string(text), "\n") > 3 {
		f.Proxy = append(f.Proxy, "services of IPVS")
	}
	f.Runs = runs("kube-proxy")
	return f
}

// runs reports whether a program of a name runs on the machine, in a container too.
func runs(program string) bool {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	return slices.ContainsFunc(names, func(path string) bool {
		text, _ := os.ReadFile(path) // one that has ended since has none
		return strings.TrimSpace(string(text)) == program
	})
}
