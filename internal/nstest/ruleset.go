//go:build linux

package nstest

import (
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netns"
)

// WantRuleset compares the namespace's ruleset with the one in a file, in nft's language. nft
// loads the file into another namespace and lists both, so that its version does not matter.
func WantRuleset(t testing.TB, ns netns.NsHandle, file string) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	list := func(ns netns.NsHandle) (text string) {
		Do(t, ns, func() { text = runNFT(t, "list", "ruleset") })
		return text
	}
	other := New(t)
	Do(t, other, func() { runNFT(t, "-f", file) })
	if got, want := list(ns), list(other); got != want {
		t.Errorf("the ruleset is not that of %s:\n%s\nwant\n%s", file, got, want)
	}
}

func runNFT(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command("nft", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("nft %v: %v", args, err)
	}
	return string(out)
}
