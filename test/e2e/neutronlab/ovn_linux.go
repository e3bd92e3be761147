package neutronlab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// ovnCentral are OVN's daemons on the central host.
type ovnCentral struct{ north, south, northd *privatehost.Service }

// southbound is where the hosts' ovn-controllers reach OVN.
var southbound = "tcp:" + Management.Addr().String() + ":6642"

// stopLimit is how long a daemon has to end.
const stopLimit = time.Minute

// StartOVN starts OVN's two databases and northd, with what they held when they were stopped.
func (l *Lab) StartOVN(ctx context.Context) error {
	var err error
	if l.ovn.north, err = l.startOVSDB(
		ctx, l.Central, "ovnnb_db", "/run/ovn", "/usr/share/ovn/ovn-nb.ovsschema",
	); err != nil {
		return err
	}
	l.ovn.south, err = l.startOVSDB(ctx, l.Central, "ovnsb_db", "/run/ovn", "/usr/share/ovn/ovn-sb.ovsschema",
		"--remote=ptcp:6642:"+Management.Addr().String())
	if err != nil {
		return err
	}
	if err := run(ctx, l.Central, []string{"ovn-nbctl", "--no-wait", "init"}, []string{"ovn-sbctl", "init"}); err != nil {
		return err
	}
	l.ovn.northd, err = l.Central.StartService(
		ctx, "ovn-northd", nil,
		[]string{"ovn-northd", "-vsyslog:off", "--pidfile=/run/ovn/ovn-northd.pid"}, nil,
	)
	return err
}

// StopOVN ends OVN's databases and northd with sig; what the hosts' switches were told stays in force.
func (l *Lab) StopOVN(sig syscall.Signal) error {
	for _, s := range []*privatehost.Service{l.ovn.northd, l.ovn.south, l.ovn.north} {
		if err := s.Stop(sig, stopLimit); err != nil {
			return err
		}
	}
	return nil
}

// startOVSDB starts a database server, on a file in the host's folder that is made by its schema where it is missing.
func (l *Lab) startOVSDB(
	ctx context.Context, h *privatehost.Host, name, dir, schema string, remotes ...string,
) (*privatehost.Service, error) {
	file, socket := filepath.Join(h.Dir(), name), filepath.Join(dir, name+".sock")
	if _, err := os.Stat(file); os.IsNotExist(err) {
		if err := run(ctx, h, []string{"ovsdb-tool", "create", file, schema}); err != nil {
			return nil, err
		}
	}
	argv := append([]string{"ovsdb-server", "-vsyslog:off", "--pidfile=" + filepath.Join(dir, name+".pid"),
		"--unixctl=" + filepath.Join(dir, name+".ctl"), "--remote=punix:" + socket}, remotes...)
	return h.StartService(ctx, name, nil, append(argv, file), listens(h, "unix", socket))
}

// listens tells whether somebody accepts connections to an address of the host.
func listens(h *privatehost.Host, network, address string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		conn, err := h.Dial(ctx, network, address)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}
}

// carryGateways tells Neutron that a host is on the external network, so that routers'
// gateways are put there and on no other host. Debian's Neutron reads that where its OVN
// no longer writes it.
func (l *Lab) carryGateways(ctx context.Context, h *Host) error {
	return run(ctx, l.Central, []string{"ovn-sbctl", "set", "Chassis", h.Name,
		"external_ids:ovn-bridge-mappings=" + externalMapping, "external_ids:ovn-cms-options=" + gatewayOption})
}

// waitChassis returns when OVN knows the host, and Neutron takes it for alive whatever
// becomes of it. Debian's Neutron compares the count of NB_Global with what a host told
// of it, and may never hear what a host tells that it met late: it passes over the first
// time, which under load may be the only one. A count of nothing, which nobody adds to
// any more, is behind none.
func (l *Lab) waitChassis(ctx context.Context, h *Host) error {
	err := run(ctx, l.Central, []string{
		"ovn-sbctl", "--timeout=180", "wait-until", "Chassis", h.Name, "hostname=" + h.Name,
	})
	if err != nil {
		return fmt.Errorf("OVN does not know host %s: %w", h.Name, err)
	}
	return run(ctx, l.Central, []string{"ovn-nbctl", "--timeout=180", "set", "NB_Global", ".", "nb_cfg=0"})
}

// waitDropGroup returns when Neutron has made the port group of what no security group
// lets pass, which it does once, by a worker of its own, some time after its API answers.
func (l *Lab) waitDropGroup(ctx context.Context) error {
	const group = "neutron_pg_drop"
	return run(ctx, l.Central, []string{"ovn-nbctl", "--timeout=180", "wait-until", "Port_Group", group, "name=" + group})
}
