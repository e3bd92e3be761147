package neutronlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/internal/atomicfile"
)

// manual is the page that tells what a host may have to do in Neutron beyond a member.
const manual = "docs/neutron.md"

// ManualPolicy are the lines of the policy.yaml that the manual gives to hosts, of the
// tree that the caller works in. A lab with Keystone has these and no others, so that
// what works in it works by the manual.
func ManualPolicy() ([]string, error) {
	section, err := ManualSection("LEAST ROLE AND POLICY")
	if err != nil {
		return nil, err
	}
	var rules []string
	for line := range strings.Lines(section) {
		if rule, ok := strings.CutPrefix(line, `    "`); ok {
			rules = append(rules, `"`+strings.TrimSpace(rule))
		}
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s prints no policy", manual)
	}
	return rules, nil
}

// ManualSection is the text of the page under a heading.
func ManualSection(heading string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(dir, manual))
	for errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		text, err = os.ReadFile(filepath.Join(dir, manual))
	}
	if err != nil {
		return "", fmt.Errorf("the manual: %w", err)
	}
	_, after, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		return "", fmt.Errorf("%s has no section %q", manual, heading)
	}
	section, _, _ := strings.Cut(after, "\n## ")
	return section, nil
}

// SetPolicy gives Neutron another policy.yaml, which it reads with its next call, until it is started again.
func (l *Lab) SetPolicy(rules ...string) error {
	text := strings.Join(rules, "\n") + "\n"
	return atomicfile.WriteFile(filepath.Join(l.Central.Dir(), "neutron/policy.yaml"), []byte(text), 0o600)
}
