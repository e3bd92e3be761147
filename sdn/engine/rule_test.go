package engine

import (
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"pgregory.net/rapid"
)

// Rules that say the same in other forms are one, and the nearest others are not.
func TestRulesOfOneMeaning(t *testing.T) {
	t.Parallel()
	in := func(r sdn.Rule) sdn.Rule { r.Direction = sdn.Ingress; return r }
	web := in(sdn.Rule{Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80}})
	for name, c := range map[string]struct {
		a, b sdn.Rule
		same bool
	}{
		"one port":           {web, in(sdn.Rule{Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80, Last: 80}}), true},
		"id and words":       {web, in(sdn.Rule{Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80}, ID: "x", Description: "y", Numeric: true}), true},
		"every port":         {in(sdn.Rule{Protocol: sdn.TCP}), in(sdn.Rule{Protocol: sdn.TCP, Ports: sdn.PortRange{First: 1, Last: 65535}}), true},
		"bits beyond":        {in(sdn.Rule{RemotePrefix: prefix("10.1.2.3/8")}), in(sdn.Rule{RemotePrefix: prefix("10.0.0.0/8")}), true},
		"everywhere":         {in(sdn.Rule{}), in(sdn.Rule{RemotePrefix: prefix("0.0.0.0/0")}), true},
		"type 0 is not any":  {in(sdn.Rule{Protocol: 1}), in(sdn.Rule{Protocol: 1, ICMPType: new(uint8(0))}), false},
		"code 0 is not any":  {in(sdn.Rule{Protocol: 1, ICMPType: new(uint8(3))}), in(sdn.Rule{Protocol: 1, ICMPType: new(uint8(3)), ICMPCode: new(uint8(0))}), false},
		"family":             {in(sdn.Rule{}), in(sdn.Rule{IPv6: true}), false},
		"direction":          {in(sdn.Rule{}), sdn.Rule{Direction: sdn.Egress}, false},
		"group or set":       {in(sdn.Rule{RemoteGroup: "g"}), in(sdn.Rule{RemoteSet: "g"}), false},
		"length of a prefix": {in(sdn.Rule{RemotePrefix: prefix("10.0.0.0/8")}), in(sdn.Rule{RemotePrefix: prefix("10.0.0.0/9")}), false},
	} {
		if got := keyOfRule(c.a) == keyOfRule(c.b); got != c.same {
			t.Errorf("%s: the same is %v", name, got)
		}
	}
}

// Whatever is there and whatever is wanted: afterwards there is what is wanted, each once, what was
// there keeps its id, and doing it again changes nothing.
func TestMergeRules(t *testing.T) {
	t.Parallel()
	rule := rapid.Custom(func(t *rapid.T) sdn.Rule {
		r := egress(uint16(rapid.IntRange(1, 6).Draw(t, "port")))
		r.Ports.Last = r.Ports.First * uint16(rapid.IntRange(0, 1).Draw(t, "said"))
		return r
	})
	meanings := func(rules []sdn.Rule) map[ruleKey]sdn.ID {
		out := map[ruleKey]sdn.ID{}
		for _, r := range rules {
			out[keyOfRule(r)] = r.ID
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		have, _ := mergeRules(nil, rapid.SliceOf(rule).Draw(t, "have"))
		want := rapid.SliceOf(rule).Draw(t, "want")
		got, changed := mergeRules(have, want)
		before, after, wanted := meanings(have), meanings(got), meanings(want)
		if len(got) != len(after) || len(after) != len(wanted) {
			t.Fatalf("%d rules of %d meanings, want %d", len(got), len(after), len(wanted))
		}
		same := len(before) == len(after)
		for k, id := range after {
			old, was := before[k]
			if _, is := wanted[k]; !is || id == "" || was && id != old {
				t.Fatalf("rule %+v has the id %q, had %q", k, id, old)
			}
			same = same && was
		}
		if changed == same {
			t.Fatalf("changed is %v from %v to %v", changed, have, got)
		}
		again, changed := mergeRules(got, want)
		if changed || !slices.Equal(again, got) {
			t.Fatalf("again gives %v after %v", again, got)
		}
	})
}
