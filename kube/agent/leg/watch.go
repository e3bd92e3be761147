//go:build linux

package leg

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/backoff"
)

// groups are those of rtnetlink(7) that report changes of links, addresses and routes.
var groups = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
}

// watchKernel calls lost whenever the interface of this name, an address or a route of it may have
// been removed in the host's namespace, until ctx ends. It passes over what is added, so that
// repairs do not wake the caller.
func watchKernel(ctx context.Context, name string, lost func(), log *slog.Logger) {
	wait := backoff.Backoff{Min: firstRetry, Max: lastRetry}
	for {
		err := listen(ctx, name, lost)
		if ctx.Err() != nil {
			return
		}
		log.WarnContext(ctx, "watch of the node port's interface failed", "interface", name, "err", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// listen reads the kernel's messages until ctx ends or the socket fails.
func listen(ctx context.Context, name string, lost func()) error {
	socket, err := nl.SubscribeAt(netns.None(), netns.None(), unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return fmt.Errorf("listen for changes of links, addresses and routes: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer func() {
		if stop() {
			_ = socket.Close()
		}
	}()
	i := iface{name: name}
	i.find()
	lost() // something may have been removed before
	for {
		messages, _, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			i.find()
			lost()
			continue
		case err != nil:
			return err
		}
		for _, m := range messages {
			if i.loses(m.Header.Type, m.Data) {
				lost()
			}
		}
	}
}

// iface is an interface in messages. Those of addresses and routes have only its index.
type iface struct {
	name  string
	index int32 // 0 if there is none
}

// find looks the interface up, if its messages may have been missed.
func (i *iface) find() {
	i.index = 0
	if there, err := net.InterfaceByName(i.name); err == nil {
		i.index = int32(there.Index)
	}
}

// loses reports whether a message says that the interface, an address or a route of it is gone, or that
// it is down.
func (i *iface) loses(kind uint16, payload []byte) bool {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(payload) < unix.SizeofIfInfomsg {
			return false
		}
		index := int32(binary.NativeEndian.Uint32(payload[4:]))
		flags := binary.NativeEndian.Uint32(payload[8:])
		attrs, err := nl.ParseRouteAttrAsMap(payload[unix.SizeofIfInfomsg:])
		named := err == nil && strings.TrimRight(string(attrs[unix.IFLA_IFNAME].Value), "\x00") == i.name
		switch {
		case !named && index != i.index:
			return false
		case !named, kind == unix.RTM_DELLINK: // with another name it is gone
			i.index = 0
			return true
		}
		i.index = index
		return flags&unix.IFF_UP == 0
	case unix.RTM_DELADDR:
		return len(payload) >= unix.SizeofIfAddrmsg && i.is(int32(binary.NativeEndian.Uint32(payload[4:])))
	case unix.RTM_DELROUTE:
		if len(payload) < unix.SizeofRtMsg {
			return false
		}
		attrs, err := nl.ParseRouteAttrAsMap(payload[unix.SizeofRtMsg:])
		if err != nil || len(attrs[unix.RTA_OIF].Value) < 4 {
			return false
		}
		return i.is(int32(binary.NativeEndian.Uint32(attrs[unix.RTA_OIF].Value)))
	}
	return false
}

func (i *iface) is(index int32) bool { return i.index != 0 && index == i.index }
