//go:build linux

package main

import (
	"context"
	"io"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/bundle"
)

// podParts are what the daemon of a cluster's node tells: none where there is no such daemon. Pods are told by name, as Docker's containers are; their specs are not asked for.
func (b *collector) podParts() []bundle.Part {
	if b.cfgError != nil {
		return nil
	}
	daemon, there := podDaemon(b.cfg)
	if !there {
		return nil
	}
	return []bundle.Part{
		{Name: "node/status.json", Write: told(daemon.Status)},
		{Name: "node/check.json", Write: told(daemon.Check)},
		{Name: "node/pods.json", Write: told(daemon.Pods)},
		{Name: "node/metrics.txt", Write: daemon.Metrics},
	}
}

// told writes an answer as JSON.
func told[T any](ask func(context.Context) (T, error)) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		answer, err := ask(ctx)
		if err != nil {
			return err
		}
		return writeJSON(w, answer)
	}
}
