package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

const (
	manual        = "docs/development.md"
	contractSuite = "sdn/sdntest" // its subtests are named as PART/TEST
)

var (
	testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)[/`]")
	partName = regexp.MustCompile("`([A-Z][A-Za-z]+)/([a-z][a-zA-Z0-9 ]+)`")
)

// checkManual finds tests that the manual names and that do not exist.
func checkManual(t *tree) (found []finding, _ error) {
	tests, parts := map[string]bool{}, map[string]bool{}
	for _, s := range t.golang {
		if s.isTest() {
			for _, d := range s.file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
					tests[f.Name.Name] = true
				}
			}
		}
		if s.folder() == contractSuite {
			literals(s.file, parts)
		}
	}
	for _, s := range t.markdown {
		if s.path == manual {
			found = append(found, unknownTests(s, tests, parts)...)
		}
	}
	return found, nil
}

// literals adds the string literals of a file to the set.
func literals(file *ast.File, set map[string]bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				set[text] = true
			}
		}
		return true
	})
}

func unknownTests(s source, tests, parts map[string]bool) (found []finding) {
	number := 0
	for line := range strings.Lines(s.text) {
		number++
		for _, m := range testName.FindAllStringSubmatch(line, -1) {
			if !tests[m[1]] {
				found = append(found, s.finding(number, m[1]+" is not a test of the tree"))
			}
		}
		for _, m := range partName.FindAllStringSubmatch(line, -1) {
			if !strings.HasPrefix(m[1], "Test") && (!parts[m[1]] || !parts[m[2]]) {
				found = append(found, s.finding(number, m[1]+"/"+m[2]+" is not a test of the contract"))
			}
		}
	}
	return found
}
