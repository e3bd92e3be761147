package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Difference is one thing in the kernel that is not as the store wants it.
type Difference struct {
	Place  string // such as "router of blue"
	Object string // such as "bridge br-1f0e9a3c-77"
	Want   string // "": it should not exist
	Have   string // "": it does not exist
}

// Group are differences of one kind in one place.
type Group struct {
	Place   string
	Kind    string
	Missing bool // all of them
	Excess  bool // all of them should not exist
	Details []string
}

// kinds are what people call objects of the kernel, by their first word.
var kinds = map[string]string{
	"nft": "firewall rules", "bridge": "links", "link": "links", "port": "links", "subport": "links", "uplink": "links",
	"route": "routes", "host": "routes", "address": "addresses", "sysctl": "settings",
	"namespace": "network namespace", "VIP": "virtual IPs", "proxy": "virtual IPs",
}

// GroupDifferences puts differences of one kind in one place together, in the order of
// their first.
func GroupDifferences(all []Difference) []Group {
	var groups []Group
	for _, d := range all {
		word, _, _ := strings.Cut(d.Object, " ")
		kind, known := kinds[word]
		if !known {
			kind = word
		}
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Place == d.Place && g.Kind == kind })
		if i < 0 {
			i = len(groups)
			groups = append(groups, Group{Place: d.Place, Kind: kind, Missing: true, Excess: true})
		}
		g := &groups[i]
		g.Missing, g.Excess = g.Missing && d.Have == "", g.Excess && d.Want == ""
		g.Details = append(g.Details, fmt.Sprintf("%s: want %q, have %q", d.Object, d.Want, d.Have))
	}
	return groups
}

// Wrong describes the group as it was found.
func (g Group) Wrong() string { return g.text("missing", "left over", "not as in the store") }

// Fixed describes the group after it was repaired.
func (g Group) Fixed() string { return g.text("restored", "removed", "corrected") }

func (g Group) text(missing, excess, other string) string {
	state := other
	switch {
	case g.Missing:
		state = missing
	case g.Excess:
		state = excess
	}
	return fmt.Sprintf("%s: %s %s (%d)", g.Place, g.Kind, state, len(g.Details))
}

// Summary is one line about all findings. After a repair, fixed is the number of things that
// were fixed, and failed the number of repairs that failed; fixed is -1 if no repair was
// requested. The findings are those after the repair, so they count what failed again.
func Summary(all []Finding, fixed, failed int) string {
	problems, warnings, repairable := 0, 0, 0
	var remedies []string
	for _, f := range all {
		switch f.Verdict {
		case Problem:
			problems++
			if f.Remediation == fix {
				repairable++
			}
			remedy := strings.Trim(f.Remediation, "`")
			if remedy != "" && !slices.Contains(remedies, remedy) {
				remedies = append(remedies, remedy)
			}
		case Warning:
			warnings++
		}
	}
	needs := problems
	if needs == 0 { // otherwise what failed is a finding still
		needs = failed
	}
	verb := "need"
	if needs == 1 {
		verb = "needs"
	}
	if fixed >= 0 {
		text := fmt.Sprintf("%d fixed", fixed)
		if needs > 0 {
			text += fmt.Sprintf(", %d %s you", needs, verb)
			if len(remedies) > 0 {
				text += ": " + strings.Join(remedies, "; ")
			}
		}
		return text
	}
	if problems+warnings == 0 {
		return "no problems"
	}
	text := count(problems, "problem") + ", " + count(warnings, "warning")
	if repairable > 0 {
		text += fmt.Sprintf("; kuryr doctor --fix repairs %d", repairable)
	}
	return text
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
