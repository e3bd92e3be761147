package template

import (
	"errors"
	"strings"
	"testing"
	std "text/template"
)

type kind struct {
	Name string
	code int
}

var funcs = Funcs{
	"upper": strings.ToUpper,
	"add":   func(a, b int) int { return a + b },
	"fail":  func() (string, error) { return "", errors.New("out of names") },
	"any":   func(v any) any { return v },
}

var data = map[string]any{
	"name": "blue", "empty": "", "none": nil, "no": false, "n": 3,
	"list": []string{"a", "b", "c"}, "map": map[string]any{"x": 1, "a": map[string]any{"b": "deep"}},
	"kinds": []kind{{Name: "one"}, {Name: "two"}}, "pointer": &kind{Name: "three", code: 3},
}

// Output equals that of text/template.
func TestAsTextTemplate(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "plain", "{{.name}}", "{{.none}}", "{{/* nothing */}}a{{- 1 -}} b", `{{"s"}}{{1.5}}{{true}}{{'a'}}`,
		"{{if .name}}yes{{else}}no{{end}}{{if .empty}}yes{{else if .n}}n{{else}}no{{end}}",
		"{{if not .no}}a{{end}}{{if and .name .empty}}b{{end}}{{if or .empty .name}}c{{end}}",
		"{{and .no .missing.key}}{{or .name .missing.key}}{{and 1 2}}{{or 0 .empty}}",
		`{{.name | upper | printf "%s-%d" .name | len}}`, `{{printf "%v" .list}}{{add 1 .n}}{{(index .map "a").b}}`,
		`{{eq .name "blue"}}{{eq .n 1 3}}{{ne .name "red"}}{{eq .none nil}}{{any nil}}`,
		"{{with .map}}{{.x}}{{.a.b}}{{$.name}}{{else}}none{{end}}{{with .none}}a{{else}}none{{end}}",
		"{{range .list}}{{.}},{{end}}{{range $i, $v := .list}}{{$i}}={{$v}} {{end}}{{range .none}}a{{else}}none{{end}}",
		"{{range $k, $v := .map}}{{$k}} {{end}}{{range $v := .list}}{{$v}}{{end}}{{range .kinds}}{{.Name}}{{end}}",
		`{{range .list}}{{if eq . "b"}}{{continue}}{{end}}{{.}}{{end}}`,
		"{{range 3}}{{.}}{{end}}{{range .list}}{{.}}{{break}}{{end}}",
		"{{$x := 1}}{{if true}}{{$x = 2}}{{$y := 3}}{{$y}}{{end}}{{$x}}{{$m := .map}}{{$m.a.b}}",
		`{{define "t"}}[{{.}}{{$}}]{{end}}{{template "t" .name}}{{template "t"}}`,
		`{{index .list 1}}{{index .map "nope"}}{{index .map "a" "b"}}{{.pointer.Name}}{{print 1 2 "a"}}`,
	} {
		var want, got strings.Builder
		reference, err := std.New("x").Option("missingkey=error").Funcs(std.FuncMap(funcs)).Parse(text)
		if err == nil {
			err = reference.Execute(&want, data)
		}
		if err != nil {
			t.Fatalf("%s: text/template: %v", text, err)
		}
		own := Template{}
		if err = own.Parse("x", text, funcs); err == nil {
			err = own.Execute(&got, "x", data, funcs)
		}
		if err != nil || got.String() != want.String() {
			t.Errorf("%s: %q, %v; want %q", text, got.String(), err, want.String())
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{{":                                    "unclosed action",
		"{{nope}}":                              `function "nope" not defined`,
		"{{lt 1 2}}":                            `function "lt" not defined`,
		"\n{{.missing}}":                        `x:2:2: <.missing>: no key "missing"`,
		"{{.name.field}}":                       `no key "field" in a value of type string`,
		"{{.none.field}}":                       `no key "field" in a value of type <nil>`,
		"{{(index .kinds 0).code}}":             `no key "code"`,
		"{{index .list 3}}":                     "no index 3",
		"{{index .n 3}}":                        "no index 3",
		"{{index .list -1}}":                    "no index -1",
		"{{fail}}":                              "fail: out of names",
		"{{add 1}}":                             "add: want 2 arguments, not 1",
		`{{add 1 "a"}}`:                         "argument 2 is of type string, want int",
		"{{upper nil}}":                         "argument 1 is of type <nil>, want string",
		"{{eq 1 1.5}}":                          "incompatible types int and float64",
		"{{eq .list .list}}":                    "incompatible types []string and []string",
		"{{.name 1}}":                           ".name is not a function",
		"{{len 1}}":                             "has no length",
		"{{range .name}}{{end}}":                "range over string",
		"{{range .list}}{{.Name}}{{end}}":       `no key "Name"`,
		`{{template "y"}}`:                      `template "y" not defined`,
		`{{define "x"}}{{template "x"}}{{end}}`: `more than 1000 calls deep`,
		"{{1i}}":                                "unsupported number 1i",
	} {
		own := Template{}
		err := own.Parse("x", text, funcs)
		if err == nil {
			err = own.Execute(&strings.Builder{}, "x", data, funcs)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriterFails(t *testing.T) {
	t.Parallel()
	own := Template{}
	if err := own.Parse("x", "{{range 9999999}}a{{end}}", nil); err != nil {
		t.Fatal(err)
	}
	if err := own.Execute(full{}, "x", nil, nil); !errors.Is(err, errFull) {
		t.Error(err)
	}
}
