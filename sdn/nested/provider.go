package nested

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
	"sync"

	"github.com/kuryr/kuryr/sdn"
)

// Mode is how ports are nested.
type Mode string

// The modes, named as the links they make.
const (
	Macvlan Mode = sdn.VIFMacvlan
	VLAN    Mode = sdn.VIFVLAN
)

// Config is what a Provider is made of. All but the MACs of this machine, which are asked for when they are needed, must be there.
type Config struct {
	Mode Mode
	Host string // the name by which callers bind ports to this machine
	// Uncached says that other hosts change the ports of this one, as a swarm's manager does: a port is asked for whenever it is looked for.
	Uncached bool
	// MACs are those of the interfaces that the machine's own port may be plugged as.
	MACs func() ([]net.HardwareAddr, error)
}

// Provider is the SDN as it is seen in a virtual machine. Methods that are not here are the SDN's.
type Provider struct {
	sdn.Provider
	mode Mode
	host string
	tag  string // of ports that are attached here, or are about to be
	macs func() ([]net.HardwareAddr, error)

	turn chan struct{} // held while the machine's own port is found or changed
	own  sdn.Port      // as the SDN said it last; without an ID it has not been found
	on   sdn.ID        // its trunk

	uncached bool
	mu       sync.Mutex
	ports    memory
}

// tagNested begins the tag that says which host a port is attached to.
const tagNested = "kuryr.nested:"

// maxHost is how much of a host's name fits in a tag of 60 bytes, which is what Neutron takes.
const maxHost = 60 - len(tagNested)

// New makes a Provider. It asks nothing of the SDN.
func New(p sdn.Provider, c Config) (*Provider, error) {
	if c.Mode != Macvlan && c.Mode != VLAN {
		return nil, fmt.Errorf("nested: the mode must be %q or %q, not %q", Macvlan, VLAN, c.Mode)
	}
	if c.Host == "" || c.MACs == nil {
		return nil, fmt.Errorf("nested: a host and MACs are needed")
	}
	return &Provider{Provider: p, mode: c.Mode, host: c.Host, tag: hostTag(c.Host), macs: c.MACs, turn: make(chan struct{}, 1), uncached: c.Uncached, ports: memory{}}, nil
}

// hostTag is the tag of a host's ports.
func hostTag(host string) string {
	if len(host) > maxHost {
		sum := sha256.Sum256([]byte(host))
		end := "-" + hex.EncodeToString(sum[:8])
		host = host[:maxHost-len(end)] + end
	}
	return tagNested + host
}

// Capabilities are the SDN's, where ports can be bound: to this machine.
func (p *Provider) Capabilities() sdn.Capabilities {
	c := p.Provider.Capabilities()
	c.HostBinding = true
	return c
}

// Ping is the SDN's. The error IsUnsupported where the SDN has no tags: what a killed process left attached would be anybody's guess.
func (p *Provider) Ping(ctx context.Context) error {
	if err := p.Provider.Ping(ctx); err != nil {
		return err
	}
	return p.needTags()
}

func (p *Provider) needTags() error {
	if !p.Provider.Capabilities().HasTags() {
		return untagged()
	}
	return nil
}

func untagged() error {
	return sdn.Unsupported("port", "nesting in a virtual machine (bind.nested) needs tags, which this SDN does not have (a Neutron has them with the extension standard-attr-tag)")
}

// Port is as the SDN says, and as it is attached.
func (p *Provider) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	port, err := p.Provider.Port(ctx, id)
	if err != nil {
		if sdn.IsNotFound(err) {
			p.forget(id)
		}
		return port, err
	}
	return (&view{p: p}).see(ctx, port)
}

// FindPorts streams the ports that match as they are attached: those of this host are found by it. The port of a device that this process attached is not
// asked for: who changes it because of that is told if it has gone, and finds out with the next search.
func (p *Provider) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		wide := q
		wide.Hosts, wide.DeviceOwners = nil, nil
		if len(q.Hosts) == 1 && q.Hosts[0] == p.host {
			wide.Tags = append(slices.Clone(q.Tags), p.tag)
		}
		v := &view{p: p}
		if h, ok := p.heldFor(q); ok && ctx.Err() == nil {
			if port, err := v.see(ctx, h.port); err == nil && q.Matches(port) {
				yield(port, nil)
				return
			}
		}
		absent := slices.Clone(q.IDs)
		for port, err := range p.Provider.FindPorts(ctx, wide) {
			absent = slices.DeleteFunc(absent, func(id sdn.ID) bool { return id == port.ID })
			if err == nil {
				port, err = v.see(ctx, port)
			}
			if err != nil {
				yield(sdn.Port{}, err)
				return
			}
			if q.Matches(port) && !yield(port, nil) {
				return
			}
		}
		p.forget(absent...)
	}
}

// WaitPorts does not wait for what never comes: nobody plugs a port that is nested by macvlan.
func (p *Provider) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) error {
	if p.mode == Macvlan && status == sdn.PortActive {
		return nil
	}
	return p.Provider.WaitPorts(ctx, ids, status)
}

// here tells whether a port, as the SDN says it, is attached here or may be.
func (p *Provider) here(port sdn.Port) bool {
	h, known := p.holds(port.ID)
	return slices.Contains(port.Tags, p.tag) && (!known || !h.off)
}

func (p *Provider) withoutTag(tags []string) []string {
	return slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return t == p.tag })
}

// view is ports as they are attached, with what is read once for all of them.
type view struct {
	p     *Provider
	vlans map[sdn.ID]int // by subport; nil: not yet read
}

// see makes of a port that is attached here or elsewhere what it would be were it bound there.
func (v *view) see(ctx context.Context, port sdn.Port) (sdn.Port, error) {
	port.VIF.Hidden = nil // of a binding that is not used
	at := slices.IndexFunc(port.Tags, func(t string) bool { return strings.HasPrefix(t, tagNested) })
	if at < 0 {
		return port, nil
	}
	if !slices.Contains(port.Tags, v.p.tag) {
		port.Host = strings.TrimPrefix(port.Tags[at], tagNested)
		return port, nil
	}
	v.p.takeUp(port)
	h, known := v.p.holds(port.ID)
	if known && h.off {
		port.Tags = v.p.withoutTag(port.Tags)
		return port, nil
	}
	if v.p.mode == VLAN && h.vlan == 0 {
		if err := v.readVLANs(ctx); err != nil {
			return sdn.Port{}, err
		}
		h.vlan = v.vlans[port.ID]
	}
	return v.p.attached(ctx, port, h.vlan)
}

func (v *view) readVLANs(ctx context.Context) error {
	if v.vlans != nil {
		return nil
	}
	v.vlans = map[sdn.ID]int{}
	trunk, err := v.p.trunk(ctx)
	if err != nil {
		return ignoreAbsent(err)
	}
	t, err := v.p.Trunk(ctx, trunk)
	if err != nil {
		return ignoreAbsent(err)
	}
	for _, s := range t.Subports {
		v.vlans[s.Port] = s.VLAN
	}
	return nil
}

// attached is a port of this host as it looks when it is attached with the VLAN.
func (p *Provider) attached(ctx context.Context, port sdn.Port, vlan int) (sdn.Port, error) {
	own, err := p.machine(ctx)
	if err != nil && !sdn.IsNotFound(err) {
		return sdn.Port{}, err
	}
	port.Host = p.host
	port.VIF = sdn.VIF{Type: string(p.mode), Details: map[string]string{sdn.DetailParentMAC: own.MAC.String()}}
	if p.mode == VLAN {
		port.DeviceOwner = sdn.OwnerContainer // Neutron writes over it as long as the port is in a trunk
		if vlan != 0 {
			port.VIF.Details[sdn.DetailVLAN] = strconv.Itoa(vlan)
		}
	}
	return port, nil
}

func ignoreAbsent(err error) error {
	if sdn.IsNotFound(err) {
		return nil
	}
	return err
}
