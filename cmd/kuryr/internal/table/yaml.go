package table

import (
	"encoding/json"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// toYAML reads one JSON value as a YAML node.
func toYAML(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if t == '{' {
			node.Kind, node.Tag = yaml.MappingNode, "!!map"
		}
		for d.More() { // keys and values of an object alternate, as they do in a mapping's content
			child, err := toYAML(d)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		_, err := d.Token() // the closing one
		return node, err
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: t, Style: style(t)}, nil
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(t.String(), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: t.String()}, nil
	case bool:
		value := "false"
		if t {
			value = "true"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: value}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
}

// word is text that needs no quotes, and oldBool is that which readers of YAML 1.1 take
// for a truth value.
var (
	word    = regexp.MustCompile(`^[\pL_/][\pL\pN_./-]*$`)
	oldBool = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null)$`)
)

func style(s string) yaml.Style {
	if word.MatchString(s) && !oldBool.MatchString(s) {
		return 0
	}
	return yaml.DoubleQuotedStyle
}
