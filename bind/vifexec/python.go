//go:build linux

package vifexec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// quoted is the text of a Python dictionary between double quotes: kuryr-lib's
// executables look for 'ovs_hybrid_plug': True in it.
func quoted(details map[string]string) string {
	if len(details) == 0 {
		return ""
	}
	values := make(map[string]any, len(details))
	for name, text := range details {
		values[name] = valueOf(text)
	}
	return `"` + python(values) + `"`
}

// valueOf is what the SDN gave as a detail. A value that was no string is there as its JSON,
// which for a string may look the same: a number is taken for one, since Neutron writes
// those that matter, such as VLANs, as strings.
func valueOf(text string) any {
	if text == "" || !strings.ContainsAny(text[:1], "tfn[{") {
		return text
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber() // as it was written
	var value any
	if !json.Valid([]byte(text)) || decoder.Decode(&value) != nil {
		return text
	}
	return value
}

// python is the text of a JSON value in Python, of a dictionary by its keys' order.
func python(value any) string {
	switch v := value.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case string:
		return pythonString(v)
	case []any:
		parts := make([]string, len(v))
		for i, element := range v {
			parts[i] = python(element)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, pythonString(name)+": "+python(v[name]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(value) // a json.Number
}

// pythonString is the text of a string in Python, whose control characters are escaped.
func pythonString(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\\' || r == '\'':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return "'" + b.String() + "'"
}
