package neutron

import (
	"encoding/json"
	"fmt"
)

// An envelope is Neutron's answer around one object, {"port": {…}}, or a list, {"ports": […], "ports_links": […]}.
type envelope[T any] struct {
	name  string // the key of what is inside
	value T
	next  bool // there is another page
}

// UnmarshalJSON takes out what is under the envelope's name, and refuses an answer without it.
func (e *envelope[T]) UnmarshalJSON(data []byte) error {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	inside, ok := parts[e.name]
	if !ok {
		return fmt.Errorf("it has no %q", e.name)
	}
	if links := parts[e.name+"_links"]; links != nil {
		var all []struct {
			Rel string `json:"rel"`
		}
		if err := json.Unmarshal(links, &all); err != nil {
			return err
		}
		for _, l := range all {
			e.next = e.next || l.Rel == "next"
		}
	}
	return json.Unmarshal(inside, &e.value)
}
