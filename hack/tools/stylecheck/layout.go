package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns   = 120
	maxLines     = 900
	minSentences = 2
)

// checkLines finds lines that are too long; a tab is one column.
func checkLines(t *tree) (found []finding, _ error) {
	for _, list := range [][]source{t.golang, t.scripts} {
		for _, s := range list {
			found = append(found, longLines(s)...)
		}
	}
	return found, nil
}

func longLines(s source) (found []finding) {
	if s.generated {
		return nil
	}
	number := 0
	for line := range strings.Lines(s.text) {
		number++
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); n > maxColumns {
			text := fmt.Sprintf("%d columns, more than %d", n, maxColumns)
			found = append(found, s.finding(number, text))
		}
	}
	return found
}

// checkSizes finds Go files with too many lines.
func checkSizes(t *tree) (found []finding, _ error) {
	for _, s := range t.golang {
		if n := strings.Count(s.text, "\n"); n > maxLines && !s.generated {
			text := fmt.Sprintf("%d lines, more than %d: split the file", n, maxLines)
			found = append(found, s.finding(0, text))
		}
	}
	return found, nil
}

// checkPackageDocs finds packages without documentation of at least two sentences.
func checkPackageDocs(t *tree) (found []finding, _ error) {
	var folders []string
	docs := map[string]string{}
	for _, s := range t.golang {
		if s.isTest() || s.generated {
			continue
		}
		doc, seen := docs[s.folder()]
		if !seen {
			folders = append(folders, s.folder())
		}
		if text := s.file.Doc.Text(); len(text) >= len(doc) {
			docs[s.folder()] = text
		}
	}
	for _, folder := range folders {
		if n := sentences(docs[folder]); n < minSentences {
			text := fmt.Sprintf("the package documentation has %d sentences, fewer than %d: "+
				"document what it is for, what it owns and what it must not do", n, minSentences)
			found = append(found, finding{folder: folder, text: text})
		}
	}
	return found, nil
}

// sentences counts the words that end in a full stop, question mark or exclamation mark.
func sentences(doc string) (n int) {
	for _, word := range strings.Fields(doc) {
		if strings.ContainsAny(word[len(word)-1:], ".?!") || strings.HasSuffix(word, ".)") {
			n++
		}
	}
	return n
}

// firstThread are paths that the kernel answers for the first thread of the process. A
// thread that visits another network namespace needs /proc/thread-self instead.
var firstThread = []string{"/proc/net", "/proc/self/net", "/proc/self/ns/net"}

// checkProcPaths finds string constants with such paths.
func checkProcPaths(t *tree) (found []finding, _ error) {
	for _, s := range t.golang {
		if s.isTest() || within(s.folder(), toolFolder) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err == nil && isFirstThread(text) {
				found = append(found, s.finding(s.line(lit.Pos()), fmt.Sprintf("%q belongs to the "+
					"first thread, which may be in another namespace: use /proc/thread-self", text)))
			}
			return true
		})
	}
	return found, nil
}

func isFirstThread(text string) bool {
	for _, p := range firstThread {
		if within(path.Join("/", text), p) {
			return true
		}
	}
	return false
}

// toolFolder is the folder of this program, whose tables contain what they forbid.
const toolFolder = "hack/tools/stylecheck"
