//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
	"github.com/spf13/cobra"
)

// publishedPort is one port of a container that is reached from outside, or might be.
type publishedPort struct {
	Container string `json:"container"` // or its endpoint's id
	Network   string `json:"network"`
	Published string `json:"published"` // address and port, or ports, of the host; "": only exposed
	To        string `json:"to"`        // address, port and protocol of the container
	Protocol  string `json:"protocol"`
	service   string // "80/tcp"
	order     string
}

func (a *app) publishedCommand() *cobra.Command {
	var output string
	var exposed bool
	c := &cobra.Command{
		Use: "published [CONTAINER]", Short: "List the ports that containers publish",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("%s: want at most one container, not %d arguments", c.CommandPath(), len(args))}
			}
			return nil
		},
		Long: `List the ports that containers publish, which docker port does not know of other drivers' networks. With a container it prints what
docker port would: "80/tcp -> 0.0.0.0:8080", a line for each port or range. CONTAINER is a container's name or id, or the id of its endpoint or port.`,
		Example: "  kuryr port published\n  kuryr port published web\n  kuryr port published --exposed -o json",
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeContainers(c, args, word)
		},
		RunE: func(c *cobra.Command, args []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			t, err := a.newTracer(c)
			if err != nil {
				return err
			}
			ports := t.objects.Ports
			if len(args) == 1 {
				if ports, err = t.ports(args[0]); err != nil {
					return err
				}
			}
			list := t.published(ports, exposed)
			if format == table.Table && len(args) == 1 {
				return a.printLikeDocker(args[0], list)
			}
			return table.List(a.out, format, list, publishedColumns)
		},
	}
	c.Flags().BoolVar(&exposed, "exposed", false, "also ports that are only exposed")
	addOutput(c, &output)
	return c
}

var publishedColumns = []table.Column[publishedPort]{
	{Name: "container", Value: func(p publishedPort) string { return p.Container }},
	{Name: "network", Value: func(p publishedPort) string { return p.Network }},
	{Name: "published", Value: func(p publishedPort) string { return p.Published }},
	{Name: "to", Value: func(p publishedPort) string { return p.To }},
}

// printLikeDocker prints as docker port does, and fails as it does where there is nothing.
func (a *app) printLikeDocker(container string, list []publishedPort) error {
	if len(list) == 0 {
		return fmt.Errorf("container %q publishes no port on a network of Kuryr's", container)
	}
	for _, p := range list {
		line := p.service + " -> " + p.Published
		if p.Published == "" {
			line = p.service
		}
		_, _ = fmt.Fprintln(a.out, table.Printable(line))
	}
	return nil
}

// published lists what leads to the ports, sorted by container, protocol and port.
func (t *tracer) published(ports []api.Port, exposed bool) []publishedPort {
	byID := map[string]api.Port{}
	for _, p := range ports {
		if !strings.HasPrefix(p.DeviceOwner, "network:") {
			byID[p.ID] = p
		}
	}
	var out []publishedPort
	known := map[string]bool{} // port and service that are published
	for _, f := range t.objects.FloatingIPs {
		if p, ok := byID[api.Value(f.PortID)]; ok {
			e := t.entry(p)
			e.Published, e.To, e.Protocol, e.service = f.FloatingIPAddress, api.Value(f.FixedIPAddress), "any", "all"
			out = append(out, e)
		}
		for _, pf := range t.objects.Forwards[f.ID] {
			p, ok := byID[pf.InternalPortID]
			if !ok {
				continue
			}
			e := t.entry(p)
			external, internal := portText(pf.ExternalPort, pf.ExternalPortRange), portText(pf.InternalPort, pf.InternalPortRange)
			e.Published, e.Protocol, e.service = net.JoinHostPort(f.FloatingIPAddress, external), pf.Protocol, internal+"/"+pf.Protocol
			e.To = net.JoinHostPort(api.Value(pf.InternalIPAddress), internal) + "/" + pf.Protocol
			first, _, _ := bounds(pf.InternalPort, pf.InternalPortRange)
			e.order = fmt.Sprintf("%s %5d", pf.Protocol, first)
			known[p.ID+" "+e.service] = true
			out = append(out, e)
		}
	}
	for _, f := range t.proxied {
		p, ok := byID[string(f.Port)]
		if !ok {
			continue
		}
		e, name := t.entry(p), map[sdn.Protocol]string{sdn.TCP: "tcp", sdn.UDP: "udp"}[f.Protocol]
		e.Published, e.Protocol, e.service = f.Listen.String(), name, fmt.Sprintf("%d/%s", f.Target.Port(), name)
		e.To = f.Target.String() + "/" + name
		e.order = fmt.Sprintf("%s %5d", name, f.Target.Port())
		known[p.ID+" "+e.service] = true
		out = append(out, e)
	}
	if exposed {
		for _, p := range byID {
			for _, service := range endpoint.Exposed(p.Tags) {
				if !known[p.ID+" "+service] {
					e := t.entry(p)
					number, protocol, _ := strings.Cut(service, "/")
					e.To, e.Protocol, e.service, e.order = service, protocol, service, fmt.Sprintf("%s %5s", protocol, number)
					out = append(out, e)
				}
			}
		}
	}
	sortslice.Func(out, func(x, y publishedPort) int {
		return cmp.Or(strings.Compare(x.Container, y.Container), strings.Compare(x.order, y.order), strings.Compare(x.Network, y.Network), strings.Compare(x.Published, y.Published))
	})
	return out
}

func (t *tracer) entry(p api.Port) publishedPort {
	e := publishedPort{Container: cmp.Or(t.objects.Names.Endpoints[p.DeviceID], p.DeviceID, p.ID)}
	for _, n := range t.objects.Networks {
		if n.ID == p.NetworkID {
			e.Network = cmp.Or(t.objects.Names.Networks[n.Key().Name], n.Name, n.ID)
		}
	}
	return e
}

func portText(one *uint16, several string) string {
	if one != nil {
		return strconv.Itoa(int(*one))
	}
	return strings.ReplaceAll(several, ":", "-")
}

// bounds are the first and the last of one port or several ("80:90").
func bounds(one *uint16, several string) (first, last uint16, err error) {
	if one != nil {
		return *one, *one, nil
	}
	low, high, _ := strings.Cut(several, ":")
	a, errA := strconv.ParseUint(low, 10, 16)
	b, errB := strconv.ParseUint(high, 10, 16)
	return uint16(a), uint16(b), errors.Join(errA, errB)
}
