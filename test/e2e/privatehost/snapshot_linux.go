package privatehost

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Snapshot is what can be seen of a host's network: lines by section, in a form in which two can be compared.
type Snapshot map[string][]string

// The sections of a Snapshot.
const (
	Links      = "links"
	Addresses  = "addresses"
	Routes     = "routes"
	Rules      = "rules"
	Namespaces = "namespaces"
	Firewall   = "firewall"
	Forwarding = "forwarding"
)

var volatile = regexp.MustCompile(
	` (expires|\[expires) \S+| ?# handle \d+| linkdown|@if\d+| link-netns\S* \S+| fe80::\S+`,
)

// Snapshot looks at the host. Namespaces are those that a mount pins, but for the engine's sandboxes.
func (h *Host) Snapshot(ctx context.Context) (Snapshot, error) {
	s := Snapshot{}
	for _, look := range []struct {
		section string
		argv    []string
	}{
		{Links, []string{"ip", "-br", "link"}},
		{Addresses, []string{"ip", "-br", "addr"}},
		{Routes, []string{"ip", "-4", "route", "show", "table", "all"}},
		{Routes, []string{"ip", "-6", "route", "show", "table", "all"}},
		{Rules, []string{"ip", "-4", "rule"}},
		{Rules, []string{"ip", "-6", "rule"}},
		{Firewall, []string{"nft", "-s", "list", "ruleset"}},
		{Forwarding, []string{"sysctl", "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"}},
	} {
		r := h.Exec(ctx, look.argv...)
		if !r.OK() {
			return nil, fmt.Errorf("look at the host: %s", r)
		}
		for line := range strings.Lines(r.Stdout) {
			line = strings.TrimRight(volatile.ReplaceAllString(line, ""), " \n")
			switch look.section {
			case Links:
				line, _, _ = strings.Cut(line, " ")
			case Addresses:
				fields := strings.Fields(line) // the columns were as wide as what was taken out
				if len(fields) > 1 && fields[1] == "UNKNOWN" {
					fields[1] = "UP" // a tun tells of its carrier from its second opening on only
				}
				line = strings.Join(fields, " ")
			}
			if strings.HasPrefix(line, "local fe80:") || strings.HasPrefix(line, "local dev") {
				continue // comes with a link, some time after it
			}
			if line != "" {
				s[look.section] = append(s[look.section], line)
			}
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.host.pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.Contains(line, " - nsfs ") && !strings.HasPrefix(fields[4], "/run/docker/netns/") {
			s[Namespaces] = append(s[Namespaces], fields[4])
		}
	}
	return s, nil
}

// Diff tells, a line each, what came ("+ section: line") and what went ("- …") from s to later, for the sections asked
// for, or all.
func (s Snapshot) Diff(later Snapshot, sections ...string) []string {
	if len(sections) == 0 {
		sections = []string{Links, Addresses, Routes, Rules, Namespaces, Firewall, Forwarding}
	}
	var diff []string
	for _, section := range sections {
		diff = append(diff, missing("- "+section+": ", s[section], later[section])...)
		diff = append(diff, missing("+ "+section+": ", later[section], s[section])...)
	}
	return diff
}

// missing lists what of a is not in b, counting repeated lines.
func missing(prefix string, a, b []string) []string {
	left := slices.Clone(b)
	var out []string
	for _, line := range a {
		if i := slices.Index(left, line); i >= 0 {
			left = slices.Delete(left, i, i+1)
			continue
		}
		out = append(out, prefix+line)
	}
	return out
}
