package podnet

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kuryr/kuryr/internal/spelling"
)

// section is the key of the configuration that this package reads.
const section = "pod_networks"

// isSection reports whether a top-level key is that section; the second is Kurma's own spelling.
func isSection(key string) bool { return key == section || key == "podNetworks" }

// bare is a key without what writers of JSON, YAML and Go differ in.
func bare(key string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(key))
}

// isAlmost reports whether a key is probably meant to be the other one.
func isAlmost(key, other string, distance int) bool {
	key, other = bare(key), bare(other)
	d := spelling.Distance(key, other)
	return d <= distance || d == 2 && distance > 0 && len(key) == len(other) // letters swapped
}

// ownKeys are Kurma's keys of an entry, with a value of each one's kind and how many letters of
// a misspelt one may differ. Short words have too many neighbours for that.
var ownKeys = []struct {
	name, value string
	distance    int
}{
	{"name", `""`, 0}, {"aci", `""`, 0}, {"default", "true", 1}, {"containerInterface", `""`, 2},
}

// checkKeys refuses a misspelt key of Kurma's. All other keys are the plugin's, so a key that
// has a value of another kind is one of them, however it is spelt.
func checkKeys(entry members) error {
	for key, value := range entry.all() {
		for _, own := range ownKeys {
			if key != own.name && isAlmost(key, own.name, own.distance) && kind(value) == kind([]byte(own.value)) {
				return fmt.Errorf("unknown key %q: want %s", key, own.name)
			}
		}
	}
	return nil
}

// kind tells JSON's texts and truth values from all other values.
func kind(value json.RawMessage) string {
	switch value[0] {
	case '"':
		return "text"
	case 't', 'f':
		return "bool"
	}
	return ""
}
