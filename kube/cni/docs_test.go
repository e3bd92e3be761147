package cni

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The manual shows the table of errors as it is, and code and exit status are each of one kind only.
func TestTableOfErrors(t *testing.T) {
	page, err := os.ReadFile("../../docs/cni.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	codes, exits := map[uint]bool{}, map[int]bool{0: true, 2: true} // 2 is a crash of Go's
	for _, k := range Kinds() {
		if codes[k.Code] || exits[k.Exit] || k.Exit < 0 || k.Exit > 125 {
			t.Errorf("%s: code %d or exit status %d is another's, or a shell's", k.Name, k.Code, k.Exit)
		}
		codes[k.Code], exits[k.Exit] = true, true
		rows = append(rows, fmt.Sprintf("| %d | %d | %s | %s |", k.Code, k.Exit, k.Name, k.Advice))
	}
	want := "| code | exit status | message | what it says, and what to do |\n| --- | --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n"
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/cni.md does not show the table; it is\n%s", want)
	}
}
