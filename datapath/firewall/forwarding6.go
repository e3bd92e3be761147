//go:build linux

package firewall

import (
	"context"
	"errors"
	"io/fs"

	"github.com/kuryr/kuryr/internal/failpoint"
)

func (h *Host) enable6(ctx context.Context, r *record) error {
	now, err := readSysctl(forwarding6)
	if err != nil || now != "0" {
		return err
	}
	if r.IPv6 == nil && !h.keep6 {
		users, err := h.forwardingUsers(ctx, forwarding6)
		if err != nil {
			return err
		}
		r.IPv6 = &before6{Forwarding: now, Users: users}
	}
	return h.turn6(r, "1")
}

func (h *Host) restore6(r *record) error {
	now, err := readSysctl(forwarding6)
	if err != nil {
		return err
	}
	if now == r.IPv6.Forwarding {
		r.IPv6 = nil
		return nil
	}
	return h.turn6(r, r.IPv6.Forwarding)
}

// turn6 sets net.ipv6.conf.all.forwarding and nothing else.
//
// The kernel (addrconf_fixup_forwarding) also sets default.forwarding and every link's
// flag, and when the value is not 0 it removes the routes learnt from router
// advertisements on links whose accept_ra is not 2 (rt6_purge_dflt_routers). So links
// with accept_ra 1 get 2 first; then the switch; then the flags go back, which must
// precede the last step because writing a flag that is not 0 purges too; then accept_ra
// goes back. All of it is in the record before the first write. While this lasts (about a
// millisecond) no link accepts advertisements that did not before, and none that did
// stops.
func (h *Host) turn6(r *record, to string) error {
	s := &switching{To: to, Links: map[string]link6{}}
	var err error
	if s.Default, err = readSysctl(flag6(defaultLinks)); err != nil {
		return err
	}
	if _, err := s.addLinks(); err != nil {
		return err
	}
	r.Switching = s
	if err := h.save(r); err != nil {
		return err
	}
	failpoint.Here("firewall.turn6.recorded")
	return h.finish6(r)
}

// finish6 does what is left of a turn; nothing when none is recorded.
func (h *Host) finish6(r *record) error {
	s := r.Switching
	if s == nil {
		return nil
	}
	was, err := readSysctl(forwarding6)
	if err != nil {
		return err
	}
	if was != s.To {
		// After a kill there may be links the record does not know. Before the switch they are
		// as they shall be.
		added, err := s.addLinks()
		if err != nil {
			return err
		}
		if added {
			if err := h.save(r); err != nil {
				return err
			}
		}
		if err := s.setAcceptRA("1", "2"); err != nil {
			return err
		}
		failpoint.Here("firewall.turn6.raised")
		if err := setSysctl(forwarding6, s.To); err != nil {
			return err
		}
	} else if err := s.setAcceptRA("1", "2"); err != nil { // killed while putting accept_ra back: flags come first
		return err
	}
	failpoint.Here("firewall.turn6.switched")
	if err := s.putFlagsBack(); err != nil {
		return err
	}
	failpoint.Here("firewall.turn6.flags")
	if err := s.setAcceptRA("2", "1"); err != nil {
		return err
	}
	failpoint.Here("firewall.turn6.lowered")
	r.Switching = nil
	if r.IPv6 != nil && r.IPv6.Forwarding == s.To {
		r.IPv6 = nil
	}
	if err := h.save(r); err != nil {
		return err
	}
	if was != s.To {
		h.log.Info("host forwarding switched", "sysctl", "net.ipv6.conf.all.forwarding", "value", s.To, "was", was)
	}
	return nil
}

// addLinks adds the links that are not known yet as they are now, and reports whether
// there were any.
func (s *switching) addLinks() (bool, error) {
	names, err := links("ipv6")
	if err != nil {
		return false, err
	}
	added := false
	for _, name := range names {
		if _, known := s.Links[name]; known {
			continue
		}
		flag, err := readSysctl(flag6(name))
		ra, err2 := readSysctl(acceptRA(name))
		if err = errors.Join(err, err2); errors.Is(err, fs.ErrNotExist) { // the link went while we looked
			continue
		}
		if err != nil {
			return false, err
		}
		s.Links[name] = link6{Forwarding: flag, AcceptRA: ra}
		added = true
	}
	return added, nil
}

// setAcceptRA changes accept_ra where it was 1 before the turn and is from now.
func (s *switching) setAcceptRA(from, to string) error {
	for name, was := range s.Links {
		if was.AcceptRA != "1" {
			continue
		}
		now, err := readSysctl(acceptRA(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if now != from {
			continue
		}
		if err := setLinkSysctl(acceptRA(name), to); err != nil {
			return err
		}
	}
	return nil
}

// putFlagsBack gives every link its forwarding flag again; one that came since the switch
// gets what new links got before.
func (s *switching) putFlagsBack() error {
	// The default first, so that a link made from here on needs nothing.
	if err := setSysctl(flag6(defaultLinks), s.Default); err != nil {
		return err
	}
	names, err := links("ipv6")
	if err != nil {
		return err
	}
	for _, name := range names {
		flag := s.Default
		if was, known := s.Links[name]; known {
			flag = was.Forwarding
		}
		if err := setLinkSysctl(flag6(name), flag); err != nil {
			return err
		}
	}
	return nil
}
