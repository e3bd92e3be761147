package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPods(t *testing.T) {
	t.Parallel()
	well := PodFacts{There: true, Version: "1", Here: "1", Pools: []PodPool{{Name: "p", Ports: 3, Free: 2}}}
	for name, row := range map[string]struct {
		change func(*PodFacts)
		want   Verdict
		says   string
	}{
		"well": {func(*PodFacts) {}, OK, "1 pools have 2 free ports"},
		"no answer": {
			func(p *PodFacts) { p.Err = errors.New("connection refused") }, Problem, "connection refused",
		},
		"not ready": {func(p *PodFacts) { p.Reasons = []string{"no API"} }, Problem, "no API"},
		"Raven's node": {
			func(p *PodFacts) {
				p.Host = []Host{{What: "Raven claims its ports", Remediation: "take the label away"}}
			},
			Warning, "Raven claims",
		},
		"another version": {func(p *PodFacts) { p.Version = "2" }, Warning, "version 2"},
		"an old plugin": {
			func(p *PodFacts) { p.Stale = []string{"/opt/cni/bin/kuryr"} }, Warning, "/opt/cni/bin/kuryr",
		},
		"another's list": {
			func(p *PodFacts) { p.First, p.Conflist = "/c/00-x.conf", "/c/10-kuryr.conflist" }, Problem,
			"/c/00-x.conf",
		},
		"a difference": {
			func(p *PodFacts) { p.Differences = []string{"port 1: its interface is absent"} }, Problem,
			"absent",
		},
		"not compared": {func(p *PodFacts) { p.CheckErr = errors.New("no socket") }, Problem, "no socket"},
		"an empty pool": {
			func(p *PodFacts) { p.Waiting, p.Pools[0].Waiting = 2, 2 }, Warning,
			"2 pods wait for a port of the pool p",
		},
		"a full pool": {
			func(p *PodFacts) { p.Waiting, p.Pools[0].Waiting, p.Pools[0].Limit = 2, 2, 3 }, Problem,
			"maximum of 3",
		},
		"a pool nobody fills": {
			func(p *PodFacts) { p.Pools[0].Why = "quota" }, Warning, "2 free ports, is not filled: quota",
		},
		"an empty one of them": {
			func(p *PodFacts) { p.Waiting, p.Pools[0].Waiting, p.Pools[0].Why = 1, 1, "quota" }, Problem,
			"1 pods wait for a port of the pool p (network ): quota",
		},
		"no network yet": {func(p *PodFacts) { p.Waiting = 1 }, Warning, "the network of their namespace"},
	} {
		p := well
		p.Pools = slices.Clone(well.Pools)
		row.change(&p)
		all := Pods(p)
		if Worst(all) != row.want || !slices.ContainsFunc(all, func(f Finding) bool {
			return f.Verdict == row.want && strings.Contains(f.What, row.says) && (f.Remediation != "") == (row.want != OK)
		}) {
			t.Errorf("%s: %+v", name, all)
		}
	}
	if all := Pods(PodFacts{}); len(all) > 0 {
		t.Errorf("where there is no cluster: %+v", all)
	}
}

func TestCNIFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own, same, old := file("kuryr-cni", "new"), file("same", "new"), file("old", "old")
	if got := StalePlugins(own, same, old, filepath.Join(dir, "none")); !slices.Equal(got, []string{old}) {
		t.Errorf("stale: %q", got)
	}
	if got := StalePlugins(filepath.Join(dir, "none"), same, old); got != nil {
		t.Errorf("without a plugin of its own: %q", got)
	}
	conflist := file("10-kuryr.conflist", "")
	for _, step := range []struct{ adds, want string }{
		{"00-README", ""}, {"20-other.conf", ""}, {"05-other.conflist", "05-other.conflist"},
	} {
		file(step.adds, "")
		if got := FirstNetwork(conflist); got != "" != (step.want != "") ||
			step.want != "" && filepath.Base(got) != step.want {
			t.Errorf("with %s: %q", step.adds, got)
		}
	}
}
