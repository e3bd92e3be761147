//go:build linux

package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/kuryr/kuryr/internal/nstest"
)

func TestServices(t *testing.T) {
	for name, row := range map[string]struct {
		facts ServiceFacts
		worst Verdict
		says  string
	}{
		"another's":  {ServiceFacts{Proxy: []string{"x"}, Runs: true}, OK, ""},
		"ours alone": {ServiceFacts{Kuryr: true}, OK, "kube-proxy has left nothing"},
		"both":       {ServiceFacts{Kuryr: true, Runs: true, Proxy: []string{"x"}}, Problem, "kube-proxy runs"},
		"leftovers": {
			ServiceFacts{Kuryr: true, Proxy: []string{"two chains", "a table"}}, Problem,
			"two chains, a table",
		},
		"cannot be seen": {ServiceFacts{Kuryr: true, Err: errors.New("no")}, Warning, "not known: no"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Services(row.facts)
			if (len(got) == 0) != (row.says == "") ||
				len(got) > 0 && (Worst(got) != row.worst || !strings.Contains(got[0].What, row.says)) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// What kube-proxy has made is found, whichever its mode; what the kubelet has made beside
// it is not.
func TestGatherServices(t *testing.T) {
	nstest.Require(t)
	nstest.Do(t, nstest.New(t), func() {
		if got := GatherServices("kuryr_lb"); got.Kuryr || len(got.Proxy) > 0 || got.Err != nil {
			t.Errorf("of an empty namespace: %+v", got)
		}
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		c.AddTable(&nftables.Table{Name: "kuryr_lb", Family: nftables.TableFamilyINet})
		c.AddTable(&nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyIPv6})
		nat := c.AddTable(&nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4})
		for _, chain := range []string{
			"KUBE-SERVICES", "KUBE-SVC-ABC", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "POSTROUTING",
		} {
			c.AddChain(&nftables.Chain{Name: chain, Table: nat})
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		got := GatherServices("kuryr_lb")
		if want := []string{"the nftables table ip6 kube-proxy", "2 chains of iptables"}; !got.Kuryr ||
			got.Err != nil || !slices.Equal(got.Proxy, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	})
}
