//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/bundle"
	"github.com/spf13/cobra"
)

func (a *app) bundleCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "support-bundle [FILE.tar.gz]", Short: "Collect what helps to find a fault, without secrets",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("%s: want at most one file, not %d arguments", c.CommandPath(), len(args))}
			}
			return nil
		},
		Long: `Collect what helps to find a fault into an archive: status, the doctor's findings, configuration, objects, metrics, Docker's networks and
containers by name, a cluster's pods on this node with their ports and pools, facts of the host, links, addresses, routes and rules of the host and of each of Kuryr's namespaces, the log's
end. Secrets are left out, and containers' environments, labels and commands are not asked for. It works also while kuryr is not running; what cannot be had is told in errors.txt in the
archive. Without a file it is kuryr-support-HOST-TIME.tar.gz here; - is standard output.`,
		Example: "  kuryr support-bundle\n  kuryr support-bundle /tmp/kuryr.tar.gz\n  kuryr support-bundle - | ssh other 'cat >kuryr.tar.gz'",
		RunE: func(c *cobra.Command, args []string) error {
			now := time.Now()
			b := &collector{app: a, command: c}
			b.cfg, b.cfgError = a.load(c)
			b.client, _ = a.client(c)
			folder := "kuryr-support-" + fileName.ReplaceAllString(b.host(), "_") + "-" + now.UTC().Format("20060102T150405Z")
			write := func(w io.Writer) error { return bundle.Write(c.Context(), w, folder, now, b.parts(c.Context())) }
			file := folder + ".tar.gz"
			if len(args) == 1 {
				file = args[0]
			}
			if file == "-" {
				return write(a.out)
			}
			// writeFile's temporary file is its owner's alone, and becomes the bundle.
			if err := a.writeNew(file, force, write); err != nil {
				return err
			}
			_, err := fmt.Fprintln(a.out, "have a look at it before you pass it on")
			return err
		},
	}
	addForce(c, &force)
	return c
}

// fileName matches what does not belong into a file's name.
var fileName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

func (b *collector) host() string {
	if b.cfgError == nil {
		return b.cfg.Host
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// parts are all files of the bundle.
func (b *collector) parts(ctx context.Context) []bundle.Part {
	parts := []bundle.Part{
		{Name: "about.txt", Write: b.about},
		{Name: "configuration/file.yaml", Write: b.configFile},
		{Name: "configuration/effective.txt", Write: b.settings},
		{Name: "configuration/environment.txt", Write: b.environment},
		{Name: "kuryr/status.json", Write: b.status},
		{Name: "kuryr/check.json", Write: b.check},
		{Name: "kuryr/doctor.json", Write: b.doctor},
		{Name: "kuryr/topology.txt", Write: b.topology},
		{Name: "kuryr/metrics.txt", Write: b.metrics},
		{Name: "kuryr/intents.json", Write: b.intents},
	}
	parts = append(parts, b.objectParts()...)
	parts = append(parts, b.dockerParts()...)
	parts = append(parts, b.podParts()...)
	parts = append(parts, b.hostParts()...)
	parts = append(parts, b.namespaceParts(ctx)...)
	return append(parts, bundle.Part{Name: "kuryr/journal.txt", Write: command("journalctl", "--no-pager", "-u", "kuryr", "-n", "5000")})
}
