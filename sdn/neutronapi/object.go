package neutronapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// object is an encoded object taken apart: its attributes by name, numbers as json.Number.
type object map[string]any

// objectOf takes an encoded object apart.
func objectOf(encoded any) object {
	data, err := json.Marshal(encoded)
	if err != nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var out object
	if decoder.Decode(&out) != nil {
		return nil
	}
	return out
}

// view is what of an object is shown.
type view struct {
	fields []string // empty: all
	admin  bool     // attributes for administrators too
}

// view is what the call asks to see.
func (c *call) view() view {
	v := view{admin: c.caller.admin()}
	if c.reads() {
		v.fields = filled(c.URL.Query()["fields"])
	}
	return v
}

// shows reports whether an attribute is shown.
func (v view) shows(a *field) bool {
	return a.show != nil && (v.admin || a.access&adminShow == 0) && (len(v.fields) == 0 || slices.Contains(v.fields, a.name))
}

// appendObject encodes the attributes of an object that are shown.
func appendObject(out []byte, fields []field, object any, v view) []byte {
	start := len(out)
	for i := range fields {
		a := &fields[i]
		if !v.shows(a) {
			continue
		}
		out = append(out, ',')
		out = appendText(out, a.name)
		out = append(out, ':')
		out = appendJSON(out, a.show(object))
	}
	if len(out) == start {
		out = append(out, '{')
	}
	out[start] = '{' // in place of the first comma
	return append(out, '}')
}

// appendJSON encodes a value. The types that most attributes have cost no reflection.
func appendJSON(out []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(out, "null"...)
	case string:
		return appendText(out, v)
	case bool:
		return strconv.AppendBool(out, v)
	case int:
		return strconv.AppendInt(out, int64(v), 10)
	case int64:
		return strconv.AppendInt(out, v, 10)
	case []string:
		return appendTexts(out, v)
	case []sdn.ID:
		return appendTexts(out, v)
	case map[string]string:
		return appendMap(out, v, appendText)
	case map[string]json.RawMessage:
		return appendMap(out, v, func(out []byte, value json.RawMessage) []byte { return append(out, value...) })
	case json.RawMessage:
		return append(out, v...)
	case []fixedIP:
		return appendAddresses(out, v)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return append(out, "null"...)
	}
	return append(out, data...)
}

// appendTexts encodes a list, which is empty for nil.
func appendTexts[T ~string](out []byte, texts []T) []byte {
	out = append(out, '[')
	for i, text := range texts {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendText(out, string(text))
	}
	return append(out, ']')
}

// appendMap encodes a map, in the order of its keys.
func appendMap[V any](out []byte, m map[string]V, appendValue func([]byte, V) []byte) []byte {
	out = append(out, '{')
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendValue(append(appendText(out, key), ':'), m[key])
	}
	return append(out, '}')
}

// appendAddresses encodes the addresses of a port, of which lists have many.
func appendAddresses(out []byte, addresses []fixedIP) []byte {
	out = append(out, '[')
	for i, a := range addresses {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendText(append(out, `{"subnet_id":`...), a.SubnetID)
		out = appendText(append(out, `,"ip_address":`...), a.IPAddress)
		out = append(out, '}')
	}
	return append(out, ']')
}

// appendText encodes a text. Most need no escapes.
func appendText(out []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			data, _ := json.Marshal(text)
			return append(out, data...)
		}
	}
	out = append(out, '"')
	out = append(out, text...)
	return append(out, '"')
}

// decoded returns a shown value as encoding/json decodes it, numbers as json.Number.
func decoded(value any) any {
	switch v := value.(type) {
	case nil, bool, string:
		return v
	case int:
		return json.Number(strconv.Itoa(v))
	case []string:
		return decodedTexts(v)
	case []sdn.ID:
		return decodedTexts(v)
	}
	decoder := json.NewDecoder(bytes.NewReader(appendJSON(nil, value)))
	decoder.UseNumber()
	var out any
	if decoder.Decode(&out) != nil {
		return nil
	}
	return out
}

func decodedTexts[T ~string](texts []T) []any {
	out := make([]any, len(texts))
	for i, text := range texts {
		out[i] = string(text)
	}
	return out
}

// of gives what is shown of an encoded object.
func (v view) of(encoded any) any {
	if len(v.fields) == 0 {
		return encoded
	}
	all := objectOf(encoded)
	out := object{}
	for _, name := range v.fields {
		if value, there := all[name]; there {
			out[name] = value
		}
	}
	return out
}

// scalar reports whether an attribute is one value: it can be sorted by and filtered by its text.
func scalar(value any) bool {
	switch value.(type) {
	case nil, bool, string, json.Number:
		return true
	}
	return false
}

// text is a scalar as a filter has it.
func text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		if v {
			return "true"
		}
		return "false"
	}
	return ""
}

// compare orders two scalars of an attribute; null comes first.
func compare(a, b any) int {
	an, aok := a.(json.Number)
	bn, bok := b.(json.Number)
	if aok && bok {
		x, _ := an.Int64()
		y, _ := bn.Int64()
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	switch {
	case a == nil && b != nil:
		return -1
	case a != nil && b == nil:
		return 1
	}
	return strings.Compare(text(a), text(b))
}
