package neutron

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

var floatingIPs = collection[*floatingIPWire]{title: "floating IP", item: "floatingip", items: "floatingips", path: "/floatingips"}

// floatingIPWire is a floating IP. gophercloud's FloatingIP has no forwardings, which save a request
// for each.
type floatingIPWire struct {
	meta
	Network  string        `json:"floating_network_id"`
	Address  netip.Addr    `json:"floating_ip_address"`
	Port     *string       `json:"port_id"`
	Fixed    *string       `json:"fixed_ip_address"`
	Router   *string       `json:"router_id"`
	Forwards []forwardWire `json:"port_forwardings"` // not where Neutron lacks expose-port-forwarding-in-fip
}

// nameTag begins the tag that holds a floating IP's name, for which Neutron has no other place.
const nameTag = "kuryr.name:"

func (w *floatingIPWire) decode(o *owner) sdn.FloatingIP {
	f := sdn.FloatingIP{Meta: w.meta.decode(o), Network: sdn.ID(w.Network), Address: w.Address, Router: sdn.ID(text(w.Router))}
	f.Name, f.Tags = splitName(f.Tags)
	if port := text(w.Port); port != "" {
		f.Target.Port = sdn.ID(port)
		f.Target.Addr, _ = netip.ParseAddr(text(w.Fixed)) // Neutron has one with the port
	}
	return f
}

// splitName parts the name from the other tags.
func splitName(tags []string) (name string, others []string) {
	for _, tag := range tags {
		if n, ok := strings.CutPrefix(tag, nameTag); ok {
			name = n
		} else {
			others = append(others, tag)
		}
	}
	return name, others
}

func joinName(name string, tags []string) []string {
	if name == "" {
		return tags
	}
	return append(slices.Clone(tags), nameTag+name)
}

func checkFloatingName(name string) error {
	if n, most := len(name), valid.MaxText-len(nameTag); n > most {
		return sdn.Invalid("floating IP", "name", "is %d bytes long; at most %d fit", n, most)
	}
	return nil
}

// rename writes the name and the tags of a spec or a patch, and returns the floating IP
// as it is then; nil leaves what exists.
func (p *Provider) rename(ctx context.Context, w *floatingIPWire, name *string, tags *[]string) (*floatingIPWire, error) {
	nameNow, tagsNow := splitName(w.Tags)
	if name != nil {
		nameNow = *name
	}
	if tags != nil {
		tagsNow = *tags
	}
	return floatingIPs.retag(ctx, p, w, joinName(nameNow, tagsNow))
}

// FloatingIP gets a floating IP.
func (p *Provider) FloatingIP(ctx context.Context, id sdn.ID) (sdn.FloatingIP, error) {
	w, err := floatingIPs.read(ctx, p, id)
	return decoded(p.owner, w, err)
}

// FindFloatingIPs streams floating IPs. Neutron cannot filter by names: a search by a name alone
// reads all of the project's.
func (p *Provider) FindFloatingIPs(
	ctx context.Context, q sdn.FloatingIPQuery,
) iter.Seq2[sdn.FloatingIP, error] {
	filter := p.query(q.Match)
	filter.Del("name")
	addIDs(filter, "floating_network_id", q.Networks)
	addIDs(filter, "port_id", q.Ports)
	addIDs(filter, "router_id", q.Routers)
	for _, a := range q.Addresses {
		filter.Add("floating_ip_address", a.String())
	}
	return matching(ctx, p, floatingIPs, filter, q.Matches, nil)
}

func (p *Provider) checkFloatingIP(spec sdn.FloatingIPSpec) error {
	if err := valid.Base("floating IP", spec.Base); err != nil {
		return err
	}
	switch {
	case spec.OfHost || spec.Address.IsValid() && spec.Address.IsUnspecified():
		return sdn.Unsupported("floating IP", "Neutron has none that are the host's own addresses")
	case spec.Address.Is6():
		return sdn.Invalid("floating IP", "address", "%v: Neutron has floating IPs of IPv4 only", spec.Address)
	}
	return checkFloatingName(spec.Name)
}

// EnsureFloatingIP makes, finishes or adopts a floating IP. Neutron's policy may keep the
// choice of an address for administrators: IsDenied.
func (p *Provider) EnsureFloatingIP(ctx context.Context, spec sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	p.owner.note(spec.Project)
	if err := p.checkFloatingIP(spec); err != nil {
		return sdn.FloatingIP{}, err
	}
	w, made, err := ensure(ctx, p, floatingIPs, spec.Base, around, func(ctx context.Context) (*floatingIPWire, error) {
		if spec.Network == "" {
			return nil, sdn.Invalid("floating IP", "network", "is missing")
		}
		body := p.body(spec.Base)
		delete(body, "name")
		body["floating_network_id"] = spec.Network
		if spec.Address.IsValid() {
			body["floating_ip_address"] = spec.Address
		}
		set(body, "subnet_id", nonZero(spec.Subnet))
		return p.aim(ctx, spec.Target, body, func(body map[string]any) (*floatingIPWire, error) {
			return floatingIPs.create(ctx, p, body)
		})
	})
	if err != nil {
		return sdn.FloatingIP{}, p.explainFloatingIP(ctx, err, spec)
	}
	if !made {
		if w, err = p.adoptFloatingIP(ctx, w, spec); err != nil {
			return sdn.FloatingIP{}, err
		}
	}
	var tags *[]string
	if spec.Tags != nil {
		tags = &spec.Tags
	}
	w, err = p.rename(ctx, w, nonZero(spec.Name), tags)
	return decoded(p.owner, w, err)
}

// adoptFloatingIP changes an existing floating IP to what the spec says. It changes the
// target only at the revision that it has seen, so that a port which another process gave
// it keeps it.
func (p *Provider) adoptFloatingIP(ctx context.Context, w *floatingIPWire, spec sdn.FloatingIPSpec) (*floatingIPWire, error) {
	if err := p.checkSubnetOf(ctx, w, spec); err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		now := w.decode(p.owner)
		switch {
		case spec.Network != "" && spec.Network != now.Network:
			return nil, immutable("floating IP", w.ID, "network", now.Network, spec.Network)
		case spec.Address.IsValid() && spec.Address != now.Address:
			return nil, immutable("floating IP", w.ID, "address", now.Address, spec.Address)
		case spec.Project != "" && spec.Project != now.Project:
			return nil, immutable("floating IP", w.ID, "project", now.Project, spec.Project)
		case spec.Target.Port == "" || leads(now.Target, spec.Target):
			return w, nil
		}
		moved, err := p.aim(ctx, spec.Target, map[string]any{}, func(body map[string]any) (*floatingIPWire, error) {
			return floatingIPs.update(ctx, p, now.ID, now.Revision, body)
		})
		if sdn.ReasonOf(err) != sdn.Stale || n == maxRaces {
			return moved, p.explainFloatingIP(ctx, err, spec)
		}
		if w, err = floatingIPs.read(ctx, p, now.ID); err != nil {
			return nil, err
		}
	}
}

// checkSubnetOf refuses an existing floating IP of another subnet than the spec's.
// Neutron tells no floating IP's subnet. It shows the subnets of an external network only
// to their owner and administrators, unless they are shared: a subnet that it does not
// show is not compared.
func (p *Provider) checkSubnetOf(ctx context.Context, w *floatingIPWire, spec sdn.FloatingIPSpec) error {
	if spec.Subnet == "" || spec.Network != "" && string(spec.Network) != w.Network {
		return nil
	}
	s, err := p.Subnet(ctx, spec.Subnet)
	switch {
	case sdn.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case string(s.Network) != w.Network:
		return sdn.Invalid("floating IP", "subnet", "%s is not of network %s", s.ID, w.Network)
	case spec.Address.IsValid() && !s.CIDR.Contains(spec.Address):
		return sdn.Invalid("floating IP", "address", "%v is not of subnet %v", spec.Address, s.CIDR)
	case !s.CIDR.Contains(w.Address):
		return immutable("floating IP", w.ID, "subnet", w.Address, "one of "+s.CIDR.String())
	}
	return nil
}

// leads reports whether a floating IP with the target have has the target want.
func leads(have, want sdn.Target) bool {
	return have.Port == want.Port && (!want.Addr.IsValid() || want.Addr == have.Addr)
}

// aim puts a target into a request's body and sends it. Neutron refuses a port with
// several IPv4 addresses if none is named (400, nothing is done): only then aim names the
// first.
func (p *Provider) aim(ctx context.Context, target sdn.Target, body map[string]any, send func(map[string]any) (*floatingIPWire, error)) (*floatingIPWire, error) {
	if target.Port == "" {
		return send(body)
	}
	body["port_id"] = target.Port
	if target.Addr.IsValid() {
		body["fixed_ip_address"] = target.Addr
		return send(body)
	}
	w, err := send(body)
	if !sdn.IsInvalid(err) {
		return w, err
	}
	port, errRead := portParts.read(ctx, p, target.Port)
	if errRead != nil {
		return nil, err
	}
	if addr := firstV4(port); addr.IsValid() {
		body["fixed_ip_address"] = addr
		return send(body)
	}
	return nil, err
}

// firstV4 returns a port's first IPv4 address, the zero value if it has none.
func firstV4(port *portPart) netip.Addr {
	for _, a := range decodeAddresses(port.Addresses) {
		if a.Addr.Is4() {
			return a.Addr
		}
	}
	return netip.Addr{}
}

// explainFloatingIP finds the field of Neutron's refusal: its 400 is one error for a
// network that is not external, for a subnet of another network and for an address that
// the port does not have.
func (p *Provider) explainFloatingIP(ctx context.Context, err error, spec sdn.FloatingIPSpec) error {
	switch {
	case sdn.ReasonOf(err) == sdn.AddressInUse, sdn.IsInvalid(err) && sdn.FieldOf(err) == "addresses":
		return reField(err, "address")
	case !sdn.IsInvalid(err) || sdn.FieldOf(err) != "":
		return err
	case spec.Subnet != "" && strings.Contains(err.Error(), "invalid subnet"):
		return inField(err, "subnet")
	}
	if n, errRead := p.Network(ctx, spec.Network); errRead == nil && !n.External {
		return inField(err, "network")
	}
	return inField(err, "target")
}

// UpdateFloatingIP changes a floating IP. With IfRevision a Target replaces only the
// target that the caller has read.
func (p *Provider) UpdateFloatingIP(ctx context.Context, id sdn.ID, change sdn.FloatingIPPatch) (sdn.FloatingIP, error) {
	if change.Name != nil {
		if err := checkFloatingName(*change.Name); err != nil {
			return sdn.FloatingIP{}, err
		}
	}
	if err := valid.Patch("floating IP", change.Patch); err != nil {
		return sdn.FloatingIP{}, err
	}
	general := change.Patch
	general.Name, general.Tags = nil, nil // are both tags here
	send := func(body map[string]any) (*floatingIPWire, error) {
		return patch(ctx, p, floatingIPs, id, general, body)
	}
	var w *floatingIPWire
	var err error
	switch {
	case change.Target == nil:
		w, err = send(map[string]any{})
	case *change.Target == sdn.Target{}:
		w, err = send(map[string]any{"port_id": nil})
	case change.Target.Port == "":
		return sdn.FloatingIP{}, sdn.Invalid("floating IP", "target.port", "is missing")
	default:
		w, err = p.aim(ctx, *change.Target, map[string]any{}, send)
	}
	if err != nil {
		return sdn.FloatingIP{}, inField(err, "target")
	}
	w, err = p.rename(ctx, w, change.Name, change.Tags)
	return decoded(p.owner, w, err)
}

// DeleteFloatingIP deletes a floating IP with its forwardings, which it deletes first if
// Neutron refuses because of them.
func (p *Provider) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	err := floatingIPs.erase(ctx, p, id, 0)
	if !sdn.IsConflict(err) {
		return err
	}
	have, errList := p.forwards(ctx, id, nil)
	if errList != nil || len(have) == 0 {
		return err
	}
	ids := make([]sdn.ID, len(have))
	for i, f := range have {
		ids[i] = f.ID
	}
	if err := p.DeleteForwards(ctx, id, ids); err != nil {
		return err
	}
	return floatingIPs.erase(ctx, p, id, 0)
}
