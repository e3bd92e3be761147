//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// goBenchmark runs one of the tree's benchmarks and returns the metrics "ratio…" that it reports, by what follows that word.
func goBenchmark(ctx context.Context, name, pkg, times string) (map[string]float64, error) {
	ratios := map[string]float64{}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+name+"$", "-benchtime", times, pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	for _, found := range regexp.MustCompile(`([0-9.]+) ratio(\S*)`).FindAllSubmatch(out, -1) {
		ratio, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return nil, err
		}
		ratios[string(found[2])] = ratio
	}
	if len(ratios) == 0 {
		return nil, fmt.Errorf("%s printed no ratio:\n%s", cmd, out)
	}
	return ratios, nil
}

func (b *bench) goBenchmarks(ctx context.Context, pkg, reference string, benchmarks []row) error {
	for _, r := range benchmarks {
		ratios, err := goBenchmark(ctx, r.ours, pkg, "100x")
		if err != nil {
			return err
		}
		b.rows = append(b.rows, row{name: r.name, ours: "", reference: reference, ratio: ratios[""], goal: r.goal})
	}
	return nil
}

func plug(ctx context.Context, b *bench) error {
	return b.goBenchmarks(ctx, "./bind", "raw netlink", []row{
		{name: "plug one port", ours: "BenchmarkPlugRatio", goal: 1.3},
		{name: "plug forty at once", ours: "BenchmarkPlug40Ratio", goal: 1.5},
	})
}

// oneMore is what of one Service more is the daemon's and the kernel's, without an API server.
func oneMore(ctx context.Context, b *bench) error {
	ratios, err := goBenchmark(ctx, "BenchmarkMore", "./kube/proxy", "100x")
	if err != nil {
		return err
	}
	for _, n := range []string{"10000", "30000"} {
		b.rows = append(b.rows, row{name: "one Service more among " + n + ", the daemon and the kernel", reference: "among 1000", ratio: ratios[n], goal: 1.25})
	}
	return nil
}

func allocate(ctx context.Context, b *bench) error {
	return b.goBenchmarks(ctx, "./sdn/engine", "1,000 live", []row{
		{name: "allocate at 1,000,000 live addresses", ours: "BenchmarkAllocateRatio", goal: 2},
	})
}

// publishMany publishes 2,000 ports of one container. Its reference is one call of the SDN for each.
func publishMany(ctx context.Context, b *bench) error {
	ratios, err := goBenchmark(ctx, "BenchmarkPublishRatio", "./cmd/kuryr", "3x")
	if err != nil {
		return err
	}
	for _, where := range []string{"in-process", "another-process"} {
		name := "publish 2,000 UDP ports, SDN: " + where
		b.rows = append(b.rows, row{name: name, reference: "one by one", ratio: ratios["-"+where], goal: 0.05})
	}
	return nil
}

// scale compares each call while the store holds 1,000 networks and 10,000 endpoints with the same on an empty one.
func scale(ctx context.Context, b *bench) error {
	for _, c := range []struct{ benchmark, note string }{{"BenchmarkScaleRatio", ""}, {"BenchmarkScaleRatioNoSync", ", without waiting for the disk"}} {
		ratios, err := goBenchmark(ctx, c.benchmark, "./docker", "30x")
		if err != nil {
			return err
		}
		for _, method := range slices.Sorted(maps.Keys(ratios)) {
			b.rows = append(b.rows, row{name: strings.TrimPrefix(method, "-") + ", 10,000 endpoints" + c.note, reference: "empty store", ratio: ratios[method], goal: 1.2})
		}
	}
	return nil
}
