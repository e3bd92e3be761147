//go:build linux

package firewall

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// Owner is whose firewall a door leads through.
type Owner string

// The owners. OwnerPolicy is FORWARD's own policy or last rule, set by no program that we know.
const (
	OwnerDocker    Owner = "docker"
	OwnerUFW       Owner = "ufw"
	OwnerFirewalld Owner = "firewalld"
	OwnerPolicy    Owner = "forward-policy"
)

// State is how a door was found.
type State string

// The states.
const (
	StateOpen     State = "open"     // it was open already, by us before or by the operator
	StateOpened   State = "opened"   // it was opened now
	StateRefused  State = "refused"  // it cannot be opened; the error of the same call says why
	StateConflict State = "conflict" // the operator has put our links elsewhere, which we respect
)

// Door is one way through a firewall that would stop Kuryr's packets otherwise.
type Door struct {
	Owner Owner
	// Family is "ipv4" or "ipv6", or empty when the door serves both.
	Family string
	// Where is the iptables chain or the firewalld zone.
	Where string
	State State
}

// OpenDoors makes or repairs what lets the packets of our links through the host's
// firewalls and what keeps them from Docker's own bridges (see guardRule), removes
// what is no longer needed, and returns the doors that are needed (none where nothing
// filters). In each family's filter table it is one transaction by the iptables programs
// themselves, so that they can still show it. Each firewall is tried even when another
// fails; the errors are joined. Idempotent: a second call changes nothing.
func (h *Host) OpenDoors(ctx context.Context) ([]Door, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var doors []Door
	var errs []error
	for _, f := range families {
		d, err := h.openTable(ctx, f)
		if d != nil {
			doors = append(doors, *d)
		}
		if err != nil {
			errs = append(errs, err)
		}
		failpoint.Here("firewall.doors.family")
	}
	d, err := h.openZone(ctx)
	if d != nil {
		doors = append(doors, *d)
	}
	return doors, errors.Join(append(errs, err)...)
}

func (h *Host) openTable(ctx context.Context, f family) (*Door, error) {
	rs, err := f.read(ctx)
	if errors.Is(err, errUnreadable) {
		// The table was written with nft. It concerns us only if it shuts, and then no program but
		// its author can open it.
		if shut, err2 := h.shutChains(
			func(c *nftables.Chain) bool { return f.owns(c.Table) },
		); err2 == nil && len(shut) == 0 {
			return nil, nil
		}
	}
	if err != nil {
		return &Door{Owner: OwnerPolicy, Family: f.name, Where: "FORWARD", State: StateRefused}, err
	}
	if rs == nil {
		return nil, nil
	}
	p := newPlan(rs, h.link, f.ufwChain)
	d := &Door{Owner: p.owner, Family: f.name, Where: p.chain, State: StateOpen}
	if len(p.restore) > 0 {
		d.State = StateOpened
		if err := f.apply(ctx, p.restore); err != nil {
			err = fmt.Errorf("change %s's filter table: %w", f.program, err)
			if p.chain == "" {
				return nil, err
			}
			d.State = StateRefused
			return d, err
		}
		switch {
		case p.chain != "":
			h.log.Info("door through a firewall opened", "owner", p.owner, "family", f.name, "chain", p.chain)
		case len(p.want) > 0:
			h.log.Info("Kuryr's networks are kept apart from Docker's bridges", "family", f.name)
		default:
			h.log.Info("rules in a firewall removed, no longer needed", "family", f.name)
		}
	}
	if p.chain == "" {
		return nil, nil
	}
	return d, nil
}

// CloseDoors removes every rule and zone entry of ours, and nothing else. Idempotent.
// Call it when Kuryr leaves the host and Watch has returned.
func (h *Host) CloseDoors(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, f := range families {
		rs, err := f.read(ctx)
		if err != nil && !errors.Is(err, errUnreadable) { // where iptables cannot show rules, we made none
			errs = append(errs, err)
		}
		if rs == nil {
			continue
		}
		var lines []string
		for chain, rules := range rs.rules {
			for _, r := range rules {
				if r.ours(h.link) {
					lines = append(lines, "-D "+chain+" "+r.spec)
				}
			}
		}
		if len(lines) == 0 {
			continue
		}
		if err := f.apply(ctx, lines); err != nil {
			errs = append(errs, fmt.Errorf("close the doors for %s: %w", f.name, err))
			continue
		}
		h.log.Info("doors through firewalls closed", "family", f.name)
		failpoint.Here("firewall.close.family")
	}
	return errors.Join(append(errs, h.closeZone(ctx))...)
}
