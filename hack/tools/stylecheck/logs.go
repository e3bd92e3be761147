package main

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const maxMessage = 60

// logMethods are the methods of a logger, with the index of the message.
var logMethods = map[string]int{
	"Debug": 0, "Info": 0, "Warn": 0, "Error": 0,
	"DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1,
	"Log": 2, "LogAttrs": 2,
	"With": -1,
}

// attrs are the functions of slog that make an attribute that may be an error.
var attrs = []string{"Any", "String"}

// isLogCall reports whether a call logs, as far as its names tell: the receiver is slog, or
// is named as a logger.
func isLogCall(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	index, ok := logMethods[sel.Sel.Name]
	return ok && len(call.Args) > index && isLogger(sel.X)
}

func isLogger(e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok {
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
			return isLoggerName(sel.Sel.Name) || isLogger(sel.X)
		}
	}
	return isLoggerName(name(e))
}

func isLoggerName(name string) bool {
	name = strings.ToLower(name)
	return strings.HasSuffix(name, "log") || strings.HasSuffix(name, "logger")
}

// logCalls calls each with the log calls of the Go files.
func logCalls(t *tree, each func(source, *ast.CallExpr)) {
	for _, s := range t.golang {
		if s.generated {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isLogCall(call) {
				each(s, call)
			}
			return true
		})
	}
}

func method(call *ast.CallExpr) string { return call.Fun.(*ast.SelectorExpr).Sel.Name }

// checkLogMessages finds messages that are long or have a semicolon.
func checkLogMessages(t *tree) (found []finding, _ error) {
	logCalls(t, func(s source, call *ast.CallExpr) {
		index := logMethods[method(call)]
		if index < 0 {
			return
		}
		message, _ := constant(call.Args[index])
		if why := badMessage(message); why != "" {
			found = append(found, s.finding(s.line(call.Args[index].Pos()), why))
		}
	})
	return found, nil
}

func badMessage(message string) string {
	switch n := utf8.RuneCountInString(message); {
	case n > maxMessage:
		return fmt.Sprintf("the log message has %d characters, more than %d: %q", n, maxMessage, message)
	case strings.Contains(message, ";"):
		return fmt.Sprintf("the log message has a semicolon: %q", message)
	}
	return ""
}

// checkLogAttrs finds error attributes that are not named err.
func checkLogAttrs(t *tree) (found []finding, _ error) {
	logCalls(t, func(s source, call *ast.CallExpr) {
		args := call.Args[logMethods[method(call)]+1:]
		for i := 0; i < len(args); i++ {
			key, value := args[i], ast.Expr(nil)
			if attr, ok := args[i].(*ast.CallExpr); ok {
				if isAttr(attr) {
					key, value = attr.Args[0], attr.Args[1]
				}
			} else if i+1 < len(args) {
				i++
				value = args[i]
			}
			text, ok := constant(key)
			if ok && text != "err" && (text == "error" || isError(value)) {
				why := fmt.Sprintf("the error attribute is %q: use err", text)
				found = append(found, s.finding(s.line(key.Pos()), why))
			}
		}
	})
	return found, nil
}

// isAttr reports whether a call is one of attrs.
func isAttr(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && name(sel.X) == "slog" && slices.Contains(attrs, sel.Sel.Name) && len(call.Args) == 2
}

var errorName = regexp.MustCompile(`^(err|Err)([A-Z].*)?$`)

// isError reports whether a value is an error, as far as its name tells.
func isError(e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok {
		sel, ok := call.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Error" && errorName.MatchString(name(sel.X))
	}
	return e != nil && errorName.MatchString(name(e))
}
