package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Kurma is section kurma: the networks that plugin containers make.
type Kurma struct {
	Config   string   // file with pod_networks
	Socket   string   // never "" after Load
	Runtime  string   // "": the first of crun and runc that is found
	Volumes  []string // [NETWORK:]CONTAINER=HOST[:ro]
	Insecure []string // hosts, with or without a port
	Grants   []string // NETWORK=UID+cgroup:/PATH, NETWORK=*, NETWORK=
}

var kurmaSettings = []*Setting{
	text(
		"kurma.config", "file with pod_networks, JSON or YAML as its name ends", absolute,
		func(c *Config) *string { return &c.Kurma.Config },
	),
	text(
		"kurma.socket", "socket of the API of `kuryr kurma`; empty is kurma.sock in run_dir",
		absoluteOrNone, func(c *Config) *string { return &c.Kurma.Socket },
	),
	text("kurma.runtime",
		"OCI runtime that runs networks' plugins, by name or path; empty is the first of crun and "+
			"runc that is found", orNone(word),
		func(c *Config) *string { return &c.Kurma.Runtime }),
	list("kurma.volumes",
		"folders of the host that images get which ask for the mount point, each as "+
			"NETWORK:CONTAINER=HOST or NETWORK:CONTAINER=HOST:ro; without NETWORK: those of all networks",
		volume,
		func(c *Config) *[]string { return &c.Kurma.Volumes }),
	list(
		"kurma.insecure", "hosts whose images may come by plain http, unverified", word,
		func(c *Config) *[]string { return &c.Kurma.Insecure },
	),
	list("kurma.grants",
		"networks that only some may have, each as NETWORK=UID+cgroup:/PATH, or NETWORK= for root "+
			"alone; a network not named is everybody's unless * is named", grant,
		func(c *Config) *[]string { return &c.Kurma.Grants }),
}

var volume = rule{form: "NETWORK:CONTAINER=HOST", check: func(s string) error {
	inside, host, ok := strings.Cut(s, "=")
	host = strings.TrimSuffix(host, ":ro")
	if network, point, named := strings.Cut(inside, ":"); named && network != "" && !strings.HasPrefix(inside, "/") {
		inside = point
	}
	if !ok || absolute.check(inside) != nil || absolute.check(host) != nil {
		return fmt.Errorf("want NETWORK:CONTAINER=HOST or NETWORK:CONTAINER=HOST:ro with whole paths, not %q", s)
	}
	return nil
}}

var grant = rule{form: "NETWORK=UID", check: func(s string) error {
	network, list, ok := strings.Cut(s, "=")
	if !ok || network == "" {
		return fmt.Errorf("want NETWORK=UID+cgroup:/PATH, NETWORK=* or NETWORK=, not %q", s)
	}
	for word := range strings.SplitSeq(list, "+") {
		if word == "*" || list == "" {
			continue
		}
		if cgroup, is := strings.CutPrefix(word, "cgroup:"); is {
			if absolute.check(cgroup) != nil || cgroup == "/" {
				return fmt.Errorf("%q: %q is not the path of a cgroup such as /machine.slice", s, cgroup)
			}
			continue
		}
		if _, err := strconv.ParseUint(word, 10, 32); err != nil {
			return fmt.Errorf("%q: %q is neither the id of a user nor cgroup:/PATH", s, word)
		}
	}
	return nil
}}
