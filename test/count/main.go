// Command count turns the output of "go test -json" into a report and into numbers.
//
//	go test -json ./... | count -name test -known LIST -to FILE
//	count -sum FILE…
//
// It prints each failed or skipped test with its output, one line per passed package and the
// slowest tests, and writes "passed failed skipped" to FILE; the first message of each failed
// test goes to FILE.failed. It fails when a test or a package failed, or when no test passed.
// When it is terminated (SIGTERM) it counts what it has read.
// With -sum it prints the line "N passed, N failed, N skipped" for all files. It starts no tests.
//
// LIST names tests of faults that are not fixed yet, a line each: the part of the project that
// is to fix it, package, test, case. Such a test counts as skipped when it fails. It has failed
// when it passes or does not run, so that the list names no fault that is fixed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	name := flag.String("name", "tests", "name of the suite")
	to := flag.String("to", "", "`file` for the three numbers")
	list := flag.String("known", "", "`file` that lists the tests that must fail")
	sum := flag.Bool("sum", false, "add up the given files")
	flag.Parse()
	var err error
	if *sum {
		err = total(os.Stdout, flag.Args())
	} else {
		signal.Ignore(syscall.SIGTERM) // the end of the input follows
		err = report(os.Stdin, os.Stdout, *name, *list, *to)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

// counts are the numbers of a suite. A test with subtests counts in addition to them.
type counts struct {
	passed, failed, skipped int
}

// event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // seconds
}

// reader accumulates events.
type reader struct {
	counts
	out      io.Writer
	output   map[string][]string // of packages and tests that have not ended
	failedIn map[string]int      // failed tests by package, known ones included
	known    map[string]string   // cases by package and test; those that have not run yet
	slow     []event             // ended top-level tests
	messages []string            // of failed tests: the name and the first message
}

// report reads a suite's events, prints the report and writes the numbers to a file.
func report(in io.Reader, out io.Writer, name, list, file string) error {
	known, err := readKnown(list)
	if err != nil {
		return err
	}
	c, messages, err := read(in, out, name, known)
	if file != "" {
		text := fmt.Sprintln(c.passed, c.failed, c.skipped)
		err = cmp.Or(err, os.WriteFile(file, []byte(text), 0o644))
		if len(messages) > 0 {
			err = cmp.Or(err, os.WriteFile(file+".failed", []byte(strings.Join(messages, "\n")+"\n"), 0o644))
		}
	}
	return err
}

// readKnown reads a list of known failures: cases by package and test.
func readKnown(file string) (map[string]string, error) {
	known := map[string]string{}
	if file == "" {
		return known, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 4 {
			return nil, fmt.Errorf("%s:%d: want part, package, test and case", file, i+1)
		}
		known[fields[1]+" "+fields[2]] = fields[3]
	}
	return known, nil
}

// read also returns the first message of each failed test.
func read(in io.Reader, out io.Writer, name string, known map[string]string) (counts, []string, error) {
	r := reader{out: out, output: map[string][]string{}, failedIn: map[string]int{}, known: known}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(out, string(line)) // a message of the go command
			} else {
				r.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return r.counts, r.messages, err
		}
	}
	for _, test := range slices.Sorted(maps.Keys(r.known)) {
		r.failed++
		fmt.Fprintf(out, "FAIL  %s did not run: take it off the list of known failures, or run it\n", test)
	}
	r.printSlowest()
	fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped\n", name, r.passed, r.failed, r.skipped)
	switch {
	case r.failed > 0:
		return r.counts, r.messages, fmt.Errorf("%s: %d failed", name, r.failed)
	case r.passed == 0:
		r.failed = 1
		return r.counts, r.messages, fmt.Errorf("%s: no test passed (%d were skipped)", name, r.skipped)
	}
	return r.counts, r.messages, nil
}

// add counts one event.
func (r *reader) add(e event) {
	key := e.Package + e.ImportPath + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		r.output[key] = append(r.output[key], e.Output)
		return
	case "pass", "fail", "skip", "build-fail":
	default:
		return
	}
	if e.Test != "" && !strings.Contains(e.Test, "/") {
		r.slow = append(r.slow, e)
	}
	text := strings.Join(r.output[key], "")
	delete(r.output, key)
	test, _, _ := strings.Cut(e.Test, "/")
	_, isKnown := r.known[e.Package+" "+test]
	switch {
	case e.Action == "build-fail":
		fmt.Fprint(r.out, text)
	case e.Test == "" && e.Action == "fail":
		if r.failedIn[e.Package] == 0 {
			r.failed++ // it did not build, ran out of time, or its TestMain failed
		}
		fmt.Fprint(r.out, text)
	case e.Test == "" && e.Action == "pass":
		fmt.Fprintf(r.out, "ok    %-55s %6.1fs\n", e.Package, e.Elapsed)
	case e.Test == "": // a package without tests
	case isKnown:
		r.addKnown(e, text)
	case e.Action == "pass":
		r.passed++
	case e.Action == "skip":
		r.skipped++
		fmt.Fprint(r.out, text)
	default:
		r.failed++
		r.failedIn[e.Package]++
		fmt.Fprintf(r.out, "FAIL  %s %s\n%s", e.Package, e.Test, text)
		if message := firstMessage(text); message != "" {
			r.messages = append(r.messages, fmt.Sprintf("%s %s: %s", e.Package, e.Test, message))
		}
	}
}

// message begins what a test says by Error, Fatal or Log, after the file and the line.
var message = regexp.MustCompile(`^\s*\w+\.go:\d+: `)

// firstMessage returns the first message in a test's output, with the lines that belong to it,
// of up to 600 bytes; logs of daemons ("--- NAME") are none.
func firstMessage(output string) string {
	var found string
	for line := range strings.Lines(output) {
		switch begins := message.MatchString(line); {
		case found == "" && begins && !strings.Contains(line, ": --- "):
			found = strings.TrimLeft(line, " \t")
		case found != "" && (begins || !strings.HasPrefix(line, "        ")):
			return cut(found)
		case found != "":
			found += line
		}
	}
	return cut(found)
}

func cut(s string) string {
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[:min(len(s), 600)], "")
}

// addKnown counts the end of a test on the list. Its subtests do not count.
func (r *reader) addKnown(e event, text string) {
	if strings.Contains(e.Test, "/") {
		return
	}
	test := e.Package + " " + e.Test
	fault := r.known[test]
	delete(r.known, test)
	switch e.Action {
	case "fail":
		r.skipped++
		r.failedIn[e.Package]++
		fmt.Fprintf(r.out, "known %s: %s fails\n", fault, test)
	case "skip":
		r.failed++
		fmt.Fprintf(r.out, "FAIL  %s is skipped, so it does not show %s\n%s", test, fault, text)
	default:
		r.failed++
		fmt.Fprintf(r.out, "FAIL  %s passes: take %s off the list of known failures\n", test, fault)
	}
}

// slowest is how many tests the report names, and from how many seconds on a test is slow.
const slowest, slowSeconds = 10, 5

func (r *reader) printSlowest() {
	slices.SortStableFunc(r.slow, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, e := range r.slow[:min(slowest, len(r.slow))] {
		if e.Elapsed >= slowSeconds {
			fmt.Fprintf(r.out, "slow  %6.1fs %s %s\n", e.Elapsed, e.Package, e.Test)
		}
	}
}

// total adds up files that report wrote. A file that is missing counts as one failure.
func total(out io.Writer, files []string) error {
	var all counts
	for _, file := range files {
		var c counts
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(text), &c.passed, &c.failed, &c.skipped)
		}
		if err != nil {
			c = counts{failed: 1}
		}
		all.passed += c.passed
		all.failed += c.failed
		all.skipped += c.skipped
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", all.passed, all.failed, all.skipped)
	if all.failed > 0 || all.passed == 0 {
		return errors.New("not all passed")
	}
	return nil
}
