//go:build linux

package firewall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/google/nftables"
)

// Finding is something about the host that stops, or may stop, Kuryr's packets, or lets
// them go where they shall not.
type Finding struct {
	// Each is one sentence without a full stop: the problem, and the operator's remedy.
	What, Mend string
	Note       bool // packets pass all the same; something may come of it
}

// repair is the remedy for all that EnableForwarding and OpenDoors do.
const repair = "`kuryr doctor --fix`, or start `kuryr up` if it does not run"

// Check looks at everything this package cares for and changes nothing; v4 and v6 say
// which families are in use. No findings means that packets of Kuryr's links pass the
// host, as far as can be known, and do not reach what Docker hides.
func (h *Host) Check(ctx context.Context, v4, v6 bool) ([]Finding, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []Finding
	var errs []error
	add := func(f []Finding, err error) {
		found = append(found, f...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	add(h.checkForwarding(v4, v6))
	shown := map[nftables.TableFamily]bool{}
	for _, f := range families {
		if f.name == "ipv4" && v4 || f.name == "ipv6" && v6 {
			list, readable, err := h.checkTable(ctx, f)
			shown[f.nft] = readable
			add(list, err)
		}
	}
	add(h.checkZone(ctx))
	add(h.checkForeign(func(c *nftables.Chain) bool {
		t := c.Table
		switch {
		case t.Name == ownTable, t.Name == "firewalld":
			return false
		case t.Family == nftables.TableFamilyIPv4 && !v4, t.Family == nftables.TableFamilyIPv6 && !v6:
			return false
		}
		return t.Name != "filter" || c.Name != "FORWARD" || !shown[t.Family]
	}))
	return found, errors.Join(errs...)
}

func (h *Host) checkForwarding(v4, v6 bool) ([]Finding, error) {
	var found []Finding
	r, err := h.load()
	if err != nil {
		return nil, err
	}
	if r.Switching != nil {
		found = append(found, Finding{
			What: "Kuryr was killed while it turned IPv6 forwarding, and links may have other settings " +
				"than before",
			Mend: repair,
		})
	}
	for _, s := range []struct {
		use  bool
		name string
	}{{v4, ipForward}, {v6, forwarding6}} {
		if !s.use {
			continue
		}
		dotted := dottedSysctl(s.name)
		switch value, err := readSysctl(s.name); {
		case errors.Is(err, fs.ErrNotExist):
			found = append(found, Finding{
				What: "the kernel has no " + dotted + ", so this address family is off",
				Mend: "boot without ipv6.disable=1, or use networks of the other family only",
			})
		case err != nil:
			return found, err
		case value == "0":
			found = append(found, Finding{What: "the host forwards no packets: " + dotted + " is 0", Mend: repair})
		}
	}
	return found, nil
}

// checkTable also reports whether iptables can show the table, so that nothing more need be
// asked about it.
func (h *Host) checkTable(ctx context.Context, f family) ([]Finding, bool, error) {
	rs, err := f.read(ctx)
	if errors.Is(err, errUnreadable) {
		return nil, false, nil // checkForeign looks at it
	}
	if err != nil || rs == nil {
		return nil, false, err
	}
	var found []Finding
	p := newPlan(rs, h.link, f.ufwChain)
	switch {
	case len(p.restore) == 0:
	case len(p.want) == 0:
		found = append(found, Finding{
			What: fmt.Sprintf(
				"rules of Kuryr are left in %s's filter table that are no longer needed", f.program,
			),
			Mend: repair, Note: true,
		})
	case p.chain == "":
		found = append(found, Finding{
			What: fmt.Sprintf("containers on Kuryr networks may reach what containers on Docker's "+
				"bridges do not publish: Kuryr's rule is missing or out of place in %s's filter table",
				f.program), Mend: repair})
	default:
		found = append(found, Finding{
			What: fmt.Sprintf("%s drops what it does not know in FORWARD (%s), and Kuryr's rules are "+
				"missing or out of place in chain %s", f.program, p.owner, p.chain), Mend: repair})
	}
	if len(p.want) > 0 && f.legacy(ctx) {
		found = append(found, Finding{
			What: f.program +
				" is the legacy one: when its rules are flushed the kernel tells nobody, and Kuryr puts " +
				"its own back only at its next start, or Docker's",
			Mend: "use the nftables one (`update-alternatives --config " + f.program +
				"`), or restart Kuryr after changes of the firewall", Note: true})
	}
	return found, true, nil
}

func (h *Host) checkZone(ctx context.Context) ([]Finding, error) {
	f, err := connectFirewalld(ctx)
	if f == nil {
		return nil, err
	}
	defer f.close()
	zone, err := f.zoneOf(ctx, h.link)
	if err != nil {
		return nil, err
	}
	switch zone {
	case "":
		return []Finding{{
			What: fmt.Sprintf(
				"firewalld runs and has %s in no zone, so it rejects what containers send out", h.link,
			),
			Mend: repair,
		}}, nil
	case trustedZone:
	default:
		return []Finding{{
			Note: true,
			What: fmt.Sprintf(
				"firewalld has %s in zone %s, which is respected; packets pass as far as that zone lets them",
				h.link, zone,
			),
			Mend: fmt.Sprintf("if containers reach nothing: `firewall-cmd --permanent --zone=%s "+
				"--remove-interface=%s`, then `firewall-cmd --reload`", zone, h.link)}}, nil
	}
	admits, err := f.admitsFrom(ctx, zone)
	if err != nil || admits {
		return nil, err
	}
	policy := "`firewall-cmd --permanent --policy kuryr "
	return []Finding{{
		Note: true, What: "firewalld rejects connections from outside to floating addresses (published ports do pass)",
		Mend: "if floating addresses shall be reached from outside: `firewall-cmd " +
			"--permanent --new-policy kuryr`, " + policy + "--add-ingress-zone ANY`, " +
			policy + "--add-egress-zone " + zone + "`, " + policy + "--set-target ACCEPT`, `firewall-cmd --reload`"}}, nil
}

func (h *Host) checkForeign(want func(*nftables.Chain) bool) ([]Finding, error) {
	shut, err := h.shutChains(want)
	if err != nil {
		return nil, err
	}
	var found []Finding
	wild := strings.TrimSuffix(h.link, "+") + "*"
	for _, s := range shut {
		at := s.family + " " + s.table + " " + s.chain
		found = append(found, Finding{
			What: "the nftables chain " + at + " drops what it does not know, and does not name Kuryr's links",
			Mend: fmt.Sprintf("add to it: `nft insert rule %s iifname '\"%s\"' accept` and `nft insert "+
				"rule %s oifname '\"%s\"' accept`, also in the file it is loaded from", at, wild, at, wild)})
	}
	return found, nil
}
