//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/spf13/cobra"
)

func (a *app) sdnCommand() *cobra.Command {
	var storeOnly, plain bool
	c := group(&cobra.Command{
		Use: "sdn", Short: "Run the embedded SDN alone; look after it: check, reconcile, backup, restore",
		Long: `Run the embedded SDN alone, until SIGTERM or SIGINT, and serve it to other processes as a Neutron v2.0 API: on a socket that is root's,
and, with sdn.listen, by TLS to clients with tokens. "kuryr docker" on the provider "sdn" is Docker's network driver on it. "kuryr up" is both
in one process.

With --store-only nothing of the kernel's is touched and no root is needed: an API to develop against.

The commands below it look after a running SDN and its store, and make what its clients need.`,
		Example: `  kuryr sdn
  kuryr sdn --sdn-listen 0.0.0.0:9696 --sdn-tls-cert /etc/kuryr/tls/server.pem --sdn-tls-key /etc/kuryr/tls/server-key.pem
  kuryr sdn --store-only --state-dir /tmp/k --run-dir /tmp/k --sdn-listen 127.0.0.1:9696 --insecure-http --sdn-tokens /tmp/k/tokens
  kuryr sdn check
  kuryr sdn backup /root/kuryr.backup`,
	})
	unknown := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(c, args)
		}
		if plain && !storeOnly {
			return usageError{errors.New("--insecure-http goes with --store-only: it is for development")}
		}
		do := duties{open: openLocal, storeOnly: storeOnly, plain: plain}
		if storeOnly {
			do.open = openStoreOnly
		}
		return a.daemon(c, func(config.Config) duties { return do })
	}
	addSettings(c, settingsOfSDN()...)
	c.Flags().BoolVar(&storeOnly, "store-only", false, "touch nothing of the kernel's: networks and ports are only in the store")
	c.Flags().BoolVar(&plain, "insecure-http", false, "with --store-only: serve the API at sdn.listen, which must be of the loopback interface, without TLS")
	c.AddCommand(a.checkCommand(), a.reconcileCommand(), a.backupCommand(), a.restoreCommand(), a.tokenCommand(), a.passwordCommand(), a.apiCertificatesCommand())
	return c
}

// settingsOfSDN are those of `kuryr up` but the front ends'.
func settingsOfSDN() []string {
	return slices.DeleteFunc(settingsOfUp(), func(key string) bool {
		return strings.HasPrefix(key, "docker.") || strings.HasPrefix(key, "node.")
	})
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
	var force bool
	c := &cobra.Command{
		Use: "backup FILE", Short: "Copy the store into a file", Args: exactly(1, "one file, or - for standard output"),
		Long: `Copy the store, at one moment, into a file. It works while kuryr is running, and while it is not.
A file that exists is overwritten with --force alone.`,
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
			return a.writeNew(args[0], force, write)
		},
	}
	addForce(c, &force)
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
