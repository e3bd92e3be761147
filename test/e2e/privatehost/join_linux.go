package privatehost

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Join makes one more cable of the host: a veth whose end here is called name and whose
// other end, called name.HOSTNAME, is a port of a bridge on another host, or of nothing
// where bridge is empty. Both ends are up; neither has an address. It ends with either
// host, so Booted is where to call it.
func (h *Host) Join(name string, to *Host, bridge string) error {
	there, err := handleOf(to.host.pid)
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := handleOf(h.host.pid)
	if err != nil {
		return err
	}
	defer here.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: name, PeerNamespace: netlink.NsPid(h.host.pid)}
	veth.Name = name + "." + h.Hostname()
	if bridge != "" {
		master, err := there.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("bridge %s: %w", bridge, err)
		}
		veth.MasterIndex = master.Attrs().Index
	}
	// The kernel takes a dead host's end away some time after its last process, and ours with it.
	if old, err := there.LinkByName(veth.Name); err == nil {
		if err := there.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	if err := there.LinkAdd(veth); err != nil {
		return fmt.Errorf("join %s to %s: %w", name, bridge, err)
	}
	for _, side := range []struct {
		handle *netlink.Handle
		name   string
	}{{there, veth.Name}, {here, name}} {
		link, err := side.handle.LinkByName(side.name)
		if err != nil {
			return err
		}
		if err := side.handle.LinkSetUp(link); err != nil {
			return err
		}
	}
	return nil
}

// Dial connects from within the host, whatever namespaces the caller is in.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := h.host.enter(func() error {
		var d net.Dialer
		var err error
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens at an address of the host, whatever namespaces the caller is in.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var listener net.Listener
	err := h.host.enter(func() error {
		var c net.ListenConfig
		var err error
		listener, err = c.Listen(ctx, network, address)
		return err
	})
	return listener, err
}

// ListenPacket is Listen for datagrams.
func (h *Host) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	var conn net.PacketConn
	err := h.host.enter(func() error {
		var c net.ListenConfig
		var err error
		conn, err = c.ListenPacket(ctx, network, address)
		return err
	})
	return conn, err
}
