package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// source is one text file that a rule looks at.
type source struct {
	path      string // slash-separated, relative to the root
	text      string
	generated bool
	modified  int64

	// Of Go files only.
	fset *token.FileSet
	file *ast.File
}

func (s source) folder() string { return path.Dir(s.path) }
func (s source) isTest() bool   { return strings.HasSuffix(s.path, "_test.go") }

func (s source) finding(line int, text string) finding {
	return finding{folder: s.folder(), path: s.path, line: line, text: text, modified: s.modified}
}

// tree is what the rules look at.
type tree struct {
	root     string
	golang   []source
	scripts  []source // shell, Makefile
	markdown []source
	notes    []string // printed before the findings
}

var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// load reads the tree below root: Go files with any build tags, scripts and documents.
func load(root string) (*tree, error) {
	t := &tree{root: root}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel != "." && rel != ".ci" && skipped(d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return t.add(rel, d)
	})
	return t, err
}

// skipped reports whether a folder contains no sources of ours.
func skipped(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") ||
		name == "testdata" || name == "bin" || name == "man"
}

// add reads the file if a rule looks at its kind.
func (t *tree) add(rel string, d fs.DirEntry) error {
	var list *[]source
	switch {
	case strings.HasSuffix(rel, ".go"):
		list = &t.golang
	case strings.HasSuffix(rel, ".sh"), path.Base(rel) == "Makefile", rel == ".ci/run":
		list = &t.scripts
	case strings.HasSuffix(rel, ".md") && within(rel, "docs"),
		rel == "README.md", rel == "CHANGELOG.md":
		list = &t.markdown
	default:
		return nil
	}
	text, err := os.ReadFile(filepath.Join(t.root, filepath.FromSlash(rel)))
	if err != nil {
		return err
	}
	s, err := parse(rel, text)
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	s.modified = info.ModTime().Unix()
	*list = append(*list, s)
	return nil
}

// parse makes a source of a file's text, with its syntax tree if it is a Go file.
func parse(rel string, text []byte) (source, error) {
	s := source{path: rel, text: string(text)}
	if !strings.HasSuffix(rel, ".go") {
		return s, nil
	}
	s.generated = bytes.Contains(text, []byte("DO NOT EDIT.")) && generatedLine.Match(text)
	s.fset = token.NewFileSet()
	var err error
	s.file, err = parser.ParseFile(s.fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	return s, err
}

// line returns the line of a position in a Go file.
func (s source) line(pos token.Pos) int { return s.fset.Position(pos).Line }
