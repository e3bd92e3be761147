package kubelab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// reference is the distribution's folder of the CNI project's own plugins.
const reference = "/usr/lib/cni"

// ReferenceNetwork gives a node the CNI project's bridge plugin: addresses of
// 10.244.NUMBER.0/24, with IPv6 of fd00:244:0:NUMBER::/64 too, and routes to the other
// nodes' pods. It is for Options.Booted, as a control: where a test passes with it, the
// cluster is sound.
func ReferenceNetwork(ctx context.Context, n *Node) error {
	if _, err := os.Stat(filepath.Join(reference, "bridge")); err != nil {
		return fmt.Errorf("no reference plugins (package containernetworking-plugins): %w", err)
	}
	ranges, routes := fmt.Sprintf(`[{"subnet": "10.244.%d.0/24"}]`, n.Number), `{"dst": "0.0.0.0/0"}`
	if n.cluster.opts.Families == DualStack {
		ranges += fmt.Sprintf(`, [{"subnet": "fd00:244:0:%d::/64"}]`, n.Number)
		routes += `, {"dst": "::/0"}`
	}
	conflist := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "reference", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}}]}`, ranges, routes)
	if err := os.WriteFile(
		n.Path(filepath.Join(ConfigurationFolder, "10-reference.conflist")), []byte(conflist),
		0o644,
	); err != nil {
		return err
	}
	commands := [][]string{{"mount", "--bind", reference, PluginFolder}}
	for i := 1; i <= n.cluster.opts.Nodes; i++ {
		if i != n.Number {
			a, b := Nodes.Addr().As4(), Nodes6.Addr().As16()
			a[3], b[15] = byte(i), byte(i)
			commands = append(commands, []string{
				"ip", "route", "replace", fmt.Sprintf("10.244.%d.0/24", i), "via",
				netip.AddrFrom4(a).String(),
			},
				[]string{"ip", "route", "replace", fmt.Sprintf("fd00:244:0:%d::/64", i), "via", netip.AddrFrom16(b).String()})
		}
	}
	// The central host is where pods find the API server.
	back := [][]string{{"ip", "route", "replace", fmt.Sprintf("10.244.%d.0/24", n.Number), "via", n.Address.String()},
		{"ip", "route", "replace", fmt.Sprintf("fd00:244:0:%d::/64", n.Number), "via", n.Address6.String()}}
	if err := run(ctx, n.cluster.Central, back...); err != nil {
		return err
	}
	return run(ctx, n.Host, commands...)
}
