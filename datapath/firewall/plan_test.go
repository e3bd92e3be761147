//go:build linux

package firewall

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const isolation = "-N DOCKER-ISOLATION-STAGE-1\n-N DOCKER-ISOLATION-STAGE-2\n-A " +
	"DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP\n-A DOCKER-ISOLATION-STAGE-2 -j RETURN\n"

const forwardToUser = "-P FORWARD DROP\n-N DOCKER-USER\n-N ufw-before-forward\n"

func TestPlanChain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		owner      Owner
		first      string
	}{
		{"nothing filters", "-P FORWARD ACCEPT", "", ""},
		{"docker's chains under an open policy", "-P FORWARD ACCEPT\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER", "", ""},
		{"policy", "-P FORWARD DROP", OwnerPolicy, "-I FORWARD 1 "},
		{"after what is there", "-P FORWARD DROP\n-A FORWARD -i eth0 -j DROP", OwnerPolicy, "-I FORWARD 2 "},
		{
			"docker, before the return",
			forwardToUser +
				"-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -s 1.2.3.4 -j DROP\n-A DOCKER-USER -j RETURN",
			OwnerDocker, "-I FORWARD 2 ",
		},
		{"docker, no return", forwardToUser + "-A FORWARD -j DOCKER-USER", OwnerDocker, "-I FORWARD 2 "},
		{
			"docker's chain drops",
			forwardToUser +
				"-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -s 1.2.3.4 -j DROP\n-A DOCKER-USER -j DROP",
			OwnerDocker, "-I DOCKER-USER 2 -i kr+ -m comment --comment kuryr -j RETURN",
		},
		{
			"docker's chain drops under an open policy",
			"-P FORWARD ACCEPT\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -j DROP",
			OwnerDocker, "-I DOCKER-USER 1 ",
		},
		{
			"docker's isolation",
			forwardToUser + isolation + "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-ISOLATION-STAGE-1",
			OwnerDocker, "-I FORWARD 3 " + guardRule("kr+"),
		},
		{
			"docker's isolation under an open policy",
			"-P FORWARD ACCEPT\n" + isolation + "-A FORWARD -j DOCKER-ISOLATION-STAGE-1", "",
			"-I FORWARD 2 " + guardRule("kr+"),
		},
		{
			"docker's isolation emptied",
			"-P FORWARD ACCEPT\n-N DOCKER-ISOLATION-STAGE-2\n-A DOCKER-ISOLATION-STAGE-2 -j RETURN", "", "",
		},
		{
			"docker's isolation and ufw",
			forwardToUser + isolation +
				"-A FORWARD -j DOCKER-USER\n-A FORWARD -j ufw-before-forward\n-A ufw-before-forward -i lo " +
				"-j ACCEPT",
			OwnerUFW, "-I ufw-before-forward 2 " + guardRule("kr+"),
		},
		{
			"docker and ufw", forwardToUser + "-A FORWARD -j DOCKER-USER\n-A FORWARD -j ufw-before-forward",
			OwnerUFW, "-I ufw-before-forward 1 ",
		},
		{"docker's chain left behind", forwardToUser, OwnerPolicy, "-I FORWARD 1 "},
		{
			"docker's chain out of reach", forwardToUser + "-A FORWARD -j REJECT\n-A FORWARD -j DOCKER-USER",
			OwnerPolicy, "-I FORWARD 1 ",
		},
		{
			"docker's chain only for some", forwardToUser + "-A FORWARD -i docker0 -j DOCKER-USER",
			OwnerPolicy, "-I FORWARD 2 ",
		},
		{
			"ufw",
			forwardToUser + "-A FORWARD -j ufw-before-forward\n-A ufw-before-forward -j ufw-user-forward",
			OwnerUFW, "-I ufw-before-forward 2 ",
		},
		{
			"a rule left over", "-P FORWARD ACCEPT\n-A FORWARD -i kr+ -m comment --comment kuryr -j ACCEPT",
			"", "-D FORWARD -i kr+ ",
		},
	} {
		rs, err := parseRuleset(c.text)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		p := newPlan(rs, "kr+", "ufw-before-forward")
		first := ""
		if len(p.restore) > 0 {
			first = p.restore[0]
		}
		if p.owner != c.owner || !strings.HasPrefix(first, c.first) || first != "" && c.first == "" {
			t.Errorf("%s: owner %q, first line %q; want %q, %q", c.name, p.owner, first, c.owner, c.first)
		}
	}
}

// carryOut does to a text of `iptables -S` what iptables-restore would do to the table.
func carryOut(t *rapid.T, text string, lines []string) string {
	rows := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, line := range lines {
		switch words := strings.SplitN(line, " ", 4); words[0] {
		case "-D":
			i := slices.Index(rows, "-A"+strings.TrimPrefix(line, "-D"))
			if i < 0 {
				t.Fatalf("%q: no such rule in\n%s", line, text)
			}
			rows = slices.Delete(rows, i, i+1)
		case "-I":
			var at int
			if _, err := fmt.Sscan(words[2], &at); err != nil {
				t.Fatal(err)
			}
			prefix, n, where := "-A "+words[1]+" ", 1, -1
			for i, row := range rows {
				if strings.HasPrefix(row, prefix) {
					if n == at {
						where = i
						break
					}
					n++
				}
			}
			if where < 0 {
				if n != at {
					t.Fatalf("%q: index too big in\n%s", line, text)
				}
				where = len(rows)
			}
			rows = slices.Insert(rows, where, prefix+words[3])
		}
	}
	return strings.Join(rows, "\n")
}

func foreign(text string) string {
	return strings.Join(
		slices.DeleteFunc(strings.Split(text, "\n"), func(row string) bool {
			return strings.Contains(row, "--comment kuryr")
		}),
		"\n",
	)
}

// Whatever the table: a plan carried out leaves nothing more to do, touches no foreign
// rule, and is in force.
func TestPlanConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		chains := []string{"FORWARD", "DOCKER-USER", "ufw-before-forward", "other"}
		text := "-P FORWARD " + rapid.SampledFrom([]string{
			"ACCEPT", "DROP",
		}).Draw(t, "policy") + "\n-N DOCKER-USER\n-N ufw-before-forward\n-N other" +
			rapid.SampledFrom([]string{"", "\n" + strings.TrimSuffix(isolation, "\n")}).Draw(t, "isolation")
		for range rapid.IntRange(0, 12).Draw(t, "rules") {
			from := rapid.IntRange(0, 3).Draw(t, "chain")
			targets := append([]string{"ACCEPT", "DROP", "REJECT", "RETURN", "LOG"}, chains[from+1:]...)
			spec := "-j " + rapid.SampledFrom(targets).Draw(t, "target")
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				spec = "-i eth0 " + spec
			case 1:
				spec = rapid.SampledFrom(append(
					doorRules("kr+", "ACCEPT"), doorRules("kr+", "RETURN")[0], guardRule("kr+"),
				)).Draw(t, "ours")
			}
			text += "\n-A " + chains[from] + " " + spec
		}
		rs, err := parseRuleset(text)
		if err != nil {
			t.Fatal(err)
		}
		p := newPlan(rs, "kr+", "ufw-before-forward")
		after := carryOut(t, text, p.restore)
		if foreign(after) != foreign(text) {
			t.Fatalf("foreign rules changed from\n%s\nto\n%s", text, after)
		}
		again, err := parseRuleset(after)
		if err != nil {
			t.Fatal(err)
		}
		if p := newPlan(again, "kr+", "ufw-before-forward"); len(p.restore) > 0 {
			t.Fatalf("still to do %q in\n%s", p.restore, after)
		}
		// As a packet of ours sees it: with our rules unconditional, nothing that dropped by
		// default drops.
		seen, err := parseRuleset(strings.ReplaceAll(after, "-i kr+ -m comment --comment kuryr", "-m comment --comment seen"))
		if err != nil {
			t.Fatal(err)
		}
		if seen.outcome("FORWARD") == dropped {
			t.Fatalf("a packet from a Kuryr link is dropped in\n%s", after)
		}
	})
}
