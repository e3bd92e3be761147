//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// peer are the medians that were published of the Python kuryr-libnetwork's calls, its Neutron a stub that answers at once and its
// binding a script that does nothing.
var peer = map[string]time.Duration{
	"IpamDriver.RequestAddress":                 31 * time.Millisecond,
	"NetworkDriver.CreateEndpoint":              105 * time.Millisecond,
	"NetworkDriver.Join":                        34 * time.Millisecond,
	"NetworkDriver.ProgramExternalConnectivity": 5500 * time.Microsecond,
	"NetworkDriver.RevokeExternalConnectivity":  3700 * time.Microsecond,
	"NetworkDriver.Leave":                       13 * time.Millisecond,
	"NetworkDriver.DeleteEndpoint":              92 * time.Millisecond,
	"IpamDriver.ReleaseAddress":                 25 * time.Millisecond,
}

// methods measures the time inside Kuryr for a container's start and stop, by method, with a published port.
func methods(ctx context.Context, b *bench) error {
	if err := methodsOn(ctx, b, "", ""); err != nil || b.dockerd == "" {
		return err
	}
	return methodsOn(ctx, b, b.dockerd, ", second engine")
}

func methodsOn(ctx context.Context, b *bench, dockerd, note string) error {
	h, err := dockerHost(ctx, b, dockerd)
	if err != nil {
		return err
	}
	defer h.Close()
	if _, err := timed(ctx, h, "network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", "10.90.0.0/16", "ours"); err != nil {
		return err
	}
	run := func() (time.Duration, error) {
		return timed(ctx, h, "run", "--rm", "--network", "ours", "-p", "8080:80", "bench", "true")
	}
	if _, err := run(); err != nil { // a warm-up
		return err
	}
	before, err := spent(ctx, h)
	if err != nil {
		return err
	}
	runs := 2 * b.rounds
	var whole time.Duration
	for range runs {
		took, err := run()
		if err != nil {
			return err
		}
		whole += took
	}
	after, err := spent(ctx, h)
	if err != nil {
		return err
	}
	var ours, theirs time.Duration
	for _, method := range slices.Sorted(maps.Keys(after)) {
		calls := after[method].calls - before[method].calls
		if calls == 0 {
			continue
		}
		total := after[method].took - before[method].took
		ours += total
		reference, known := peer[method]
		if !known {
			b.rows = append(b.rows, row{name: method + note, ours: (total / time.Duration(calls)).Round(time.Microsecond).String(), reference: "-"})
			continue
		}
		theirs += reference * time.Duration(calls)
		b.rows = append(b.rows, row{name: method + note, ours: (total / time.Duration(calls)).Round(time.Microsecond).String(),
			reference: "peer " + reference.String(), ratio: float64(total) / float64(calls) / float64(reference)})
	}
	each := time.Duration(runs)
	b.rows = append(b.rows,
		row{name: "in Kuryr, start and stop" + note, ours: (ours / each).Round(10 * time.Microsecond).String(), reference: "peer " + (theirs / each).String(), ratio: float64(ours) / float64(theirs)},
		row{name: "in Kuryr, start and stop" + note, ours: (ours / each).Round(10 * time.Microsecond).String(), reference: "docker run " + (whole / each).Round(time.Millisecond).String(), ratio: float64(ours) / float64(whole)})
	return nil
}

// spending is what calls of a method took in all.
type spending struct {
	calls int64
	took  time.Duration
}

var spendingLine = regexp.MustCompile(`(?m)^kuryr_docker_call_duration_seconds_(sum|count)\{method="([^"]+)"\} (\S+)$`)

// spent reads Kuryr's metrics.
func spent(ctx context.Context, h *privatehost.Host) (map[string]spending, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kuryr/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.UnixClient("/run/kuryr/kuryr.sock").Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	all := map[string]spending{}
	for _, m := range spendingLine.FindAllSubmatch(text, -1) {
		value, err := strconv.ParseFloat(string(m[3]), 64)
		if err != nil {
			return nil, err
		}
		s := all[string(m[2])]
		if string(m[1]) == "count" {
			s.calls = int64(value)
		} else {
			s.took = time.Duration(value * float64(time.Second))
		}
		all[string(m[2])] = s
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the metrics tell nothing of calls")
	}
	return all, nil
}
