//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// app is what commands share.
type app struct {
	out, err io.Writer
	environ  []string // KEY=value

	configPath string // --config
	socket     string // --socket
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// run executes a command line and gives the exit code. An error is one line.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var quiet failed
	if !errors.As(err, &quiet) {
		_, _ = fmt.Fprintln(a.err, "kuryr: "+oneLine(err))
	}
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// failed ends with exit code 1 after what is wrong has been printed as the command's output.
type failed struct{}

func (failed) Error() string { return "failed" }

// oneLine shows an error without the request that it came from.
func oneLine(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	return strings.Join(strings.Split(strings.TrimSpace(err.Error()), "\n"), "; ")
}

func (a *app) root() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "kuryr",
		Short: "Containers as ports of a software-defined network",
		Long: `kuryr gives every container a port of its own on a software-defined network: with an address, a MAC, routers with NAT and
floating IPs. Without anything behind it, its embedded SDN serves this machine.

"kuryr up" is all that is needed; from then on Docker has the network driver "kuryr".`,
		Example: `  kuryr up &
  docker network create -d kuryr --ipam-driver kuryr --subnet 10.1.0.0/24 blue
  docker run --rm -it --network blue debian
  kuryr topology`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&a.configPath, "config", "", "configuration `file` (default "+config.DefaultPath+", if it is there; KURYR_CONFIG); one whose name ends in .conf is the Python kuryr-libnetwork's")
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "`socket` of the running kuryr (default as admin.socket in the configuration)")
	root.AddCommand(a.upCommand(), a.dockerCommand(), a.nodeCommand(), a.downCommand(), a.statusCommand(), a.doctorCommand(), a.topologyCommand(), a.traceCommand(), a.bundleCommand(), a.sdnCommand(), a.installEngineCommand(), a.uninstallEngineCommand(),
		a.controllerCommand(), a.poolCommand(), a.kurmaCommand(),
		a.completionCommand(), a.manCommand(), a.versionCommand())
	resources := a.resourceCommands()
	root.AddCommand(resources...)
	for _, c := range resources {
		if c.Name() == "port" {
			c.AddCommand(a.publishedCommand())
		}
	}
	return root
}

// helpCommand prints the help of a command, and fails where there is none.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]…", Short: "Print the help of a command",
		Long:    "Print the help of a command, as COMMAND --help does.",
		Example: "  kuryr help network list",
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError{fmt.Errorf("unknown help topic %q; kuryr --help lists the commands", strings.Join(args, " "))}
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// group makes c a command that only has commands below it: alone it prints its help, with a word it does not know it fails.
func group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		text := fmt.Sprintf("unknown command %q of %q", args[0], c.CommandPath())
		c.SuggestionsMinimumDistance = 2
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			text += "; is " + strings.Join(near, " or ") + " meant?"
		}
		return usageError{errors.New(text)}
	}
	return c
}

// exactly takes so many arguments; what tells their names.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%s: want %s, not %d arguments", c.CommandPath(), what, len(args))}
		}
		return nil
	}
}

// noArgs takes none.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s: takes no arguments, not %q", c.CommandPath(), args[0])}
	}
	return nil
}

// addSettings gives c a flag for each of the settings, all of them if none are named.
func addSettings(c *cobra.Command, keys ...string) {
	if len(keys) == 0 {
		for _, s := range config.Settings() {
			keys = append(keys, s.Key)
		}
	}
	for _, key := range keys {
		s := config.Lookup(key)
		// In a flag's help backquotes would name its placeholder.
		help := strings.ReplaceAll(s.Help, "`", `"`) + " (" + s.Key + ")"
		c.Flags().Var(&settingValue{s, s.Default()}, s.Flag(), help)
		if words := wordsOf(s); words != nil {
			complete(c, s.Flag(), words...)
		}
	}
}

// settingValue is the flag of a setting. The configuration checks it, with all other sources.
type settingValue struct {
	setting *config.Setting
	text    string
}

// String is the value as it was given.
func (v *settingValue) String() string { return v.text }

// Set takes a value.
func (v *settingValue) Set(text string) error { v.text = text; return nil }

// Type is the placeholder of the value in help texts.
func (v *settingValue) Type() string {
	form := v.setting.Form
	if words := wordsOf(v.setting); words != nil {
		form = strings.Join(words, "|")
	}
	if v.setting.List {
		form += ",…"
	}
	return form
}

// wordsOf are the values of a setting that is one of a few words, nil for another.
func wordsOf(s *config.Setting) []string {
	if s.Form == config.FormBool {
		return []string{"true", "false"}
	}
	return slices.DeleteFunc(slices.Clone(s.Choices), func(word string) bool { return word == "" })
}

// settingsBut are all settings but those of some sections, which are given with their dots.
func settingsBut(sections ...string) (keys []string) {
	for _, s := range config.Settings() {
		if !slices.ContainsFunc(sections, func(section string) bool { return strings.HasPrefix(s.Key, section) }) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// complete has a shell complete a flag by these words.
func complete(c *cobra.Command, flag string, words ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// load reads the configuration for a command with the flags that were given to it.
func (a *app) load(c *cobra.Command) (config.Config, error) { return a.loadWith(c, "") }

// loadWith reads it for a command of the Kubernetes controller, with the file that this has in the form of kuryr-kubernetes; "" is for all others.
func (a *app) loadWith(c *cobra.Command, raven string) (config.Config, error) {
	src := config.Source{Path: a.configPath, MustBe: a.configPath != "", Environ: a.environ, Flags: map[string]string{}}
	if src.Path == "" {
		src.Path = a.getenv("KURYR_CONFIG")
		src.MustBe = src.Path != ""
	}
	switch {
	case src.Path == "" && raven != "":
		src.Path, src.Raven = config.DefaultPath, raven
	case raven != "" && strings.HasSuffix(src.Path, ".conf"):
		src.Raven, src.RavenMust, src.Path, src.MustBe = src.Path, true, "", false
	case src.Path == "":
		src.Path, src.Peer = config.DefaultPath, config.PeerPath
	case strings.HasSuffix(src.Path, ".conf"): // the Python kuryr-libnetwork's, and nothing of ours
		src.Peer, src.PeerMust, src.Path, src.MustBe = src.Path, true, "", false
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		for _, s := range config.Settings() {
			if s.Flag() == f.Name {
				src.Flags[s.Key] = f.Value.String()
			}
		}
	})
	cfg, err := config.Load(src)
	if a.socket != "" {
		cfg.Admin.Socket = a.socket
	}
	var wrong *config.Error
	if errors.As(err, &wrong) && strings.HasPrefix(wrong.Where, "flag ") {
		err = usageError{err}
	}
	return cfg, err
}

// client gives the way to the running Kuryr.
func (a *app) client(c *cobra.Command) (*admin.Client, error) {
	if a.socket != "" {
		return admin.NewClient(a.socket), nil
	}
	cfg, err := a.load(c)
	if err != nil {
		return nil, err
	}
	return admin.NewClient(cfg.Admin.Socket), nil
}

func (a *app) getenv(name string) string {
	value := ""
	for _, v := range a.environ {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			value = rest
		}
	}
	return value
}

// addForce adds the flag of a command that writes a file for its user.
func addForce(c *cobra.Command, into *bool) {
	c.Flags().BoolVar(into, "force", false, "overwrite the file if it exists")
}

// writeNew is writeFile for a file that a user names. It does not overwrite one without
// force, and says what it wrote.
func (a *app) writeNew(path string, force bool, write func(io.Writer) error) error {
	if _, err := os.Lstat(path); err == nil && !force {
		return fmt.Errorf("%s exists: --force overwrites it", path)
	}
	if err := writeFile(path, write); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "wrote %s (%s)\n", path, size(info.Size()))
	return err
}

// writeFile makes a file that is its owner's alone.
func writeFile(path string, write func(io.Writer) error) error {
	return atomicfile.Write(path, 0o600, func(f *os.File) error { return write(f) })
}
