//go:build linux

package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"golang.org/x/sys/unix"
)

const recordVersion = 1

// record is what we changed in this namespace and how it was before. It is written before
// the change, so that it may name a change that was never made, but never lacks one that
// was.
type record struct {
	Version int `json:"version"`
	// Instance is the boot and the namespace the rest is about. The kernel forgets switches
	// and zones with either, so a record of another instance says nothing.
	Instance string `json:"instance"`
	// IPv4 and IPv6 are set while the family's switch is on because of us.
	IPv4 *before4 `json:"ipv4,omitempty"`
	IPv6 *before6 `json:"ipv6,omitempty"`
	// Switching is set while the IPv6 switch is being turned, which takes several writes.
	Switching *switching `json:"ipv6_switching,omitempty"`
	// Zone is the firewalld zone to which we added our links.
	Zone string `json:"firewalld_zone,omitempty"`
}

// before4 is what turning net.ipv4.ip_forward off again would not bring back by itself:
// the kernel then sets every flag below to its own idea of a host.
type before4 struct {
	Forwarding string            `json:"forwarding"`
	Redirects  string            `json:"accept_redirects"`
	Default    string            `json:"default_forwarding"`
	Links      map[string]string `json:"links,omitempty"`
	// Users are what may have needed the switch and worked without it.
	Users []string `json:"users,omitempty"`
}

type before6 struct {
	Forwarding string   `json:"forwarding"`
	Users      []string `json:"users,omitempty"`
}

// switching is a turn of net.ipv6.conf.all.forwarding in progress: where to, and what to
// put back afterwards.
type switching struct {
	To      string           `json:"to"`
	Default string           `json:"default_forwarding"`
	Links   map[string]link6 `json:"links"`
}

type link6 struct {
	Forwarding string `json:"forwarding"`
	AcceptRA   string `json:"accept_ra"`
}

func (r *record) empty() bool {
	return r.IPv4 == nil && r.IPv6 == nil && r.Switching == nil && r.Zone == ""
}

func (h *Host) recordPath() string { return filepath.Join(h.dir, "host.json") }

// load reads the record; it is empty when the file is absent or is about another boot or namespace.
func (h *Host) load() (*record, error) {
	instance, err := instanceID()
	if err != nil {
		return nil, err
	}
	fresh := &record{Version: recordVersion, Instance: instance}
	r, err := jsonstore.ReadFile[record](h.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	}
	if _, unread := errors.AsType[*fs.PathError](err); unread {
		return nil, fmt.Errorf("read the record of changes to this host: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the record of changes to this host, %s, is damaged (%w): "+
			"set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding as they shall be without Kuryr, "+
			"then remove the file", h.recordPath(), err)
	}
	if r.Version > recordVersion {
		return nil, fmt.Errorf(
			"the record of changes to this host, %s, has version %d, this Kuryr knows %d: use the "+
				"newer Kuryr",
			h.recordPath(), r.Version, recordVersion,
		)
	}
	if r.Instance != instance {
		return fresh, nil
	}
	return &r, nil
}

// save replaces the record durably; one with nothing in it is removed.
func (h *Host) save(r *record) error {
	if err := h.replace(r); err != nil {
		return fmt.Errorf("write the record of changes to this host: %w", err)
	}
	return nil
}

func (h *Host) replace(r *record) error {
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return err
	}
	if r.empty() {
		if err := os.Remove(h.recordPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return atomicfile.SyncDir(h.dir)
	}
	return jsonstore.WriteFile(h.recordPath(), r)
}

// instanceID names this boot of the kernel and the network namespace of the calling thread.
func instanceID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The cookie is never used twice in one boot, unlike the namespace's inode.
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return "", fmt.Errorf("read the network namespace's cookie: %w", err)
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), cookie), nil
}
