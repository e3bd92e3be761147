package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// program has packages that it must not contain, whatever imports them. A package stands
// for itself and all below it. Programs are checked as they are built without tags.
type program struct {
	folder  string
	without []string
	why     string
}

var programs = []program{
	{
		"cmd/kuryr", []string{"k8s.io", "sigs.k8s.io", "golang.org/x/crypto/x509roots"},
		"they double its size: code that needs them has the build tag kubernetes",
	},
	{
		"cmd/kuryr-cni", []string{"os", "fmt", "net", "reflect", "time", "unicode"},
		"a runtime starts it for each container: code that needs them is in kuryr-cni-api",
	},
	{
		"cmd/kuryr-cni-api", []string{"k8s.io", "sigs.k8s.io"},
		"it starts for each container without a daemon: package portspec reads KuryrPorts",
	},
	{
		"cmd/kuryr-netavark", []string{"k8s.io", "sigs.k8s.io", "crypto/tls", "net/http"},
		"podman starts it for each container",
	},
	{
		"cmd/kuryr-oci-hook", []string{"k8s.io", "sigs.k8s.io", "crypto/tls", "net/http", "net"},
		"a runtime starts it for each container and waits for it",
	},
	{
		"cmd/kuryr-vif", []string{"k8s.io", "sigs.k8s.io", "crypto/tls", "net/http"},
		"it starts for each port",
	},
}

// checkPrograms asks the go command for the packages of each program.
func checkPrograms(t *tree) (found []finding, _ error) {
	for _, p := range programs {
		list := exec.Command("go", "list", "-deps", "./"+p.folder)
		list.Dir, list.Env = t.root, append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
		out, err := list.Output()
		if err != nil {
			return nil, commandError("go list ./"+p.folder, err)
		}
		if pkg := forbidden(p, strings.Fields(string(out))); len(pkg) > 0 {
			text := fmt.Sprintf("it contains %s (and %d more): %s", pkg[0], len(pkg)-1, p.why)
			found = append(found, finding{folder: p.folder, text: text})
		}
	}
	return found, nil
}

// forbidden returns the packages that the program must not contain.
func forbidden(p program, packages []string) (all []string) {
	for _, pkg := range packages {
		if slices.ContainsFunc(p.without, func(top string) bool { return within(pkg, top) }) {
			all = append(all, pkg)
		}
	}
	return all
}
