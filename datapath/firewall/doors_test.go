//go:build linux

package firewall

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
)

// forwardingSite is a site whose host forwards.
func forwardingSite(t *testing.T) (site, *Host) {
	t.Helper()
	needs(t, "iptables", "ip6tables", "iptables-restore", "ip6tables-restore")
	s, h := newSite(t), quietHost(t)
	in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
	return s, h
}

func TestDoorsBesideDocker(t *testing.T) {
	t.Parallel()
	s, h := forwardingSite(t)
	likeDocker(t, s.host, "20.10")
	before := saved(t, s.host)
	s.wantPaths(t, "Docker alone", false)
	if got := h.findingsIn(t, s.host); len(got) != 2 || !strings.Contains(got[0], "(docker)") {
		t.Errorf("findings %q, want one for each family", got)
	}

	if got, want := h.openIn(t, s.host), "docker FORWARD opened ipv4\ndocker FORWARD opened ipv6"; got != want {
		t.Fatalf("doors\n%s\nwant\n%s", got, want)
	}
	s.wantPaths(t, "doors open", true)
	open := saved(t, s.host)
	if got, want := h.openIn(t, s.host), "docker FORWARD open ipv4\ndocker FORWARD open ipv6"; got != want {
		t.Fatalf("second time: doors\n%s\nwant\n%s", got, want)
	}
	if again := saved(t, s.host); again != open {
		t.Errorf("second time: rules changed from\n%s\nto\n%s", open, again)
	}
	// iptables still shows the chain; Docker's verdicts, and what the operator forbade, come first.
	want := `-i br-int -o br-int -j ACCEPT
` +
		"-A FORWARD -i kr+ -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT " +
		"-m comment --comment kuryr -j DOCKER-ISOLATION-STAGE-2" + `
-A FORWARD -i kr+ -m comment --comment kuryr -j ACCEPT
-A FORWARD -o kr+ -m comment --comment kuryr -j ACCEPT
`
	if got := sh(t, s.host, "iptables -S FORWARD"); !strings.HasSuffix(got, want) {
		t.Errorf("chain\n%s\nwant it to end with\n%s", got, want)
	}
	if got := h.findingsIn(t, s.host); len(got) > 0 {
		t.Errorf("findings %q, want none", got)
	}

	// Doubled, misplaced and half-removed rules are put right.
	sh(t, s.host, `iptables -A DOCKER-USER -i kr+ -m comment --comment kuryr -j ACCEPT
		iptables -I FORWARD -o kr+ -m comment --comment kuryr -j ACCEPT
		ip6tables -D FORWARD -i kr+ -m comment --comment kuryr -j ACCEPT`)
	h.openIn(t, s.host)
	if again := saved(t, s.host); again != open {
		t.Errorf("repaired rules are\n%s\nwant\n%s", again, open)
	}

	for range 2 {
		in(t, s.host, func() error { return h.CloseDoors(t.Context()) })
	}
	if after := saved(t, s.host); after != before {
		t.Errorf("closing left\n%s\nwant\n%s", after, before)
	}
	s.wantPaths(t, "doors closed", false)
}

// The doors of routers and of a node's own port are apart: each looks after its own, and
// closing one leaves the other's in force.
func TestDoorsOfTwoHosts(t *testing.T) {
	t.Parallel()
	s, routers := forwardingSite(t)
	sh(t, s.host, "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP")
	node := New(Config{Dir: t.TempDir(), Link: "kuryr-node0", Logger: routers.log})
	before := saved(t, s.host)
	routers.openIn(t, s.host)
	alone := saved(t, s.host)
	node.openIn(t, s.host)
	both := saved(t, s.host)
	for range 2 {
		for _, h := range []*Host{routers, node} {
			const want = "forward-policy FORWARD open ipv4\nforward-policy FORWARD open ipv6"
			if got := h.openIn(t, s.host); got != want {
				t.Errorf("doors of %s\n%s\nwant\n%s", h.link, got, want)
			}
		}
	}
	if now := saved(t, s.host); now != both {
		t.Errorf("rules changed from\n%s\nto\n%s", both, now)
	}
	s.wantPaths(t, "both open", true)
	in(t, s.host, func() error { return node.CloseDoors(t.Context()) })
	if now := saved(t, s.host); now != alone {
		t.Errorf("closing one left\n%s\nwant\n%s", now, alone)
	}
	in(t, s.host, func() error { return routers.CloseDoors(t.Context()) })
	if now := saved(t, s.host); now != before {
		t.Errorf("closing both left\n%s\nwant\n%s", now, before)
	}
}

func TestWatchPutsBackAfterFlush(t *testing.T) {
	t.Parallel()
	s, h := forwardingSite(t)
	h.watchIn(t, s.host)
	// Docker comes while we watch.
	likeDocker(t, s.host, "20.10")
	inForward := func(n int) func() bool {
		return func() bool {
			return strings.Count(sh(t, s.host, "iptables -S FORWARD; ip6tables -S FORWARD"), comment) == n &&
				strings.Count(saved(t, s.host), comment) == n
		}
	}
	eventually(t, "doors and guards", inForward(6))
	s.wantPaths(t, "Docker came", true)

	// A flush leaves the policy and takes Docker's rules.
	sh(t, s.host, "iptables -F; ip6tables -F")
	eventually(t, "doors only", inForward(4))
	s.wantPaths(t, "flushed", true)
	likeDocker(t, s.host, "20.10")
	eventually(t, "doors and guards again", inForward(6))
	s.wantPaths(t, "Docker is back", true)

	// The operator ends Docker's chain with a drop: we return from it to Docker's own verdicts.
	sh(t, s.host, "for p in iptables ip6tables; do $p -D DOCKER-USER -j RETURN; $p -A DOCKER-USER -j DROP; done")
	eventually(t, "rules in both chains", func() bool {
		return strings.Count(sh(t, s.host, "iptables -S DOCKER-USER; ip6tables -S DOCKER-USER"), comment) == 4 &&
			strings.Count(saved(t, s.host), comment) == 10
	})
	s.wantPaths(t, "DOCKER-USER drops", true)
	sh(t, s.host, "for p in iptables ip6tables; do $p -D DOCKER-USER -j DROP; done")

	// Docker stays but the operator opens the policy: no door is needed.
	sh(t, s.host, "iptables -P FORWARD ACCEPT; ip6tables -P FORWARD ACCEPT")
	eventually(t, "guards only", inForward(2))
	sh(t, s.host, "iptables -F; ip6tables -F")
	eventually(t, "no rules of ours", inForward(0))
}

// TestWatchComesToRest: our own changes are announced too, and must not keep us busy.
func TestWatchComesToRest(t *testing.T) {
	t.Parallel()
	s, h := forwardingSite(t)
	likeDocker(t, s.host, "20.10")
	h.watchIn(t, s.host)
	eventually(t, "doors and guards", func() bool { return strings.Count(saved(t, s.host), comment) == 6 })
	var m *monitor
	in(t, s.host, func() (err error) {
		m, err = openMonitor()
		return err
	})
	defer m.Close()
	// Long enough for several rounds, were there a loop. Rules that were made just before
	// are read again after that.
	if err := m.SetReadDeadline(time.Now().Add(4 * atMost)); err != nil {
		t.Fatal(err)
	}
	if n, err := m.Read(make([]byte, 1<<16)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("with nobody else there the ruleset changed: %d bytes of notifications, %v", n, err)
	}
}

func TestDoorsBesidePolicy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, rules string }{
		{"policy", "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP"},
		{"last rule", "iptables -A FORWARD -i lo -j ACCEPT; iptables -A FORWARD -j REJECT; ip6tables -A FORWARD -j DROP"},
		{
			"own chain",
			"for p in iptables ip6tables; do $p -N end; $p -A end -j LOG; $p -A end -j DROP; $p -A " +
				"FORWARD -j end; done",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, h := forwardingSite(t)
			sh(t, s.host, c.rules)
			before := saved(t, s.host)
			if got, want := h.openIn(t, s.host), "forward-policy FORWARD opened ipv4\nforward-policy "+
				"FORWARD opened ipv6"; got != want {
				t.Fatalf("doors\n%s\nwant\n%s", got, want)
			}
			s.wantPaths(t, "doors open", true)
			in(t, s.host, func() error { return h.CloseDoors(t.Context()) })
			if after := saved(t, s.host); after != before {
				t.Errorf("closing left\n%s\nwant\n%s", after, before)
			}
		})
	}
}

func TestNothingFilters(t *testing.T) {
	t.Parallel()
	s, h := forwardingSite(t)
	if got := h.openIn(t, s.host); got != "" {
		t.Errorf("doors %q, want none", got)
	}
	if got := h.findingsIn(t, s.host); len(got) > 0 {
		t.Errorf("findings %q, want none", got)
	}
	if got := sh(t, s.host, "nft list ruleset"); got != "" {
		t.Errorf("looking made rules: %s", got)
	}
	s.wantPaths(t, "nothing filters", true)
}

// A firewall written with nft has no door; the operator is told, and the advice works.
func TestForeignNftables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, table string
		drops       bool
	}{
		{
			"policy",
			"inet mine { chain fw { type filter hook forward priority 0; policy drop; ct state " +
				"established accept; }; }",
			true,
		},
		{
			"last rule",
			"inet mine { chain fw { type filter hook forward priority 0; ct state established accept; " +
				"counter reject; }; }",
			true,
		},
		{"iptables' name", "ip filter { chain fw { type filter hook forward priority 0; policy drop; }; }", true},
		{
			"open",
			"inet mine { chain fw { type filter hook forward priority 0; policy accept; iifname " +
				"\"eth9\" drop; }; }",
			false,
		},
		// Docker 29's nftables backend, cut short: what is not its own bridge's passes.
		{"docker-bridges", `ip docker-bridges {
			chain filter-forward-in__docker0 { ct state established,related accept; drop; };
			chain filter-FORWARD { type filter hook forward priority filter; policy accept;
				oifname vmap { "docker0" : jump filter-forward-in__docker0 }; }; }`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			needs(t, "nft")
			s, h := forwardingSite(t)
			sh(t, s.host, "nft -f - <<'EOF'\ntable "+c.table+"\nEOF\n")
			found := h.findingsIn(t, s.host)
			if passes := connects(t, s.inside, s.outside, outside4, !c.drops); passes == c.drops {
				t.Fatalf("passes=%v with drops=%v", passes, c.drops)
			}
			if !c.drops {
				if got := h.openIn(t, s.host); len(found) > 0 || got != "" {
					t.Errorf("findings %q, doors %q, want none", found, got)
				}
				return
			}
			if len(found) != 1 || !strings.Contains(found[0], strings.Fields(c.table)[1]+" fw") {
				t.Fatalf("findings %q, want the chain", found)
			}
			var mend string
			in(t, s.host, func() error {
				list, err := h.Check(t.Context(), true, true)
				if err == nil {
					mend = list[0].Mend
				}
				return err
			})
			commands := strings.Split(mend, "`")
			sh(t, s.host, commands[1]+"\n"+commands[3])
			if !connects(t, s.inside, s.outside, outside4, true) || !connects(t, s.outside, s.inside, inside4, true) {
				t.Errorf("the mend does not help: %s", mend)
			}
			if again := h.findingsIn(t, s.host); len(again) > 0 {
				t.Errorf("findings after the mend: %q", again)
			}
		})
	}
}

// Native rules in iptables' table make it unreadable for iptables: we must say so, not
// make it worse.
func TestUnreadableTable(t *testing.T) {
	t.Parallel()
	needs(t, "nft")
	s, h := forwardingSite(t)
	sh(t, s.host, `iptables -P FORWARD DROP; nft add rule ip filter FORWARD iifname '"x*"' fib daddr type local accept`)
	before := sh(t, s.host, "nft list ruleset")
	in(t, s.host, func() error {
		doors, err := h.OpenDoors(t.Context())
		if !errors.Is(err, errUnreadable) ||
			!slices.ContainsFunc(doors, func(d Door) bool { return d.State == StateRefused }) {
			t.Errorf("doors %v, error %v", doors, err)
		}
		return nil
	})
	if after := sh(t, s.host, "nft list ruleset"); after != before {
		t.Errorf("rules changed from\n%s\nto\n%s", before, after)
	}
	if got := h.findingsIn(t, s.host); len(got) != 1 || !strings.Contains(got[0], "ip filter FORWARD") {
		t.Errorf("findings %q, want the chain", got)
	}
}

func TestOpenDoorsKeepsDeadline(t *testing.T) {
	t.Parallel()
	s, h := forwardingSite(t)
	in(t, s.host, func() error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.OpenDoors(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %v", err, context.Canceled)
		}
		return nil
	})
}

// TestWatchTellsOfItsTable: a flush of everything takes Kuryr's own table along, and
// its keeper is told.
func TestWatchTellsOfItsTable(t *testing.T) {
	t.Parallel()
	s, h := forwardingSite(t)
	needs(t, "nft")
	told := make(chan struct{}, 100)
	h.tableLost = func(context.Context) { told <- struct{}{} }
	sh(t, s.host, "nft add table inet kuryr; nft add chain inet kuryr c; nft add rule inet kuryr c accept")
	h.watchIn(t, s.host)
	sh(t, s.host, "nft add rule inet kuryr c drop")
	sh(t, s.host, "nft flush ruleset")
	select {
	case <-told:
	case <-time.After(nstest.Limit):
		t.Fatal("nobody was told that the table went")
	}
}
