//go:build linux

package main

import (
	_ "embed" // the page of kuryr-cni
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/kuryr/kuryr/internal/template"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a folder", Args: exactly(1, "one folder"),
		Long:    "Write a manual page for every command, and that of kuryr-cni, into a folder, which is made if it is missing.",
		Example: "  kuryr man /usr/local/share/man/man1",
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := c.Root()
			root.DisableAutoGenTag = true
			// The date is fixed, so that the same version gives the same pages.
			date := time.Unix(0, 0).UTC()
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "kuryr " + version, Manual: "Kuryr", Date: &date}, args[0]); err != nil {
				return err
			}
			page, err := cniPage(date)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(args[0], "kuryr-cni.1"), page, 0o644)
		},
	}
}

//go:embed kuryr-cni.1.md
var cniManual string

// cniPage is the manual page of kuryr-cni, which itself is too small to have it.
func cniPage(date time.Time) ([]byte, error) {
	const name = "kuryr-cni.1"
	text := template.Template{}
	if err := text.Parse(name, cniManual, nil); err != nil {
		return nil, err
	}
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%% \"KURYR-CNI\" \"1\" %q %q \"Kuryr\"\n", date.Format("Jan 2006"), "kuryr "+version)
	err := text.Execute(&b, name, map[string]any{
		"Versions": strings.Join(cni.Versions, ", "), "DefaultVersion": cni.DefaultVersion, "Socket": cni.DefaultSocket, "State": cni.DefaultState, "Kinds": cni.Kinds(),
	}, nil)
	return md2man.Render([]byte(b.String())), err
}

func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print the completion script of a shell", ValidArgs: shells,
		Long:    "Print the script that completes kuryr's commands and flags in " + strings.Join(shells, ", ") + ".",
		Example: "  kuryr completion bash > /etc/bash_completion.d/kuryr",
		Args:    exactly(1, "one of "+strings.Join(shells, ", ")),
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(a.out, true)
			case "zsh":
				return c.Root().GenZshCompletion(a.out)
			case "fish":
				return c.Root().GenFishCompletion(a.out, true)
			case "powershell":
				return c.Root().GenPowerShellCompletionWithDesc(a.out)
			}
			return usageError{fmt.Errorf("%q is none of the shells %s", args[0], strings.Join(shells, ", "))}
		},
	}
}
