//go:build linux

package main

import (
	"bytes"
	_ "embed" // the page of kuryr-cni
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/internal/template"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pageDate is in the head of each manual page. It is fixed, so that the same version gives the same pages.
const pageDate = "Jan 1970"

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a folder", Args: exactly(1, "one folder"),
		Long:    "Write a manual page for every command, and that of kuryr-cni, into a folder, which is made if it is missing.",
		Example: "  kuryr man /usr/local/share/man/man1",
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			if err := writePages(c.Root(), args[0]); err != nil {
				return err
			}
			page, err := cniPage()
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(args[0], "kuryr-cni.1"), page, 0o644)
		},
	}
}

// kuryr-cni.1 is a template in roff.
//
//go:embed kuryr-cni.1
var cniManual string

// cniPage is the manual page of kuryr-cni, which itself is too small to have it.
func cniPage() ([]byte, error) {
	const name = "kuryr-cni.1"
	text := template.Template{}
	if err := text.Parse(name, cniManual, nil); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err := text.Execute(&b, name, map[string]any{
		"Date": pageDate, "Source": "kuryr " + version, "Versions": strings.Join(cni.Versions, ", "),
		"DefaultVersion": cni.DefaultVersion, "Socket": cni.DefaultSocket, "State": cni.DefaultState, "Kinds": cni.Kinds(),
	}, nil)
	return b.Bytes(), err
}

// writePages writes the page of a command and those of its subcommands. cobra's own generator would
// add 0.25 MB to the program, for a renderer of Markdown.
func writePages(c *cobra.Command, dir string) error {
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writePages(sub, dir); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	writePage(&b, c)
	return os.WriteFile(filepath.Join(dir, pageName(c)+".1"), b.Bytes(), 0o644)
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// writePage writes the page of one command in roff, with the macros of man(7).
func writePage(w io.Writer, c *cobra.Command) {
	section := func(title, text string) {
		if text = strings.TrimSpace(text); text != "" {
			fmt.Fprintf(w, ".SH %s\n%s\n", title, text)
		}
	}
	fmt.Fprintf(w, ".nh\n.TH %q \"1\" %q %q \"Kuryr\"\n", strings.ToUpper(pageName(c)), pageDate, "kuryr "+version)
	section("NAME", roff(pageName(c))+` \- `+roff(c.Short))
	section("SYNOPSIS", `\fB`+roff(c.UseLine())+`\fP`)
	section("DESCRIPTION", strings.ReplaceAll(roff(c.Long), "\n\n", "\n.PP\n"))
	section("OPTIONS", options(c.NonInheritedFlags()))
	section("OPTIONS INHERITED FROM PARENT COMMANDS", options(c.InheritedFlags()))
	if c.Example != "" {
		section("EXAMPLE", ".EX\n"+roff(c.Example)+"\n.EE")
	}
	var others []string
	if c.HasParent() {
		others = append(others, pageName(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			others = append(others, pageName(sub))
		}
	}
	for i, name := range others {
		others[i] = `\fB` + roff(name) + `\fP(1)`
	}
	section("SEE ALSO", strings.Join(others, ", "))
}

// options is a paragraph for each flag: its names, its default and what it is for.
func options(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		b.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(&b, `\fB%s\fP, `, roff("-"+f.Shorthand))
		}
		value, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(&b, `\fB%s\fP`, roff("--"+f.Name))
		if value != "" {
			fmt.Fprintf(&b, ` \fI%s\fP`, roff(value))
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
			fmt.Fprintf(&b, " (default %s)", roff(f.DefValue))
		}
		fmt.Fprintf(&b, "\n%s\n", roff(usage))
	})
	return b.String()
}

// roff escapes what roff would read as its own: backslashes, hyphens, and a control character that
// begins a line.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
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
