//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/kuryr/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/table"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/spf13/cobra"
)

func (a *app) sdnCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "sdn", Short: "Look after the embedded SDN: check, reconcile, backup, restore",
		Example: "  kuryr sdn check\n  kuryr sdn backup /root/kuryr.backup",
	})
	c.AddCommand(a.checkCommand(), a.reconcileCommand(), a.backupCommand(), a.restoreCommand())
	return c
}

func (a *app) checkCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "check", Short: "Compare the kernel with the store, changing nothing", Args: noArgs,
		Long:    "Compare the whole kernel state with the store, and look for what about the host stands in the way. The exit code is 1 if anything differs.",
		Example: "  kuryr sdn check\n  kuryr sdn check -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			found, err := client.Check(c.Context())
			if err != nil {
				return err
			}
			if err := a.printCheck(format, found); err != nil {
				return err
			}
			if len(found.Differences) > 0 {
				return failed{}
			}
			return nil
		},
	}
	addOutput(c, &output)
	return c
}

func (a *app) printCheck(format table.Format, found admin.Check) error {
	if format != table.Table {
		return table.Show(a.out, format, found, nil)
	}
	if len(found.Differences) == 0 {
		_, _ = fmt.Fprintln(a.out, "the kernel is as the store says")
	}
	for _, d := range found.Differences {
		_, _ = fmt.Fprintln(a.out, table.Printable(d))
	}
	for _, f := range found.Findings {
		_, _ = fmt.Fprintln(a.out, "host: "+table.Printable(findingText(f)))
	}
	return nil
}

func (a *app) reconcileCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reconcile", Short: "Make the kernel follow the store", Args: noArgs,
		Long:    "Make the whole kernel state be what the store says: what is missing is made, what is Kuryr's and not wanted goes. Traffic is not interrupted.",
		Example: "  kuryr sdn reconcile",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			r, err := client.Reconcile(c.Context())
			if err != nil {
				return err
			}
			if cfg, err := a.load(c); err == nil && os.Geteuid() == 0 {
				r.Changed = append(r.Changed, sweepTraces(namespaceDir(cfg))...)
			}
			for _, change := range r.Changed {
				_, _ = fmt.Fprintln(a.out, table.Printable(change))
			}
			if r.Error != "" {
				return errors.New(r.Error)
			}
			_, err = fmt.Fprintln(a.out, reconcileText(r))
			return err
		},
	}
}

func (a *app) backupCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "backup FILE", Short: "Copy the store into a file", Args: exactly(1, "one file, or - for standard output"),
		Long:    "Copy the store, as it is at one moment, into a file. It works while kuryr is running, and while it is not.",
		Example: "  kuryr sdn backup /root/kuryr.backup",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := a.load(c)
			if err != nil {
				return err
			}
			write := func(w io.Writer) error { return backup(c.Context(), cfg, w) }
			if args[0] == "-" {
				return write(a.out)
			}
			return writeFile(args[0], write)
		},
	}
	addSettings(c, "state_dir", "run_dir")
	return c
}

func backup(ctx context.Context, cfg config.Config, w io.Writer) error {
	err := admin.NewClient(cfg.Admin.Socket).Backup(ctx, w)
	if !admin.IsNotRunning(err) {
		return err
	}
	if err = local.Copy(ctx, storePath(cfg), w); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no store at %s", storePath(cfg))
	}
	return err
}

func (a *app) restoreCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "restore FILE", Short: "Put a backup in the place of the store", Args: exactly(1, "one file"),
		Long: `Put a backup in the place of the store. The backup is checked first, and the store that was there is kept beside it. kuryr must not
be running; the next "kuryr up" makes the kernel follow.`,
		Example: "  systemctl stop kuryr\n  kuryr sdn restore /root/kuryr.backup\n  systemctl start kuryr",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := a.load(c)
			if err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			kept, err := local.Restore(c.Context(), storePath(cfg), f)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintln(a.out, "restored "+storePath(cfg))
			if kept != "" {
				_, _ = fmt.Fprintln(a.out, "the store that was there is now "+kept)
			}
			return nil
		},
	}
	addSettings(c, "state_dir", "run_dir")
	return c
}
