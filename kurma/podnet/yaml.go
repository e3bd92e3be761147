package podnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// fromYAML gives a YAML document as JSON. What JSON cannot say is an error.
func fromYAML(data []byte) ([]byte, error) {
	var doc any
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, errors.New(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", " "))
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second YAML document follows; want one")
	}
	doc = ownSection(doc)
	if err := sayable(doc, ""); err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

// ownSection leaves out the values of other sections, which may have no form in JSON.
func ownSection(doc any) any {
	var own map[string]any
	switch doc := doc.(type) {
	case map[string]any:
		own = doc
	case map[any]any: // some key is not a text
		own = map[string]any{}
		for key, value := range doc {
			if text, ok := key.(string); ok {
				own[text] = value
			}
		}
	default:
		return doc
	}
	for key := range own {
		if !isSection(key) {
			own[key] = nil
		}
	}
	return own
}

// sayable finds what YAML reads in a way that its writer may not have meant, and JSON has no word for.
func sayable(v any, path string) error {
	switch v := v.(type) {
	case map[any]any:
		return fmt.Errorf("%s: a key is not a text: put it in quotes", path)
	case map[string]any:
		for key, value := range v {
			if err := sayable(value, strings.TrimPrefix(path+"."+key, ".")); err != nil {
				return err
			}
		}
	case []any:
		for i, value := range v {
			if err := sayable(value, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case time.Time:
		return fmt.Errorf("%s: YAML reads this as a date: put it in quotes", path)
	}
	return nil
}
