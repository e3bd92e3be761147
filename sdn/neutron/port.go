package neutron

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

var ports = collection[*portWire]{title: "port", item: "port", items: "ports", path: "/ports", oneUser: true}

// portsAtOnce limits the concurrent requests for single ports of one call.
const portsAtOnce = 4

// vifBindingFailed is the VIF type of a port that no driver of Neutron can bind to its
// host. It is in a 201, not in an error.
const vifBindingFailed = "binding_failed"

// portWire is a port as Neutron says it. What extensions or the policy leave out stays zero.
// gophercloud's Port and its extensions cannot tell a binding that the policy hides from an empty one,
// and its calls create one port per request.
type portWire struct {
	meta
	Network      sdn.ID                     `json:"network_id"`
	MAC          string                     `json:"mac_address"`
	FixedIPs     []fixedIP                  `json:"fixed_ips"`
	DeviceID     string                     `json:"device_id"`
	DeviceOwner  string                     `json:"device_owner"`
	Host         string                     `json:"binding:host_id"`
	VNICType     sdn.VNICType               `json:"binding:vnic_type"`
	Profile      map[string]json.RawMessage `json:"binding:profile"`
	VIFType      string                     `json:"binding:vif_type"`
	VIFDetails   map[string]any             `json:"binding:vif_details"`
	Groups       []sdn.ID                   `json:"security_groups"`
	PortSecurity *bool                      `json:"port_security_enabled"`
	Pairs        []pairWire                 `json:"allowed_address_pairs"`
	QoSPolicy    sdn.ID                     `json:"qos_policy_id"`
	AdminStateUp *bool                      `json:"admin_state_up"`
	Status       sdn.PortStatus             `json:"status"`
}

// fixedIP is one address of a port. In a request either may be left out.
type fixedIP struct {
	Subnet sdn.ID `json:"subnet_id,omitempty"`
	Addr   string `json:"ip_address,omitempty"`
}

// decodeAddresses returns addresses in order, IPv4 first: Neutron keeps none.
func decodeAddresses(list []fixedIP) []sdn.Address {
	var out []sdn.Address
	for _, f := range list {
		addr, err := netip.ParseAddr(f.Addr)
		if err != nil {
			continue // a router's gateway on a subnet that has not given it an address
		}
		out = append(out, sdn.Address{Subnet: f.Subnet, Addr: addr})
	}
	sortslice.Func(out, func(a, b sdn.Address) int { return a.Addr.Compare(b.Addr) })
	return out
}

type pairWire struct {
	Prefix string `json:"ip_address"`
	MAC    string `json:"mac_address,omitempty"`
}

// portPart is what other nouns need of a port. gophercloud's Port is the whole: of thousands of ports
// this decodes four attributes.
type portPart struct {
	meta
	Device    string    `json:"device_id"`
	Owner     string    `json:"device_owner"`
	Addresses []fixedIP `json:"fixed_ips"`
}

var portParts = collection[*portPart]{title: "port", item: "port", items: "ports", path: "/ports"}

// decode gives the sdn form. The addresses are in order, IPv4 first: Neutron keeps none.
func (w *portWire) decode(o *owner) (sdn.Port, error) {
	port := sdn.Port{
		Meta: w.meta.decode(o), Network: w.Network, DeviceID: w.DeviceID, DeviceOwner: w.DeviceOwner, Host: w.Host, VNICType: w.VNICType,
		Profile: profile(w.Profile), Groups: w.Groups, NoPortSecurity: w.PortSecurity != nil && !*w.PortSecurity, QoSPolicy: w.QoSPolicy,
		Disabled: w.AdminStateUp != nil && !*w.AdminStateUp, Status: w.Status, VIF: sdn.VIF{Type: w.VIFType, Details: plain(w.VIFDetails), Hidden: w.hidden()},
	}
	if port.VNICType == "normal" {
		port.VNICType = sdn.VNICNormal
	}
	var err error
	if port.MAC, err = net.ParseMAC(w.MAC); err != nil {
		return port, strange(w, err)
	}
	for _, ip := range w.FixedIPs {
		addr, err := netip.ParseAddr(ip.Addr)
		if err != nil {
			return port, strange(w, err)
		}
		port.Addresses = append(port.Addresses, sdn.Address{Subnet: ip.Subnet, Addr: addr})
	}
	sortslice.Func(port.Addresses, func(a, b sdn.Address) int { return a.Addr.Compare(b.Addr) })
	for _, pair := range w.Pairs {
		prefix, err := parseAsSent(pair.Prefix)
		if err != nil {
			return port, strange(w, err)
		}
		mac, _ := net.ParseMAC(pair.MAC)
		if slices.Equal(mac, port.MAC) {
			mac = nil // the port's own, which Neutron fills in
		}
		port.AllowedPairs = append(port.AllowedPairs, sdn.AllowedPair{Prefix: prefix, MAC: mac,
			Length: prefix.IsSingleIP() && strings.Contains(pair.Prefix, "/")}) // others' pairs are written back as they were
	}
	return port, nil
}

// hidden returns the attributes of the binding that Neutron's policy leaves out. Only the
// VIF type tells that a port is not bound.
func (w *portWire) hidden() (names []string) {
	if w.VIFType == sdn.VIFUnbound {
		return nil
	}
	if w.Host == "" {
		names = append(names, "binding:host_id")
	}
	if w.VIFType == "" {
		names = append(names, "binding:vif_type")
	}
	if w.VIFDetails == nil {
		names = append(names, "binding:vif_details")
	}
	return names
}

// strange is the error of a port with values that cannot be.
func strange(w *portWire, err error) error {
	return sdn.Unavailable(err, "Neutron", "what it says of port %s cannot be understood", w.ID)
}

// parsePrefix reads a prefix, or an address as the prefix that holds it alone.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := parseAsSent(s)
	return p.Masked(), err
}

// parseAsSent reads a prefix with the bits beyond its length, and an address as the prefix of itself.
func parseAsSent(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// plain returns the values of a JSON object: strings unchanged, all others as JSON.
func plain(object map[string]any) map[string]string {
	if len(object) == 0 {
		return nil
	}
	out := make(map[string]string, len(object))
	for name, value := range object {
		if text, ok := value.(string); ok {
			out[name] = text
		} else if data, err := json.Marshal(value); err == nil {
			out[name] = string(data)
		}
	}
	return out
}

// profile returns the values of a profile in the shortest form of their JSON.
func profile(values map[string]json.RawMessage) map[string]json.RawMessage {
	if len(values) == 0 {
		return nil
	}
	out := make(map[string]json.RawMessage, len(values))
	for name, value := range values {
		decoder := json.NewDecoder(bytes.NewReader(value))
		decoder.UseNumber()
		var decoded any
		if decoder.Decode(&decoded) == nil {
			out[name], _ = json.Marshal(decoded) // what was decoded can be encoded
		}
	}
	return out
}

// portBody returns what of a request's body says the same as c, but for what all patches
// have.
func portBody(c sdn.PortPatch) map[string]any {
	body := map[string]any{}
	set(body, "device_id", c.DeviceID)
	set(body, "device_owner", c.DeviceOwner)
	set(body, "binding:host_id", c.Host)
	setNot(body, "port_security_enabled", c.NoPortSecurity)
	setNot(body, "admin_state_up", c.Disabled)
	if c.MAC != nil {
		body["mac_address"] = c.MAC.String()
	}
	if c.Addresses != nil {
		body["fixed_ips"] = fixedIPs(*c.Addresses)
	}
	if c.Profile != nil {
		profile := map[string]json.RawMessage{}
		maps.Copy(profile, *c.Profile)
		body["binding:profile"] = profile
	}
	if c.Groups != nil {
		// Neutron refuses a group that is there twice, and takes null for nothing said.
		body["security_groups"] = append([]sdn.ID{}, asSet(*c.Groups)...)
	}
	if c.AllowedPairs != nil {
		body["allowed_address_pairs"] = pairs(*c.AllowedPairs)
	}
	if c.NoPortSecurity != nil && *c.NoPortSecurity {
		// Neutron refuses it while there is something to enforce.
		setDefault(body, "security_groups", []sdn.ID{})
		setDefault(body, "allowed_address_pairs", []pairWire{})
	}
	if c.QoSPolicy != nil {
		body["qos_policy_id"] = nonZero(*c.QoSPolicy) // null is none
	}
	return body
}

func setDefault(body map[string]any, name string, value any) {
	if _, there := body[name]; !there {
		body[name] = value
	}
}

func fixedIPs(addresses []sdn.Address) []fixedIP {
	out := []fixedIP{}
	for _, a := range addresses {
		ip := fixedIP{Subnet: a.Subnet}
		if a.Addr.IsValid() {
			ip.Addr = a.Addr.String()
		}
		out = append(out, ip)
	}
	return out
}

// pairs returns pairs as Neutron writes them. A single address has no length unless the
// caller asks for it: with a length OVN's driver does not see that another port has the
// address and must give way.
func pairs(allowed []sdn.AllowedPair) []pairWire {
	out := []pairWire{}
	for _, pair := range allowed {
		w := pairWire{Prefix: pair.Prefix.String()}
		if pair.Prefix.IsSingleIP() && !pair.Length {
			w.Prefix = pair.Prefix.Addr().String()
		}
		if pair.MAC != nil {
			w.MAC = pair.MAC.String()
		}
		out = append(out, w)
	}
	return out
}

// Port asks Neutron for a port, never the cache.
func (p *Provider) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	read := p.cache.ports.reading()
	w, err := ports.read(ctx, p, id)
	if err != nil {
		if sdn.IsNotFound(err) {
			p.cache.ports.drop(id)
		}
		return sdn.Port{}, err
	}
	port, err := w.decode(p.owner)
	if err == nil {
		read(port)
	}
	return port, err
}

// FindPorts streams the ports that match. Ports of this host that the query names may
// come from the cache (newPortCache).
func (p *Provider) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		p.owner.note(q.Projects...)
		if known, ok := knownPorts(p.cache.ports, p.config.Host, q); ok && p.ofOneNetwork(q.Subnets) && ctx.Err() == nil {
			for _, port := range known {
				if !yield(port, nil) {
					return
				}
			}
			return
		}
		read := p.cache.ports.reading()
		for w, err := range ports.find(ctx, p, portQuery(q)) {
			var port sdn.Port
			if err == nil {
				port, err = w.decode(p.owner)
			}
			if err != nil {
				yield(sdn.Port{}, err)
				return
			}
			read(port)
			if q.Matches(port) && !yield(port, nil) {
				return
			}
		}
	}
}

// ofOneNetwork reports whether subnets are known to be of one network.
func (p *Provider) ofOneNetwork(ids []sdn.ID) bool {
	if len(ids) < 2 {
		return true
	}
	first, ok := p.cache.subnets.get(ids[0])
	return ok && !slices.ContainsFunc(ids, func(id sdn.ID) bool {
		s, ok := p.cache.subnets.get(id)
		return !ok || s.Network != first.Network
	})
}

// portQuery returns the filter that asks Neutron for at least what q selects.
func portQuery(q sdn.PortQuery) url.Values {
	values := query(q.Match)
	addIDs(values, "network_id", q.Networks)
	addIDs(values, "security_groups", q.Groups)
	for _, id := range q.Subnets {
		values.Add("fixed_ips", "subnet_id="+string(id))
	}
	for _, addr := range q.Addresses {
		values.Add("fixed_ips", "ip_address="+addr.String())
	}
	for _, mac := range q.MACs {
		values.Add("mac_address", mac.String())
	}
	for name, texts := range map[string][]string{"device_id": q.Devices, "device_owner": q.DeviceOwners, "binding:host_id": q.Hosts} {
		if !slices.Contains(texts, "") { // Neutron takes no notice of empty ones
			for _, text := range texts {
				values.Add(name, text)
			}
		}
	}
	return values
}

// WaitPorts polls Neutron, which has nothing to watch: with growing pauses of up to a
// second, for all ports by as few requests as possible.
func (p *Provider) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) error {
	waiting := slices.Compact(slices.Sorted(slices.Values(ids)))
	poll := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		q := url.Values{"fields": {"id", "status"}}
		addIDs(q, "id", waiting)
		found := map[sdn.ID]sdn.PortStatus{}
		if len(waiting) > 0 {
			for w, err := range ports.find(ctx, p, q) {
				if err != nil {
					return err
				}
				found[sdn.ID(w.ID)] = w.Status
			}
		}
		var still []sdn.ID
		for _, id := range waiting {
			is, there := found[id]
			switch {
			case !there:
				p.cache.ports.drop(id)
				return sdn.NotFound("port", id)
			case is == status:
			case is == sdn.PortError:
				return sdn.Unavailable(nil, "port", "Neutron says that port %s is in error", id)
			default:
				still = append(still, id)
			}
		}
		if waiting = still; len(waiting) == 0 {
			return nil
		}
		if err := poll.Wait(ctx); err != nil {
			return fmt.Errorf("waiting for port %s to be %s: %w", waiting[0], status, err)
		}
	}
}

// UpdatePort changes a port. If Neutron cannot bind it to the requested host, the error
// IsInvalid, "host", and the port is unbound; it has its old device and name again, if
// this process knew them.
func (p *Provider) UpdatePort(ctx context.Context, id sdn.ID, change sdn.PortPatch) (sdn.Port, error) {
	if err := valid.Patch("port", change.Patch); err != nil {
		return sdn.Port{}, err
	}
	if err := checkPortPatch(change); err != nil {
		return sdn.Port{}, err
	}
	if change.Addresses != nil {
		port, known := p.cache.ports.get(id)
		if !known {
			var err error
			if port, err = p.Port(ctx, id); err != nil {
				return sdn.Port{}, err
			}
		}
		if err := p.checkAddresses(ctx, *change.Addresses); err != nil {
			return sdn.Port{}, err
		}
		if err := p.checkLeft(ctx, port, *change.Addresses); err != nil {
			return sdn.Port{}, err
		}
	}
	return p.changePort(ctx, id, change)
}

// checkLeft refuses to remove an address that a floating IP or a port forwarding leads
// to: Neutron would. It looks only if the port has a device: nothing answers behind a
// parked one, whose addresses are removed one by one while a container stops.
func (p *Provider) checkLeft(ctx context.Context, port sdn.Port, stay []sdn.Address) error {
	left := slices.DeleteFunc(slices.Clone(port.Addresses), func(a sdn.Address) bool {
		return slices.ContainsFunc(stay, func(b sdn.Address) bool { return a.Addr == b.Addr })
	})
	if len(left) == 0 || port.DeviceID == "" || !p.extensions.has("router") {
		return nil
	}
	leads := func(to sdn.Target, from string) error {
		if !slices.ContainsFunc(left, func(a sdn.Address) bool { return a.Addr == to.Addr }) {
			return nil
		}
		return sdn.Conflict(sdn.InUse, "port", "addresses", "%s leads to %v", from, to.Addr)
	}
	for f, err := range p.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Ports: []sdn.ID{port.ID}}) {
		if err == nil {
			err = leads(f.Target, "floating IP "+f.Address.String())
		}
		if err != nil {
			return err
		}
	}
	if !p.Capabilities().Forwards {
		return nil
	}
	for f, err := range p.FindForwards(ctx, sdn.ForwardQuery{Ports: []sdn.ID{port.ID}}) {
		if err == nil {
			err = leads(f.Target, "a port forwarding")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changePort is UpdatePort without its checks. Tags are written last.
func (p *Provider) changePort(ctx context.Context, id sdn.ID, change sdn.PortPatch) (sdn.Port, error) {
	was, known := p.cache.ports.get(id)
	port, err := p.atRevision(ctx, id, change.IfRevision, func(ifRevision int64) (*sdn.Port, error) {
		if known && was.Revision == ifRevision && onlyTakesTags(was, change) {
			return p.takeTags(ctx, was, *change.Tags)
		}
		base := change.Patch
		base.IfRevision, base.Tags = ifRevision, nil
		w, err := patch(ctx, p, ports, id, base, portBody(change))
		if err != nil {
			return nil, err
		}
		if change.Host != nil && *change.Host != "" && w.VIFType == vifBindingFailed {
			_, err := ports.update(ctx, p, id, 0, unbindBody(change, was, known))
			return nil, errors.Join(cannotBind(*change.Host), err)
		}
		if change.Tags != nil && !sameSet(w.Tags, *change.Tags) {
			if err := ports.setTags(ctx, p, w, *change.Tags); err != nil {
				return nil, err
			}
			w.Revision++ // Neutron counts a set of tags so; if it counts more, atRevision finds that
		}
		port, err := w.decode(p.owner)
		return &port, err
	})
	if err != nil {
		return sdn.Port{}, portError(err, change)
	}
	if change.Addresses != nil {
		port = asAsked(port, *change.Addresses)
	}
	return port, nil
}

// onlyTakesTags reports whether a change of another's port only removes tags.
func onlyTakesTags(was sdn.Port, change sdn.PortPatch) bool {
	return change.Tags != nil && was.Key.IsZero() && change.Key == nil && change.Name == nil && change.Description == nil && len(portBody(change)) == 0 &&
		len(without(*change.Tags, was.Tags)) == 0
}

// takeTags removes tags of another's port without reading it again: Neutron cannot make
// that conditional.
func (p *Provider) takeTags(ctx context.Context, was sdn.Port, left []string) (*sdn.Port, error) {
	w := &portWire{meta: meta{ID: string(was.ID), Tags: was.Tags}}
	if err := ports.setTags(ctx, p, w, left); err != nil {
		return nil, err
	}
	was.Tags = w.Tags
	was.Revision++ // as changePort has it
	return &was, nil
}

// cannotBind is the error of a port that came back with the VIF type "binding_failed".
func cannotBind(host string) error {
	return sdn.Invalid("port", "host", "Neutron cannot bind a port to %q: it knows no live agent or chassis of that name that serves the network", host)
}

// unbindBody returns the change that undoes one that could not bind.
func unbindBody(change sdn.PortPatch, was sdn.Port, known bool) map[string]any {
	back := sdn.PortPatch{Host: new(string)}
	if known {
		if change.DeviceID != nil {
			back.DeviceID = &was.DeviceID
		}
		if change.DeviceOwner != nil {
			back.DeviceOwner = &was.DeviceOwner
		}
	}
	body := portBody(back)
	if known && change.Name != nil {
		body["name"] = was.Name
	}
	return body
}

// atRevision changes a port if it is at ifRevision; 0 is any revision. change returns the
// port as it is then, nil if it is deleted. The cache keeps that.
//
// Neutron also counts the revision up when it binds a port, sees it plugged or has given
// it addresses, often only after it has answered. So if Neutron refuses the revision that
// this process was told last, atRevision reads the port. If nothing differs but what
// Neutron changes itself (samePort), it makes the change at the revision that the port
// has now.
func (p *Provider) atRevision(ctx context.Context, id sdn.ID, ifRevision int64, change func(ifRevision int64) (*sdn.Port, error)) (sdn.Port, error) {
	known, ok := p.cache.ports.get(id)
	ours := ok && ifRevision != 0 && known.Revision == ifRevision
	end := p.cache.ports.begin(id)
	for n := 1; ; n++ {
		port, err := change(ifRevision)
		if err == nil {
			end(port)
			if port == nil {
				return sdn.Port{}, nil
			}
			return *port, nil
		}
		if sdn.ReasonOf(err) == sdn.Stale && ours && n < maxRaces {
			w, errRead := ports.read(ctx, p, id)
			if errRead == nil && int64(w.Revision) != ifRevision {
				if now, errRead := w.decode(p.owner); errRead == nil && samePort(known, now) {
					ifRevision = now.Revision
					continue
				}
			}
		}
		end(nil)
		return sdn.Port{}, err
	}
}

// AddGroups changes the port at its revision, and again if another was faster. Neutron
// checks a revision before it reads the groups of a port, so of two hosts that change
// them at the same moment one may lose. Calls of this process follow each other.
func (p *Provider) AddGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return p.changeGroups(ctx, id, func(have []sdn.ID) []sdn.ID {
		return slices.Compact(slices.Sorted(slices.Values(slices.Concat(have, groups))))
	})
}

// RemoveGroups is the opposite of AddGroups.
func (p *Provider) RemoveGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return p.changeGroups(ctx, id, func(have []sdn.ID) []sdn.ID {
		return slices.DeleteFunc(slices.Clone(have), func(g sdn.ID) bool { return slices.Contains(groups, g) })
	})
}

func (p *Provider) changeGroups(ctx context.Context, id sdn.ID, want func(have []sdn.ID) []sdn.ID) error {
	unlock, err := p.locks.lock(ctx, "groups of "+string(id))
	if err != nil {
		return err
	}
	defer unlock()
	for n := 1; ; n++ {
		port, known := p.cache.ports.get(id)
		if !known {
			var err error
			if port, err = p.Port(ctx, id); err != nil {
				return err
			}
		}
		groups := want(port.Groups)
		if sameSet(groups, port.Groups) {
			return nil
		}
		_, err := p.changePort(ctx, id, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}, Groups: &groups})
		if sdn.ReasonOf(err) != sdn.Stale || n == maxRaces {
			return err
		}
	}
}

// DeletePorts deletes ports concurrently.
func (p *Provider) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	errs := make([]error, len(ids))
	atOnce(len(ids), portsAtOnce, func(i int) {
		if !slices.Contains(ids[:i], ids[i]) {
			errs[i] = p.DeletePort(ctx, ids[i], 0)
		}
	})
	return bulk(errs)
}

// DeletePort deletes a port, as atRevision says.
func (p *Provider) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	_, err := p.atRevision(ctx, id, ifRevision, func(ifRevision int64) (*sdn.Port, error) {
		return nil, ports.erase(ctx, p, id, ifRevision)
	})
	return err
}

// atOnce calls f for 0 to n-1, at most limit at a time, and returns when all have returned.
func atOnce(n, limit int, f func(i int)) {
	var group sync.WaitGroup
	turns := make(chan struct{}, limit)
	for i := range n {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			f(i)
		})
	}
	group.Wait()
}

// bulk returns the error of a call of which some items have failed, nil if none has.
func bulk(errs []error) error {
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return &sdn.BulkError{Errs: errs}
	}
	return nil
}
