package neutronlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Machine is a virtual machine that runs a Docker engine: a private host whose only cable
// is one Neutron port, plugged into the switch of a compute host. It has no switch of its
// own, and what it knows of the world it knows by that port.
type Machine struct {
	*Host
	Port  Object
	Addrs []netip.Prefix

	on *Host
}

// NewMachine makes a port on a network, and a machine of this name (10 characters at
// most) on the host that has it; more are fields of the port, env is added to the
// environment of its Kuryr. The network needs a router with a way out: by that the machine
// reaches Neutron. Remove must be called in the end.
func (h *Host) NewMachine(ctx context.Context, name, network string, more Object, env ...string) (*Machine, error) {
	port, err := h.newPort(ctx, name, network, more)
	if err != nil {
		return nil, err
	}
	m := &Machine{Host: &Host{Name: name, lab: h.lab, env: env}, Port: port, on: h}
	m.Host.Host, err = privatehost.New(ctx, privatehost.Options{
		Hostname: name, Docker: true, Kuryr: h.lab.opts.Kuryr, KuryrLater: true,
		KuryrArgs: []string{"docker"}, KuryrEnv: m.KuryrEnv(), Booted: m.boot,
	})
	if err == nil {
		err = h.lab.WaitActive(ctx, port.ID())
	}
	if err != nil {
		return nil, errors.Join(err, m.Remove(ctx))
	}
	return m, nil
}

// boot replaces the cable to the neighbour, which a machine has not, by that of the port,
// and waits until it reaches Neutron: a machine's engine starts when its network is
// online.
func (m *Machine) boot(ctx context.Context, host *privatehost.Host) error {
	if err := run(ctx, host, []string{"ip", "link", "del", privatehost.Uplink}); err != nil {
		return err
	}
	// Else the switch would take the link for the one before the reboot, which had the same name.
	if err := m.unplug(ctx); err != nil {
		return err
	}
	if err := host.Join("eth0", m.on.Host, ""); err != nil {
		return err
	}
	var err error
	if m.Addrs, err = m.lab.configure(ctx, m.Port, host.Exec); err != nil {
		return err
	}
	if err := m.on.attach(ctx, m.tap(), m.Name, m.Port); err != nil {
		return err
	}
	reached := listens(host, "tcp", netip.AddrPortFrom(Management.Addr(), 9696).String())
	return Until(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if !reached(ctx) {
			return fmt.Errorf("machine %s does not reach Neutron by its port", m.Name)
		}
		return nil
	})
}

// unplug takes the machine's cable from the switch.
func (m *Machine) unplug(ctx context.Context) error {
	return run(ctx, m.on.Host, []string{"ovs-vsctl", "--if-exists", "del-port", IntegrationBridge, m.tap()})
}

// tap is the compute host's end of the machine's cable.
func (m *Machine) tap() string { return "eth0." + m.Name }

// Remove ends the machine and deletes its port.
func (m *Machine) Remove(ctx context.Context) error {
	err := m.unplug(ctx)
	// Else the cable would stay, with the machine's namespace, for the minutes that the
	// kernel tries to end connections over it.
	m.on.Exec(ctx, "ip", "link", "del", m.tap())
	if m.Host.Host != nil {
		m.Close()
	}
	return errors.Join(err, m.lab.API().Delete(ctx, "ports", m.Port.ID()))
}
