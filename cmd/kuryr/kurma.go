//go:build linux

package main

import "github.com/spf13/cobra"

func (a *app) kurmaCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "kurma", Short: "Attach pods to networks that plugin containers make",
		Long:    `Attach pods to the networks of Kurma's network specification, and look at them.`,
		Example: "  kuryr kurma list\n  kuryr kurma network",
	})
	c.AddCommand(a.kurmaCalls()...)
	return c
}
