//go:build linux

package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// monitorBuffer is how much the kernel keeps of announcements that are not read yet, in
// bytes. A first load of a large table announces each of its elements.
const monitorBuffer = 8 << 20

// WatchTable calls gone whenever a table of the inet family with this name was deleted,
// be it by `nft flush ruleset` or a restart of nftables.service, until ctx ends; it
// returns nil then. One that is not there when it begins was deleted too. It sleeps until
// the kernel announces changes. Where there were more of them than it could hear, it
// calls gone too. Another error means that the kernel lets us not listen.
func WatchTable(ctx context.Context, name string, gone func()) error {
	monitor, err := openMonitor()
	if err != nil {
		return err
	}
	defer monitor.Close()
	defer context.AfterFunc(ctx, func() { _ = monitor.Close() })()
	if raw, err := monitor.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, monitorBuffer)
		})
	}
	there, err := hasTable(name)
	if err != nil {
		return err
	}
	if !there {
		gone()
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := monitor.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("listen for the table %s: %w", name, err)
		case err == nil && n < len(buf) && !deletes(buf[:n], name):
		default:
			gone()
		}
	}
}

// hasTable reports whether there is a table of the inet family with this name.
func hasTable(name string) (bool, error) {
	conn, err := nft.Dial(0)
	if err != nil {
		return false, fmt.Errorf("look for the table %s: %w", name, err)
	}
	defer func() { _ = conn.Close() }()
	all, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("look for the table %s: %w", name, err)
	}
	return slices.ContainsFunc(all, func(t *nftables.Table) bool { return t.Name == name }), nil
}

// deletes reports whether one of the netlink messages says that the table was deleted. What
// it cannot take apart may say so.
func deletes(b []byte, name string) bool {
	const header, genHeader, attrHeader = unix.NLMSG_HDRLEN, 4, 4
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header || size > len(b) {
			return true
		}
		kind, body := binary.NativeEndian.Uint16(b[4:]), b[header:size]
		b = b[min((size+3)&^3, len(b)):]
		if kind != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE {
			continue
		}
		if len(body) < genHeader+attrHeader {
			return true
		}
		attr := body[genHeader:] // the first is number 1, the table's name
		length := int(binary.NativeEndian.Uint16(attr))
		if length <= attrHeader || length > len(attr) {
			return true
		}
		if body[0] == unix.NFPROTO_INET && string(attr[attrHeader:length-1]) == name {
			return true
		}
	}
	return false
}
