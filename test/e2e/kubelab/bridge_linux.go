package kubelab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// reference is the distribution's folder of the CNI project's own plugins.
const reference = "/usr/lib/cni"

// ReferenceNetwork gives a node the CNI project's bridge plugin: addresses of 10.244.NUMBER.0/24 and routes to the other nodes' pods. It is for
// Options.Booted, as a control: where a test passes with it, the cluster is sound.
func ReferenceNetwork(ctx context.Context, n *Node) error {
	if _, err := os.Stat(filepath.Join(reference, "bridge")); err != nil {
		return fmt.Errorf("no reference plugins (package containernetworking-plugins): %w", err)
	}
	conflist := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "reference", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`, n.Number)
	if err := os.WriteFile(n.Path(filepath.Join(ConfigurationFolder, "10-reference.conflist")), []byte(conflist), 0o644); err != nil {
		return err
	}
	commands := [][]string{{"mount", "--bind", reference, PluginFolder}}
	for i := 1; i <= n.cluster.opts.Nodes; i++ {
		if i != n.Number {
			a := Nodes.Addr().As4()
			a[3] = byte(i)
			commands = append(commands, []string{"ip", "route", "replace", fmt.Sprintf("10.244.%d.0/24", i), "via", fmt.Sprintf("%d.%d.%d.%d", a[0], a[1], a[2], a[3])})
		}
	}
	return run(ctx, n.Host, commands...)
}
