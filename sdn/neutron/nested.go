package neutron

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Nested is the SDN as seen in a virtual machine whose own port is of the same SDN. If a caller
// binds a port to this machine, the port is attached to the machine's own port instead, and
// Neutron binds nothing. So a front end works in a virtual machine as it does on bare metal,
// without the right to bind ports. Methods that Nested does not have are the SDN's.
//
// In mode NestedMacvlan a container's interface is on the machine's own, so its port must be on
// the same network. The machine's port lets its traffic pass by a pair of its address and MAC
// among the AllowedPairs. The container's port is never plugged and never ACTIVE, and the
// machine's security groups apply. Ports that Nested creates have VNICBaremetal, also before they
// are bound. In mode NestedVLAN a container's port becomes a subport of the trunk of the machine's
// port. It may be on any network, and has security groups of its own.
//
// An attached port looks as a bound one does: it has this host, and a VIF of the mode's type. A
// tag names the host. It is written before the port is attached and stays while the port may be
// attached, so a process can see and undo what a killed one has left. It may stay longer: if a
// caller unbinds a port and does not write its tags, the tag stays, as the port is mostly deleted
// next. This process shows the port as unbound then; another takes it for one that may be attached.
// In a trunk a port gets its device last, as Neutron attaches no port that has one.
//
// The cache has the ports that this process attached, with their VLANs, and Nested keeps the
// machine's own port as read last: a container's start and stop cost few requests. Changes are made
// at the revision of what they rest on, or are right whatever the port is. A process that knows
// nothing asks the SDN. AllowedPairs are changed at their port's revision, as other programs change
// them too.
//
// It wraps the contract and not a Provider: the metrics of calls lie between.
type Nested struct {
	sdn.Provider
	mode NestedMode
	host string
	tag  string // of ports that are attached here, or are about to be
	macs func() ([]net.HardwareAddr, error)

	locks    locks        // of the machine's own port
	own      sdn.Port     // as the SDN answered last; without an ID it was not searched for
	ownTrunk sdn.ID       // trunk of own; "" was not searched for
	ports    *cache[held] // attached by this process
	changes  bool         // other hosts change the ports of this one
}

// NestedMode is how ports are nested.
type NestedMode string

// The modes have the names of the links that they make.
const (
	NestedMacvlan NestedMode = sdn.VIFMacvlan
	NestedVLAN    NestedMode = sdn.VIFVLAN
)

// NestedConfig is the configuration of a Nested. All fields but Uncached are mandatory.
type NestedConfig struct {
	Mode NestedMode
	Host string // the name by which callers bind ports to this machine
	// Uncached says that other hosts change the ports of this one, as a swarm's manager does: each
	// search asks for the port.
	Uncached bool
	// MACs returns those of the interfaces that the machine's own port may be plugged as.
	MACs func() ([]net.HardwareAddr, error)
}

// held is a port that this process attached, or detached while the tag stays.
type held struct {
	port sdn.Port // as the SDN answered then, or later
	vlan int
	off  bool // it is detached, and the tag is still there
}

// tagNested begins the tag that names the host that a port is attached to.
const tagNested = "kuryr.nested:"

// NewNested returns a Nested on p. It asks nothing of the SDN.
func NewNested(p sdn.Provider, c NestedConfig) (*Nested, error) {
	if c.Mode != NestedMacvlan && c.Mode != NestedVLAN {
		return nil, fmt.Errorf("nested: the mode must be %q or %q, not %q",
			NestedMacvlan, NestedVLAN, c.Mode)
	}
	if c.Host == "" || c.MACs == nil {
		return nil, fmt.Errorf("nested: a host and MACs are needed")
	}
	attached := newCache(time.Now, ageless, maxObjects, func(h held) about {
		return about{id: h.port.ID, revision: h.port.Revision}
	})
	attached.clone = func(h held) held { h.port = clonePort(h.port); return h }
	return &Nested{
		Provider: p, mode: c.Mode, host: c.Host, tag: hostTag(c.Host), macs: c.MACs,
		ports: attached, changes: c.Uncached,
	}, nil
}

// hostTag returns the tag of a host's ports. It has at most the 60 characters that every Neutron
// takes.
func hostTag(host string) string {
	if most := maxTagLen - len(tagNested); len(host) > most {
		sum := sha256.Sum256([]byte(host))
		end := "-" + hex.EncodeToString(sum[:8])
		host = host[:most-len(end)] + end
	}
	return tagNested + host
}

// Capabilities returns the SDN's, with ports that can be bound to this machine.
func (p *Nested) Capabilities() sdn.Capabilities {
	c := p.Provider.Capabilities()
	c.HostBinding = true
	return c
}

// Ping is the SDN's. The error IsUnsupported without tags: the owner of what a killed process left
// attached would be unknown.
func (p *Nested) Ping(ctx context.Context) error {
	if err := p.Provider.Ping(ctx); err != nil {
		return err
	}
	return p.needTags()
}

func (p *Nested) needTags() error {
	if !p.Provider.Capabilities().HasTags() {
		return untagged()
	}
	return nil
}

func untagged() error {
	return sdn.Unsupported("port", "nesting in a virtual machine (bind.nested) needs tags, "+
		"which this SDN does not have (a Neutron has them with the extension standard-attr-tag)")
}

// Port asks the SDN for a port.
func (p *Nested) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	port, err := p.Provider.Port(ctx, id)
	if sdn.IsNotFound(err) {
		p.ports.drop(id)
	}
	if err != nil {
		return port, err
	}
	return p.view(ctx, port)
}

// FindPorts streams the ports that match as they are attached. The port of a device that this
// process attached comes from the cache: a caller that changes it learns if it is gone, and the next
// search finds that.
func (p *Nested) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		wide := q
		wide.Hosts, wide.DeviceOwners = nil, nil
		if len(q.Hosts) == 1 && q.Hosts[0] == p.host {
			wide.Tags = append(slices.Clone(q.Tags), p.tag)
		}
		v := &nestedView{p: p}
		if h, ok := p.ofDevice(q); ok && ctx.Err() == nil {
			if port, err := v.of(ctx, h.port); err == nil && q.Matches(port) {
				yield(port, nil)
				return
			}
		}
		absent := slices.Clone(q.IDs)
		for port, err := range p.Provider.FindPorts(ctx, wide) {
			absent = slices.DeleteFunc(absent, func(id sdn.ID) bool { return id == port.ID })
			if err == nil {
				port, err = v.of(ctx, port)
			}
			if err != nil {
				yield(sdn.Port{}, err)
				return
			}
			if q.Matches(port) && !yield(port, nil) {
				return
			}
		}
		p.ports.drop(absent...)
	}
}

// ofDevice answers a search for the port of one device from the cache, if one port there has it.
func (p *Nested) ofDevice(q sdn.PortQuery) (h held, ok bool) {
	if p.changes || len(q.Devices) != 1 || q.Devices[0] == "" {
		return held{}, false
	}
	ids := p.ports.where(func(h held) bool { return !h.off && h.port.DeviceID == q.Devices[0] })
	if len(ids) != 1 {
		return held{}, false
	}
	return p.ports.get(ids[0])
}

// WaitPorts does not wait for nested ports of macvlan to be ACTIVE: no agent plugs them.
func (p *Nested) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) error {
	if p.mode == NestedMacvlan && status == sdn.PortActive {
		return nil
	}
	return p.Provider.WaitPorts(ctx, ids, status)
}

// isHere reports whether a port, as the SDN has it, may be attached here.
func (p *Nested) isHere(port sdn.Port) bool {
	h, known := p.ports.get(port.ID)
	return slices.Contains(port.Tags, p.tag) && (!known || !h.off)
}

func (p *Nested) withoutTag(tags []string) []string { return without(tags, []string{p.tag}) }

// hold keeps what this process did last to a port with the tag.
func (p *Nested) hold(h held) {
	p.ports.amend(h.port.ID, func(held, bool) (held, bool) { return h, true })
}

// nestedView shows ports as they are attached. It reads the trunk at most once.
type nestedView struct {
	p     *Nested
	vlans map[sdn.ID]int // by subport; nil: not yet read
}

// view shows one port as it is attached.
func (p *Nested) view(ctx context.Context, port sdn.Port) (sdn.Port, error) {
	return (&nestedView{p: p}).of(ctx, port)
}

// of returns a port that is attached here or elsewhere as if it were bound there. A port of the
// cache becomes what was read, unless that is older.
func (v *nestedView) of(ctx context.Context, port sdn.Port) (sdn.Port, error) {
	port.VIF.Hidden = nil // of a binding that is not used
	at := slices.IndexFunc(port.Tags, func(t string) bool { return strings.HasPrefix(t, tagNested) })
	if at < 0 {
		return port, nil
	}
	if !slices.Contains(port.Tags, v.p.tag) {
		port.Host = strings.TrimPrefix(port.Tags[at], tagNested)
		return port, nil
	}
	h := v.p.ports.amend(port.ID, func(h held, ok bool) (held, bool) {
		if ok = ok && port.Revision >= h.port.Revision; ok {
			h.port = port
		}
		return h, ok
	})
	if h.off {
		port.Tags = v.p.withoutTag(port.Tags)
		return port, nil
	}
	if v.p.mode == NestedVLAN && h.vlan == 0 {
		if err := v.readVLANs(ctx); err != nil {
			return sdn.Port{}, err
		}
		h.vlan = v.vlans[port.ID]
	}
	return v.p.attached(ctx, port, h.vlan)
}

func (v *nestedView) readVLANs(ctx context.Context) error {
	if v.vlans != nil {
		return nil
	}
	v.vlans = map[sdn.ID]int{}
	id, err := v.p.trunk(ctx)
	if err != nil {
		return ignoreAbsent(err)
	}
	t, err := v.p.Trunk(ctx, id)
	if err != nil {
		return ignoreAbsent(err)
	}
	for _, s := range t.Subports {
		v.vlans[s.Port] = s.VLAN
	}
	return nil
}

// attached returns a port of this host as it looks when it is attached with the VLAN.
func (p *Nested) attached(ctx context.Context, port sdn.Port, vlan int) (sdn.Port, error) {
	own, err := p.machine(ctx, false)
	if err != nil && !sdn.IsNotFound(err) {
		return sdn.Port{}, err
	}
	port.Host = p.host
	port.VIF = sdn.VIF{Type: string(p.mode), Details: map[string]string{
		sdn.DetailParentMAC: own.MAC.String(),
	}}
	if p.mode == NestedVLAN {
		port.DeviceOwner = sdn.OwnerContainer // Neutron overwrites it while the port is in a trunk
		if vlan != 0 {
			port.VIF.Details[sdn.DetailVLAN] = strconv.Itoa(vlan)
		}
	}
	return port, nil
}
