// Command count turns the output of "go test -json" into something to read and to add up.
//
//	go test -json ./... | count -name test -to FILE
//	count -sum FILE…
//
// It shows what failed with its output, one line a package otherwise, and writes "passed failed skipped" to FILE. Where but a few tests failed, FILE.again
// gets the pattern for "go test -run" that runs them again. It fails
// when a test or package failed, and when no test ran at all; when it is told to end (SIGTERM) it counts what has come by then, and packages that are broken by the same signal are none. With -sum it prints the line "N passed, N failed, N skipped" over all
// files. It starts no tests itself.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	name := flag.String("name", "tests", "what the suite is called")
	to := flag.String("to", "", "`file` for the three numbers")
	sum := flag.Bool("sum", false, "add up the files given")
	flag.Parse()
	var err error
	if *sum {
		err = total(os.Stdout, flag.Args())
	} else {
		cut := make(chan os.Signal, 1)
		signal.Notify(cut, syscall.SIGTERM)
		var c counts
		c, err = read(os.Stdin, os.Stdout, *name)
		if len(cut) > 0 {
			err = c.cutOff()
		}
		if *to != "" {
			err = cmp.Or(err, c.write(*to))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

type counts struct {
	passed, failed, skipped int

	tests int      // that failed; what else did, a package as a whole, is in failed too
	names []string // of the tests that failed, without their subtests
	whole bool     // something failed that is no test
}

// cutOff makes of what was read that of a suite that was ended before its time: tests that failed have, but whatever has not run is no failure.
func (c *counts) cutOff() error {
	c.failed, c.whole = c.tests, true
	c.skipped++
	if c.failed > 0 {
		return fmt.Errorf("%d failed before the end", c.failed)
	}
	return nil
}

// few is how many tests may fail and be worth another run: more are no accident.
const few = 3

// write puts the numbers into a file, and beside it which tests to run again.
func (c *counts) write(file string) error {
	text := fmt.Sprintln(c.passed, c.failed, c.skipped)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	if len(c.names) == 0 || len(c.names) > few || c.whole {
		return nil
	}
	return os.WriteFile(file+".again", []byte("^("+strings.Join(c.names, "|")+")$\n"), 0o644)
}

// event is a line of "go test -json"; see "go doc test2json".
type event struct {
	Action, Package, Test, Output, FailedBuild, ImportPath string
	Elapsed                                                float64
}

// read counts tests that have no subtests of their own in the way go names them: each line of a table is a test, and so is
// the test around it.
func read(in io.Reader, out io.Writer, name string) (counts, error) {
	var c counts
	output := map[string][]string{} // of packages and tests that have not ended yet
	broken := 0                     // packages that failed outside any test
	failedIn := map[string]int{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(out, string(line)) // not ours: a tool's own message
			} else {
				broken += c.add(e, output, failedIn, out)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return c, err
		}
	}
	c.failed += broken
	c.whole = broken > 0
	fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped\n", name, c.passed, c.failed, c.skipped)
	switch {
	case c.failed > 0:
		return c, fmt.Errorf("%s: %d failed", name, c.failed)
	case c.passed == 0:
		c.failed = 1
		return c, fmt.Errorf("%s: no test passed (%d were skipped)", name, c.skipped)
	}
	return c, nil
}

// add takes one event in and returns how many packages it shows to be broken.
func (c *counts) add(e event, output map[string][]string, failedIn map[string]int, out io.Writer) int {
	key := e.Package + e.ImportPath + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		output[key] = append(output[key], e.Output)
		return 0
	case "pass", "fail", "skip", "build-fail":
	default:
		return 0
	}
	broken := 0
	switch {
	case e.Action == "build-fail":
		fmt.Fprint(out, strings.Join(output[key], ""))
	case e.Test == "" && e.Action == "fail":
		if failedIn[e.Package] == 0 {
			broken = 1 // did not build, ran out of time, or its TestMain failed
		}
		fmt.Fprint(out, strings.Join(output[key], ""))
	case e.Test == "" && e.Action == "pass":
		fmt.Fprintf(out, "ok    %-55s %6.1fs\n", e.Package, e.Elapsed)
	case e.Test == "": // a package without tests
	case e.Action == "pass":
		c.passed++
	case e.Action == "skip":
		c.skipped++
		fmt.Fprint(out, strings.Join(output[key], ""))
	default:
		c.failed++
		c.tests++
		failedIn[e.Package]++
		if name, _, _ := strings.Cut(e.Test, "/"); !slices.Contains(c.names, name) {
			c.names = append(c.names, name)
		}
		fmt.Fprintf(out, "FAIL  %s %s\n%s", e.Package, e.Test, strings.Join(output[key], ""))
	}
	delete(output, key)
	return broken
}

func total(out io.Writer, files []string) error {
	var all counts
	for _, file := range files {
		var c counts
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(text), &c.passed, &c.failed, &c.skipped)
		}
		if err != nil {
			c = counts{failed: 1} // the suite ended before it could be counted
		}
		all.passed += c.passed
		all.failed += c.failed
		all.skipped += c.skipped
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", all.passed, all.failed, all.skipped)
	if all.failed > 0 || all.passed == 0 {
		return fmt.Errorf("not all passed")
	}
	return nil
}
