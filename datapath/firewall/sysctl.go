//go:build linux

package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The kernel resolves this folder to the calling thread's network namespace.
const sysctlRoot = "/proc/sys/net"

const (
	ipForward    = "ipv4/ip_forward"
	redirects4   = "ipv4/conf/all/accept_redirects"
	forwarding6  = "ipv6/conf/all/forwarding"
	defaultLinks = "default"
)

func flag4(link string) string    { return filepath.Join("ipv4/conf", link, "forwarding") }
func flag6(link string) string    { return filepath.Join("ipv6/conf", link, "forwarding") }
func acceptRA(link string) string { return filepath.Join("ipv6/conf", link, "accept_ra") }

func readSysctl(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(sysctlRoot, name))
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// setSysctl writes value unless it is there already.
func setSysctl(name, value string) error {
	now, err := readSysctl(name)
	if err != nil || now == value {
		return err
	}
	if err := os.WriteFile(filepath.Join(sysctlRoot, name), []byte(value), 0); err != nil {
		return fmt.Errorf("write sysctl %s=%s: %w", name, value, err)
	}
	return nil
}

// setLinkSysctl is setSysctl for a link that may be gone by now, which is no error.
func setLinkSysctl(name, value string) error {
	if err := setSysctl(name, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// links returns the names of the links that have settings of the family ("ipv4" or "ipv6").
func links(family string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(sysctlRoot, family, "conf"))
	if err != nil {
		return nil, fmt.Errorf("list the links' settings: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "all" && e.Name() != defaultLinks {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
