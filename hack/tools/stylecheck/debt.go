package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// debtFile has a line RULE PACKAGE COUNT for each package that does not comply yet.
const debtFile = ".lint-debt"

// maxShown bounds the findings that are shown of one package and rule. The files that were
// modified last are shown first, since a new finding is probably there.
const maxShown = 10

// entry identifies a line of the debt file.
type entry struct{ rule, folder string }

func (e entry) String() string { return e.rule + " " + e.folder }

func (e entry) compare(other entry) int { return strings.Compare(e.String(), other.String()) }

// debt has the count of findings per entry.
type debt map[entry]int

func readDebt(text string) (debt, error) {
	d := debt{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s:%d: want RULE PACKAGE COUNT", debtFile, number)
		}
		e := entry{fields[0], fields[1]}
		count, err := strconv.Atoi(fields[2])
		if err != nil || count < 1 {
			return nil, fmt.Errorf("%s:%d: invalid count %q", debtFile, number, fields[2])
		}
		if !hasDebt(e.rule) {
			return nil, fmt.Errorf("%s:%d: rule %q is unknown or allows no entry", debtFile, number, e.rule)
		}
		if _, twice := d[e]; twice {
			return nil, fmt.Errorf("%s:%d: duplicate entry %v", debtFile, number, e)
		}
		d[e] = count
	}
	return d, nil
}

func hasDebt(name string) bool {
	return slices.ContainsFunc(rules, func(r rule) bool { return r.name == name && r.debt })
}

func (d debt) sorted() []entry { return slices.SortedFunc(maps.Keys(d), entry.compare) }

func (d debt) String() string {
	var b strings.Builder
	for _, e := range d.sorted() {
		fmt.Fprintf(&b, "%v %d\n", e, d[e])
	}
	return b.String()
}

// compare compares the findings with the debt file, which it may write, and returns the
// exit status.
func compare(root string, all []finding, m mode, out io.Writer) (int, error) {
	name := filepath.Join(root, debtFile)
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed, err
	}
	var allowed debt
	if m.initial {
		allowed = debt{}
		for _, f := range all {
			if hasDebt(f.rule) {
				allowed[entry{f.rule, f.folder}]++
			}
		}
	} else if allowed, err = readDebt(string(text)); err != nil {
		return failed, err
	}
	left, worse := report(all, allowed, m.write, out)
	if m.write || m.initial {
		if now := []byte(left.String()); !bytes.Equal(now, text) {
			if err := os.WriteFile(name, now, 0o644); err != nil {
				return failed, err
			}
		}
		allowed = left
	}
	if worse || !maps.Equal(left, allowed) {
		return findings, nil
	}
	return clean, nil
}

func group(all []finding) map[entry][]finding {
	groups := map[entry][]finding{}
	for _, f := range all {
		e := entry{f.rule, f.folder}
		groups[e] = append(groups[e], f)
	}
	return groups
}

// report prints the packages that are worse than their entry, and those that are better
// unless their entries are being lowered. It returns the lowest possible entries, and
// whether a package is worse.
func report(all []finding, allowed debt, lower bool, out io.Writer) (left debt, worse bool) {
	groups := group(all)
	left = debt{}
	entries := slices.AppendSeq(allowed.sorted(), maps.Keys(groups))
	slices.SortFunc(entries, entry.compare)
	for _, e := range slices.Compact(entries) {
		found, limit := groups[e], allowed[e]
		if n := min(len(found), limit); n > 0 {
			left[e] = n
		}
		switch {
		case len(found) > limit:
			worse = true
			fmt.Fprintf(out, "%v: %d findings, allowed %d\n", e, len(found), limit)
			slices.SortStableFunc(found, func(a, b finding) int {
				return cmp.Compare(b.modified, a.modified)
			})
			for _, f := range found[:min(len(found), maxShown)] {
				fmt.Fprintf(out, "  %v\n", f)
			}
			if more := len(found) - maxShown; more > 0 {
				fmt.Fprintf(out, "  and %d more\n", more)
			}
		case len(found) < limit && !lower:
			fmt.Fprintf(out, "%v: lower the entry in %s to %d (run make lint-debt)\n",
				e, debtFile, len(found))
		}
	}
	return left, worse
}
