//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/datapath/trace"
	"github.com/spf13/cobra"
	"github.com/vishvananda/netns"
)

// traceReport is what `kuryr trace` tells.
type traceReport struct {
	From        string          `json:"from"`
	To          string          `json:"to"`
	Packet      string          `json:"packet"`
	Plan        []trace.Hop     `json:"plan"`
	Differences []string        `json:"differences"` // of the kernel from the store, on the way
	Findings    []admin.Finding `json:"findings"`    // about the host
	Probe       *trace.Result   `json:"probe,omitempty"`
	Verdict     string          `json:"verdict"`
	Reached     bool            `json:"reached"`
}

// traceOptions are the flags of `kuryr trace`.
type traceOptions struct {
	family int
	six    bool
	from   string
	plan   bool
	wait   time.Duration
	output string
}

func (a *app) traceCommand() *cobra.Command {
	var o traceOptions
	c := &cobra.Command{
		Use: "trace CONTAINER TO[:PORT[/tcp|udp]]", Short: "Follow a packet of a container, hop by hop",
		Args: exactly(2, "a container and where its packet is to go"),
		Long: `Tell hop by hop how a packet of a container goes, and where it is dropped: first the plan, by the kernel's tables and the SDN's
objects, then a real packet that is watched on every device and by nftables' tracing, so that a rule that drops it is named, whosesoever
it is. Without a port it is an ICMP echo. CONTAINER is a container's name or id, a pod's
namespace/name, the id of its endpoint or port, or its address; TO an address, a container, a pod, or "host".

On a cluster's node whose SDN is not on this machine (Neutron) it tells what the node knows: the pod's port, its groups and where the packet leaves the
node, and how to ask OVN for the rest; it sends no packet then, and the exit code is 1.

It needs root, on the machine where the container is. The exit code is 0 if the packet got there.`,
		Example:           "  kuryr trace web 8.8.8.8\n  kuryr trace web db:5432/tcp\n  kuryr trace web host:8080/tcp -o json\n  kuryr trace default/web blue/db:5432/tcp\n  kuryr trace --plan web 2001:db8::1",
		ValidArgsFunction: a.completeContainers,
		RunE: func(c *cobra.Command, args []string) error {
			format, err := table.ParseFormat(o.output)
			if err != nil {
				return usageError{err}
			}
			if o.six {
				o.family = 6
			}
			if !slices.Contains([]int{0, 4, 6}, o.family) {
				return usageError{fmt.Errorf("--family %d: want 4 or 6", o.family)}
			}
			target, err := parseTarget(args[1])
			if err != nil {
				return usageError{err}
			}
			if os.Geteuid() != 0 {
				return errors.New("trace looks into network namespaces and sends raw packets: run this as root")
			}
			report, err := a.trace(c, args[0], target, o)
			if err != nil {
				return err
			}
			if err := a.printTrace(format, report); err != nil {
				return err
			}
			if !report.Reached {
				return failed{}
			}
			return nil
		},
	}
	c.Flags().IntVar(&o.family, "family", 0, "address family, 4 or 6 (default: that of TO, or the first that both ends have)")
	complete(c, "family", "4", "6")
	c.Flags().BoolVarP(&o.six, "ipv6", "6", false, "the same as --family 6")
	c.Flags().StringVar(&o.from, "from", "", "`port` that the packet leaves by: its id, address, or network (default: as the container's routes say)")
	c.Flags().BoolVar(&o.plan, "plan", false, "send nothing: only what the tables say")
	c.Flags().DurationVar(&o.wait, "wait", 2*time.Second, "how long to wait for an answer")
	addOutput(c, &o.output)
	return c
}

func (a *app) trace(c *cobra.Command, from string, to target, o traceOptions) (traceReport, error) {
	if pods, there, err := a.podsElsewhere(c); there || err != nil {
		if err != nil {
			return traceReport{}, err
		}
		return traceElsewhere(pods, from, to, o)
	}
	t, err := a.newTracer(c)
	if err != nil {
		return traceReport{}, err
	}
	defer t.close()
	way, sites, called, err := t.resolve(c.Context(), from, to, o)
	if err != nil {
		return traceReport{}, err
	}
	report := traceReport{From: way.Container.Name, To: to.text, Packet: way.Flow.String(), Differences: []string{}, Findings: []admin.Finding{}}
	if report.Plan, err = trace.Plan(way); err != nil {
		return report, err
	}
	t.compare(c.Context(), &report, way)
	report.Verdict, report.Reached = planVerdict(report.Plan)
	if o.plan {
		return report, nil
	}
	result, err := trace.Run(c.Context(), way.Flow, trace.Options{Sites: sites, To: called, Wait: o.wait})
	if err != nil {
		return report, err
	}
	report.Probe, report.Verdict, report.Reached = &result, result.Text, result.Got
	return report, nil
}

func planVerdict(plan []trace.Hop) (string, bool) {
	if n := len(plan); n > 0 && plan[n-1].Stop {
		return fmt.Sprintf("would be stopped at %d: %s", n, plan[n-1].What), false
	}
	return "nothing in the tables stops it", true
}

// compare adds what is not as the store says on the way, and what about the host stands in it.
func (t *tracer) compare(ctx context.Context, report *traceReport, way trace.Way) {
	check, err := t.client.Check(ctx)
	if err != nil {
		report.Differences = append(report.Differences, "kernel and store could not be compared: "+oneLine(err))
		return
	}
	near := []string{"[]"}
	for _, p := range []string{t.path(way.Router), t.path(way.CalledRouter)} {
		if p != "" {
			near = append(near, "["+filepath.Base(p)+"]")
		}
	}
	for _, d := range check.Differences {
		if slices.ContainsFunc(near, func(prefix string) bool { return strings.HasPrefix(d, prefix) }) {
			report.Differences = append(report.Differences, d)
		}
	}
	report.Findings = append(report.Findings, check.Findings...)
}

func (a *app) printTrace(format table.Format, r traceReport) error {
	if format != table.Table {
		return table.Show(a.out, format, r, nil)
	}
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintln(a.out, table.Printable(fmt.Sprintf(format, args...)))
	}
	say("%s → %s: %s", r.From, r.To, r.Packet)
	_, _ = fmt.Fprintln(a.out, "\nplan, by the tables:")
	a.printHops(r.Plan)
	for _, d := range r.Differences {
		say("  ! differs from the store: %s; to repair it: kuryr sdn reconcile", d)
	}
	for _, f := range r.Findings {
		say("  ! host: %s", findingText(f))
	}
	if r.Probe != nil {
		_, _ = fmt.Fprintln(a.out, "\nprobe, a packet that was sent:")
		a.printHops(r.Probe.Hops)
		if len(r.Probe.Hops) == 0 {
			say("  it was seen on no device")
		}
	}
	_, _ = fmt.Fprintln(a.out)
	say("verdict: %s", r.Verdict)
	return nil
}

func (a *app) printHops(hops []trace.Hop) {
	var where, device int
	for _, h := range hops {
		where, device = max(where, len([]rune(h.Where))), max(device, len([]rune(h.Device)))
	}
	for i, h := range hops {
		sign := " "
		switch {
		case h.Stop:
			sign = "✗"
		case h.Answer:
			sign = "←"
		}
		line := fmt.Sprintf("%3d %s %-*s  %-*s  %s", i+1, sign, where, h.Where, device, h.Device, h.What)
		_, _ = fmt.Fprintln(a.out, strings.TrimRight(table.Printable(line), " "))
		if h.Stop && h.Rule != "" && !strings.Contains(h.What, h.Rule) {
			_, _ = fmt.Fprintln(a.out, table.Printable("      rule: "+h.Rule))
		}
		if h.Mend != "" {
			_, _ = fmt.Fprintln(a.out, table.Printable("      to repair it: "+h.Mend))
		}
	}
}

// sweepTraces removes what killed runs of `kuryr trace` left on kernels that do not do it themselves, and tells it: in this namespace, and in those
// that are pinned in a folder.
func sweepTraces(dir string) []string {
	var gone []string
	var paths []string
	if dir != "" {
		paths, _ = filepath.Glob(filepath.Join(dir, "*"))
	}
	for _, path := range append([]string{"/proc/thread-self/ns/net"}, paths...) {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			continue
		}
		names, err := trace.Sweep(ns)
		_ = ns.Close()
		for _, name := range names {
			gone = append(gone, "removed table "+name+" of a trace that was killed")
		}
		if err != nil {
			gone = append(gone, "tables of killed traces: "+oneLine(err))
		}
	}
	return gone
}

// target is where a packet is to go.
type target struct {
	text     string
	host     bool
	name     string // of a container; "" if addr is valid, or host
	addr     netip.Addr
	protocol uint8
	port     uint16
}
