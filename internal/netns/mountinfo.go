//go:build linux

package netns

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// mount is what one line of /proc/[pid]/mountinfo (proc_pid_mountinfo(5)) says about
// where a mount lies and to whom it propagates.
type mount struct {
	Point string
	// the group of its peers, below which mounts below it appear too, numbered alike in all
	// mount namespaces; "" if not shared
	Peers string
	Slave bool // it receives mounts from a master, but what is mounted below it does not reach that master
}

// holder finds the mount that holds path, which is absolute and clean. Of several mounts
// on one point the last covers the others.
func holder(mountinfo io.Reader, path string) (mount, error) {
	var found mount
	err := eachMount(mountinfo, func(m mount) {
		if within(path, m.Point) && len(m.Point) >= len(found.Point) {
			found = m
		}
	})
	if err != nil {
		return mount{}, err
	}
	if found.Point == "" {
		return mount{}, fmt.Errorf("mountinfo names no mount that holds %s", path)
	}
	return found, nil
}

// hasPeers reports whether one of the mounts is in the group of peers.
func hasPeers(mountinfo io.Reader, peers string) (has bool, err error) {
	err = eachMount(mountinfo, func(m mount) { has = has || m.Peers == peers })
	return has, err
}

func eachMount(mountinfo io.Reader, f func(mount)) error {
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m, err := parseMount(lines.Text())
		if err != nil {
			return err
		}
		f(m)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read mountinfo: %w", err)
	}
	return nil
}

// parseMount reads "36 35 98:0 /root /point rw,noatime shared:1 master:2 - ext4 /dev/root rw".
func parseMount(line string) (mount, error) {
	fields := strings.Split(line, " ")
	if len(fields) < 7 {
		return mount{}, fmt.Errorf("mountinfo line %q: %d fields, want 7 or more", line, len(fields))
	}
	m := mount{Point: unescape(fields[4])}
	for _, field := range fields[6:] {
		switch {
		case field == "-":
			return m, nil
		case strings.HasPrefix(field, "shared:"):
			m.Peers = strings.TrimPrefix(field, "shared:")
		case strings.HasPrefix(field, "master:"):
			m.Slave = true
		}
	}
	return mount{}, fmt.Errorf("mountinfo line %q: no separator after the optional fields", line)
}

func within(path, point string) bool {
	return point == "/" || path == point || strings.HasPrefix(path, point+"/")
}

// unescape undoes the kernel's \ooo for space, tab, newline and backslash.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1]) && isOctal(s[i+2]) && isOctal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(c byte) bool { return c >= '0' && c <= '7' }
