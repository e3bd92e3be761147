//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/internal/atomicfile"
	kurmaapi "github.com/kuryr/kuryr/kurma/api"
	"github.com/kuryr/kuryr/kurma/hook"
	"github.com/spf13/cobra"
)

func (a *app) kurmaNetworkCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "network [NAME]", Short: "Show how the networks are", Args: cobra.MaximumNArgs(1),
		Long: `List the networks of the configuration and how their plugins are. With NAME it shows one with the last that its main executable has written, and
older generations of it that pods are still on.`,
		Example: "  kuryr kurma network\n  kuryr kurma network mynet",
		RunE: func(c *cobra.Command, args []string) error {
			ask := func(ctx context.Context, k *kurmaapi.Client) ([]kurmaapi.Network, error) { return k.Networks(ctx) }
			columns := networkColumns
			if len(args) == 1 {
				ask = func(ctx context.Context, k *kurmaapi.Client) ([]kurmaapi.Network, error) {
					return k.Network(ctx, args[0])
				}
				columns = append(columns[:len(columns):len(columns)],
					table.Column[kurmaapi.Network]{Name: "generation", Value: func(n kurmaapi.Network) string { return n.Generation }},
					table.Column[kurmaapi.Network]{Name: "output", Value: func(n kurmaapi.Network) string { return strings.TrimSpace(n.Output) }})
			}
			return kurmaShown(a, c, output, ask, func(f table.Format, list []kurmaapi.Network) error {
				if f == table.Table && len(args) == 1 {
					for _, n := range list {
						if err := table.Show(a.out, f, n, columns); err != nil {
							return err
						}
					}
					return nil
				}
				return table.List(a.out, f, list, columns)
			})
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.kurmaNetworkNames(c), cobra.ShellCompDirectiveNoFileComp
		},
	}
	addOutput(c, &output)
	return c
}

// networkColumns are what is listed of a network.
var networkColumns = []table.Column[kurmaapi.Network]{
	{Name: "name", Value: func(n kurmaapi.Network) string { return n.Name }},
	{Name: "default", Value: func(n kurmaapi.Network) string { return strconv.FormatBool(n.Default) }},
	{Name: "state", Value: func(n kurmaapi.Network) string {
		if n.Reason == "" {
			return n.State
		}
		return n.State + ": " + n.Reason
	}},
	{Name: "pods", Value: func(n kurmaapi.Network) string { return strconv.Itoa(n.Pods) }},
	{Name: "interface", Value: func(n kurmaapi.Network) string { return n.Interface }},
	{Name: "image", Value: func(n kurmaapi.Network) string { return n.Image }},
}

// kurmaNetworkNames are the names for completion, none if the daemon does not answer.
func (a *app) kurmaNetworkNames(c *cobra.Command) (names []string) {
	if client, err := a.kurma(c); err == nil {
		list, _ := client.Networks(c.Context())
		for _, n := range list {
			names = append(names, n.Name)
		}
	}
	return names
}

func (a *app) kurmaImageCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "image", Short: "Look after the images of plugins: list, fetch, remove",
		Long:    "Look after the store of the images that networks' plugins run from. Networks fetch theirs by themselves; what no network wants goes by itself.",
		Example: "  kuryr kurma image list\n  kuryr kurma image fetch docker://registry.example.org/net/plugin:1.0\n  kuryr kurma image remove sha512-0a1b2c",
	})
	var output string
	list := &cobra.Command{
		Use: "list", Short: "List the images", Args: noArgs, Example: "  kuryr kurma image list -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			ask := func(ctx context.Context, k *kurmaapi.Client) ([]kurmaapi.Image, error) { return k.Images(ctx) }
			return kurmaShown(a, c, output, ask, func(f table.Format, images []kurmaapi.Image) error { return table.List(a.out, f, images, imageColumns) })
		},
	}
	addOutput(list, &output)
	var refresh bool
	fetch := &cobra.Command{
		Use: "fetch REFERENCE", Short: "Fetch an image into the store", Args: exactly(1, "one image"),
		Long:    `Fetch an image, which is named as the key "aci" of a network names it, and show how that goes. One that is there is not fetched again, but with --refresh.`,
		Example: "  kuryr kurma image fetch file:///root/plugin.aci",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.kurma(c)
			if err != nil {
				return err
			}
			image, err := client.Fetch(c.Context(), kurmaapi.ImageRequest{Reference: args[0], Refresh: refresh}, a.printProgress())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.out, image.ID)
			return err
		},
	}
	fetch.Flags().BoolVar(&refresh, "refresh", false, "ask where it is from whether there is a newer one")
	remove := &cobra.Command{
		Use: "remove ID...", Short: "Remove images that no network uses", Args: atLeastOne("ids of images"), Example: "  kuryr kurma image remove sha512-0a1b2c",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.kurma(c)
			if err != nil {
				return err
			}
			for _, id := range args {
				if err := client.RemoveImage(c.Context(), id); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
			if client, err := a.kurma(c); err == nil {
				images, _ := client.Images(c.Context())
				for _, i := range images {
					ids = append(ids, i.ID)
				}
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.AddCommand(list, fetch, remove)
	return c
}

var imageColumns = []table.Column[kurmaapi.Image]{
	{Name: "id", Value: func(i kurmaapi.Image) string { return i.ID }},
	{Name: "name", Value: func(i kurmaapi.Image) string { return i.Name }},
	{Name: "reference", Value: func(i kurmaapi.Image) string { return i.Reference }},
	{Name: "size", Value: func(i kurmaapi.Image) string { return mebibytes(i.Size) }},
	{Name: "created", Value: func(i kurmaapi.Image) string {
		if i.Created.IsZero() {
			return ""
		}
		return i.Created.Format(time.DateOnly)
	}},
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// printProgress tells on the error stream how an image comes: each stage, and then each tenth of it.
func (a *app) printProgress() func(kurmaapi.Progress) {
	stage, tenth := "", int64(-1)
	return func(p kurmaapi.Progress) {
		now := int64(0)
		if p.Total > 0 {
			now = 10 * p.Done / p.Total
		}
		if p.Stage == stage && now == tenth {
			return
		}
		stage, tenth = p.Stage, now
		if p.Total > 0 {
			_, _ = fmt.Fprintf(a.err, "%s: %s of %s\n", p.Stage, mebibytes(p.Done), mebibytes(p.Total))
			return
		}
		_, _ = fmt.Fprintln(a.err, p.Stage)
	}
}

func (a *app) kurmaHookCommand() *cobra.Command {
	var program, folder string
	c := &cobra.Command{
		Use: "hook", Short: "Print what makes OCI runtimes attach containers", Args: noArgs,
		Long: `Print the part of a bundle's config.json that has runc, crun and other OCI runtimes run kuryr-oci-hook. With --folder it writes files into a folder of hooks instead,
which podman and CRI-O read: with them, containers that have the annotation kurma.io/networks are attached.`,
		Example: "  kuryr kurma hook\n  kuryr kurma hook --folder /etc/containers/oci/hooks.d",
		RunE: func(*cobra.Command, []string) error {
			if folder == "" {
				text, err := hook.Bundle(program, a.socket)
				if err == nil {
					_, err = a.out.Write(text)
				}
				return err
			}
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			for _, stage := range hook.Stages {
				text, err := hook.Folder(stage, program, a.socket)
				if err != nil {
					return err
				}
				path := filepath.Join(folder, hook.File(stage))
				if err := atomicfile.WriteFile(path, text, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&program, "program", hook.DefaultProgram, "`file` of kuryr-oci-hook")
	c.Flags().StringVar(&folder, "folder", "", "`folder` of hooks to write to, such as /etc/containers/oci/hooks.d")
	return c
}
