//go:build linux

package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	kurmaapi "github.com/kuryr/kuryr/kurma/api"
	"github.com/kuryr/kuryr/kurma/hook"
	"github.com/spf13/cobra"
)

// kurmaCalls are the commands that ask a running kuryr kurma.
func (a *app) kurmaCalls() []*cobra.Command {
	all := []*cobra.Command{a.kurmaAddCommand(), a.kurmaDelCommand(), a.kurmaListCommand(), a.kurmaShowCommand(), a.kurmaNetworkCommand(), a.kurmaImageCommand()}
	for _, c := range all {
		for _, one := range append(c.Commands(), c) {
			if !one.HasSubCommands() {
				addSettings(one, "kurma.socket")
			}
		}
	}
	return append(all, a.kurmaHookCommand())
}

// kurma gives the way to the running kuryr kurma.
func (a *app) kurma(c *cobra.Command) (*kurmaapi.Client, error) {
	if a.socket != "" {
		return kurmaapi.NewClient(a.socket), nil
	}
	cfg, err := a.load(c)
	if err != nil {
		return nil, err
	}
	return kurmaapi.NewClient(cfg.Kurma.Socket), nil
}

// kurmaShown has a command ask, and prints what it answers.
func kurmaShown[T any](a *app, c *cobra.Command, output string, ask func(context.Context, *kurmaapi.Client) (T, error), show func(table.Format, T) error) error {
	format, err := table.ParseFormat(output)
	if err != nil {
		return usageError{err}
	}
	client, err := a.kurma(c)
	if err != nil {
		return err
	}
	out, err := ask(c.Context(), client)
	if err != nil {
		return err
	}
	return show(format, out)
}

func (a *app) kurmaAddCommand() *cobra.Command {
	var output, netns string
	var networks []string
	var pid int
	c := &cobra.Command{
		Use: "add [UUID]", Short: "Attach a pod to networks", Args: cobra.MaximumNArgs(1),
		Long: `Attach a pod to its networks, in the order they are named, and show it. Without --network these are the default networks; "--network none" is none but lo.
Without --netns and --pid the pod gets a network namespace of its own, which stays until "kuryr kurma del". Without UUID it gets one.

Where a network is unknown or fails, what was done for the others is undone. The same call again is answered by what there is.`,
		Example: "  kuryr kurma add\n  kuryr kurma add 146d7cef-fbf6-41da-a2f8-eba218597f9c --network mynet --network blue --pid 4711",
		RunE: func(c *cobra.Command, args []string) error {
			r := kurmaapi.PodRequest{UUID: strings.Join(args, ""), Namespace: netns, PID: pid}
			if c.Flags().Changed("network") {
				if len(networks) == 1 && networks[0] == hook.NoNetworks {
					networks = []string{}
				}
				r.Networks = &networks
			}
			return kurmaShown(a, c, output, func(ctx context.Context, k *kurmaapi.Client) (kurmaapi.Pod, error) { return k.Add(ctx, r) }, a.printPod)
		},
	}
	c.Flags().StringSliceVar(&networks, "network", nil, "`name` of a network; it can be given several times, or with commas")
	c.Flags().StringVar(&netns, "netns", "", "`file` of the pod's network namespace")
	c.Flags().IntVar(&pid, "pid", 0, "`process` in the pod's network namespace")
	_ = c.RegisterFlagCompletionFunc("network", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return append(a.kurmaNetworkNames(c), hook.NoNetworks), cobra.ShellCompDirectiveNoFileComp
	})
	addOutput(c, &output)
	return c
}

func (a *app) kurmaDelCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "del UUID...", Short: "Detach pods from their networks", Args: atLeastOne("UUIDs of pods"),
		Long: `Detach pods from all their networks, in reverse order, and let their network namespaces go. Each network is called whatever the others say. What fails is
told, kept, and tried again, by the daemon and by the same command; --force forgets it, and leaves behind what the network has. A pod that is not there is no error.`,
		Example: "  kuryr kurma del 146d7cef-fbf6-41da-a2f8-eba218597f9c",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.kurma(c)
			if err != nil {
				return err
			}
			var errs []error
			for _, uuid := range args {
				errs = append(errs, client.Del(c.Context(), uuid, force))
			}
			return errors.Join(errs...)
		},
		ValidArgsFunction: a.completePods,
	}
	c.Flags().BoolVar(&force, "force", false, "forget what fails")
	return c
}

// atLeastOne wants arguments; what tells their names.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError{errors.New(c.CommandPath() + ": want " + what)}
		}
		return nil
	}
}

func (a *app) kurmaListCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "list", Short: "List the pods", Args: noArgs, Example: "  kuryr kurma list\n  kuryr kurma list -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			ask := func(ctx context.Context, k *kurmaapi.Client) ([]kurmaapi.Pod, error) { return k.Pods(ctx) }
			return kurmaShown(a, c, output, ask, func(f table.Format, list []kurmaapi.Pod) error {
				return table.List(a.out, f, list, []table.Column[kurmaapi.Pod]{podUUID, podState, podAttachments, podContainer})
			})
		},
	}
	addOutput(c, &output)
	return c
}

func (a *app) kurmaShowCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "show UUID", Short: "Show a pod with what its networks have told", Args: exactly(1, "the UUID of one pod"),
		Example: "  kuryr kurma show 146d7cef-fbf6-41da-a2f8-eba218597f9c -o json",
		RunE: func(c *cobra.Command, args []string) error {
			return kurmaShown(a, c, output, func(ctx context.Context, k *kurmaapi.Client) (kurmaapi.Pod, error) { return k.Pod(ctx, args[0]) }, a.printPod)
		},
		ValidArgsFunction: a.completePods,
	}
	addOutput(c, &output)
	return c
}

// The columns of a pod.
var (
	podUUID        = table.Column[kurmaapi.Pod]{Name: "uuid", Value: func(p kurmaapi.Pod) string { return p.UUID }}
	podState       = table.Column[kurmaapi.Pod]{Name: "state", Value: func(p kurmaapi.Pod) string { return string(p.State) }}
	podContainer   = table.Column[kurmaapi.Pod]{Name: "container", Value: func(p kurmaapi.Pod) string { return p.Container }}
	podAttachments = table.Column[kurmaapi.Pod]{Name: "attachments", Value: attachmentsOf}
)

func (a *app) printPod(f table.Format, p kurmaapi.Pod) error {
	return table.Show(a.out, f, p, []table.Column[kurmaapi.Pod]{
		podUUID, podState, podAttachments,
		{Name: "gateways", Value: gatewaysOf},
		{Name: "nameservers", Value: nameserversOf},
		{Name: "namespace", Value: func(p kurmaapi.Pod) string { return p.Namespace }},
		podContainer,
		{Name: "created", Value: func(p kurmaapi.Pod) string { return p.Created.Format(time.RFC3339) }},
		{Name: "error", Value: errorsOf},
	})
}

// attachmentsOf is such as "mynet eth0 10.10.0.2/16", a line each.
func attachmentsOf(p kurmaapi.Pod) string {
	var list []string
	for _, at := range p.Attachments {
		words := []string{at.Network.Name}
		if at.Interface != "" {
			words = append(words, at.Interface)
		}
		if at.Result != nil {
			for _, ip := range at.Result.IPs {
				words = append(words, ip.Address.String())
			}
		}
		list = append(list, strings.Join(words, " "))
	}
	return lines(list)
}

func gatewaysOf(p kurmaapi.Pod) string {
	var list []string
	for _, at := range p.Attachments {
		if at.Result != nil {
			for _, ip := range at.Result.IPs {
				if ip.Gateway != nil {
					list = append(list, ip.Gateway.String())
				}
			}
		}
	}
	return lines(list)
}

func nameserversOf(p kurmaapi.Pod) string {
	var list []string
	for _, at := range p.Attachments {
		if at.Result != nil {
			list = append(list, at.Result.DNS.Nameservers...)
		}
	}
	return lines(list)
}

func errorsOf(p kurmaapi.Pod) string {
	var list []string
	for _, at := range p.Attachments {
		if at.Error != "" {
			list = append(list, at.Error)
		}
	}
	if p.Error != "" {
		list = append(list, p.Error)
	}
	return lines(list)
}

func (a *app) completePods(c *cobra.Command, _ []string, _ string) (uuids []string, _ cobra.ShellCompDirective) {
	if client, err := a.kurma(c); err == nil {
		pods, _ := client.Pods(c.Context())
		for _, p := range pods {
			uuids = append(uuids, p.UUID)
		}
	}
	return uuids, cobra.ShellCompDirectiveNoFileComp
}
