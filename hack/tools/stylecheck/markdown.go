package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var linkTarget = regexp.MustCompile(`\]\([^)\n]*\)`)

// document returns the prose of a Markdown file, without code and the targets of links.
func document(s source) text {
	var b strings.Builder
	fenced, blank, code := false, true, false
	for line := range strings.Lines(s.text) {
		switch trimmed := strings.TrimSpace(line); {
		case strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
			line = "\n"
		case fenced:
			line = "\n"
		case trimmed == "":
			blank = true
		case (blank || code) && (strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")):
			code, blank = true, false
			line = "\n"
		default:
			code, blank = false, false
		}
		b.WriteString(line)
	}
	prose := linkTarget.ReplaceAllString(maskCode(b.String()), "]"+opaque)
	return text{line: 1, prose: prose, lines: true}
}

const maxEntryWords = 25

// changeKinds are the headings of Keep a Changelog.
var changeKinds = []string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

// checkChangelog finds headings and entries that are not in the form of Keep a Changelog.
func checkChangelog(t *tree) (found []finding, _ error) {
	for _, s := range t.markdown {
		if s.path == "CHANGELOG.md" {
			found = append(found, changelog(s)...)
		}
	}
	return found, nil
}

func changelog(s source) (found []finding) {
	number, entry := 0, false
	for line := range strings.Lines(s.text) {
		number++
		heading, isHeading := strings.CutPrefix(line, "### ")
		words := len(strings.Fields(line)) - 1
		text := ""
		switch {
		case isHeading && !slices.Contains(changeKinds, strings.TrimSpace(heading)):
			text = "the heading is not one of " + strings.Join(changeKinds, ", ")
		case strings.HasPrefix(line, "- ") && words > maxEntryWords:
			text = fmt.Sprintf("the entry has %d words, more than %d", words, maxEntryWords)
		case entry && strings.HasPrefix(line, " "):
			text = "an entry is one line"
		}
		if text != "" {
			found = append(found, s.finding(number, text))
		}
		entry = strings.HasPrefix(line, "- ")
	}
	return found
}
