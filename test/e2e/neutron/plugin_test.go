//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// managed is Kuryr's name as a managed plugin: Docker adds the tag, and wants it in the names of drivers.
const managed = "kuryr:latest"

// driver is Kuryr's name in the host's engine.
func (h host) driver() string {
	if slices.Contains(h.rig.managed, h.Name) {
		return managed
	}
	return "kuryr"
}

// pluginFolder is what docker plugin create takes.
func (r *rig) pluginFolder() string {
	r.Helper()
	folder := filepath.Join(filepath.Dir(kuryr), "docker-plugin")
	if _, err := os.Stat(filepath.Join(folder, "config.json")); err != nil {
		r.Fatal("no plugin to test, run \"make docker-plugin\" first: ", err)
	}
	return folder
}

// installPlugin gives the host's engine Kuryr as a managed plugin with these settings, until the test ends.
func (h host) installPlugin(settings ...string) {
	h.rig.Helper()
	h.rig.fresh(func(ctx context.Context) error {
		return errors.Join(h.gone(ctx, "plugin", "disable", "-f", "kuryr"), h.gone(ctx, "plugin", "rm", "-f", "kuryr"))
	})
	folder := h.rig.plugins[h.Name]
	if folder == "" {
		folder = h.rig.pluginFolder()
	}
	h.docker("plugin", "create", "kuryr", folder)
	h.docker(append([]string{"plugin", "set", "kuryr"}, settings...)...)
	h.docker("plugin", "enable", "kuryr")
	h.rig.managed = append(h.rig.managed, h.Name)
	h.answers()
}

// answers waits until the host's own kuryr command has the plugin's answer that it is ready.
func (h host) answers() {
	h.rig.Helper()
	h.rig.until("the plugin is not ready", func(context.Context) error { return h.sh(kuryr, "status").Err() })
}

// pluginPid is the plugin's process as the host sees it.
func (h host) pluginPid() string {
	h.rig.Helper()
	for line := range strings.Lines(h.sh("ps", "-eo", "pid,args").Stdout) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "/usr/bin/kuryr" && f[2] == "docker" {
			return f[0]
		}
	}
	h.rig.Fatal("the plugin has no process")
	return ""
}

// killPlugin kills the plugin, which the engine starts again.
func (h host) killPlugin() {
	h.rig.Helper()
	before := h.pluginPid()
	if res := h.sh("kill", "-9", before); !res.OK() {
		h.rig.Fatal(res)
	}
	h.answers()
	if h.pluginPid() == before {
		h.rig.Error("the plugin was not killed")
	}
}

// A managed plugin on one host, by the configuration in the host's /etc/kuryr, and a
// Kuryr that is none on the other. The plugin is killed, disabled and replaced; what runs
// does not notice.
func TestManagedPlugin(t *testing.T) {
	t.Parallel()
	// A boot of its own: on one host the engine runs Kuryr, and no kuryr runs beside it.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Docker: true, Kuryr: kuryr})
	if err := furnish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if err := l.Hosts[1].StartKuryr(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, l)
	file := fmt.Sprintf(
		"provider: neutron\nneutron:\n  auth_type: none\n  endpoint: %s\n  project: %s\n",
		neutronlab.Endpoint, l.Project(),
	)
	if err := os.WriteFile(r.h1.Path("/etc/kuryr/kuryr.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	r.h1.installPlugin("KURYR_LOG_LEVEL=debug")
	network, subnets := r.ownNetwork("plugin", "10.110.0.0/24", "fd6e::/64")
	r.h1.use("plugin", network, subnets)
	r.h2.use("plugin", network, subnets)
	a, b := r.h1.run("plugin-a", "plugin", "-p", "8110:7000"), r.h2.run("plugin-b", "plugin")
	if on := a.port().Text("binding:host_id"); on != "h1" {
		t.Errorf("the port is bound to %q", on)
	}
	// works starts a container, and goes all ways.
	works := func(name string) {
		t.Helper()
		// The engine registers the driver of a new plugin in its own time.
		r.until("no container starts", func(context.Context) error {
			return r.h1.sh("docker", "run", "--rm", "--network", "plugin", "box", "true").Err()
		})
		c := r.h1.run(name, "plugin")
		for i, to := range b.addrs() {
			r.reaches(c.in, to, c.addrs()[i])
			r.reaches(b.in, c.addrs()[i], to)
		}
		r.reaches(c.in, a.ip4, c.ip4)
		r.until("the published port is not reached", func(context.Context) error {
			return asks(r.h2.sh, "tcp", r.h1.Address(), 8110).Err()
		})
		r.h1.docker("rm", "-f", name)
	}
	works("plugin-first")
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"killed", r.h1.killPlugin},
		{"disabled and enabled", func() {
			r.h1.docker("plugin", "disable", "-f", "kuryr")
			r.reaches(a.in, b.ip4, a.ip4)
			r.h1.docker("plugin", "enable", "kuryr")
			r.h1.answers()
		}},
		// Whose its objects are is kept on the host: the new plugin removes in the end what the old one has made.
		{"replaced", func() {
			r.h1.docker("plugin", "disable", "-f", "kuryr")
			r.h1.docker("plugin", "rm", "-f", "kuryr")
			r.h1.docker("plugin", "create", "kuryr", r.pluginFolder())
			r.h1.docker("plugin", "enable", "kuryr")
			r.h1.answers()
		}},
	} {
		streams := []*stream{a.pings(b.ip4), b.pings(a.ip6)}
		c.do()
		for _, s := range streams {
			// The switch loses single packets of anybody's, see interrupted.
			if lost, sent := s.lost(r); interrupted(lost, nil, sent) || sent < 2 {
				t.Errorf("%s: %d of %d pings were lost", c.name, len(lost), sent)
			}
		}
		works("plugin-after")
	}
}
