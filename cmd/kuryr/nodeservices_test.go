//go:build linux && kubernetes

package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/kube/proxy"
)

// Who flushes the host's ruleset does not make the node a router between the networks behind its links.
func TestGuardComesBack(t *testing.T) {
	nstest.Require(t)
	ns := nstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := &nodeServices{Controller: proxy.New(proxy.Config{}), log: slog.New(slog.DiscardHandler), leg: make(chan struct{})}
	close(s.leg)
	ended := make(chan struct{})
	go nstest.Do(t, ns, func() { s.stand(ctx); close(ended) })
	back := 0
	for end := time.Now().Add(time.Minute); back < 2 && time.Now().Before(end); { // nothing tells when it listens; the first may be of before that
		nstest.Do(t, ns, func() {
			c, err := nftables.New()
			if err != nil {
				t.Error(err)
				return
			}
			c.AddTable(&nftables.Table{Name: servicesTable, Family: nftables.TableFamilyINet})
			if err := c.Flush(); err != nil {
				t.Error(err)
			}
			c.FlushRuleset()
			if err := c.Flush(); err != nil {
				t.Error(err)
			}
			<-time.After(20 * time.Millisecond)
			there, err := hasTable(firewall.GuardTable)
			if err != nil {
				t.Error(err)
			}
			if there {
				back++
			}
		})
	}
	if back < 2 {
		t.Error("the guard does not come back")
	}
	cancel()
	<-ended
}

// A node takes pods, and others' packets for ClusterIPs, when it can lead them: where these are its own, not before its kernel has them.
func TestNodeWaitsForClusterIPs(t *testing.T) {
	for name, row := range map[string]struct {
		s     *nodeServices
		waits bool
	}{
		"Services are another's": {nil, false},
		"ClusterIPs are":         {&nodeServices{Controller: proxy.New(proxy.Config{})}, false},
		"the node's own":         {&nodeServices{Controller: proxy.New(proxy.Config{Rules: proxy.Rules{ClusterIPs: true}})}, true},
	} {
		select {
		case <-row.s.balances():
			if row.waits {
				t.Errorf("%s: it does not wait", name)
			}
		default:
			if !row.waits {
				t.Errorf("%s: it waits", name)
			}
		}
	}
}
