package sdn

import (
	"encoding/json"
	"testing"
)

func TestProfileText(t *testing.T) {
	for value, want := range map[string]string{
		`"0000:3b:02.1"`: "0000:3b:02.1", `"true"`: "true", `true`: "true", `1`: "1", `["a"]`: `["a"]`, `"\u003c"`: "<", ``: "",
	} {
		if got := ProfileText(json.RawMessage(value)); got != want {
			t.Errorf("ProfileText(%s) = %q, want %q", value, got, want)
		}
	}
	if got := ProfileText(ProfileString("a\"\n<")); got != "a\"\n<" {
		t.Errorf("a text came back as %q", got)
	}
}
