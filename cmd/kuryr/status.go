//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/spf13/cobra"
)

// storeOnlyText says why nothing is told of the kernel.
const storeOnlyText = "there is the store alone (--store-only), and no packet"

func (a *app) statusCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "status", Short: "Tell how the running kuryr is", Args: noArgs,
		Long: `Tell version, store, objects, what the last reconcile of the kernel found, and what about the host stands in the way of packets.
The exit code is 1 if kuryr is not running or not ready.`,
		Example: "  kuryr status\n  kuryr status -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			s, err := client.Status(c.Context())
			if cfg, wrong := a.load(c); admin.IsNotRunning(err) && a.socket == "" && wrong == nil {
				// On an SDN elsewhere the node's daemon may be all there is.
				if beside, none := admin.NewClient(frontSocket(cfg, duties{node: true})).Status(c.Context()); none == nil {
					s, err = beside, nil
				}
			}
			if err != nil {
				return err
			}
			if format == table.Table && len(s.Unreached) > 0 {
				names, _ := a.engineNames(c)
				nameRouters(s.Unreached, names.Networks)
			}
			if err := table.Show(a.out, format, s, statusColumns); err != nil {
				return err
			}
			if !s.Ready {
				return failed{}
			}
			return nil
		},
	}
	addOutput(c, &output)
	return c
}

var statusColumns = []table.Column[admin.Status]{
	{Name: "state", Value: func(s admin.Status) string {
		if s.Ready {
			return "ready"
		}
		return lines(append([]string{"not ready"}, s.Reasons...))
	}},
	{Name: "version", Value: func(s admin.Status) string { return s.Version }},
	{Name: "host", Value: func(s admin.Status) string { return s.Host }},
	{Name: "up since", Value: func(s admin.Status) string {
		return s.Started.Local().Format(time.DateTime) + " (" + max(0, time.Since(s.Started)).Round(time.Second).String() + ")"
	}},
	{Name: "plugin socket", Value: func(s admin.Status) string {
		return cmp.Or(s.PluginSocket, "none: Docker is not served by this process")
	}},
	{Name: "CNI socket", Value: func(s admin.Status) string {
		return cmp.Or(s.NodeSocket, "none: container runtimes are not served by this process")
	}},
	{Name: "API", Value: func(s admin.Status) string { return cmp.Or(s.API, "none: the SDN runs by itself") }},
	{Name: "installation", Value: func(s admin.Status) string { return s.Installation }},
	{Name: "store", Value: func(s admin.Status) string {
		if s.Store.Path == "" {
			return "none: the SDN runs by itself"
		}
		return fmt.Sprintf("%s (%s)", s.Store.Path, size(s.Store.Bytes))
	}},
	{Name: "objects", Value: func(s admin.Status) string {
		var out []string
		for _, noun := range slices.Sorted(maps.Keys(s.Objects)) {
			out = append(out, plural(s.Objects[noun], strings.ReplaceAll(noun, "_", " ")))
		}
		return strings.Join(out, ", ")
	}},
	{Name: "last reconcile", Value: func(s admin.Status) string {
		if s.StoreOnly {
			return "none: " + storeOnlyText
		}
		return reconcileText(s.Reconcile)
	}},
	{Name: "host's findings", Value: func(s admin.Status) string {
		if s.StoreOnly {
			return "not looked for: " + storeOnlyText
		}
		if len(s.Findings) == 0 {
			return "none: packets pass"
		}
		return linesOf(s.Findings, findingText)
	}},
	{Name: "not reached", Value: func(s admin.Status) string {
		return linesOf(s.Unreached, func(u admin.Unreached) string {
			return u.Prefix + " of router " + u.Router + ": " + u.Reason
		})
	}},
}

// nameRouters calls the routers that each serve one network of Docker's by that network's name, as the topology does; names are by id.
func nameRouters(all []admin.Unreached, names map[string]string) {
	for i, u := range all {
		if id, ok := strings.CutPrefix(u.Router, "kuryr-router-"); ok && names[id] != "" {
			all[i].Router = "of " + names[id]
		}
	}
}

func findingText(f admin.Finding) string { return f.What + "; to repair it: " + f.Remediation }

func reconcileText(r admin.Reconcile) string {
	if r.At.IsZero() {
		return "not yet"
	}
	text := fmt.Sprintf("%s, %.0f ms, ", r.At.Local().Format(time.DateTime), r.Milliseconds)
	switch {
	case r.Error != "":
		text += "failed: " + r.Error
	case len(r.Changed) == 0:
		text += "the kernel was as the store says"
	case len(r.Changed) == 1:
		text += "1 thing in the kernel was repaired"
	default:
		text += fmt.Sprintf("%d things in the kernel were repaired", len(r.Changed))
	}
	return text
}

// plural is a number of things: "1 network", "2 QoS policies".
func plural[N int | int64](n N, noun string) string {
	if words, ok := nounWords[noun]; ok {
		noun = words
	}
	if n != 1 {
		if stem, ok := strings.CutSuffix(noun, "y"); ok {
			noun = stem + "ie"
		}
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// nounWords are the nouns of the SDN that people write otherwise.
var nounWords = map[string]string{
	"floatingip": "floating IP", "healthmonitor": "health monitor", "loadbalancer": "load balancer",
	"qos policy": "QoS policy", "rbac policy": "RBAC policy", "subnetpool": "subnet pool",
}

func size(bytes int64) string {
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
