package neutron

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// networkWire is a network as Neutron says it. A null leaves the zero value. gophercloud's Network needs
// four extensions for this, decodes an answer once for each, and cannot tell an absent
// port_security_enabled from false.
type networkWire struct {
	meta
	MTU          int      `json:"mtu"`
	External     bool     `json:"router:external"`
	Shared       bool     `json:"shared"`
	PortSecurity *bool    `json:"port_security_enabled"` // absent: Neutron has no such thing
	AdminUp      bool     `json:"admin_state_up"`
	QoSPolicy    string   `json:"qos_policy_id"`
	Default      bool     `json:"is_default"`
	SegmentType  string   `json:"provider:network_type"` // these three are told to administrators
	Physical     string   `json:"provider:physical_network"`
	SegmentID    int      `json:"provider:segmentation_id"`
	Subnets      []string `json:"subnets"`
}

var networks = collection[*networkWire]{title: "network", item: "network", items: "networks", path: "/networks"}

func (w *networkWire) decode(o *owner) sdn.Network {
	n := sdn.Network{
		Meta: w.meta.decode(o), MTU: w.MTU, External: w.External, Shared: w.Shared,
		NoPortSecurity: w.PortSecurity != nil && !*w.PortSecurity, Disabled: !w.AdminUp,
		QoSPolicy: sdn.ID(w.QoSPolicy), Default: w.Default,
		Segment: sdn.Segment{Type: w.SegmentType, Physical: w.Physical, ID: w.SegmentID},
	}
	for _, id := range slices.Sorted(slices.Values(w.Subnets)) {
		n.Subnets = append(n.Subnets, sdn.ID(id))
	}
	return n
}

// networkPatch is what a spec says of a network. It leaves out what is the default: to say that may
// need more rights, or an extension.
func networkPatch(spec sdn.NetworkSpec) sdn.NetworkPatch {
	return sdn.NetworkPatch{
		MTU: nonZero(spec.MTU), NoPortSecurity: nonZero(spec.NoPortSecurity),
		Disabled: nonZero(spec.Disabled), Shared: nonZero(spec.Shared),
		External: nonZero(spec.External), QoSPolicy: nonZero(spec.QoSPolicy), Default: nonZero(spec.Default),
	}
}

func setNetwork(body map[string]any, c sdn.NetworkPatch) map[string]any {
	set(body, "mtu", c.MTU)
	set(body, "shared", c.Shared)
	set(body, "router:external", c.External)
	setNot(body, "port_security_enabled", c.NoPortSecurity)
	setNot(body, "admin_state_up", c.Disabled)
	set(body, "is_default", c.Default)
	setID(body, "qos_policy_id", c.QoSPolicy)
	return body
}

// setID says an id in a body, and null for none.
func setID(body map[string]any, name string, id *sdn.ID) {
	if id == nil {
		return
	}
	if body[name] = nil; *id != "" {
		body[name] = *id
	}
}

const (
	minMTU = 68    // of IPv4 (RFC 791)
	maxMTU = 65535 // of what Neutron's back ends carry; each has less of its own
)

func checkMTU(mtu int) error {
	if mtu < minMTU || mtu > maxMTU {
		return sdn.Invalid("network", "mtu", "must be from %d to %d, not %d", minMTU, maxMTU, mtu)
	}
	return nil
}

func (p *Provider) checkNetwork(spec sdn.NetworkSpec) error {
	if err := valid.Base("network", spec.Base); err != nil {
		return err
	}
	if spec.MTU != 0 {
		if err := checkMTU(spec.MTU); err != nil {
			return err
		}
	}
	for i, s := range spec.Subnets {
		if !spec.Key.IsZero() && s.Key.IsZero() {
			return sdn.Invalid("network", "subnets["+strconv.Itoa(i)+"].key", "is missing: the network has one")
		}
		if err := checkSubnet(s); err != nil {
			return err
		}
		for _, other := range spec.Subnets[:i] {
			if s.CIDR.IsValid() && other.CIDR.IsValid() && s.CIDR.Overlaps(other.CIDR) {
				return sdn.Conflict(sdn.Exists, "subnet", "cidr", "%v overlaps %v of the same network", s.CIDR, other.CIDR)
			}
		}
	}
	return nil
}

// Network returns what was read or written less than cacheAge ago, or asks; see
// cacheFresh.
func (p *Provider) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	w, err := cached(ctx, p, p.cache.networks, networks, id)
	return decoded(p.owner, w, err)
}

// FindNetworks asks Neutron, unless the networks of the given Keys or ids are all in the
// cache.
func (p *Provider) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	filter := p.query(q.Match)
	if q.External != nil {
		filter.Set("router:external", strconv.FormatBool(*q.External))
	}
	if q.Shared != nil {
		filter.Set("shared", strconv.FormatBool(*q.Shared))
	}
	return matchingCached(ctx, p, p.cache.networks, networks, filter, q.Match, q.Matches)
}

// EnsureNetwork takes four requests for a new network: a look, the network, all its subnets in one, and
// a look at both, as Neutron prevents neither a second network of the Key nor a second subnet of the
// range that is made concurrently. One that is New takes two. Tags are on top.
func (p *Provider) EnsureNetwork(
	ctx context.Context, spec sdn.NetworkSpec,
) (sdn.Network, error) {
	p.owner.note(spec.Project)
	for _, s := range spec.Subnets {
		p.owner.note(s.Project)
	}
	if err := p.checkNetwork(spec); err != nil {
		return sdn.Network{}, err
	}
	var subnets []*subnetWire
	create := func(ctx context.Context) (w *networkWire, err error) {
		w, subnets, err = p.createNetwork(ctx, spec)
		return w, err
	}
	w, made, err := ensure(ctx, p, networks, spec.Base, ofNew(spec.New), create)
	var ofSubnets ofParts
	switch {
	case errors.As(err, &ofSubnets):
		err = ofSubnets.error
	case err != nil:
	case !made:
		w, err = p.finishNetwork(ctx, w, spec)
	case len(w.Subnets) != len(subnets):
		if err = p.settleSubnets(ctx, sdn.ID(w.ID), subnets); err == nil {
			w, err = networks.read(ctx, p, sdn.ID(w.ID))
		}
	}
	if err == nil {
		p.cache.networks.put(w)
	}
	return decoded(p.owner, w, err)
}

// createNetwork makes a network, its tags and its subnets. It deletes the network if Neutron refuses
// the subnets.
func (p *Provider) createNetwork(
	ctx context.Context, spec sdn.NetworkSpec,
) (*networkWire, []*subnetWire, error) {
	body := setNetwork(p.body(spec.Base), networkPatch(spec))
	set(body, "provider:network_type", nonZero(spec.Segment.Type))
	set(body, "provider:physical_network", nonZero(spec.Segment.Physical))
	if spec.Segment.ID != 0 {
		body["provider:segmentation_id"] = strconv.Itoa(spec.Segment.ID)
	}
	w, err := networks.create(ctx, p, body)
	if err == nil && spec.Tags != nil {
		err = networks.setTags(ctx, p, w, spec.Tags)
	}
	if err != nil {
		return nil, nil, err
	}
	subnets, err := p.ensureSubnets(ctx, sdn.ID(w.ID), spec.Subnets, true)
	if err != nil {
		if sdn.IsUnavailable(err) { // what was made is unknown: a repeated Ensure finishes it
			return nil, nil, ofParts{err}
		}
		if undo := networks.erase(ctx, p, sdn.ID(w.ID), 0); undo != nil {
			p.log.Warn("network without subnets could not be deleted", "network", w.ID, "err", undo)
		}
		return nil, nil, ofParts{err}
	}
	for _, s := range subnets {
		w.Subnets = append(w.Subnets, s.ID)
	}
	return w, subnets, nil
}

// finishNetwork changes an existing network to what the spec says.
func (p *Provider) finishNetwork(ctx context.Context, w *networkWire, spec sdn.NetworkSpec) (*networkWire, error) {
	now, c := w.decode(p.owner), networkPatch(spec)
	segment := spec.Segment
	switch {
	case spec.External && !now.External:
		return nil, immutable("network", w.ID, "external", false, true)
	case spec.Shared && !now.Shared:
		return nil, immutable("network", w.ID, "shared", false, true)
	case segment.Type != "" && segment.Type != now.Segment.Type,
		segment.Physical != "" && segment.Physical != now.Segment.Physical,
		segment.ID != 0 && segment.ID != now.Segment.ID:
		return nil, immutable("network", w.ID, "segment", now.Segment, segment)
	}
	body := setNetwork(map[string]any{}, sdn.NetworkPatch{
		MTU: unless(c.MTU, now.MTU, is), Disabled: unless(c.Disabled, now.Disabled, is),
		NoPortSecurity: unless(c.NoPortSecurity, now.NoPortSecurity, is),
		QoSPolicy:      unless(c.QoSPolicy, now.QoSPolicy, is), Default: unless(c.Default, now.Default, is),
	})
	if err := adopt("network", &w.meta, spec.Base, body); err != nil {
		return nil, err
	}
	id := sdn.ID(w.ID)
	changed := len(body) > 0
	if changed {
		var err error
		w, err = p.cache.networks.changing(id, func() (*networkWire, error) { return networks.update(ctx, p, id, 0, body) })
		if err != nil {
			return nil, err
		}
	}
	tagged, err := writeTags(ctx, p, p.cache.networks, networks, w, spec.Tags)
	if err != nil {
		return nil, err
	}
	changed = changed || tagged
	if len(spec.Subnets) > 0 {
		made, err := p.ensureSubnets(ctx, id, spec.Subnets, false)
		if err != nil {
			return nil, err
		}
		for _, s := range made {
			changed = changed || !slices.Contains(w.Subnets, s.ID)
		}
	}
	if !changed {
		return w, nil
	}
	return networks.read(ctx, p, id) // for its revision and subnets
}

// UpdateNetwork sends one request, two for a change of the Key or the description, up to
// three for several tags.
func (p *Provider) UpdateNetwork(ctx context.Context, id sdn.ID, change sdn.NetworkPatch) (sdn.Network, error) {
	if change.MTU != nil {
		if err := checkMTU(*change.MTU); err != nil {
			return sdn.Network{}, err
		}
	}
	body := setNetwork(map[string]any{}, change)
	write := func() (*networkWire, error) {
		return patch(ctx, p, networks, id, change.Patch, body)
	}
	w, err := patchCached(ctx, p, p.cache.networks, networks, id, change.Patch, len(body) == 0, write)
	return decoded(p.owner, w, err)
}

// DeleteNetwork is one request: Neutron deletes the subnets with the network, and nothing
// if there are ports.
func (p *Provider) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	p.cache.forgetNetwork(id)
	err := networks.erase(ctx, p, id, 0)
	p.cache.forgetNetwork(id)
	return err
}
