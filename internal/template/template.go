// Package template executes templates in the syntax of text/template, without methods.
//
// It owns the evaluation of fields of maps and structs, variables, functions, if, with,
// range, define and template. The predefined functions are and, eq, index, len, ne, not, or,
// print and printf. It must not call methods by name: text/template does, so the linker keeps
// every exported method, which is 3 MB of kuryr and 10 MB of kuryr-kubernetes.
package template

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/template/parse"

	"github.com/kuryr/kuryr/internal/sortslice"
)

// Template is a set of named templates.
type Template map[string]*parse.Tree

// Funcs maps names to functions that return a value, or a value and an error.
type Funcs map[string]any

// maxDepth bounds templates that call themselves.
const maxDepth = 1000

// errBreak and errContinue end a round of range.
var (
	errBreak    = errors.New("break outside of range")
	errContinue = errors.New("continue outside of range")
)

// Parse adds a template and those that it defines. Functions are checked by name only.
func (t Template) Parse(name, text string, funcs Funcs) error {
	trees, err := parse.Parse(name, text, "", "", funcs, builtins)
	if err != nil {
		return err
	}
	for name, tree := range trees {
		t[name] = tree
	}
	return nil
}

// Execute writes the named template. A missing key of a map is an error.
func (t Template) Execute(w io.Writer, name string, data any, funcs Funcs) error {
	return (&state{set: t, funcs: funcs, w: w}).template(name, data)
}

type variable struct {
	name  string
	value any
}

// state is one execution. Variables are a stack; the last one of a name counts.
type state struct {
	set   Template
	funcs Funcs
	w     io.Writer
	tree  *parse.Tree
	vars  []variable
	depth int
}

func (s *state) template(name string, data any) error {
	tree := s.set[name]
	if tree == nil {
		return fmt.Errorf("template %q not defined", name)
	}
	if s.depth == maxDepth {
		return fmt.Errorf("template %q: more than %d calls deep", name, maxDepth)
	}
	callee := *s
	callee.tree, callee.vars, callee.depth = tree, []variable{{"$", data}}, s.depth+1
	return callee.list(data, tree.Root)
}

// list executes the nodes in a scope of their own.
func (s *state) list(dot any, l *parse.ListNode) error {
	if l == nil {
		return nil
	}
	scope := len(s.vars)
	defer func() { s.vars = s.vars[:scope] }()
	for _, n := range l.Nodes {
		if err := s.node(dot, n); err != nil {
			return err
		}
	}
	return nil
}

func (s *state) node(dot any, n parse.Node) error {
	switch n := n.(type) {
	case *parse.TextNode:
		_, err := s.w.Write(n.Text)
		return err
	case *parse.CommentNode:
		return nil
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	case *parse.ActionNode:
		value, err := s.pipe(dot, n.Pipe)
		if err != nil || len(n.Pipe.Decl) > 0 {
			return err
		}
		return s.print(value)
	case *parse.TemplateNode:
		data, err := s.pipe(dot, n.Pipe)
		if err != nil {
			return err
		}
		return s.template(n.Name, data)
	case *parse.IfNode:
		return s.branch(dot, &n.BranchNode)
	case *parse.WithNode:
		return s.branch(dot, &n.BranchNode)
	case *parse.RangeNode:
		return s.repeat(dot, &n.BranchNode)
	}
	return fmt.Errorf("unexpected %s", n)
}

func (s *state) print(value any) error {
	if value == nil {
		value = "<no value>"
	}
	_, err := fmt.Fprint(s.w, value)
	return err
}

// branch executes if and with. Their variables end with them.
func (s *state) branch(dot any, b *parse.BranchNode) error {
	scope := len(s.vars)
	defer func() { s.vars = s.vars[:scope] }()
	value, err := s.pipe(dot, b.Pipe)
	switch {
	case err != nil:
		return err
	case !IsTrue(value):
		return s.list(dot, b.ElseList)
	case b.NodeType == parse.NodeWith:
		return s.list(value, b.List)
	}
	return s.list(dot, b.List)
}

// repeat executes range over a slice, a map by sorted keys, or the integers from zero.
func (s *state) repeat(dot any, b *parse.BranchNode) error {
	scope := len(s.vars)
	defer func() { s.vars = s.vars[:scope] }()
	value, err := s.pipe(dot, b.Pipe)
	if err != nil {
		return err
	}
	s.vars = s.vars[:scope] // each round sets its own
	round := func(key, value any) error {
		defer func() { s.vars = s.vars[:scope] }()
		switch d := b.Pipe.Decl; len(d) {
		case 1:
			s.vars = append(s.vars, variable{d[0].Ident[0], value})
		case 2:
			s.vars = append(s.vars, variable{d[0].Ident[0], key}, variable{d[1].Ident[0], value})
		}
		if err := s.list(value, b.List); err != nil && !errors.Is(err, errContinue) {
			return err
		}
		return nil
	}
	rounds := 0
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Invalid:
	case reflect.Int:
		rounds = int(v.Int())
		for i := 0; i < rounds && err == nil; i++ {
			err = round(i, i)
		}
	case reflect.Slice, reflect.Array:
		rounds = v.Len()
		for i := 0; i < rounds && err == nil; i++ {
			err = round(i, v.Index(i).Interface())
		}
	case reflect.Map:
		rounds = v.Len()
		keys := v.MapKeys()
		sortslice.Func(keys, func(a, b reflect.Value) int {
			return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
		})
		for i := 0; i < rounds && err == nil; i++ {
			err = round(keys[i].Interface(), v.MapIndex(keys[i]).Interface())
		}
	default:
		return s.at(b.Pipe, fmt.Errorf("range over %T", value))
	}
	if rounds <= 0 {
		return s.list(dot, b.ElseList)
	}
	if errors.Is(err, errBreak) {
		return nil
	}
	return err
}

// at adds the place to an error.
func (s *state) at(n parse.Node, err error) error {
	where, what := s.tree.ErrorContext(n)
	return fmt.Errorf("%s: <%s>: %w", where, what, err)
}

// pipe evaluates a pipeline and sets its variables.
func (s *state) pipe(dot any, p *parse.PipeNode) (any, error) {
	if p == nil {
		return nil, nil
	}
	var value any
	var last []any
	for _, c := range p.Cmds {
		var err error
		if value, err = s.command(dot, c, last); err != nil {
			return nil, s.at(p, err)
		}
		last = []any{value}
	}
	for _, d := range p.Decl {
		if !p.IsAssign {
			s.vars = append(s.vars, variable{d.Ident[0], value})
		} else if v := s.variable(d.Ident[0]); v != nil {
			v.value = value
		}
	}
	return value, nil
}

// command evaluates one command of a pipeline. last is the previous command's value.
func (s *state) command(dot any, c *parse.CommandNode, last []any) (any, error) {
	if f, ok := c.Args[0].(*parse.IdentifierNode); ok {
		return s.function(dot, f.Ident, c.Args[1:], last)
	}
	if len(c.Args) > 1 || len(last) > 0 {
		return nil, fmt.Errorf("%s is not a function", c.Args[0])
	}
	return s.value(dot, c.Args[0])
}

func (s *state) value(dot any, n parse.Node) (any, error) {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.NilNode:
		return nil, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.NumberNode:
		switch {
		case n.IsInt:
			return int(n.Int64), nil
		case n.IsFloat:
			return n.Float64, nil
		}
		return nil, fmt.Errorf("unsupported number %s", n)
	case *parse.FieldNode:
		return fields(dot, n.Ident)
	case *parse.VariableNode:
		v := s.variable(n.Ident[0])
		if v == nil {
			return nil, fmt.Errorf("undefined variable %s", n.Ident[0])
		}
		return fields(v.value, n.Ident[1:])
	case *parse.ChainNode:
		v, err := s.value(dot, n.Node)
		if err != nil {
			return nil, err
		}
		return fields(v, n.Field)
	case *parse.PipeNode:
		return s.pipe(dot, n)
	case *parse.IdentifierNode:
		return s.function(dot, n.Ident, nil, nil)
	}
	return nil, fmt.Errorf("unexpected %s", n)
}

func (s *state) variable(name string) *variable {
	for i := len(s.vars) - 1; i >= 0; i-- {
		if s.vars[i].name == name {
			return &s.vars[i]
		}
	}
	return nil
}

// fields follows names through maps and structs.
func fields(v any, names []string) (any, error) {
	for _, name := range names {
		r := reflect.ValueOf(v)
		for r.Kind() == reflect.Pointer {
			r = r.Elem()
		}
		var field reflect.Value
		switch {
		case r.Kind() == reflect.Map && r.Type().Key().Kind() == reflect.String:
			field = r.MapIndex(reflect.ValueOf(name).Convert(r.Type().Key()))
		case r.Kind() == reflect.Struct:
			field = r.FieldByName(name)
		}
		if !field.IsValid() || !field.CanInterface() {
			return nil, fmt.Errorf("no key %q in a value of type %T", name, v)
		}
		v = field.Interface()
	}
	return v, nil
}

// function calls a function. "and" and "or" evaluate no more arguments than they need.
func (s *state) function(dot any, name string, nodes []parse.Node, last []any) (any, error) {
	var args []any
	for _, n := range nodes {
		v, err := s.value(dot, n)
		if err != nil {
			return nil, err
		}
		if name == "and" && !IsTrue(v) || name == "or" && IsTrue(v) {
			return v, nil
		}
		args = append(args, v)
	}
	args = append(args, last...)
	f, ok := s.funcs[name]
	if !ok {
		f, ok = builtins[name]
	}
	if !ok {
		return nil, fmt.Errorf("function %q is not defined", name)
	}
	v, err := call(f, args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// call calls f after checking the arguments.
func call(f any, args []any) (any, error) {
	fn := reflect.ValueOf(f)
	typ := fn.Type()
	fixed := typ.NumIn()
	if typ.IsVariadic() {
		fixed--
	}
	if len(args) < fixed || len(args) > fixed && !typ.IsVariadic() {
		return nil, fmt.Errorf("want %d arguments, not %d", fixed, len(args))
	}
	in := make([]reflect.Value, len(args))
	for i, arg := range args {
		want := typ.In(min(i, typ.NumIn()-1))
		if i >= fixed {
			want = want.Elem()
		}
		v := reflect.ValueOf(arg)
		switch {
		case arg == nil && want.Kind() == reflect.Interface:
			v = reflect.Zero(want)
		case arg == nil || !v.Type().AssignableTo(want):
			return nil, fmt.Errorf("argument %d is of type %T, want %s", i+1, arg, want)
		}
		in[i] = v
	}
	out := fn.Call(in)
	if len(out) == 2 && !out[1].IsNil() {
		return nil, out[1].Interface().(error)
	}
	return out[0].Interface(), nil
}

// IsTrue reports whether a value counts as true: it is neither zero nor empty.
func IsTrue(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return false
	case reflect.Map, reflect.Slice, reflect.Array, reflect.String:
		return r.Len() > 0
	case reflect.Struct:
		return true
	default:
		return !r.IsZero()
	}
}

var builtins = Funcs{
	"and":    last,
	"or":     last,
	"not":    func(v any) bool { return !IsTrue(v) },
	"print":  fmt.Sprint,
	"printf": fmt.Sprintf,
	"eq": func(v any, more ...any) (bool, error) {
		for _, other := range more {
			if equal, err := eq(v, other); equal || err != nil {
				return equal, err
			}
		}
		return false, nil
	},
	"ne": func(a, b any) (bool, error) {
		equal, err := eq(a, b)
		return !equal, err
	},
	"len": func(v any) (int, error) {
		switch r := reflect.ValueOf(v); r.Kind() {
		case reflect.Map, reflect.Slice, reflect.Array, reflect.String:
			return r.Len(), nil
		}
		return 0, fmt.Errorf("a value of type %T has no length", v)
	},
	"index": func(v any, keys ...any) (any, error) {
		for _, key := range keys {
			r, k := reflect.ValueOf(v), reflect.ValueOf(key)
			switch {
			case r.Kind() == reflect.Map && k.IsValid() && k.Type().AssignableTo(r.Type().Key()):
				if item := r.MapIndex(k); item.IsValid() {
					v = item.Interface()
				} else {
					v = reflect.Zero(r.Type().Elem()).Interface()
				}
			case r.Kind() == reflect.Slice && k.Kind() == reflect.Int &&
				k.Int() >= 0 && int(k.Int()) < r.Len():
				v = r.Index(int(k.Int())).Interface()
			default:
				return nil, fmt.Errorf("no index %v in a value of type %T", key, v)
			}
		}
		return v, nil
	},
}

// last is "and" and "or" when none of the arguments before the last decides.
func last(v any, more ...any) any {
	if n := len(more); n > 0 {
		return more[n-1]
	}
	return v
}

// eq compares values of one basic type.
func eq(a, b any) (bool, error) {
	if a == nil || b == nil {
		return a == b, nil
	}
	if reflect.TypeOf(a) != reflect.TypeOf(b) || !reflect.ValueOf(a).Comparable() {
		return false, fmt.Errorf("incompatible types %T and %T", a, b)
	}
	return a == b, nil
}
