//go:build linux

package main

import "github.com/spf13/cobra"

func (a *app) kurmaCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "kurma", Short: "Serve networks that plugin containers make; attach pods to them",
		Long: `Serve the networks of Kurma's network specification, until SIGTERM or SIGINT: run a plugin for each, and attach pods to them. SIGHUP reads the networks
again. Plugins and pods stay as they are when the daemon ends, and are taken over by the next.

The commands below it ask a running daemon.`,
		Example: "  kuryr kurma --kurma-config /etc/kuryr/kurma.yaml\n  kuryr kurma list\n  kuryr kurma network",
	})
	unknown := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(c, args)
		}
		return a.kurmaDaemon(c)
	}
	addSettings(c, "state_dir", "run_dir", "log.level", "log.format", "kurma.config", "kurma.socket", "kurma.runtime", "kurma.volumes", "kurma.insecure", "kurma.grants")
	c.AddCommand(append(a.kurmaCalls(), a.kurmaPluginCommand())...)
	return c
}
