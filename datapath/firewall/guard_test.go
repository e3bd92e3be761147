//go:build linux

package firewall

import (
	"testing"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/nstest"
)

// TestGuardLink checks that the table exists once, however often it is set, and that it can be
// removed. Tests of kube/proxy check what it refuses.
func TestGuardLink(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	nstest.Do(t, nstest.New(t), func() {
		rules := func() int {
			c, err := nft.Dial(0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			tables, err := c.ListTables()
			if err != nil {
				t.Fatal(err)
			}
			if len(tables) == 0 {
				return 0
			}
			all, err := guardTable.Rules(c, "forward")
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		set := func() error { return GuardLink("kuryr-node0") }
		for _, step := range []struct {
			do   func() error
			want int
		}{{UnguardLink, 0}, {set, 2}, {set, 2}, {UnguardLink, 0}, {UnguardLink, 0}} {
			if err := step.do(); err != nil || rules() != step.want {
				t.Errorf("%v, %d rules, want %d", err, rules(), step.want)
			}
		}
	})
}

// TestRuleset compares the table with a dump of it.
func TestGuardRuleset(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Do(t, ns, func() {
		if err := GuardLink("kuryr-node0"); err != nil {
			t.Fatal(err)
		}
	})
	nstest.WantRuleset(t, ns, "testdata/guard.ruleset")
}
