package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const maxLines = 900

// source is one Go file of the tree.
type source struct {
	folder string // of the file, from the root of the tree
	path   string
	test   bool
	lines  int
	file   *ast.File
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod above this test")
	return ""
}

// tree parses every Go file, whatever its build tags.
func tree(t *testing.T) []source {
	t.Helper()
	top := root(t)
	var all []source
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != top && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		all = append(all, source{
			folder: filepath.ToSlash(filepath.Dir(rel)), path: rel, test: strings.HasSuffix(name, "_test.go"),
			lines: bytes.Count(text, []byte("\n")), file: file,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("only %d Go files found under %s", len(all), top)
	}
	return all
}

// imports are a file's imports by the name they have in it.
func imports(f *ast.File) map[string]string {
	m := map[string]string{}
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "_" || name == "." { // both may be there several times
			name += path
		}
		m[name] = path
	}
	return m
}

func TestImportLaw(t *testing.T) {
	t.Parallel()
	for _, s := range tree(t) {
		for _, path := range imports(s.file) {
			if broken := checkImport(s.folder, path, s.test); broken != "" {
				t.Errorf("%s: %s", s.path, broken)
			}
		}
	}
}

func TestForbiddenCalls(t *testing.T) {
	t.Parallel()
	for _, s := range tree(t) {
		if s.test {
			continue
		}
		for _, broken := range calls(s) {
			t.Errorf("%s: %s", s.path, broken)
		}
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	for _, s := range tree(t) {
		if s.test || within(s.folder, "internal/house") {
			continue
		}
		for _, broken := range texts(s) {
			t.Errorf("%s: %s", s.path, broken)
		}
	}
}

// texts are the laws that a file's string constants break.
func texts(s source) (broken []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				if law := checkText(text); law != "" {
					broken = append(broken, law)
				}
			}
		}
		return true
	})
	return broken
}

func TestCheckText(t *testing.T) {
	t.Parallel()
	for text, is := range map[string]bool{
		"/proc/net": true, "/proc/net/tcp": true, "/proc/self/ns/net": true, "/proc/self/net/dev": true,
		"/proc/thread-self/net": false, "/proc/self/ns/mnt": false, "/proc/netfilter": false, "proc": false,
	} {
		if (checkText(text) != "") != is {
			t.Errorf("%s: %q", text, checkText(text))
		}
	}
}

func calls(s source) (broken []string) {
	names := imports(s.file)
	for _, path := range names {
		if law := checkCall(s.folder, path, ""); law != "" {
			broken = append(broken, law)
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && names[id.Name] != "" {
				if law := checkCall(s.folder, names[id.Name], sel.Sel.Name); law != "" {
					broken = append(broken, law)
				}
			}
		}
		return true
	})
	return broken
}

// What programs are made of, as they are built without tags.
func TestLeanPrograms(t *testing.T) {
	t.Parallel()
	top := root(t)
	for _, r := range leanRules {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+r.program)
		list.Dir, list.Env = top, append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
		out, err := list.Output()
		if err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		packages := strings.Fields(string(out))
		if !slices.Contains(packages, module+r.program) {
			t.Fatalf("%s does not list the program itself", list)
		}
		if broken := checkLean(r, packages); len(broken) > 0 {
			t.Errorf("%s (and %d more packages)", broken[0], len(broken)-1)
		}
	}
}

func TestCheckLean(t *testing.T) {
	t.Parallel()
	r := leanRule{"cmd/x", []string{"k8s.io", "crypto/tls"}, "why"}
	for packages, want := range map[string]int{"fmt": 0, "crypto/tls k8s.io/client-go/rest": 2, "k8s.iox crypto/tlsx crypto": 0, "fmt k8s.io": 1} {
		if got := checkLean(r, strings.Fields(packages)); len(got) != want {
			t.Errorf("%s: want %d broken laws, got %q", packages, want, got)
		}
	}
}

func TestPackageComments(t *testing.T) {
	t.Parallel()
	docs := map[string]string{}
	for _, s := range tree(t) {
		if s.test {
			continue
		}
		if doc := s.file.Doc.Text(); len(doc) > len(docs[s.folder]) || docs[s.folder] == "" {
			docs[s.folder] = doc
		}
	}
	for folder, doc := range docs {
		if n := sentences(doc); n < 2 {
			t.Errorf("package %s says %d sentences of itself: say what it is for, what it owns and what it must not do", folder, n)
		}
	}
}

func TestFileSizes(t *testing.T) {
	t.Parallel()
	for _, s := range tree(t) {
		if s.lines > maxLines {
			t.Errorf("%s has %d lines, more than %d: a file holds one concept", s.path, s.lines, maxLines)
		}
	}
}

// The checker itself: made-up imports, and whether the law lets them pass.
func TestCheckImport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, path string
		test, ok   bool
	}{
		{"docker", "fmt", false, true},
		{"docker", "github.com/vishvananda/netlink", false, true},
		{"docker", module + "sdn", false, true},
		{"docker", module + "bind", false, true},
		{"docker", module + "internal/metrics", false, true},
		{"docker", module + "sdn/local", false, false},
		{"docker", module + "sdn/local", true, true},
		{"docker", module + "sdn/neutron", true, false},
		{"docker", module + "kube/api/v1", false, false},
		{"docker", module + "datapath/fabric", false, false},
		{"docker/ipam", module + "docker", false, true},
		{"dockerlike", module + "sdn", false, false},
		{"kube/raven", module + "datapath/lb", false, false},
		{"kube/node", module + "datapath/lb", false, true},
		{"kube/node", module + "kube/pool", false, true},
		{"kube/node", module + "sdn/local", false, false},
		{"kurma", module + "docker", false, false},
		{"sdn/local", module + "datapath/fabric", false, true},
		{"sdn/local", module + "docker", false, false},
		{"sdn/local", module + "bind", false, false},
		{"sdn/local", module + "sdn/neutron", false, false},
		{"sdn/neutron", module + "kube/raven", false, false},
		{"sdn/restapi", module + "sdn", false, true},
		{"sdn/restapi", module + "sdn/local", false, false},
		{"sdn", module + "internal/metrics", false, false},
		{"sdn", module + "bind", false, false},
		{"sdn", module + "sdn", true, true},
		{"bind", module + "sdn", false, true},
		{"bind", module + "sdn/local", false, false},
		{"bind", module + "datapath/fabric", false, false},
		{"datapath/fabric", module + "sdn", false, true},
		{"datapath/fabric", module + "bind", false, false},
		{"internal/links", module + "sdn", false, true},
		{"internal/links", module + "sdn/local", false, false},
		{"internal/admin", module + "sdn/restapi", false, true},
		{"internal/topology", module + "internal/admin", false, true},
		{"docker", module + "internal/admin", false, false},
		{"cmd/kuryr", module + "internal/admin", false, true},
		{"internal/links", module + "internal/names", false, true},
		{"cmd/kuryr", module + "sdn/local", false, true},
		{"cmd/kuryr", module + "docker", false, true},
		{"elsewhere", module + "sdn", false, false},
	} {
		if broken := checkImport(c.from, c.path, c.test); (broken == "") != c.ok {
			t.Errorf("%s imports %s (test %v): want ok %v, got %q", c.from, c.path, c.test, c.ok, broken)
		}
	}
}

func TestCheckCall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		folder, code string
		broken       int
	}{
		{"docker", `import "time"; func f() { time.Sleep(1) }`, 1},
		{"docker", `import zeit "time"; func f() { <-zeit.Tick(1) }`, 1},
		{"docker", `import "time"; func f() { time.NewTimer(1) }`, 0},
		{"test/e2e/x", `import "time"; func f() { time.Sleep(1) }`, 0},
		{"datapath/fabric", `import "runtime"; func f() { runtime.LockOSThread() }`, 1},
		{"internal/netns", `import "runtime"; func f() { runtime.LockOSThread() }`, 0},
		{"bind", `import "os/exec"; func f() { exec.Command("ip") }`, 1},
		{"sdn/local", `import _ "os/exec"`, 1},
		{"cmd/kuryr", `import "os/exec"; func f() { exec.Command("ip") }`, 0},
		{"datapath/lb", `import "os/exec"; func f() { exec.Command("ip") }`, 0},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; "+c.code, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := calls(source{folder: c.folder, file: file}); len(got) != c.broken {
			t.Errorf("%s: %s: want %d broken laws, got %q", c.folder, c.code, c.broken, got)
		}
	}
}

func TestSentences(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]int{
		"": 0, "Package x does y": 0, "Package x does y.": 1, "Package x does y (and z.) It owns w.\n": 2,
		"Version 1.2 of it.": 1, "What? That!": 2,
	} {
		if got := sentences(doc); got != want {
			t.Errorf("%q: want %d sentences, got %d", doc, want, got)
		}
	}
}

// The tests that the manual names for the peer's defects and the findings about Neutron are there.
func TestNamedTestsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "development.md"))
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, s := range tree(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && s.test {
				there[f.Name.Name] = true
			}
		}
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)[/`]").FindAllStringSubmatch(string(text), -1)
	if len(named) < 50 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, name := range named {
		if !there[name[1]] {
			t.Errorf("docs/development.md names %s, which is no test", name[1])
		}
	}
	suite := map[string]bool{}
	for _, s := range tree(t) {
		if s.folder != "sdn/sdntest" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok {
				suite[strings.Trim(l.Value, `"`)] = true
			}
			return true
		})
	}
	parts := regexp.MustCompile("`([A-Z][A-Za-z]+)/([a-z][a-zA-Z0-9 ]+)`").FindAllStringSubmatch(string(text), -1)
	if len(parts) < 10 {
		t.Errorf("only %d parts of the contract's suite are named", len(parts))
	}
	for _, part := range parts {
		if !strings.HasPrefix(part[1], "Test") && (!suite[part[1]] || !suite[part[2]]) {
			t.Errorf("docs/development.md names %s/%s, which is no part of the contract's suite", part[1], part[2])
		}
	}
}
