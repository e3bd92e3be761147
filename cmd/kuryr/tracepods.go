//go:build linux

package main

import (
	"context"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/config"
)

// podsByPort are the pods of a cluster's node by the ids of their ports; none where there is no such node, or its daemon does not answer.
func podsByPort(ctx context.Context, cfg config.Config) map[string]admin.PodPort {
	daemon, there := podDaemon(cfg)
	if !there {
		return nil
	}
	all, err := daemon.Pods(ctx)
	if err != nil {
		return nil
	}
	byPort := map[string]admin.PodPort{}
	for _, p := range all.Ports {
		if p.Pod != "" {
			byPort[p.ID] = p
		}
	}
	return byPort
}
