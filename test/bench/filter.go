//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// goalFilter is what of an unfiltered port's throughput is to be left below a hundred rules.
const goalFilter = 0.95

// filter measures what security groups cost: traffic below a hundred rules against none and against br_netfilter, by bytes for the processors' time, and
// a change with 1,000 ports against the same with one.
func filter(ctx context.Context, b *bench) error {
	through, err := benchmarks(ctx, "FilterThroughput", "20x")
	if err != nil {
		return err
	}
	for _, kind := range []string{"stream", "datagrams"} {
		found := through["FilterThroughput/"+kind]
		b.rows = append(b.rows,
			row{name: "security groups: " + kind + ", a hundred rules", ours: "", reference: "none", ratio: found["x/none"], goal: goalFilter, atLeast: true},
			row{name: "br_netfilter: " + kind + ", established only", ours: "", reference: "none", ratio: found["br_netfilter/none"]})
	}
	costs, err := benchmarks(ctx, "Filter(Rule|Member|Connect)", "30x")
	if err != nil {
		return err
	}
	for _, c := range []struct{ name, ours, reference, note string }{
		{"security groups: the rules of a group that 1,000 ports have", "FilterRule/ports=1000", "FilterRule/ports=1", "one port"},
		{"security groups: a port into a remote group of 1,000 and out", "FilterMember/ports=1000", "FilterMember/ports=1", "of one"},
		{"security groups: a connection below a hundred rules", "FilterConnect/rules=100", "FilterConnect/rules=0", "none"},
	} {
		ours, reference := costs[c.ours]["ns/op"], costs[c.reference]["ns/op"]
		if reference == 0 {
			return fmt.Errorf("%s was not measured", c.reference)
		}
		b.rows = append(b.rows, row{name: c.name, ours: time.Duration(ours).Round(10 * time.Microsecond).String(),
			reference: c.note + " " + time.Duration(reference).Round(10*time.Microsecond).String(), ratio: ours / reference})
	}
	return nil
}

var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// benchmarks runs those of the data path's whose names match and gives what each reports, by unit.
func benchmarks(ctx context.Context, names, times string) (map[string]map[string]float64, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark"+names+"$", "-benchtime", times, "./datapath/router")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	all := map[string]map[string]float64{}
	for _, line := range benchmarkLine.FindAllSubmatch(out, -1) {
		units := map[string]float64{}
		fields := strings.Fields(string(line[2]))
		for i := 0; i+1 < len(fields); i += 2 {
			if units[fields[i+1]], err = strconv.ParseFloat(fields[i], 64); err != nil {
				return nil, fmt.Errorf("%s: %w", line[0], err)
			}
		}
		all[string(line[1])] = units
	}
	return all, nil
}
