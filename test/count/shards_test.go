package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// suites maps the end-to-end targets of the Makefile to the packages that they run.
var suites = map[string][]string{
	"e2e-docker":             {"privatehost", "docker"},
	"e2e-docker-29":          {"privatehost", "docker"},
	"e2e-docker-neutron":     {"docker"},
	"e2e-sdn":                {"docker"},
	"e2e-cni":                {"cni"},
	"e2e-kurma":              {"kurma"},
	"e2e-openstack":          {"openstack"},
	"e2e-kubernetes":         {"kubernetes"},
	"e2e-kubernetes-neutron": {"kubernetes"},
	"e2e-neutron":            {"neutronlab", "neutron"},
	"crash":                  {"crash"},
	"soak":                   {"soak"},
	"faults":                 {"faults"},
}

// unlisted are the packages that "make test" runs, and no shard.
var unlisted = []string{"kubelab"}

var (
	command     = regexp.MustCompile(`make ([a-z0-9-]+)((?: [A-Z0-9_]+=(?:'[^']*'|\S+))*)`)
	assignment  = regexp.MustCompile(`([A-Z0-9_]+)=(?:'([^']*)'|(\S+))`)
	alternative = regexp.MustCompile(`^\^Test\(([A-Za-z0-9|]+)\)\$$`)
	testFunc    = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
)

// tests returns the names of the tests of a package, without helpers that only look like one.
func tests(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../e2e", folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files in %s: %v", folder, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// Every end-to-end test is in a shard, and every name in a pattern is a test.
func TestShards(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	core := regexp.MustCompile(`(?s)DOCKER_CORE := (.*?)\$\$\n`).FindStringSubmatch(string(makefile))
	if core == nil {
		t.Fatal("the Makefile does not define DOCKER_CORE")
	}
	pattern := strings.ReplaceAll(core[1], "$\\\n", "") + "$"
	table, err := os.ReadFile("../shards")
	if err != nil {
		t.Fatal(err)
	}
	reached := map[string]bool{} // "package test"
	for _, m := range command.FindAllStringSubmatch(string(table), -1) {
		vars := map[string]string{"SCENARIOS": ".", "SKIP": "^$"}
		for _, a := range assignment.FindAllStringSubmatch(m[2], -1) {
			vars[a[1]] = strings.ReplaceAll(a[2]+a[3], "$(DOCKER_CORE)", pattern)
		}
		run, skip := regexp.MustCompile(vars["SCENARIOS"]), regexp.MustCompile(vars["SKIP"])
		var all []string
		for _, folder := range suites[m[1]] {
			for _, name := range tests(t, folder) {
				all = append(all, name)
				if run.MatchString(name) && !skip.MatchString(name) {
					reached[folder+" "+name] = true
				}
			}
		}
		if names := alternative.FindStringSubmatch(vars["SCENARIOS"]); names != nil {
			for name := range strings.SplitSeq(names[1], "|") {
				if !slices.Contains(all, "Test"+name) {
					t.Errorf("%s: Test%s is not a test", m[0], name)
				}
			}
		}
	}
	folders, err := filepath.Glob("../e2e/*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range folders {
		folder := filepath.Base(filepath.Dir(file))
		if slices.Contains(unlisted, folder) {
			continue
		}
		for _, name := range tests(t, folder) {
			if !reached[folder+" "+name] {
				t.Errorf("no shard runs %s of test/e2e/%s", name, folder)
				reached[folder+" "+name] = true
			}
		}
	}
}
