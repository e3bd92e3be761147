package neutronlab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Host is a compute host: a private host with Open vSwitch, joined to the others.
type Host struct {
	*privatehost.Host
	Name string

	lab     *Lab
	number  int
	env     []string             // added to KuryrEnv
	agent   Agent                // "" is ovn-controller
	gateway bool                 // is on the external network, and may carry the gateways of routers
	sockets *privatehost.Service // ovsdb-server
	forward *privatehost.Service // ovs-vswitchd
	control *privatehost.Service // ovn-controller
}

// newHost starts one of the hosts that are the lab's from its start on.
func newHost(ctx context.Context, l *Lab, number int) (*Host, error) {
	h := &Host{Name: fmt.Sprintf("h%d", number), lab: l, number: number, gateway: true}
	if len(l.opts.Agents) > 0 {
		h.agent = l.opts.Agents[number-1]
	}
	err := h.start(ctx, privatehost.Options{
		Docker: l.opts.Docker, Kuryr: l.opts.Kuryr, KuryrLater: true,
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Reboot kills the host like a loss of power and boots it again, with Kuryr and the engine.
// KuryrEnv is asked now: it was not known when the host was started.
func (h *Host) Reboot(ctx context.Context) error {
	if err := h.RebootBare(ctx); err != nil {
		return err
	}
	if err := h.StartKuryr(ctx); err != nil {
		return err
	}
	return h.StartDocker(ctx)
}

// AddHost starts one more host, which runs what opts say; Booted of opts comes when it
// has its switch. It is not on the external network, so that no router's gateway is put
// on it and it may go again before the lab does: RemoveHost.
func (l *Lab) AddHost(ctx context.Context, opts privatehost.Options) (*Host, error) {
	l.mu.Lock()
	l.added++
	number := len(l.Hosts) + l.added
	l.mu.Unlock()
	h := &Host{Name: fmt.Sprintf("h%d", number), lab: l, number: number}
	if err := h.start(ctx, opts); err != nil {
		return nil, err
	}
	if err := l.waitChassis(ctx, h); err != nil {
		l.RemoveHost(h)
		return nil, err
	}
	return h, nil
}

// Guest is a compute host that somebody else starts and ends, under the name that is its
// hostname: Equip makes it one each time that it boots. It is on the external network, as
// the lab's own are.
func (l *Lab) Guest(name string) *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added++
	return &Host{Name: name, lab: l, number: len(l.Hosts) + l.added, gateway: true}
}

// Equip joins a guest's host to the others and starts its switch, for
// privatehost.Options.Booted. It returns when OVN knows the host.
func (h *Host) Equip(ctx context.Context, host *privatehost.Host) error {
	if err := h.boot(ctx, host); err != nil {
		return err
	}
	if err := h.lab.waitChassis(ctx, h); err != nil {
		return err
	}
	return h.lab.carryGateways(ctx, h)
}

// RemoveHost ends a host that AddHost has started. Its controller says goodbye to OVN, so
// that the others have no tunnel to nowhere.
func (l *Lab) RemoveHost(h *Host) {
	_ = h.StopController(syscall.SIGTERM)
	h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	_ = run(ctx, l.Central, []string{"ovn-sbctl", "--if-exists", "chassis-del", h.Name})
}

func (h *Host) start(ctx context.Context, opts privatehost.Options) error {
	then := opts.Booted
	opts.Hostname = h.Name
	opts.Booted = func(ctx context.Context, host *privatehost.Host) error {
		if err := h.boot(ctx, host); err != nil || then == nil {
			return err
		}
		return then(ctx, host)
	}
	host, err := privatehost.New(ctx, opts)
	if err != nil {
		return fmt.Errorf("start host %s: %w", h.Name, err)
	}
	h.Host = host
	return nil
}

// boot joins the host to the others and starts its switch.
func (h *Host) boot(ctx context.Context, host *privatehost.Host) error {
	h.Host = host
	// As init does on every machine: a managed plugin's mounts then reach the host.
	if err := run(ctx, host, []string{"mount", "--make-rshared", "/"}); err != nil {
		return err
	}
	for name, bridge := range map[string]string{"mgmt0": "mgmt", "phy0": "underlay", "ext0": "external"} {
		if err := host.Join(name, h.lab.Central, bridge); err != nil {
			return err
		}
	}
	if err := run(ctx, host, []string{"ip", "addr", "add", h.address(Management).String(), "dev", "mgmt0"}); err != nil {
		return err
	}
	for _, dir := range []string{"/run/openvswitch", "/run/ovn"} {
		if err := os.MkdirAll(host.Path(dir), 0o755); err != nil {
			return err
		}
	}
	if h.agent == LinuxBridge {
		return run(ctx, h.Host, []string{"ip", "addr", "add", h.address(Underlay).String(), "dev", "phy0"})
	}
	return h.StartSwitch(ctx)
}

// Address is where the other hosts reach this one, on the management network.
func (h *Host) Address() netip.Addr { return h.address(Management).Addr() }

// address is the host's own in a network that it shares with the central host.
func (h *Host) address(central netip.Prefix) netip.Prefix {
	a := central.Addr().As4()
	a[3] = byte(h.number)
	return netip.PrefixFrom(netip.AddrFrom4(a), central.Bits())
}

// What ovn-controller is told on hosts that are on the external network.
const (
	externalMapping = PhysicalNetwork + ":br-ex"
	gatewayOption   = "enable-chassis-as-gw"
)

// switchdb is Open vSwitch's database socket on the host.
const switchdb = "unix:/run/openvswitch/db.sock"

// StartSwitch starts Open vSwitch with the bridges and ports it had when it was stopped, and
// ovn-controller on a host without an agent.
func (h *Host) StartSwitch(ctx context.Context) error {
	var err error
	if h.sockets, err = h.lab.startOVSDB(
		ctx, h.Host, "db", "/run/openvswitch", "/usr/share/openvswitch/vswitch.ovsschema",
	); err != nil {
		return err
	}
	encapsulated := h.address(Underlay)
	settings := []string{"ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".",
		"external_ids:system-id=" + h.Name, "external_ids:hostname=" + h.Name}
	if h.agent == "" {
		settings = append(settings, "external_ids:ovn-remote="+southbound,
			"external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip="+encapsulated.Addr().String(),
			"external_ids:ovn-bridge-datapath-type=netdev", "external_ids:ovn-bridge="+IntegrationBridge)
	}
	if h.gateway && h.agent == "" {
		settings = append(
			settings, "external_ids:ovn-bridge-mappings="+externalMapping,
			"external_ids:ovn-cms-options="+gatewayOption,
		)
	}
	// Of an earlier start the database has what the switch could then.
	forget := []string{"ovs-vsctl", "--no-wait", "clear", "Open_vSwitch", ".", "datapaths"}
	if err := run(ctx, h.Host, []string{"ovs-vsctl", "--no-wait", "init"}, settings, forget); err != nil {
		return err
	}
	h.forward, err = h.StartService(ctx, "ovs-vswitchd", nil,
		[]string{"ovs-vswitchd", "-vsyslog:off", "--pidfile=/run/openvswitch/ovs-vswitchd.pid", switchdb}, nil)
	if err != nil {
		return err
	}
	bridge := func(name string, more ...string) []string {
		return append(
			[]string{
				"--", "--may-exist", "add-br", name, "--", "set", "Bridge", name,
				"datapath_type=netdev",
			},
			more...,
		)
	}
	argv := append([]string{"ovs-vsctl"}, bridge(IntegrationBridge, "fail_mode=secure")...)
	argv = append(argv, bridge("br-ex")...)
	argv = append(argv, bridge("br-phy")...)
	argv = append(
		argv, "--", "--may-exist", "add-port", "br-phy", "phy0", "--", "--may-exist", "add-port",
		"br-ex", "ext0",
	)
	if err := run(ctx, h.Host, argv); err != nil {
		return err
	}
	// After a reboot the database has the bridges already, so nobody waits for their interfaces to be made.
	if err := Until(ctx, func(ctx context.Context) error {
		return run(
			ctx, h.Host, []string{"ip", "link", "show", "br-phy"},
			[]string{"ip", "link", "show", "br-ex"},
			[]string{"ip", "link", "show", IntegrationBridge},
		)
	}); err != nil {
		return err
	}
	if err := run(ctx, h.Host,
		[]string{"ip", "addr", "replace", encapsulated.String(), "dev", "br-phy"},
		[]string{"ip", "link", "set", "br-phy", "up"},
		[]string{"ip", "link", "set", "br-ex", "up"}, []string{"ip", "link", "set", IntegrationBridge, "up"}); err != nil {
		return err
	}
	if err := h.hideZeroSNAT(ctx); err != nil {
		return err
	}
	if h.agent != "" {
		return nil // startAgent starts it
	}
	return h.StartController(ctx)
}

// hideZeroSNAT makes the switch report that it cannot translate a source to itself. Otherwise OVN
// asks for that with each connection that a security group lets pass. The user space datapath of
// Open vSwitch 3.1.0 then has such a connection twice, and a late packet ends the switch by an
// assertion (conntrack.c:1063). Later versions have that fixed. A switch that is starting may not
// have its control socket yet.
func (h *Host) hideZeroSNAT(ctx context.Context) error {
	return Until(ctx, func(ctx context.Context) error {
		return run(ctx, h.Host,
			[]string{"ovs-appctl", "dpif/set-dp-features", IntegrationBridge, "ct_zero_snat", "false"})
	})
}

// StopSwitch ends ovn-controller and Open vSwitch with sig. Nothing is forwarded until StartSwitch.
func (h *Host) StopSwitch(sig syscall.Signal) error {
	for _, s := range []*privatehost.Service{h.control, h.forward, h.sockets} {
		if err := s.Stop(sig, stopLimit); err != nil {
			return err
		}
	}
	return nil
}

// StartController starts ovn-controller alone.
func (h *Host) StartController(ctx context.Context) (err error) {
	h.control, err = h.StartService(ctx, "ovn-controller", nil,
		[]string{"ovn-controller", "-vsyslog:off", "--pidfile=/run/ovn/ovn-controller.pid", switchdb}, nil)
	return err
}

// StopController ends ovn-controller with sig; killed, it leaves the switch as it is, so that what is plugged goes on.
func (h *Host) StopController(sig syscall.Signal) error { return h.control.Stop(sig, stopLimit) }

// VSwitch runs ovs-vsctl on the host.
func (h *Host) VSwitch(ctx context.Context, args ...string) privatehost.Result {
	return h.Exec(ctx, append([]string{"ovs-vsctl"}, args...)...)
}
