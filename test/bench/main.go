//go:build linux

// Command bench measures Kuryr against references in the same run and prints ratios: a plug against raw netlink, containers,
// traffic and published ports against Docker's own bridge, allocation at a million addresses against a thousand, calls of a full store
// against an empty one's, requests of the API against Neutron's, and against the Python kuryr-libnetwork's published figures; CNI against Debian's bridge, Raven
// with thousands of pods, Services against kube-proxy; and memory.
//
// It owns the private hosts it starts and the table it prints. It asserts nothing: a ratio beyond its goal is marked,
// and the exit status tells only whether all could be measured. "make bench" builds what it needs and runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// row is one line of the table. A goal of 0 is none, and a ratio that is no number.
type row struct {
	name      string
	ours      string
	reference string
	ratio     float64
	goal      float64
	atLeast   bool // the goal is a least, not a most
}

func (r row) verdict() string {
	switch {
	case r.goal == 0:
		return ""
	case r.atLeast && r.ratio < r.goal, !r.atLeast && r.ratio > r.goal:
		return "beyond the goal"
	}
	return "met"
}

// bench is what the measurements share.
type bench struct {
	kuryr   string // the program
	traffic string // the program in the containers
	dockerd string // another engine; "" for none
	rounds  int
	pods    int // of the cluster that Raven is measured on
	rows    []row

	services sizes         // how many Services there are, one number after the other
	wait     bool          // for a line on standard input when they are there
	patience time.Duration // with a load of them
}

// A measurement adds rows.
type measurement struct {
	name string
	run  func(context.Context, *bench) error
}

var measurements = []measurement{
	{"plug", plug},
	{"allocate", allocate},
	{"containers", containers},
	{"traffic", trafficPaths},
	{"memory", memory},
	{"methods", methods},
	{"published", published},
	{"publish", publishMany},
	{"scale", scale},
	{"start", start},
	{"neutron", neutron},
	{"sdn", sdnAPI},
	{"filter", filter},
	{"cni", cniADD},
	{"warm", warmADD},
	{"raven", ravenScale},
	{"services", services},
	{"balancers", balancers},
	{"more", oneMore},
	{"kurma", kurma},
}

func main() {
	privatehost.Init()
	b := &bench{}
	flag.StringVar(&b.kuryr, "kuryr", "bin/kuryr", "kuryr to measure")
	flag.StringVar(&b.traffic, "traffic", "bin/traffic", "program that makes the traffic")
	flag.IntVar(&b.rounds, "rounds", 10, "samples of each side, taken in turn")
	flag.IntVar(&b.pods, "pods", 10000, "pods of the cluster that raven is measured on, 20 on each node")
	b.services = sizes{1000, 10000, 30000}
	flag.Var(&b.services, "sizes", "numbers of Services that services and balancers are measured with, 100 to 50000, with commas between")
	flag.BoolVar(&b.wait, "wait", false, "services and balancers wait for a line on standard input when their objects are there: for a machine that is calm only for a while")
	flag.DurationVar(&b.patience, "patience", 10*time.Minute, "how long a load of services and balancers is waited for; what takes longer is told as that")
	flag.StringVar(&b.dockerd, "dockerd", "", "a second engine that containers and methods are measured on too")
	only := flag.String("only", "plug,allocate,containers,traffic,memory", "comma-separated measurements; of Docker also: methods, published, scale, start; of Neutron: neutron; of the embedded SDN: sdn, filter; of Kubernetes: cni, warm, raven, services, balancers, more; of Kurma: kurma")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, only string) error {
	var err error
	if b.kuryr, err = filepath.Abs(b.kuryr); err != nil {
		return err
	}
	if b.traffic, err = filepath.Abs(b.traffic); err != nil {
		return err
	}
	failed := 0
	for _, m := range measurements {
		if !slices.Contains(strings.Split(only, ","), m.name) {
			continue
		}
		start := time.Now()
		fmt.Fprintf(os.Stderr, "measuring %s …", m.name)
		if err := m.run(ctx, b); err != nil {
			fmt.Fprintf(os.Stderr, " failed: %v\n", err)
			failed++
			continue
		}
		fmt.Fprintf(os.Stderr, " %.0f s\n", time.Since(start).Seconds())
	}
	b.print()
	if failed > 0 {
		return fmt.Errorf("%d measurements failed", failed)
	}
	return nil
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nMEASURED\tKURYR\tREFERENCE\tRATIO\tGOAL\t")
	for _, r := range b.rows {
		goal, ratio := "", "-"
		if !math.IsNaN(r.ratio) {
			ratio = fmt.Sprintf("%.2f", r.ratio)
		}
		switch {
		case r.goal != 0 && r.atLeast:
			goal = fmt.Sprintf("≥ %.2f", r.goal)
		case r.goal != 0:
			goal = fmt.Sprintf("≤ %.2f", r.goal)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.name, r.ours, r.reference, ratio, goal, r.verdict())
	}
	w.Flush()
}

// add compares two medians of durations.
func (b *bench) add(name string, ours, reference []time.Duration, goal float64) {
	o, r := median(ours), median(reference)
	b.rows = append(b.rows, row{name: name, ours: o.Round(10 * time.Microsecond).String(),
		reference: r.Round(10 * time.Microsecond).String(), ratio: float64(o) / float64(r), goal: goal})
}

// median of n samples; the slice is sorted.
func median[T time.Duration | float64](samples []T) T {
	slices.Sort(samples)
	return samples[len(samples)/2]
}
