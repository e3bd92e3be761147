//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/bundle"
	kuryrns "github.com/kuryr/kuryr/internal/netns"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// maxNamespaces is how many of Kuryr's namespaces are told of; more are named in a part of their own.
const maxNamespaces = 200

// sysctls that decide about Kuryr's packets, below /proc/sys/net; patterns.
var sysctls = []string{
	"ipv4/ip_forward", "ipv4/conf/*/forwarding", "ipv4/conf/*/rp_filter", "ipv4/conf/*/route_localnet", "ipv4/conf/*/arp_ignore", "ipv4/conf/*/proxy_arp", "ipv4/conf/*/send_redirects",
	"ipv6/conf/*/forwarding", "ipv6/conf/*/accept_ra", "ipv6/conf/*/disable_ipv6", "ipv6/conf/*/proxy_ndp", "ipv6/conf/*/accept_dad",
	"bridge/bridge-nf-call-*", "netfilter/nf_conntrack_max", "netfilter/nf_conntrack_count", "netfilter/nf_conntrack_tcp_loose", "netfilter/nf_log/*",
	"ipv4/ip_local_port_range", "ipv4/neigh/default/gc_thresh*", "ipv6/neigh/default/gc_thresh*",
}

func (b *collector) hostParts() []bundle.Part {
	return []bundle.Part{
		{Name: "host/kernel.txt", Write: kernel},
		{Name: "host/os-release", Write: copyOf("/etc/os-release")},
		{Name: "host/memory.txt", Write: copyOf("/proc/meminfo")},
		{Name: "host/load.txt", Write: copyOf("/proc/loadavg")},
		{Name: "host/modules.txt", Write: copyOf("/proc/modules")},
		{Name: "host/files.txt", Write: b.files},
	}
}

func kernel(_ context.Context, w io.Writer) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	for _, field := range [][]byte{u.Sysname[:], u.Release[:], u.Version[:], u.Machine[:]} {
		text, _, _ := bytes.Cut(field, []byte{0})
		_, _ = fmt.Fprintf(w, "%s\n", text)
	}
	return nil
}

func copyOf(path string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, io.LimitReader(f, bundle.MaxPart))
		return err
	}
}

// files are those of Kuryr's folders, with their sizes and modes, not their contents.
func (b *collector) files(_ context.Context, w io.Writer) error {
	var errs []error
	for _, dir := range []string{b.cfg.StateDir, b.cfg.RunDir, filepath.Dir(b.cfg.Docker.Socket)} {
		if dir == "" || dir == "." {
			continue
		}
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		_, _ = fmt.Fprintf(w, "%s:\n", dir)
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				_, _ = fmt.Fprintf(w, "  %s %10d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), e.Name())
			}
		}
	}
	return errors.Join(errs...)
}

// namespaceParts tell of the host's namespace and of each of Kuryr's.
func (b *collector) namespaceParts(context.Context) []bundle.Part {
	parts := partsOf("namespaces/host", "/proc/thread-self/ns/net")
	if b.cfg.RunDir == "" {
		return parts
	}
	paths, _ := filepath.Glob(filepath.Join(namespaceDir(b.cfg), "*"))
	for _, path := range paths[:min(len(paths), maxNamespaces)] {
		parts = append(parts, partsOf("namespaces/"+filepath.Base(path), path)...)
	}
	if rest := paths[min(len(paths), maxNamespaces):]; len(rest) > 0 {
		parts = append(parts, bundle.Part{Name: "namespaces/others.txt", Write: func(_ context.Context, w io.Writer) error {
			_, err := fmt.Fprintf(w, "%d more, of which nothing is told:\n%s\n", len(rest), strings.Join(rest, "\n"))
			return err
		}})
	}
	return parts
}

func partsOf(folder, path string) []bundle.Part {
	in := func(do func(context.Context, io.Writer) error) func(context.Context, io.Writer) error {
		return func(ctx context.Context, w io.Writer) error {
			ns, err := netns.GetFromPath(path)
			if err != nil {
				return err
			}
			defer ns.Close()
			return kuryrns.Do(ns, func() error { return do(ctx, w) })
		}
	}
	return []bundle.Part{
		{Name: folder + "/network.txt", Write: func(_ context.Context, w io.Writer) error {
			ns, err := netns.GetFromPath(path)
			if err != nil {
				return err
			}
			defer ns.Close()
			return bundle.Namespace(w, ns)
		}},
		{Name: folder + "/sysctls.txt", Write: in(readSysctls)},
		{Name: folder + "/nftables.txt", Write: in(command("nft", "list", "ruleset"))},
		{Name: folder + "/iptables.txt", Write: in(command("iptables-save"))},
		{Name: folder + "/ip6tables.txt", Write: in(command("ip6tables-save"))},
	}
}

func readSysctls(_ context.Context, w io.Writer) error {
	for _, pattern := range sysctls {
		paths, err := filepath.Glob("/proc/sys/net/" + pattern)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if data, err := os.ReadFile(path); err == nil {
				_, _ = fmt.Fprintf(w, "%s = %s\n", strings.ReplaceAll(strings.TrimPrefix(path, "/proc/sys/"), "/", "."), strings.TrimSpace(string(data)))
			}
		}
	}
	return nil
}

// command runs a program that is installed, on the calling thread and so in its namespace; one that is not is told.
func command(name string, args ...string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		path, err := exec.LookPath(name)
		if err != nil {
			_, err = fmt.Fprintf(w, "%s is not installed\n", name)
			return err
		}
		var complaint bytes.Buffer
		c := exec.CommandContext(ctx, path, args...)
		c.Stdout, c.Stderr = w, &complaint
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(complaint.String()))
		}
		return nil
	}
}
