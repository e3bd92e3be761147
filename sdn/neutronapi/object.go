package neutronapi

import (
	"bytes"
	"encoding/json"
	"strings"
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
	hidden []string
}

// view is what the call asks to see. Only administrators see hidden attributes.
func (c *call) view(hidden []string) view {
	v := view{}
	if !c.caller.admin() {
		v.hidden = hidden
	}
	if c.reads() {
		for _, field := range c.URL.Query()["fields"] {
			if field != "" {
				v.fields = append(v.fields, field)
			}
		}
	}
	return v
}

// of gives what is shown of an encoded object.
func (v view) of(encoded any) any {
	if len(v.fields) == 0 && len(v.hidden) == 0 {
		return encoded
	}
	all := objectOf(encoded)
	for _, name := range v.hidden {
		delete(all, name)
	}
	if len(v.fields) == 0 {
		return all
	}
	out := object{}
	for _, name := range v.fields {
		if value, there := all[name]; there {
			out[name] = value
		}
	}
	return out
}

// scalar tells whether an attribute is one value, so that it can be sorted by and compared with a filter's text.
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
