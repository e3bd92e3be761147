//go:build linux

package hostports

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/procfs"
)

// Program is a process of this host.
type Program struct {
	Name string
	PID  int
}

func (p Program) String() string { return fmt.Sprintf("%s (process %d)", p.Name, p.PID) }

// Users names programs that have a port: three at most. It reads all sockets and all
// processes, so it is for telling why something failed.
func (h *Holder) Users(p Port) []Program {
	inodes := map[string]bool{}
	name := map[sdn.Protocol]string{sdn.TCP: "tcp", sdn.UDP: "udp"}[p.Protocol]
	if name == "" {
		return nil
	}
	for _, file := range []string{name, name + "6"} { // an IPv6 socket may have the IPv4 port too
		if p.Address.Addr().Is6() && file == name {
			continue
		}
		f, err := os.Open("/proc/thread-self/net/" + file)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			inode, ok := socketOf(lines.Text(), p)
			if ok {
				inodes["socket:["+inode+"]"] = true
			}
		}
		f.Close()
	}
	if len(inodes) == 0 {
		return nil
	}
	return processes(inodes)
}

// socketOf reads a line of /proc/net/tcp and its like (proc_pid_net(5)): the inode, if
// the socket's local address overlaps p.
func socketOf(line string, p Port) (inode string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return "", false
	}
	host, port, _ := strings.Cut(fields[1], ":")
	number, err := strconv.ParseUint(port, 16, 16)
	raw, herr := hex.DecodeString(host)
	if err != nil || herr != nil || uint16(number) != p.Address.Port() || len(raw)%4 != 0 {
		return "", false
	}
	for word := range slices.Chunk(raw, 4) { // each in the machine's order
		slices.Reverse(word)
	}
	a, _ := netip.AddrFromSlice(raw)
	a = a.Unmap()
	want := p.Address.Addr()
	if a.IsUnspecified() || want.IsUnspecified() && a.Is4() == want.Is4() || a == want {
		return fields[9], fields[9] != "0"
	}
	return "", false
}

// processes names at most three processes that have one of the files open.
func processes(files map[string]bool) (found []Program) {
	all, _ := procfs.AllProcs()
	for _, p := range all {
		open, err := p.FileDescriptorTargets()
		if err != nil || !slices.ContainsFunc(open, func(f string) bool { return files[f] }) {
			continue // without the files, ended, or of another user
		}
		name, _ := p.Comm()
		if found = append(found, Program{name, p.PID}); len(found) == 3 {
			break
		}
	}
	return found
}
