// Package doctor judges facts about a host, its Docker engine and a Kuryr: what is well,
// what is not, and what repairs it.
//
// It owns the judging, and the gathering of facts that need no other program: files, the
// kernel, routes. Each area has a file with a struct of facts and a function that judges
// them, which touches nothing, so that it can be tested with facts made up. The package
// must not repair anything but what PluginFacts.Remove removes, and must not speak with
// Docker or a running Kuryr: their answers are given to it.
package doctor

import "github.com/kuryr/kuryr/internal/sortslice"

// Verdict is how well something is.
type Verdict string

// The verdicts.
const (
	OK      Verdict = "ok"
	Warning Verdict = "warning" // it works; something may come of it
	Problem Verdict = "problem" // something does not work, or is not as it should be
)

// Finding is what a check has found.
type Finding struct {
	Check       string  `json:"check"`
	Verdict     Verdict `json:"verdict"`
	What        string  `json:"what"`
	Remediation string  `json:"mend,omitempty"` // what the operator can do; "" where all is well
	// Details are the single things that What sums up.
	Details []string `json:"details,omitempty"`
}

// findings collects those of one check.
type findings struct {
	check string
	list  []Finding
}

func (f *findings) add(v Verdict, what, remedy string) {
	f.list = append(f.list, Finding{Check: f.check, Verdict: v, What: what, Remediation: remedy})
}

// orOK gives what was found, or that all is well in these words.
func (f *findings) orOK(what string) []Finding {
	if len(f.list) == 0 {
		f.add(OK, what, "")
	}
	return f.list
}

// Worst is the worst verdict of all.
func Worst(all []Finding) Verdict {
	worst := OK
	for _, f := range all {
		switch f.Verdict {
		case Problem:
			return Problem
		case Warning:
			worst = Warning
		}
	}
	return worst
}

// WorstFirst sorts problems before warnings before what is well, and else keeps the order.
func WorstFirst(all []Finding) {
	rank := map[Verdict]int{Problem: 0, Warning: 1, OK: 2}
	sortslice.Stable(all, func(a, b Finding) int { return rank[a.Verdict] - rank[b.Verdict] })
}
