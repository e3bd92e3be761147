//go:build linux

package firewall

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseRuleset(t *testing.T) {
	t.Parallel()
	rs, err := parseRuleset(`# Warning: something
-P INPUT ACCEPT
-P FORWARD DROP -c 12 3456
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD
-A DOCKER-USER -i kr+ -m comment --comment kuryr -j ACCEPT
-A DOCKER-USER ! -i eth0 -m comment --comment "not -j \"kuryr\\ \' x" -g OTHER
-A DOCKER-USER -m comment --comment kuryr -j LOG --log-prefix "a -j DROP "
`)
	if err != nil {
		t.Fatal(err)
	}
	want := &ruleset{
		policies: map[string]string{"INPUT": "ACCEPT", "FORWARD": "DROP"},
		user:     map[string]bool{"DOCKER-USER": true},
		rules: map[string][]rule{
			"FORWARD": {{spec: "-j DOCKER-USER", target: "DOCKER-USER"}, {}},
			"DOCKER-USER": {
				{
					spec: "-i kr+ -m comment --comment kuryr -j ACCEPT", conditions: []string{"-i", "kr+"},
					comment: "kuryr", target: "ACCEPT",
				},
				{spec: `! -i eth0 -m comment --comment "not -j \"kuryr\\ \' x" -g OTHER`, conditions: []string{"!", "-i", "eth0"},
					comment: `not -j "kuryr\ ' x`, target: "OTHER", isGoto: true},
				{spec: `-m comment --comment kuryr -j LOG --log-prefix "a -j DROP "`, comment: "kuryr", target: "LOG"},
			},
		},
	}
	if !reflect.DeepEqual(rs, want) {
		t.Errorf("parsed\n%+v\nwant\n%+v", rs, want)
	}
}

func TestParseRulesetErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"-P FORWARD", "not a policy"},
		{"-N", "not a policy"},
		{"-N A B", "not a policy"},
		{"-A", "not a policy"},
		{"hello", "not a policy"},
		{`-A X -m comment --comment "y`, "quote"},
	} {
		if rs, err := parseRuleset(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %+v, error %v; want one with %q", c.text, rs, err, c.want)
		}
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		want       outcome
		end        int
	}{
		{"policy accept", "-P FORWARD ACCEPT", accepted, 0},
		{"policy drop", "-P FORWARD DROP", dropped, 0},
		{"conditional drop is its author's will", "-P FORWARD ACCEPT\n-A FORWARD -i eth0 -j DROP", accepted, 1},
		{
			"last rule rejects",
			"-P FORWARD ACCEPT\n-A FORWARD -i lo -j ACCEPT\n-A FORWARD -j REJECT --reject-with " +
				"icmp-port-unreachable",
			dropped, 1,
		},
		{"accept before policy", "-P FORWARD DROP\n-A FORWARD -j ACCEPT\n-A FORWARD -j DROP", accepted, 0},
		{"return to policy", "-P FORWARD DROP\n-A FORWARD -j RETURN\n-A FORWARD -j ACCEPT", dropped, 0},
		{"log decides nothing", "-P FORWARD ACCEPT\n-A FORWARD -j LOG\n-A FORWARD", accepted, 2},
		{"chain drops", "-P FORWARD ACCEPT\n-N a\n-N b\n-A FORWARD -j a\n-A a -j b\n-A b -j DROP", dropped, 0},
		{
			"chain returns",
			"-P FORWARD ACCEPT\n-N a\n-A FORWARD -j a\n-A FORWARD -j DROP\n-A a -j RETURN\n-A a -j ACCEPT",
			dropped, 1,
		},
		{"goto does not come back", "-P FORWARD ACCEPT\n-N a\n-A FORWARD -g a\n-A FORWARD -j DROP", accepted, 0},
		{"goto a chain that drops", "-P FORWARD ACCEPT\n-N a\n-A a -j DROP\n-A FORWARD -g a", dropped, 0},
		{"queue", "-P FORWARD DROP\n-A FORWARD -j NFQUEUE --queue-num 1", accepted, 0},
		{"loop", "-P FORWARD DROP\n-N a\n-N b\n-A FORWARD -j a\n-A a -j b\n-A b -j a", dropped, 1},
		{
			"ours do not count",
			"-P FORWARD DROP\n-A FORWARD -m comment --comment kuryr -i kr+ -j ACCEPT\n-A FORWARD -j DROP",
			dropped, 0,
		},
	} {
		rs, err := parseRuleset(c.text)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		rs.link = "kr+"
		if got := rs.outcome("FORWARD"); got != c.want {
			t.Errorf("%s: outcome %v, want %v", c.name, got, c.want)
		}
		if got := rs.end("FORWARD"); got != c.end {
			t.Errorf("%s: end %d, want %d", c.name, got, c.end)
		}
	}
}

// Chains that call one another twice each must not cost two to the power of their number.
func TestOutcomeOfManyChains(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("-P FORWARD DROP\n-A FORWARD -j c0\n")
	for i := range 1000 {
		name, next := "c"+strings.Repeat("x", i), "c"+strings.Repeat("x", i+1)
		if i == 0 {
			b.WriteString("-N c0\n-A c0 -j c\n")
		}
		b.WriteString("-N " + name + "\n-A " + name + " -j " + next + "\n-A " + name + " -j " + next + "\n")
	}
	rs, err := parseRuleset(b.String())
	if err != nil {
		t.Fatal(err)
	}
	if got := rs.outcome("FORWARD"); got != dropped {
		t.Errorf("outcome %v, want %v", got, dropped)
	}
}

func FuzzParseRuleset(f *testing.F) {
	f.Add(
		"-P FORWARD DROP\n-N DOCKER-USER\n-N DOCKER-ISOLATION-STAGE-2\n-A FORWARD -j " +
			"DOCKER-USER\n-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP\n-A DOCKER-USER -j DROP",
	)
	f.Add(
		"-P FORWARD DROP\n-N a\n-A FORWARD -g a\n-A a -m comment --comment \"x \\\" y\" -j " +
			"REJECT\n-A a [unsupported revision]",
	)
	f.Add("-P FORWARD DROP\n-N FORWARD\n-A FORWARD -j FORWARD\n-A FORWARD -i kr+ -m comment --comment kuryr -j ACCEPT")
	f.Fuzz(func(t *testing.T, text string) {
		rs, err := parseRuleset(text)
		if err != nil {
			return
		}
		p := newPlan(rs, "kr+", "ufw-before-forward")
		for _, line := range p.restore {
			// What goes to iptables-restore is one command a line, or a text could smuggle others in.
			if strings.ContainsAny(line, "\n") || !strings.HasPrefix(line, "-D ") && !strings.HasPrefix(line, "-I ") {
				t.Errorf("line %q", line)
			}
		}
		if p.chain == "" && rs.outcome("FORWARD") == dropped {
			t.Error("FORWARD drops and no door is planned")
		}
	})
}
