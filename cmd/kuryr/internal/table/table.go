// Package table prints lists and single objects for people (a table) and for programs (JSON, YAML).
//
// It owns the look of the output only; what the columns are is the caller's affair. JSON
// and YAML show the values themselves, by their JSON names and in their order, so that
// scripts do not depend on the columns.
package table

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Format is a form of output.
type Format string

// The forms of output.
const (
	Table Format = "table"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// Formats are all there are.
var Formats = []Format{Table, JSON, YAML}

// ParseFormat reads the name of a form.
func ParseFormat(s string) (Format, error) {
	if slices.Contains(Formats, Format(s)) {
		return Format(s), nil
	}
	return "", fmt.Errorf("%q is not a form of output: want table, json or yaml", s)
}

// Column is a column of a table.
type Column[T any] struct {
	Name  string
	Value func(T) string // several lines are several lines of the cell
}

// List prints values: a table with one row each, or as one JSON or YAML sequence.
func List[T any](w io.Writer, f Format, values []T, columns []Column[T]) error {
	if f != Table {
		if values == nil {
			values = []T{}
		}
		return encode(w, f, values)
	}
	rows := [][]string{{}}
	for _, c := range columns {
		rows[0] = append(rows[0], strings.ToUpper(c.Name))
	}
	for _, v := range values {
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = c.Value(v)
		}
		rows = append(rows, row)
	}
	return write(w, rows)
}

// Show prints one value: a table with one row for each column, or as JSON or YAML.
func Show[T any](w io.Writer, f Format, value T, columns []Column[T]) error {
	if f != Table {
		return encode(w, f, value)
	}
	var rows [][]string
	for _, c := range columns {
		rows = append(rows, []string{c.Name, c.Value(value)})
	}
	return write(w, rows)
}

const gap = "   "

// write aligns cells. An empty cell is a hyphen, so that columns can be told apart.
func write(w io.Writer, rows [][]string) error {
	var width []int
	cells := make([][][]string, len(rows))
	for r, row := range rows {
		for c, text := range row {
			if text == "" {
				text = "-"
			}
			lines := strings.Split(text, "\n")
			for i := range lines {
				lines[i] = Printable(lines[i])
				if c == len(width) {
					width = append(width, 0)
				}
				width[c] = max(width[c], utf8.RuneCountInString(lines[i]))
			}
			cells[r] = append(cells[r], lines)
		}
	}
	var out bytes.Buffer
	for _, row := range cells {
		height := 0
		for _, lines := range row {
			height = max(height, len(lines))
		}
		for i := range height {
			var line strings.Builder
			for c, lines := range row {
				text := ""
				if i < len(lines) {
					text = lines[i]
				}
				line.WriteString(text)
				if c < len(row)-1 {
					line.WriteString(strings.Repeat(" ", width[c]-utf8.RuneCountInString(text)))
					line.WriteString(gap)
				}
			}
			out.WriteString(strings.TrimRight(line.String(), " "))
			out.WriteByte('\n')
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

// CompareNatural orders names as people do: net2 before net10.
func CompareNatural(x, y string) int {
	a, b := x, y
	for a != "" && b != "" {
		na, restA := leadingNumber(a)
		nb, restB := leadingNumber(b)
		if na != "" && nb != "" {
			ta, tb := strings.TrimLeft(na, "0"), strings.TrimLeft(nb, "0")
			if by := cmp.Or(cmp.Compare(len(ta), len(tb)), strings.Compare(ta, tb)); by != 0 {
				return by
			}
			a, b = restA, restB
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(x, y))
}

// leadingNumber cuts the digits off that s begins with.
func leadingNumber(s string) (digits, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return s[:len(s)-len(rest)], rest
}

// Printable shows s without anything that could steer a terminal: what is not printable
// becomes U+FFFD.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

func encode(w io.Writer, f Format, value any) error {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return err
	}
	if f == JSON {
		_, err := w.Write(out.Bytes())
		return err
	}
	// Going by JSON keeps names, order and types.
	decoder := json.NewDecoder(&out)
	decoder.UseNumber()
	node, err := toYAML(decoder)
	if err != nil {
		return err
	}
	y := yaml.NewEncoder(w)
	y.SetIndent(2)
	if err := y.Encode(node); err != nil {
		return err
	}
	return y.Close()
}
