//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// balancers measures Services as load balancers of the embedded SDN, by Raven and "kuryr sdn", against kube-proxy in nftables mode. Its client is the router's host itself, and the endpoints are beyond that, so that connections are not to be compared (BenchmarkConnect of package lb does it). Each
// size is in a cluster of its own, as Raven's first look at it leaves a KuryrLoadBalancer for each Service.
func balancers(ctx context.Context, b *bench) error {
	s := &servicesBench{bench: b, apart: true}
	for _, size := range b.services {
		if err := s.measure(ctx, "SDN: ", []int{size}, func(ctx context.Context, c *cluster) error { return s.ours.sdn(ctx, c.kuryr, c.kubeconfig) }); err != nil {
			return err
		}
	}
	return nil
}

// sdn is the embedded SDN with Raven, which leads the host to ClusterIPs by a router.
func (h *balancerHost) sdn(ctx context.Context, path, kubeconfig string) error {
	const routers = "/run/kuryr/netns"
	env := []string{"KURYR_INSTALLATION=bench"}
	admin := h.host.UnixClient("/run/kuryr/kuryr.sock")
	h.programs = []program{
		{name: "kuryr-sdn", env: env, argv: always(path, "sdn", "--host", servicesNode), ready: func(ctx context.Context) bool {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kuryr/readyz", nil)
			if err != nil {
				return false
			}
			answer, err := admin.Do(request)
			if err != nil {
				return false
			}
			answer.Body.Close()
			return answer.StatusCode == http.StatusOK
		}},
		{name: "kuryr-controller", env: env, argv: always(path, "controller", "--host", servicesNode, "--provider", "sdn", "--kubernetes-kubeconfig", kubeconfig,
			"--controller-namespace", "default", "--controller-listen", "", "--controller-leader-election=false", "--controller-services=true", "--log-level", "warn")},
	}
	h.kernel = func(h *balancerHost) (netns.NsHandle, error) {
		found, err := filepath.Glob(h.host.Path(routers) + "/*")
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("%s: there are %d namespaces of routers, want one", routers, len(found))
		}
		if err != nil {
			return netns.None(), err
		}
		return netns.GetFromPath(found[0])
	}
	h.timed = "kuryr_balancing_transaction_duration_seconds"
	h.asker = admin
	// From outside of the host only floating IPs lead to ClusterIPs.
	if err := h.client.Close(); err != nil {
		return err
	}
	var err error
	if h.client, err = h.own(); err != nil {
		return err
	}
	// The SDN takes no range that the host has a route to.
	return h.host.Exec(ctx, "ip", "route", "del", "blackhole", kubelab.ServiceRange).Err()
}
