package podnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
)

// members are those of a JSON object in their order, each value as it was written. encoding/json's own maps would let a repeated key win silently.
type members struct {
	names  []string
	values []json.RawMessage
}

func object(data []byte) (members, error) {
	var m members
	d := json.NewDecoder(bytes.NewReader(data))
	open, err := d.Token()
	if err != nil {
		return m, noJSON(err)
	}
	if open != json.Delim('{') {
		return m, fmt.Errorf("want an object, not %s", short(bytes.TrimSpace(data)))
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return m, noJSON(err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return m, noJSON(err)
		}
		name := token.(string) // a key: the decoder lets nothing else pass
		if _, twice := m.get(name); twice {
			return m, fmt.Errorf("key %q is there twice", name)
		}
		m.names, m.values = append(m.names, name), append(m.values, value)
	}
	if _, err := d.Token(); err != nil {
		return m, noJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return m, errors.New("something follows the object")
	}
	return m, nil
}

func noJSON(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("no JSON at byte %d: %w", syntax.Offset, err)
	}
	return fmt.Errorf("no JSON: %w", err)
}

func (m members) get(name string) (json.RawMessage, bool) {
	for i, n := range m.names {
		if n == name {
			return m.values[i], true
		}
	}
	return nil, false
}

func (m members) all() iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for i, n := range m.names {
			if !yield(n, m.values[i]) {
				return
			}
		}
	}
}
