package doctor

import (
	"strings"
	"testing"
)

func TestGroupDifferences(t *testing.T) {
	t.Parallel()
	groups := GroupDifferences([]Difference{
		{"router of blue", "nft table bridge kuryr", "complete", ""},
		{"router of blue", "route default", "present", ""},
		{"router of blue", "nft element ip4", "10.1.0.2", ""},
		{"host", "link kr0", "", "present"},
		{"host", "bridge br-1", "up", "down"},
		{"network red", "nft element ip4", "", "10.1.0.9"},
		{"network red", "whatever", "", "x"},
	})
	var wrong, fixed []string
	for _, g := range groups {
		wrong, fixed = append(wrong, g.Wrong()), append(fixed, g.Fixed())
	}
	want := "router of blue: firewall rules missing (2)|router of blue: routes missing (1)|" +
		"host: links not as in the store (2)|network red: firewall rules left over (1)|" +
		"network red: whatever left over (1)"
	if got := strings.Join(wrong, "|"); got != want {
		t.Errorf("wrong:\n%s\nwant\n%s", got, want)
	}
	want = "router of blue: firewall rules restored (2)|router of blue: routes restored (1)|" +
		"host: links corrected (2)|network red: firewall rules removed (1)"
	if got := strings.Join(fixed[:4], "|"); got != want {
		t.Errorf("fixed:\n%s\nwant\n%s", got, want)
	}
	if d := groups[0].Details; len(d) != 2 || d[1] != `nft element ip4: want "10.1.0.2", have ""` {
		t.Errorf("details %q", d)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	restart := Finding{Verdict: Problem, Remediation: "`docker restart fe`"}
	kernel := Finding{Verdict: Problem, Remediation: fix}
	well, warned := Finding{Verdict: OK}, Finding{Verdict: Warning, Remediation: "wait"}
	for _, c := range []struct {
		all           []Finding
		fixed, failed int
		want          string
	}{
		{[]Finding{well}, -1, 0, "no problems"},
		{[]Finding{kernel, kernel, restart, warned}, -1, 0, "3 problems, 1 warning; kuryr doctor --fix repairs 2"},
		{[]Finding{warned}, -1, 0, "0 problems, 1 warning"},
		{[]Finding{restart, well}, 9, 0, "9 fixed, 1 needs you: docker restart fe"},
		{[]Finding{restart, restart}, 0, 1, "0 fixed, 2 need you: docker restart fe"},
		{[]Finding{kernel, {Verdict: Problem}}, 0, 1, "0 fixed, 2 need you: kuryr doctor --fix"},
		{[]Finding{{Verdict: Problem}}, 1, 0, "1 fixed, 1 needs you"},
		{[]Finding{well}, 2, 0, "2 fixed"},
		{[]Finding{well}, 0, 1, "0 fixed, 1 needs you"},
	} {
		if got := Summary(c.all, c.fixed, c.failed); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
