package neutronlab

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Agent is a layer 2 agent of Neutron, which wires the ports of a host.
type Agent string

// The agents. Ports of hosts with different ones reach each other by VXLAN.
const (
	OpenVSwitch       Agent = "openvswitch" // with the firewall in Open vSwitch
	OpenVSwitchHybrid Agent = "hybrid"      // with the firewall in iptables, on a Linux bridge for each port
	LinuxBridge       Agent = "linuxbridge"
)

// agentValues make of the configuration of a Neutron with OVN that of a Neutron with agents.
var agentValues = []string{
	"ovn-router,trunk,qos,segments,port_forwarding", "router,trunk,qos,segments",
	"transport_url = fake:/", "transport_url = " + messageURL,
	"rpc_workers = 0", "rpc_workers = 1",
	"type_drivers = geneve,flat", "type_drivers = vxlan,flat",
	"tenant_network_types = geneve", "tenant_network_types = vxlan",
	"mechanism_drivers = ovn", "mechanism_drivers = openvswitch,linuxbridge,l2population",
	"[ml2_type_geneve]", `[experimental]
linuxbridge = true

[ml2_type_vxlan]
vni_ranges = 1000:3000

[ml2_type_geneve]`,
}

// messageURL is where Neutron and its agents exchange messages.
var messageURL = "rabbit://guest:guest@" + Management.Addr().String() + ":5672/"

// startWithAgents starts what a lab with agents has besides its central host.
func (l *Lab) startWithAgents(ctx context.Context) error {
	l.Hosts = make([]*Host, len(l.opts.Agents))
	jobs := []func() error{func() error {
		database := func() error { return l.startDatabase(ctx) }
		if err := together(database, func() error { return l.startMessages(ctx) }); err != nil {
			return err
		}
		return l.StartNeutron(ctx)
	}}
	for i := range l.Hosts {
		jobs = append(jobs, func() (err error) {
			l.Hosts[i], err = newHost(ctx, l, i+1)
			return err
		})
	}
	if err := together(jobs...); err != nil {
		return err
	}
	// An agent that finds no Neutron waits a minute for each answer.
	jobs = nil
	for _, h := range l.Hosts {
		jobs = append(jobs, func() error { return h.startAgent(ctx) })
	}
	return together(jobs...)
}

// startMessages starts RabbitMQ on the central host.
func (l *Lab) startMessages(ctx context.Context) error {
	h := l.Central
	dir := filepath.Join(h.Dir(), "rabbitmq")
	address := Management.Addr().String() + ":5672"
	conf, err := writeFile(h, "rabbitmq/rabbitmq.conf", "loopback_users = none\nlisteners.tcp.1 = "+address+"\n")
	if err != nil {
		return err
	}
	plugins, err := writeFile(h, "rabbitmq/plugins", "[].\n")
	if err != nil {
		return err
	}
	env := []string{
		"HOME=" + dir, "RABBITMQ_NODENAME=lab@localhost", "RABBITMQ_MNESIA_BASE=" + dir + "/mnesia",
		"RABBITMQ_LOG_BASE=" + dir + "/log", "RABBITMQ_PID_FILE=" + dir + "/pid",
		"RABBITMQ_CONFIG_FILE=" + strings.TrimSuffix(conf, ".conf"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + plugins,
		"RABBITMQ_CONF_ENV_FILE=/dev/null", "ERL_EPMD_ADDRESS=127.0.0.1",
	}
	l.messages, err = h.StartService(ctx, "rabbitmq", env, []string{"/usr/lib/rabbitmq/bin/rabbitmq-server"},
		listens(h, "tcp", address))
	return err
}

// startAgent starts the host's agent and returns when Neutron knows it.
func (h *Host) startAgent(ctx context.Context) error {
	dir := filepath.Join(h.Dir(), "agent")
	for _, d := range []string{"state", "lock"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	program, firewall := "neutron-openvswitch-agent", "openvswitch"
	switch h.agent {
	case OpenVSwitchHybrid:
		firewall = "iptables_hybrid"
	case LinuxBridge:
		program, firewall = "neutron-linuxbridge-agent", "iptables"
	}
	conf, err := writeFile(h.Host, "agent/agent.conf", strings.NewReplacer(
		"@host@", h.Name, "@messages@", messageURL, "@dir@", dir,
		"@address@", h.address(Underlay).Addr().String(), "@firewall@", firewall,
	).Replace(agentConf))
	if err != nil {
		return err
	}
	agent, err := h.StartService(ctx, "agent", nil, []string{program, "--config-file", conf}, nil)
	if err != nil {
		return err
	}
	return Until(ctx, func(ctx context.Context) error {
		select {
		case <-agent.Gone():
			return fmt.Errorf("%s has ended", program)
		default:
		}
		known, err := h.lab.API().List(ctx, "agents", url.Values{"host": {h.Name}}.Encode())
		if err == nil && len(known) == 0 {
			err = fmt.Errorf("%s of %s is not known to Neutron yet", program, h.Name)
		}
		return err
	})
}

// agentConf is the configuration of either agent: each reads its own sections.
const agentConf = `[DEFAULT]
host = @host@
transport_url = @messages@
state_path = @dir@/state
use_stderr = true

[experimental]
linuxbridge = true

[oslo_concurrency]
lock_path = @dir@/lock

[agent]
root_helper =
root_helper_daemon =
polling_interval = 1
report_interval = 10
tunnel_types = vxlan
l2_population = true

[ovs]
datapath_type = netdev
ovsdb_connection = unix:/run/openvswitch/db.sock
local_ip = @address@
bridge_mappings = ` + PhysicalNetwork + `:br-ex

[vxlan]
enable_vxlan = true
local_ip = @address@
l2_population = true
udp_dstport = 4789

[securitygroup]
enable_security_group = true
firewall_driver = @firewall@
`
