package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/spelling"
	"go.yaml.in/yaml/v3"
)

// parse lays the settings of a file over c. The file is one mapping; sections are
// mappings; settings are scalars or sequences of scalars.
func parse(c *Config, path string, data []byte) error {
	var doc, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	err := decoder.Decode(&doc)
	if err == nil {
		if decoder.Decode(&more) == nil {
			return &Error{Where: fmt.Sprintf("%s:%d", path, more.Line), Detail: "a second YAML document begins here; want one"}
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		var typed *yaml.TypeError
		if errors.As(err, &typed) {
			return &Error{Where: path, Detail: strings.Join(typed.Errors, "; ")}
		}
		return &Error{Where: path, Detail: strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	if doc.Kind == 0 || len(doc.Content) == 0 || isNull(doc.Content[0]) { // nothing but comments
		return nil
	}
	return section(c, path, "", doc.Content[0])
}

// section reads a mapping whose keys begin with prefix.
func section(c *Config, path, prefix string, node *yaml.Node) error {
	if isNull(node) { // every key of the section is commented out
		return nil
	}
	where := func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", path, n.Line) }
	if node.Kind != yaml.MappingNode {
		return &Error{
			Where: where(node), Key: strings.TrimSuffix(prefix, "."),
			Detail: "want settings of the form key: value here",
		}
	}
	var seen []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		key := prefix + name.Value
		if name.Kind != yaml.ScalarNode {
			return &Error{Where: where(name), Detail: "a key must be a word"}
		}
		if slices.Contains(seen, name.Value) {
			return &Error{Where: where(name), Key: key, Detail: "is set twice"}
		}
		seen = append(seen, name.Value)
		if s := Lookup(key); s != nil {
			values, detail := scalars(s, value)
			if detail != "" {
				return &Error{Where: where(value), Key: key, Detail: detail}
			}
			if err := s.apply(c, where(value), values); err != nil {
				return err
			}
			continue
		}
		if !isSection(key) {
			return &Error{Where: where(name), Key: key, Detail: "unknown key" + suggestion(key)}
		}
		if err := section(c, path, key+".", value); err != nil {
			return err
		}
	}
	return nil
}

// scalars reads a setting's values, or tells what is wrong with their form.
func scalars(s *Setting, node *yaml.Node) (values []string, detail string) {
	switch {
	case isNull(node):
		return nil, "has no value: give one, or leave the key out"
	case s.List && node.Kind == yaml.SequenceNode:
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode || isNull(item) {
				return nil, "want a list of plain values"
			}
			values = append(values, item.Value)
		}
		return values, ""
	case s.List:
		return nil, "want a list: [a, b]"
	case node.Kind != yaml.ScalarNode:
		return nil, "want one plain value"
	}
	return []string{node.Value}, ""
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func isSection(key string) bool {
	return slices.ContainsFunc(settings, func(s *Setting) bool { return strings.HasPrefix(s.Key, key+".") })
}

// suggestion names the known key that was perhaps meant: one with the same last word, or
// one that differs by a letter or two.
func suggestion(key string) string {
	last := key[strings.LastIndexByte(key, '.')+1:]
	best, distance := "", 3
	for _, s := range settings {
		if s.Key[strings.LastIndexByte(s.Key, '.')+1:] == last {
			return "; is " + s.Key + " meant?"
		}
		if d := spelling.Distance(s.Key, key); d < distance {
			best, distance = s.Key, d
		}
	}
	if best == "" {
		return ""
	}
	return "; is " + best + " meant?"
}
