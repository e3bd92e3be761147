package table

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

type animal struct {
	Name  string            `json:"name"`
	Legs  int               `json:"leg_count"`
	Likes []string          `json:"likes"`
	Notes map[string]string `json:"notes"`
}

var animals = []animal{
	{Name: "cat", Legs: 4, Likes: []string{"fish", "no"}},
	{Name: "äffchen", Legs: 2, Likes: []string{}, Notes: map[string]string{"a<b": "1"}},
	{Name: "", Legs: 0},
}

var columns = []Column[animal]{
	{"name", func(a animal) string { return a.Name }},
	{"likes", func(a animal) string { return strings.Join(a.Likes, "\n") }},
	{"legs", func(a animal) string { return strconv.Itoa(a.Legs) }},
}

func TestList(t *testing.T) {
	t.Parallel()
	for f, want := range map[Format]string{
		Table: "NAME      LIKES   LEGS\n" +
			"cat       fish    4\n" +
			"          no\n" +
			"äffchen   -       2\n" +
			"-         -       0\n",
		JSON: `[
  {
    "name": "cat",
    "leg_count": 4,
    "likes": [
      "fish",
      "no"
    ],
    "notes": null
  },
  {
    "name": "äffchen",
    "leg_count": 2,
    "likes": [],
    "notes": {
      "a<b": "1"
    }
  },
  {
    "name": "",
    "leg_count": 0,
    "likes": null,
    "notes": null
  }
]
`,
		YAML: `- name: cat
  leg_count: 4
  likes:
    - fish
    - "no"
  notes: null
- name: äffchen
  leg_count: 2
  likes: []
  notes:
    "a<b": "1"
- name: ""
  leg_count: 0
  likes: null
  notes: null
`,
	} {
		var out bytes.Buffer
		if err := List(&out, f, animals, columns); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", f, out.String(), want)
		}
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Show(&out, Table, animals[0], columns); err != nil {
		t.Fatal(err)
	}
	if want := "name    cat\nlikes   fish\n        no\nlegs    4\n"; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestEmptyList(t *testing.T) {
	t.Parallel()
	for f, want := range map[Format]string{Table: "NAME   LIKES   LEGS\n", JSON: "[]\n", YAML: "[]\n"} {
		var out bytes.Buffer
		if err := List(&out, f, nil, columns); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("%s: %q, want %q", f, out.String(), want)
		}
	}
}

func TestTableDoesNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := List(&out, Table, []animal{{Name: "\x1b[2Jcat\r"}}, columns); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\r") {
		t.Errorf("control characters in %q", out.String())
	}
}

func TestParseFormat(t *testing.T) {
	t.Parallel()
	for _, f := range Formats {
		if got, err := ParseFormat(string(f)); got != f || err != nil {
			t.Errorf("ParseFormat(%q) = %v, %v", f, got, err)
		}
	}
	if _, err := ParseFormat("xml"); err == nil {
		t.Error("xml is taken")
	}
}

// YAML says what JSON says, whatever the strings look like.
func TestYAMLMeansTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
			"no", "1e3", "0x1f", "~", "null", "12:30", "2026-01-01", "- a", "{", "#", "true",
		}))
		in := animal{
			Name: text.Draw(t, "name"), Likes: rapid.SliceOf(text).Draw(t, "likes"),
			Notes: rapid.MapOf(text, text).Draw(t, "notes"),
		}
		var asJSON, asYAML bytes.Buffer
		if err := Show(&asJSON, JSON, in, nil); err != nil {
			t.Fatal(err)
		}
		if err := Show(&asYAML, YAML, in, nil); err != nil {
			t.Fatal(err)
		}
		var a, b map[string]any
		if err := json.Unmarshal(asJSON.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(asYAML.Bytes(), &b); err != nil {
			t.Fatalf("%v in\n%s", err, asYAML.String())
		}
		a["leg_count"], b["leg_count"] = nil, nil // float64 against int
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("JSON %v\nYAML %v\n%s", a, b, asYAML.String())
		}
	})
}

func TestCompareNatural(t *testing.T) {
	t.Parallel()
	sorted := []string{"", "2", "10", "a", "a01b", "a1b", "a1b2", "a2", "a10", "a10b", "b"}
	for i, x := range sorted {
		for j, y := range sorted {
			if got, want := CompareNatural(x, y), cmp.Compare(i, j); got != want {
				t.Errorf("CompareNatural(%q, %q) = %d, want %d", x, y, got, want)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching("[a0-2]{0,6}")
		x, y, z := text.Draw(t, "x"), text.Draw(t, "y"), text.Draw(t, "z")
		if CompareNatural(x, y) != -CompareNatural(y, x) || (CompareNatural(x, y) == 0) != (x == y) {
			t.Fatalf("%q and %q are in no order", x, y)
		}
		if CompareNatural(x, y) < 0 && CompareNatural(y, z) < 0 && CompareNatural(x, z) >= 0 {
			t.Fatalf("%q, %q and %q are in no order", x, y, z)
		}
	})
}
