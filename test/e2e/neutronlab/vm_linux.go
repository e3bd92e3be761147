package neutronlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// VM is what a hypervisor would plug for a virtual machine: a namespace with one
// interface that carries a port's MAC and addresses.
type VM struct {
	Name  string
	Port  Object
	Addrs []netip.Prefix
	host  *Host
}

// tap is the name by which the switch knows a port's interface.
func (vm *VM) tap() string { return "tap" + vm.Port.ID()[:11] }

// NewVM makes a port on a network and plugs a VM of this name into it on the host; more
// are fields of the port. It returns when Neutron says that the port is active.
func (h *Host) NewVM(ctx context.Context, name, network string, more Object) (*VM, error) {
	port, err := h.newPort(ctx, name, network, more)
	if err != nil {
		return nil, err
	}
	vm := &VM{Name: name, Port: port, host: h}
	if err := vm.plug(ctx); err != nil {
		return nil, errors.Join(err, vm.Remove(ctx))
	}
	return vm, nil
}

// newPort makes a port as a hypervisor's on this host.
func (h *Host) newPort(ctx context.Context, name, network string, more Object) (Object, error) {
	body := Object{
		"name": name, "network_id": network, "binding:host_id": h.Name,
		"device_owner": "compute:nova", "device_id": name,
	}
	for k, v := range more {
		body[k] = v
	}
	port, err := h.lab.API().Create(ctx, "ports", body)
	if err != nil {
		return nil, fmt.Errorf("make the port of VM %s: %w", name, err)
	}
	return port, nil
}

func (vm *VM) plug(ctx context.Context) error {
	h, tap := vm.host, vm.tap()
	err := run(ctx, h.Host, []string{"ip", "netns", "add", vm.Name},
		[]string{"ip", "link", "add", tap, "up", "type", "veth", "peer", "name", "eth0", "netns", vm.Name},
		[]string{"ip", "-n", vm.Name, "link", "set", "lo", "up"})
	if err == nil {
		vm.Addrs, err = h.lab.configure(ctx, vm.Port, vm.Exec)
	}
	if err == nil {
		err = h.attach(ctx, tap, vm.Name, vm.Port)
	}
	if err != nil {
		return fmt.Errorf("plug VM %s: %w", vm.Name, err)
	}
	return h.lab.WaitActive(ctx, vm.Port.ID())
}

// configure gives a VM's eth0 its port's MAC, MTU, addresses and ways out; in runs a command in the VM.
func (l *Lab) configure(
	ctx context.Context, port Object, in func(context.Context, ...string) privatehost.Result,
) (addrs []netip.Prefix, err error) {
	api := l.API()
	network, err := api.Get(ctx, "networks", port.Text("network_id"))
	if err != nil {
		return nil, err
	}
	commands := [][]string{
		{"ip", "link", "set", "eth0", "address", port.Text("mac_address"), "mtu", fmt.Sprint(network["mtu"]), "up"},
		// A switch in user space does not fill checksums in.
		{"ethtool", "-K", "eth0", "tx", "off"},
	}
	fixed, _ := port["fixed_ips"].([]any)
	for _, f := range fixed {
		ip, _ := f.(map[string]any)
		subnet, err := api.Get(ctx, "subnets", Object(ip).Text("subnet_id"))
		if err != nil {
			return nil, err
		}
		cidr, err := netip.ParsePrefix(subnet.Text("cidr"))
		if err != nil {
			return nil, err
		}
		addr, err := netip.ParseAddr(Object(ip).Text("ip_address"))
		if err != nil {
			return nil, err
		}
		p := netip.PrefixFrom(addr, cidr.Bits())
		addrs = append(addrs, p)
		commands = append(commands, []string{"ip", "addr", "add", p.String(), "dev", "eth0", "nodad"})
		if gate := subnet.Text("gateway_ip"); gate != "" {
			commands = append(commands, []string{"ip", "route", "add", "default", "via", gate})
		}
	}
	for _, argv := range commands {
		if err := in(ctx, argv...).Err(); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

// attach makes a link of the host the one by which the switch reaches a VM's port.
func (h *Host) attach(ctx context.Context, link, vm string, port Object) error {
	return run(ctx, h.Host, []string{
		"ovs-vsctl", "--may-exist", "add-port", IntegrationBridge, link, "--", "set", "Interface",
		link,
		"external_ids:iface-id=" + port.ID(), "external_ids:iface-status=active",
		"external_ids:attached-mac=" + port.Text("mac_address"),
		"external_ids:vm-id=" + vm})
}

// Exec runs a command in the VM.
func (vm *VM) Exec(ctx context.Context, argv ...string) privatehost.Result {
	return vm.host.Exec(ctx, append([]string{"nsenter", "--net=/run/netns/" + vm.Name, "--"}, argv...)...)
}

// Remove unplugs the VM and deletes its port.
func (vm *VM) Remove(ctx context.Context) error {
	var errs []error
	for _, argv := range [][]string{
		{"ovs-vsctl", "--if-exists", "del-port", IntegrationBridge, vm.tap()},
		{"ip", "netns", "del", vm.Name},
	} {
		errs = append(errs, run(ctx, vm.host.Host, argv))
	}
	errs = append(errs, vm.host.lab.API().Delete(ctx, "ports", vm.Port.ID()))
	return errors.Join(errs...)
}

// WaitActive returns when Neutron says that a port is plugged and its flows are in.
func (l *Lab) WaitActive(ctx context.Context, port string) error {
	return Until(ctx, func(ctx context.Context) error {
		o, err := l.API().Get(ctx, "ports", port)
		if err == nil && o.Text("status") != "ACTIVE" {
			err = fmt.Errorf("port %s is %s", port, o.Text("status"))
		}
		return err
	})
}

// Until asks again and again, until there is nothing to complain about or ctx ends: then
// the last complaint is the error. It is for what has no event to wait for, which is all
// of Neutron.
func Until(ctx context.Context, complaint func(context.Context) error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := complaint(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // what was cut off by the end of the time tells nothing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w, still when the time was over: %w", ctx.Err(), last)
		}
	}
}
