package main

import (
	"fmt"
	"regexp"
	"strings"
)

// ban is a word or phrase with the text that replaces it.
type ban struct {
	// phrase is a regular expression of whole words, without regard to case. A space stands
	// for any white space, line breaks included.
	phrase string
	use    string
	first  bool // only at the beginning of a sentence
}

// bans are the words of the style guide: its rules for sentences, then its glossary. Of the
// glossary they are those that have no other meaning in this field.
var bans = []ban{
	// Subject and verb.
	{phrase: `who(so|m)?ever|nobody|somebody|anybody|everybody`, use: "name the subject"},
	{phrase: `who`, first: true, use: "name the subject"},
	{phrase: `what (is|are|was|were|has|had)`, first: true, use: "name the subject"},
	{phrase: `(tells?|told) whether`, use: "reports whether"},
	{phrase: `(is|are|was|were) to be`, use: "must be, will be"},
	{phrase: `there (is|are|was|were) none of`, use: "there is no, does not exist"},
	{phrase: `(has|have|had|having) (it|them|the \w+|an? \w+) go`, use: "removes, releases"},

	// Single words.
	{phrase: `anew`, use: "again, recreate"},
	{phrase: `at once`, use: "concurrently, immediately"},
	{phrase: `meanwhile`, use: "while, concurrently"},
	{phrase: `of late`, use: "recently"},
	{phrase: `away`, use: "unavailable; remove"},
	{phrase: `(all|what|who|or|would|may|must) else`, use: "otherwise, any other"},
	{phrase: `else (the|an?|it|they|this|that)`, use: "otherwise"},
	{phrase: `by and by`, use: "gradually"},
	{phrase: `for good`, use: "permanently"},
	{phrase: `as it is`, use: "unchanged, because it is"},
	{phrase: `mend(s|ed|ing)?`, use: "fix, repair"},
	{phrase: `wish(es|ed|ing)?`, use: "request"},

	// Glossary.
	{phrase: `ow(e|es|ed|ing)`, use: "pending cleanup"},
	{phrase: `settle(s|d)?|settling`, use: "retry, complete, wait until it is stable"},
	{phrase: `lent|lend(s|ing)?`, use: "existing port, attach"},
	{phrase: `untold`, use: "unclaimed"},
	{phrase: `whereabouts`, use: "ID cache"},
	{phrase: `frugal`, use: "no atomic tags"},
	{phrase: `patience|patient`, use: "timeout, extended timeout"},
	{phrase: `lull`, use: "idle gate"},
	{phrase: `rous(e|es|ed|ing)`, use: "notify, enqueue"},
	{phrase: `ferr(y|ies|ied)`, use: "CNI shim"},
	{phrase: `legs?`, use: "router interface, node port"},
	{phrase: `claimants?|untak(e|es|en|ing)`, use: "allocator, release"},
	{phrase: `underway|under way`, use: "in-flight"},
	{phrase: `overtak(e|es|en|ing)`, use: "supersede"},
	{phrase: `complain(s|ts?|ed|ing)?`, use: "report, reject, Event"},
	{phrase: `givers?`, use: "expectations"},
	{phrase: `acquainted`, use: "verify the SDN identity"},
	{phrase: `strays?`, use: "orphaned load balancers"},
	{phrase: `suspects?`, use: "orphan candidate"},
	{phrase: `heirs?`, use: "owner"},
	{phrase: `bequeath(s|ed|ing)?`, use: "transfer"},
	{phrase: `graveyards?|tombstones?|bury|buries|buried`, use: "deferred deletion (reaper)"},
	{phrase: `hush(es|ed|ing)?`, use: "remove the address pair"},
	{phrase: `twins?`, use: "duplicate key"},
	{phrase: `roomy`, use: "headroom"},
	{phrase: `rigs?`, use: "fixture"},
	{phrase: `doomed|mortally|liars?`, use: "faulty provider, crash point"},
}

// matcher finds the banned words in a text.
type matcher struct {
	any  *regexp.Regexp // all phrases, which most texts do not match
	each []*regexp.Regexp
	bans []ban
}

func newMatcher(bans []ban) *matcher {
	m := &matcher{bans: bans}
	var all []string
	for _, b := range bans {
		phrase := strings.ReplaceAll(b.phrase, " ", `\s+`)
		all = append(all, phrase)
		m.each = append(m.each, regexp.MustCompile(`(?i)\b(?:`+phrase+`)\b`))
	}
	m.any = regexp.MustCompile(`(?i)\b(?:` + strings.Join(all, "|") + `)\b`)
	return m
}

// find returns the findings of a text of the file.
func (m *matcher) find(s source, t text) (found []finding) {
	if !m.any.MatchString(t.prose) {
		return nil
	}
	for i, re := range m.each {
		for _, at := range re.FindAllStringIndex(t.prose, -1) {
			before, phrase := t.prose[:at[0]], t.prose[at[0]:at[1]]
			upper := phrase[:1] == strings.ToUpper(phrase[:1])
			if m.bans[i].first && (!upper || !isStart(before)) {
				continue
			}
			line := t.line
			if t.lines {
				line += strings.Count(before, "\n")
			}
			phrase = strings.Join(strings.Fields(phrase), " ")
			found = append(found, s.finding(line, fmt.Sprintf("%q: %s", phrase, m.bans[i].use)))
		}
	}
	return found
}

// isStart reports whether a sentence begins after the text.
func isStart(before string) bool {
	trimmed := strings.TrimRight(before, " \t\n")
	return trimmed == "" || strings.Count(before[len(trimmed):], "\n") > 1 ||
		strings.ContainsAny(trimmed[len(trimmed)-1:], ".?!:|-")
}

// checkWords finds the banned words in comments, messages and documents.
func checkWords(t *tree) (found []finding, _ error) {
	m := newMatcher(bans)
	for _, s := range t.golang {
		if s.generated {
			continue
		}
		for _, text := range append(comments(s), messages(s)...) {
			found = append(found, m.find(s, text)...)
		}
	}
	for _, s := range t.markdown {
		found = append(found, m.find(s, document(s))...)
	}
	return found, nil
}
