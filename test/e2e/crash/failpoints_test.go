//go:build e2e

package crash_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// elsewhere are the failpoints that no sequence here can reach, and why that is no gap.
var elsewhere = map[string]string{
	"host.zone.recorded":          "needs firewalld; the tests of datapath/host kill it there",
	"host.closezone.removed":      "needs firewalld; the tests of datapath/host kill it there",
	"local.migrate.copied":        "needs a store of an older schema, of which there is none yet to make",
	"fabric.floating.unannounced": "needs a floating address of its own; Docker's ports are published on the host's",
}

// failpoints lists the names of every failpoint.Here("…") in the tree, whatever its build tags.
func failpoints(t *testing.T, root string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "test" || n == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Here" || len(call.Args) != 1 {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "failpoint" {
				return true
			}
			lit, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the name of a failpoint is not a literal", path)
				return true
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Error(err)
			}
			if slices.Contains(names, name) {
				t.Errorf("%s: the failpoint %s is there twice", path, name)
			}
			names = append(names, name)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}
