package neutronlab

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Machine is a virtual machine that runs a Docker engine: a private host whose only cable is one Neutron port, plugged into the
// switch of a compute host. It has no switch of its own, and what it knows of the world it knows by that port.
type Machine struct {
	*Host
	Port  Object
	Addrs []netip.Prefix

	on  *Host
	env []string
}

// NewMachine makes a port on a network, and a machine of this name (10 characters at most) on the host that has it; more are
// fields of the port, env is for its Kuryr besides KuryrEnv. The network needs a router with a way out: by that the machine
// reaches Neutron. Remove must be called in the end.
func (h *Host) NewMachine(ctx context.Context, name, network string, more Object, env ...string) (*Machine, error) {
	port, err := h.newPort(ctx, name, network, more)
	if err != nil {
		return nil, err
	}
	m := &Machine{Host: &Host{Name: name, lab: h.lab}, Port: port, on: h}
	m.env = append(m.KuryrEnv(), env...)
	m.Host.Host, err = privatehost.New(ctx, privatehost.Options{
		Hostname: name, Docker: true, Kuryr: h.lab.opts.Kuryr, KuryrLater: true, KuryrArgs: []string{"docker"}, KuryrEnv: m.env, Booted: m.boot,
	})
	if err == nil {
		err = h.lab.WaitActive(ctx, port.ID())
	}
	if err != nil {
		return nil, errors.Join(err, m.Remove(ctx))
	}
	return m, nil
}

// StartKuryr starts kuryr for the machine's engine, and returns when its plugin socket answers.
func (m *Machine) StartKuryr(ctx context.Context) error {
	return m.Host.Host.StartKuryr(ctx, []string{"docker"}, m.env)
}

// boot replaces the cable to the neighbour, which a machine has not, by that of the port.
func (m *Machine) boot(ctx context.Context, host *privatehost.Host) error {
	if err := run(ctx, host, []string{"ip", "link", "del", privatehost.Uplink}); err != nil {
		return err
	}
	if err := host.Join("eth0", m.on.Host, ""); err != nil {
		return err
	}
	var err error
	if m.Addrs, err = m.lab.configure(ctx, m.Port, host.Exec); err != nil {
		return err
	}
	return m.on.attach(ctx, m.tap(), m.Name, m.Port)
}

// tap is the compute host's end of the machine's cable.
func (m *Machine) tap() string { return "eth0." + m.Name }

// Remove ends the machine and deletes its port.
func (m *Machine) Remove(ctx context.Context) error {
	err := run(ctx, m.on.Host, []string{"ovs-vsctl", "--if-exists", "del-port", IntegrationBridge, m.tap()})
	if m.Host.Host != nil {
		m.Close()
	}
	return errors.Join(err, m.lab.API().Delete(ctx, "ports", m.Port.ID()))
}
