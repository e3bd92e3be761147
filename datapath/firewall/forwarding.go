//go:build linux

package firewall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// EnableForwarding turns on the host's forwarding switch: net.ipv4.ip_forward for v4,
// net.ipv6.conf.all.forwarding for v6. Watch keeps it on from then.
//
// The state before is recorded durably first. A switch that is on already belongs to
// another program: nothing is recorded and nothing will be undone. A change is logged at
// Info. The kernel couples other settings to either switch:
//   - IPv4: every link's forwarding flag goes on (packets would not be forwarded without)
//     and all.accept_redirects goes off. This is left so; RestoreForwarding puts it all
//     back.
//   - IPv6: forwarding looks at the one switch alone, but turning it also sets every
//     link's flag, and a link with the flag ignores router advertisements and loses the
//     routes it learnt from them. So every flag is put back, and the host keeps its
//     default route and goes on learning (see turn6). A link whose flag is off does not
//     answer as a router in neighbour discovery and is no NDP proxy; a program that needs
//     that sets the flag on its own link.
//
// Idempotent; killed at any point, the next call finishes. Where the kernel has no such
// family the error is fs.ErrNotExist.
func (h *Host) EnableForwarding(ctx context.Context, v4, v6 bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.enable(ctx, v4, v6)
}

func (h *Host) enable(ctx context.Context, v4, v6 bool) error {
	r, err := h.finished(ctx)
	if err != nil {
		return err
	}
	if v4 {
		if err := h.enable4(ctx, r); err != nil {
			return fmt.Errorf("turn on IPv4 forwarding: %w", err)
		}
		h.keep4 = true
	}
	if v6 {
		if err := h.enable6(ctx, r); err != nil {
			return fmt.Errorf("turn on IPv6 forwarding: %w", err)
		}
		h.keep6 = true
	}
	return nil
}

// RestoreForwarding turns off what EnableForwarding turned on, with all that the kernel
// couples to it, and forgets it. A switch stays on, and is returned, if a link, Docker or a
// file of sysctl.d that came since may need it; its record stays too, so that a later call
// can finish. leaving are users that leave together with Kuryr. A switch that is not
// recorded, or was recorded before the last boot or in another namespace, is not ours and
// stays. Idempotent; killed at any point, the next call finishes.
func (h *Host) RestoreForwarding(ctx context.Context, leaving ...string) ([]Kept, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep4, h.keep6 = false, false
	r, err := h.finished(ctx)
	if err != nil {
		return nil, err
	}
	var kept []Kept
	needed := func(sysctl string, before []string) (bool, error) {
		if now, err := readSysctl(sysctl); err != nil || now == "0" {
			return false, err
		}
		users, err := h.forwardingUsers(ctx, sysctl)
		if users = newUsers(users, before, leaving); err != nil || len(users) == 0 {
			return false, err
		}
		kept = append(kept, Kept{Sysctl: dottedSysctl(sysctl), Users: users})
		h.log.Info("host forwarding kept", "sysctl", dottedSysctl(sysctl), "users", users)
		return true, nil
	}
	if r.IPv4 != nil {
		if stays, err := needed(ipForward, r.IPv4.Users); err != nil {
			return kept, err
		} else if !stays {
			if err := h.restore4(r); err != nil {
				return kept, fmt.Errorf("restore IPv4 forwarding: %w", err)
			}
		}
	}
	if r.IPv6 != nil {
		if stays, err := needed(forwarding6, r.IPv6.Users); err != nil {
			return kept, err
		} else if !stays {
			if err := h.restore6(r); err != nil {
				return kept, fmt.Errorf("restore IPv6 forwarding: %w", err)
			}
		}
	}
	return kept, h.save(r)
}

// finished returns the record, after it completed what a killed process began.
func (h *Host) finished(ctx context.Context) (*record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := h.load()
	if err != nil {
		return nil, err
	}
	return r, h.finish6(r)
}

func (h *Host) enable4(ctx context.Context, r *record) error {
	now, err := readSysctl(ipForward)
	if err != nil || now != "0" {
		return err
	}
	// If there is a record, this process was killed or another program turned the switch
	// off: the first record holds. If the switch was on before, there is nothing to restore.
	if r.IPv4 == nil && !h.keep4 {
		b, err := snapshot4()
		if err != nil {
			return err
		}
		if b.Users, err = h.forwardingUsers(ctx, ipForward); err != nil {
			return err
		}
		r.IPv4 = b
		if err := h.save(r); err != nil {
			return err
		}
	}
	failpoint.Here("firewall.enable4.recorded")
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
	if err := setSysctl(ipForward, b.Forwarding); err != nil {
		return err
	}
	failpoint.Here("firewall.restore4.switched")
	for name, flag := range b.Links {
		if err := setLinkSysctl(flag4(name), flag); err != nil {
			return err
		}
	}
	if err := setSysctl(flag4(defaultLinks), b.Default); err != nil {
		return err
	}
	failpoint.Here("firewall.restore4.links")
	if err := setSysctl(redirects4, b.Redirects); err != nil {
		return err
	}
	failpoint.Here("firewall.restore4.redirects")
	r.IPv4 = nil
	if err := h.save(r); err != nil {
		return err
	}
	h.log.Info("host forwarding put back", "sysctl", "net.ipv4.ip_forward", "value", b.Forwarding)
	return nil
}
