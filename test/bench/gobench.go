//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

// goBenchmark runs one of the tree's benchmarks and returns the metric "ratio" that it reports.
func goBenchmark(ctx context.Context, name, pkg string) (float64, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+name+"$", "-benchtime", "100x", pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	found := regexp.MustCompile(`([0-9.]+) ratio\b`).FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("%s printed no ratio:\n%s", cmd, out)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

func (b *bench) goBenchmarks(ctx context.Context, pkg, reference string, benchmarks []row) error {
	for _, r := range benchmarks {
		ratio, err := goBenchmark(ctx, r.ours, pkg)
		if err != nil {
			return err
		}
		b.rows = append(b.rows, row{name: r.name, ours: "", reference: reference, ratio: ratio, goal: r.goal})
	}
	return nil
}

func plug(ctx context.Context, b *bench) error {
	return b.goBenchmarks(ctx, "./bind", "raw netlink", []row{
		{name: "plug one port", ours: "BenchmarkPlugRatio", goal: 1.3},
		{name: "plug forty at once", ours: "BenchmarkPlug40Ratio", goal: 1.5},
	})
}

func allocate(ctx context.Context, b *bench) error {
	return b.goBenchmarks(ctx, "./sdn/local", "1,000 live", []row{
		{name: "allocate at 1,000,000 live addresses", ours: "BenchmarkAllocateRatio", goal: 2},
	})
}
