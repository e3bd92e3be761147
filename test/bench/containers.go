//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// dockerHost is a private host with an engine, the machine's unless another is given, Kuryr, and the image "bench".
func dockerHost(ctx context.Context, b *bench, dockerd string) (*privatehost.Host, error) {
	h, err := privatehost.New(ctx, privatehost.Options{Docker: true, Dockerd: dockerd, Kuryr: b.kuryr})
	if err != nil {
		return nil, err
	}
	if err := h.ImportImage(ctx, "bench", map[string]string{"traffic": b.traffic}); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// timed runs the docker command and returns how long it took.
func timed(ctx context.Context, h *privatehost.Host, args ...string) (time.Duration, error) {
	start := time.Now()
	if r := h.Docker(ctx, args...); !r.OK() {
		return 0, fmt.Errorf("%s", r)
	}
	return time.Since(start), nil
}

// containers compares what a user waits for: docker run --rm, and network create with rm.
func containers(ctx context.Context, b *bench) error {
	if err := containersOn(ctx, b, "", ""); err != nil || b.dockerd == "" {
		return err
	}
	return containersOn(ctx, b, b.dockerd, ", second engine")
}

func containersOn(ctx context.Context, b *bench, dockerd, note string) error {
	h, err := dockerHost(ctx, b, dockerd)
	if err != nil {
		return err
	}
	defer h.Close()
	for _, args := range [][]string{
		{"network", "create", "-d", "bridge", "reference"},
		{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", "10.90.0.0/16", "ours"},
	} {
		if _, err := timed(ctx, h, args...); err != nil {
			return err
		}
	}
	var run, create [2][]time.Duration
	for round := range 2*b.rounds + 1 {
		for side, network := range []string{"ours", "reference"} {
			took, err := timed(ctx, h, "run", "--rm", "--network", network, "bench", "true")
			if err != nil {
				return err
			}
			if round > 0 { // the first is a warm-up
				run[side] = append(run[side], took)
			}
		}
	}
	for round := range b.rounds + 1 {
		for side, driver := range [][]string{{"-d", "kuryr", "--ipam-driver", "kuryr"}, {"-d", "bridge"}} {
			args := append([]string{"network", "create"}, driver...)
			args = append(args, "--subnet", "10.91.0.0/24", "passing")
			made, err := timed(ctx, h, args...)
			if err != nil {
				return err
			}
			gone, err := timed(ctx, h, "network", "rm", "passing")
			if err != nil {
				return err
			}
			if round > 0 {
				create[side] = append(create[side], made+gone)
			}
		}
	}
	b.add("docker run --rm"+note, run[0], run[1], 0.95)
	b.add("docker network create + rm"+note, create[0], create[1], 0.5)
	return nil
}
