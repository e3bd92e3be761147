package install

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
)

// schemaOf is the reference to the definition of a setting's values.
func schemaOf(s *config.Setting) map[string]any {
	if s.Choices != nil {
		all := []any{}
		for _, word := range s.Choices {
			all = append(all, word)
		}
		return map[string]any{"enum": all}
	}
	name := "plain"
	switch {
	case s.List && s.Form == config.FormRange:
		name = "ranges"
	case s.List:
		name = "list"
	case s.Form == config.FormBool, s.Form == config.FormNumber:
		name = s.Form
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

// The chart's schema has each setting, in both ways of writing it, and no other: helm refuses
// misspelt settings and values of another form, as "kuryr install kubernetes" does.
func TestSchemaCoversSettings(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/kubernetes/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs map[string]struct {
			Properties           map[string]any `json:"properties"`
			AdditionalProperties any            `json:"additionalProperties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	settings := schema.Defs["settings"]
	if settings.AdditionalProperties != false {
		t.Error("helm takes unknown settings")
	}
	want := map[string]any{}
	for _, s := range config.Settings() {
		want[s.Key] = schemaOf(s)
		section, name, nested := strings.Cut(s.Key, ".")
		if !nested {
			continue
		}
		if want[section] == nil {
			want[section] = map[string]any{
				"type": []any{"object", "null"}, "additionalProperties": false, "properties": map[string]any{},
			}
		}
		want[section].(map[string]any)["properties"].(map[string]any)[name] = schemaOf(s)
	}
	for key, one := range want {
		if !reflect.DeepEqual(settings.Properties[key], one) {
			line, _ := json.Marshal(one)
			t.Errorf("values.schema.json: $defs.settings: want %q: %s", key, line)
		}
	}
	for key := range settings.Properties {
		if want[key] == nil {
			t.Errorf("values.schema.json: $defs.settings: there is no setting %q", key)
		}
	}
}
