package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxSubject = 72

// checkCommits looks at the commits after the one that added the debt file. Commits cannot
// be corrected later, so older ones are left out.
func checkCommits(t *tree) ([]finding, error) {
	added, err := git(t.root, "log", "--diff-filter=A", "--format=%H", "--", debtFile)
	if err != nil {
		t.notes = append(t.notes, "commits: not checked: "+err.Error())
		return nil, nil
	}
	if len(added) == 0 {
		t.notes = append(t.notes, "commits: not checked: no commit adds "+debtFile)
		return nil, nil
	}
	log, err := git(t.root, "log", "--format=%h %s", added[len(added)-1]+"..HEAD")
	if err != nil {
		return nil, err
	}
	var found []finding
	for _, commit := range log {
		hash, subject, _ := strings.Cut(commit, " ")
		for _, why := range badSubject(subject, t.kind) {
			text := fmt.Sprintf("commit %s %q: %s", hash, subject, why)
			found = append(found, finding{folder: ".", text: text})
		}
	}
	return found, nil
}

// checkDebtHistory compares the counts of each rule, added up over the packages, with those of
// the commit before. They only fall, but for a commit that changes the rules. Code that moves
// takes its findings along.
func checkDebtHistory(t *tree) ([]finding, error) {
	commits, err := git(t.root, "log", "--reverse", "--first-parent", "--format=%h", "--", debtFile)
	if err != nil || len(commits) == 0 {
		return nil, nil // checkCommits notes it
	}
	text, err := os.ReadFile(filepath.Join(t.root, debtFile))
	if err != nil {
		return nil, err
	}
	var found []finding
	now := debtTotals(strings.Split(string(text), "\n"))
	for i := len(commits) - 1; i >= 0; i-- {
		lines, err := git(t.root, "show", commits[i]+":"+debtFile)
		if err != nil {
			break // the commit deletes the file
		}
		before, name := debtTotals(lines), "the working tree"
		between := []string{commits[i]}
		if i+1 < len(commits) {
			name = commits[i+1]
			between = append(between, name)
		}
		rules, err := git(t.root, slices.Concat([]string{"diff", "--name-only"}, between,
			[]string{"--", "hack/tools/stylecheck"})...)
		if err != nil {
			return nil, err
		}
		for rule, count := range now {
			if count > before[rule] && len(rules) == 0 {
				text := fmt.Sprintf("%s raises %s from %d to %d", name, rule, before[rule], count)
				found = append(found, finding{folder: ".", path: debtFile, text: text})
			}
		}
		now = before
	}
	return found, nil
}

// debtTotals adds up the lines of a debt file by rule.
func debtTotals(lines []string) map[string]int {
	totals := map[string]int{}
	for _, line := range lines {
		if fields := strings.Fields(line); len(fields) == 3 {
			count, _ := strconv.Atoi(fields[2])
			totals[fields[0]] += count
		}
	}
	return totals
}

// git returns the lines that a git command prints.
func git(root string, args ...string) ([]string, error) {
	out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		return nil, commandError("git "+args[0], err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), nil
}

// commandError returns the error of a command with what the command printed.
func commandError(command string, err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(exit.Stderr) > 0 {
		return fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(exit.Stderr))
	}
	return fmt.Errorf("%s: %w", command, err)
}

// kind is what a path is in the tree.
type kind int

const (
	missing kind = iota
	file
	folder
)

func (t *tree) kind(path string) kind {
	info, err := os.Stat(filepath.Join(t.root, filepath.FromSlash(path)))
	switch {
	case err != nil:
		return missing
	case info.IsDir():
		return folder
	}
	return file
}

// badSubject returns what is wrong with the subject of a commit. The usual prefix with the
// names of packages ("sdn/neutron, docker: ") may contain folders.
func badSubject(subject string, kindOf func(string) kind) (why []string) {
	if n := utf8.RuneCountInString(subject); n > maxSubject {
		why = append(why, fmt.Sprintf("%d characters, more than %d", n, maxSubject))
	}
	rest := subject
	if prefix, after, ok := strings.Cut(subject, ": "); ok && isPrefix(prefix, kindOf) {
		rest = after
	}
	for _, word := range strings.Fields(rest) {
		word = strings.Trim(word, ".,;:!?()[]\"'`")
		if !strings.Contains(word, "/") {
			continue
		}
		if strings.HasPrefix(word, "/") || kindOf(word) != missing {
			why = append(why, "it names the path "+word)
		}
	}
	return why
}

// isPrefix reports whether the text before a colon is a list of packages.
func isPrefix(prefix string, kindOf func(string) kind) bool {
	for name := range strings.SplitSeq(prefix, ",") {
		name = strings.TrimSpace(name)
		if strings.ContainsAny(name, " ") || strings.HasPrefix(name, "/") || kindOf(name) == file {
			return false
		}
	}
	return true
}
