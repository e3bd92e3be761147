//go:build linux

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// EnableForwarding turns on the host's forwarding switch: net.ipv4.ip_forward for v4, net.ipv6.conf.all.forwarding for v6.
//
// What was before is recorded durably first, unless the switch is on already: then it is someone else's, nothing is changed and nothing
// will be undone. A change is logged at Info. The kernel couples other settings to either switch:
//   - IPv4: every link's forwarding flag goes on (packets would not be forwarded without) and all.accept_redirects goes off. This is
//     left so; RestoreForwarding puts it all back.
//   - IPv6: forwarding looks at the one switch alone, but turning it also sets every link's flag, and a link with the flag
//     ignores router advertisements and loses the routes it learnt from them. So every flag is put back, and the host keeps its
//     default route and goes on learning (see turn6). A link whose flag is off does not answer as a router in neighbour
//     discovery and is no NDP proxy; who needs that sets the flag on a link of his own.
//
// Idempotent; killed at any point, the next call finishes. Where the kernel has no such family the error is fs.ErrNotExist.
func (h *Host) EnableForwarding(ctx context.Context, v4, v6 bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.settled(ctx)
	if err != nil {
		return err
	}
	if v4 {
		if err := h.enable4(r); err != nil {
			return fmt.Errorf("turn on IPv4 forwarding: %w", err)
		}
	}
	if v6 {
		if err := h.enable6(r); err != nil {
			return fmt.Errorf("turn on IPv6 forwarding: %w", err)
		}
	}
	return nil
}

// RestoreForwarding turns off what EnableForwarding turned on, with all that the kernel couples to it, and forgets it. What is not recorded,
// or was recorded before the last boot or in another namespace, is not ours and stays. Idempotent; killed at any point, the next
// call finishes.
func (h *Host) RestoreForwarding(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, err := h.settled(ctx)
	if err != nil {
		return err
	}
	if err := h.restore4(r); err != nil {
		return fmt.Errorf("restore IPv4 forwarding: %w", err)
	}
	if err := h.restore6(r); err != nil {
		return fmt.Errorf("restore IPv6 forwarding: %w", err)
	}
	return h.save(r)
}

// settled is the record, after what a killed process began was finished.
func (h *Host) settled(ctx context.Context) (*record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := h.load()
	if err != nil {
		return nil, err
	}
	return r, h.finish6(r)
}

func (h *Host) enable4(r *record) error {
	now, err := readSysctl(ipForward)
	if err != nil || now != "0" {
		return err
	}
	if r.IPv4 == nil { // else we recorded it and were killed, or someone turned it off after us: the first record holds
		b, err := snapshot4()
		if err != nil {
			return err
		}
		r.IPv4 = b
		if err := h.save(r); err != nil {
			return err
		}
	}
	failpoint.Here("host.enable4.recorded")
	if err := setSysctl(ipForward, "1"); err != nil {
		return err
	}
	h.log.Info("host forwarding switched on", "sysctl", "net.ipv4.ip_forward", "was", now)
	return nil
}

func snapshot4() (*before4, error) {
	b := &before4{Forwarding: "0", Links: map[string]string{}}
	var err error
	if b.Redirects, err = readSysctl(redirects4); err != nil {
		return nil, err
	}
	if b.Default, err = readSysctl(flag4(defaultLinks)); err != nil {
		return nil, err
	}
	names, err := links("ipv4")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		flag, err := readSysctl(flag4(name))
		if errors.Is(err, fs.ErrNotExist) { // the link went while we looked
			continue
		}
		if err != nil {
			return nil, err
		}
		if flag != "0" { // the kernel's own idea when the switch goes off
			b.Links[name] = flag
		}
	}
	return b, nil
}

func (h *Host) restore4(r *record) error {
	b := r.IPv4
	if b == nil {
		return nil
	}
	if err := setSysctl(ipForward, b.Forwarding); err != nil {
		return err
	}
	failpoint.Here("host.restore4.switched")
	for name, flag := range b.Links {
		if err := setLinkSysctl(flag4(name), flag); err != nil {
			return err
		}
	}
	if err := setSysctl(flag4(defaultLinks), b.Default); err != nil {
		return err
	}
	failpoint.Here("host.restore4.links")
	if err := setSysctl(redirects4, b.Redirects); err != nil {
		return err
	}
	failpoint.Here("host.restore4.redirects")
	r.IPv4 = nil
	if err := h.save(r); err != nil {
		return err
	}
	h.log.Info("host forwarding put back", "sysctl", "net.ipv4.ip_forward", "value", b.Forwarding)
	return nil
}
