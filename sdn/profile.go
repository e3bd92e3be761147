package sdn

import (
	"bytes"
	"encoding/json"
	"maps"
)

// Keys of Port.Profile.
const (
	ProfilePCISlot = "pci_slot" // the PCI address of the function, such as 0000:3b:02.1
	ProfileTrusted = "trusted"  // true: the function may change its MAC and see what is not for it
)

// ProfileText returns a value of Port.Profile as text: what a JSON string says, and the JSON of
// any other value. So the truth value true and the string "true" are the same.
func ProfileText(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil && len(value) > 0 && value[0] == '"' {
		return text
	}
	return string(value)
}

// ProfileString returns a text as a value of Port.Profile.
func ProfileString(text string) json.RawMessage {
	value, _ := json.Marshal(text) // a string has JSON
	return value
}

// SameProfile reports whether two profiles have the same values.
func SameProfile(a, b map[string]json.RawMessage) bool {
	return maps.EqualFunc(a, b, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}
