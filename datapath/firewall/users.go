//go:build linux

package firewall

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Kept is a forwarding switch that RestoreForwarding left on.
type Kept struct {
	Sysctl string
	// Users are what needs it: a link, Docker, or a file of sysctl.d.
	Users []string
}

func (k Kept) String() string {
	return fmt.Sprintf("%s stays 1, for %s; `sysctl -w %s=0` turns it off",
		k.Sysctl, strings.Join(k.Users, ", "), k.Sysctl)
}

// userDocker names the Docker daemon, which turns IPv4 forwarding on at its start only. It
// has rules, but no link yet, with `--bridge=none`.
const userDocker = "Docker"

// dottedSysctl is the name of a switch as sysctl(8) prints it.
func dottedSysctl(path string) string { return "net." + strings.ReplaceAll(path, "/", ".") }

// forwardingUsers returns what on this host, other than Kuryr, may need a switch to be on.
func (h *Host) forwardingUsers(ctx context.Context, sysctl string) ([]string, error) {
	family := netlink.FAMILY_V4
	if sysctl == forwarding6 {
		family = netlink.FAMILY_V6
	}
	users, err := h.routedLinks(family)
	if err != nil {
		return nil, fmt.Errorf("look for users of %s: %w", dottedSysctl(sysctl), err)
	}
	if family == netlink.FAMILY_V4 {
		rs, err := families[0].read(ctx)
		if err != nil && !errors.Is(err, errUnreadable) {
			return nil, fmt.Errorf("look for users of %s: %w", dottedSysctl(sysctl), err)
		}
		if rs != nil && rs.user[dockerUser] {
			users = append(users, userDocker)
		}
	}
	if file, value := sysctlConfig(sysctlFolders, dottedSysctl(sysctl)); value != "" && value != "0" {
		users = append(users, file)
	}
	return users, nil
}

// ownsLink reports whether a link is one of Kuryr's that this Host serves.
func (h *Host) ownsLink(name string) bool {
	prefix, wild := strings.CutSuffix(h.link, "+")
	return name == h.link || wild && strings.HasPrefix(name, prefix)
}

// uplinkKinds are kinds of links by which a host is part of a network. All other kinds
// (bridge, veth, wireguard, …) may lead to something that the host forwards for.
var uplinkKinds = map[string]bool{"device": true, "bond": true, "team": true, "vlan": true, "dummy": true}

// routedLinks returns the links of others with an address or a route of the family, behind
// which there may be neighbours that the host forwards for. A link with a default route is
// the host's own uplink.
func (h *Host) routedLinks(family int) ([]string, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer handle.Close()
	all, err := dump(handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	routes, err := dump(func() ([]netlink.Route, error) { return handle.RouteList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	uplinks, used := map[int]bool{}, map[int]bool{}
	for _, r := range routes {
		hops := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			hops = append(hops, hop.LinkIndex)
		}
		for _, index := range hops {
			if r.Dst == nil || r.Dst.IP.IsUnspecified() {
				uplinks[index] = true
			} else if global(r.Dst.IP) {
				used[index] = true
			}
		}
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if global(a.IP) {
			used[a.LinkIndex] = true
		}
	}
	var names []string
	for _, l := range all {
		at := l.Attrs()
		switch {
		case at.Flags&net.FlagLoopback != 0, uplinkKinds[l.Type()], h.ownsLink(at.Name):
		case used[at.Index] && !uplinks[at.Index]:
			names = append(names, at.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// dump repeats a listing that the kernel reports as incomplete because of a concurrent
// change.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for range 9 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}

func global(ip net.IP) bool { return !ip.IsLinkLocalUnicast() && !ip.IsMulticast() && !ip.IsLoopback() }

// newUsers returns the users that came since the switch was turned on. It worked without
// the switch for those that were there before.
func newUsers(now, before, leaving []string) []string {
	return slices.DeleteFunc(now, func(u string) bool {
		return slices.Contains(before, u) || slices.Contains(leaving, u)
	})
}

// sysctlFolders are those of sysctl.d(5), the most important first.
var sysctlFolders = []string{
	"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d",
}

// sysctlConfig returns the value that sysctl.d(5) gives a setting, and the file that says
// so. Files are read by name; a name in an earlier folder hides the same name in later
// ones. /etc/sysctl.conf comes last.
func sysctlConfig(folders []string, name string) (file, value string) {
	byName := map[string]string{}
	for _, folder := range slices.Backward(folders) {
		paths, _ := filepath.Glob(filepath.Join(folder, "*.conf"))
		for _, path := range paths {
			byName[filepath.Base(path)] = path
		}
	}
	paths := make([]string, 0, len(byName)+1)
	for _, base := range slices.Sorted(maps.Keys(byName)) {
		paths = append(paths, byName[base])
	}
	if len(folders) > 0 {
		paths = append(paths, filepath.Join(filepath.Dir(folders[0]), "sysctl.conf"))
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil { // an unreadable file sets nothing
			continue
		}
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			key, v, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "-"), "=")
			if ok && strings.ReplaceAll(strings.TrimSpace(key), "/", ".") == name {
				file, value = path, strings.TrimSpace(v)
			}
		}
	}
	return file, value
}
