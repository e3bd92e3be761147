//go:build linux

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GatherLimits reads the kernel's tables; pid is the running Kuryr's process, 0 for none,
// and routes are the host's. What cannot be read is not told.
func GatherLimits(pid int, routes []Route) LimitFacts {
	l := LimitFacts{
		Conntrack: Share{
			number("/proc/sys/net/netfilter/nf_conntrack_count"),
			number("/proc/sys/net/netfilter/nf_conntrack_max"),
		},
		Neighbours4: Share{neighbours("arp_cache"), number("/proc/sys/net/ipv4/neigh/default/gc_thresh3")},
		Neighbours6: Share{neighbours("ndisc_cache"), number("/proc/sys/net/ipv6/neigh/default/gc_thresh3")},
		Strict:      strictLink(waysOut(routes)),
	}
	if files := words("/proc/sys/fs/file-nr"); len(files) == 3 {
		l.SystemFiles = Share{parse(files[0]), parse(files[2])}
	}
	if load := words("/proc/loadavg"); len(load) > 3 {
		_, tasks, _ := strings.Cut(load[3], "/")
		l.PIDs = Share{parse(tasks), min(number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max"))}
	}
	if pid > 0 {
		l.DaemonFiles = filesOf(pid)
	}
	return l
}

func words(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

func parse(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func number(path string) uint64 {
	if w := words(path); len(w) > 0 {
		return parse(w[0])
	}
	return 0
}

// neighbours are those of all namespaces, as the limit counts them.
func neighbours(cache string) uint64 {
	// Below a line of titles there is one for each processor, which begins with how many
	// there are in all.
	w := words("/proc/thread-self/net/stat/" + cache)
	at := slices.Index(w, "table_fulls") + 1
	if at == 0 || at >= len(w) {
		return 0
	}
	n, err := strconv.ParseUint(w[at], 16, 64)
	if err != nil {
		return 0
	}
	return n
}

func filesOf(pid int) Share {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return Share{}
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return Share{}
	}
	return Share{uint64(len(open)), limit.Cur}
}

// strictLink names a link of a default route with strict reverse-path filtering, if
// default routes are by more than one link.
func strictLink(ways []string) string {
	if len(ways) < 2 {
		return ""
	}
	filter := func(name string) uint64 { return number(filepath.Join("/proc/sys/net/ipv4/conf", name, "rp_filter")) }
	for _, name := range ways {
		if max(filter("all"), filter(name)) == 1 { // the kernel takes the greater one
			return name
		}
	}
	return ""
}
