package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// text is a piece of prose in a file, with the line that it begins at.
type text struct {
	line  int
	prose string
	lines bool // a line break in prose is one in the file
}

// opaque replaces text that is not prose. It is no space, so that the words before and after
// it are not taken for a phrase.
const opaque = "\x00"

var (
	directive  = regexp.MustCompile(`^//([a-z]+:\S|nolint|export |line )`)
	inlineCode = regexp.MustCompile("`+[^`]+`+")
)

// comments returns the prose of the comments of a Go file, without directives, code blocks
// and inline code.
func comments(s source) (all []text) {
	for _, group := range s.file.Comments {
		var b strings.Builder
		first := s.line(group.Pos())
		for _, c := range group.List {
			for n := first + strings.Count(b.String(), "\n"); n < s.line(c.Pos()); n++ {
				b.WriteByte('\n')
			}
			b.WriteString(commentProse(c.Text))
		}
		all = append(all, text{line: first, prose: maskCode(b.String()), lines: true})
	}
	return all
}

func commentProse(c string) string {
	switch {
	case directive.MatchString(c), strings.HasPrefix(c, "//\t"):
		return ""
	case strings.HasPrefix(c, "//"):
		return c[2:]
	}
	return strings.TrimSuffix(strings.TrimPrefix(c, "/*"), "*/")
}

// maskCode replaces inline code and keeps the line breaks in it.
func maskCode(prose string) string {
	return inlineCode.ReplaceAllStringFunc(prose, func(code string) string {
		return opaque + strings.Repeat("\n", strings.Count(code, "\n")) + opaque
	})
}

// errorTexts are the functions whose arguments make an error text.
var errorTexts = map[string][]string{
	"errors": {"New"},
	"fmt":    {"Errorf"},
	"sdn":    {"Conflict", "Exhausted", "Invalid", "Unavailable", "Unsupported"},
}

// flagCall matches the methods of a flag set that define a flag. The usage is the last
// argument.
var flagCall = regexp.MustCompile(
	`^(String|Bool|Count|Duration|Float|Int|IP|Uint|Var)[A-Za-z0-9]*$`)

// commandFields are the texts of a Cobra command.
var commandFields = []string{"Short", "Long", "Example"}

// messages returns the texts of a Go file that users read: logs, errors and command help.
func messages(s source) (all []text) {
	add := func(e ast.Expr) {
		if prose, ok := constant(e); ok {
			all = append(all, text{line: s.line(e.Pos()), prose: prose})
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch {
			case isErrorCall(n), isLogCall(n):
				for _, arg := range n.Args {
					add(arg)
				}
			case isFlagCall(n):
				add(n.Args[len(n.Args)-1])
			}
		case *ast.CompositeLit:
			if isCommand(n.Type) {
				for _, e := range n.Elts {
					kv, ok := e.(*ast.KeyValueExpr)
					if ok && slices.Contains(commandFields, name(kv.Key)) {
						add(kv.Value)
					}
				}
			}
		}
		return true
	})
	return all
}

func isCommand(e ast.Expr) bool { return name(e) == "Command" }

func isErrorCall(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && slices.Contains(errorTexts[pkg.Name], sel.Sel.Name)
}

func isFlagCall(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) < 3 || !flagCall.MatchString(sel.Sel.Name) {
		return false
	}
	return strings.HasSuffix(strings.ToLower(name(sel.X)), "flags")
}

// name returns the last identifier of an expression: of s.cmd.Flags() it is Flags.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return name(e.Fun)
	case *ast.StarExpr:
		return name(e.X)
	case *ast.ParenExpr:
		return name(e.X)
	}
	return ""
}

// constant returns the value of a string literal or of a concatenation with literals, in
// which all other operands are opaque. It reports false if there is no literal.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return opaque, false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.ParenExpr:
		return constant(e.X)
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return opaque, false
		}
		left, isLeft := constant(e.X)
		right, isRight := constant(e.Y)
		return left + right, isLeft || isRight
	case *ast.CallExpr:
		if name(e.Fun) == "Sprintf" && len(e.Args) > 0 {
			return constant(e.Args[0])
		}
	}
	return opaque, false
}
