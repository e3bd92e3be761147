//go:build linux

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The alert rules name metrics that there are, by outcomes that there are, and the manual has every alert.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/prometheus/kuryr.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	described, manual := page(t, "metrics.md"), page(t, "operating.md")
	outcomes := regexp.MustCompile(`outcome=~?"([^"]*)"`)
	alerts := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			alerts++
			if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("rule %+v lacks a name, a severity, a summary or a description", r)
			}
			if !strings.Contains(manual, "| `"+r.Alert+"` |") {
				t.Errorf("operating.md does not say what to do about %s", r.Alert)
			}
			names := regexp.MustCompile(`\b(kuryr|process|go)_[a-z_]+\b`).FindAllString(r.Expr, -1)
			if len(names) == 0 && !strings.HasPrefix(r.Expr, "up{") {
				t.Errorf("%s asks for no metric: %s", r.Alert, r.Expr)
			}
			for _, name := range names {
				if strings.HasPrefix(name, "kuryr_") && !strings.Contains(described, "\n| `"+strings.TrimSuffix(name, "_bucket")+"` |") {
					t.Errorf("%s asks for %s, which there is not", r.Alert, name)
				}
			}
			for _, m := range outcomes.FindAllStringSubmatch(r.Expr, -1) {
				for _, o := range strings.Split(m[1], "|") {
					if !strings.Contains(described, "`"+o+"`") {
						t.Errorf("%s asks for the outcome %s, which there is not", r.Alert, o)
					}
				}
			}
			if opened, closed := strings.Count(r.Expr, "("), strings.Count(r.Expr, ")"); opened != closed {
				t.Errorf("%s: brackets do not match: %s", r.Alert, r.Expr)
			}
		}
	}
	if alerts < 5 {
		t.Errorf("only %d alerts", alerts)
	}
}
