package nested

import (
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// held is what this process did last to a port that has the tag.
type held struct {
	port sdn.Port // as the SDN said it then, or later
	vlan int
	off  bool // it has been taken off, and the tag is still there
}

// A memory is the ports that this process attached, so that a container's stop asks for nothing that its start was told. A port stays in it while the
// container runs: what the SDN says of it meanwhile is taken up where it is read, and a change that fails forgets it. After a restart there is none, and the
// SDN is asked.
type memory map[sdn.ID]held

// holds is what is remembered of a port.
func (p *Provider) holds(id sdn.ID) (held, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.ports[id]
	return h, ok
}

func (p *Provider) hold(h held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports[h.port.ID] = h
}

func (p *Provider) forget(ids ...sdn.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		delete(p.ports, id)
	}
}

// takeUp takes up what the SDN says of a port that may be held, unless it was said before what is known.
func (p *Provider) takeUp(port sdn.Port) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.ports[port.ID]
	switch {
	case !ok || port.Revision < h.port.Revision:
	case !slices.Contains(port.Tags, p.tag):
		delete(p.ports, port.ID)
	default:
		h.port = port
		p.ports[port.ID] = h
	}
}

// heldFor answers a search for the port of one device, if it is attached by this process and no other is known to have the device.
func (p *Provider) heldFor(q sdn.PortQuery) (held, bool) {
	if p.uncached || len(q.Devices) != 1 || q.Devices[0] == "" {
		return held{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []held
	for _, h := range p.ports {
		if !h.off && h.port.DeviceID == q.Devices[0] {
			found = append(found, h)
		}
	}
	if len(found) != 1 {
		return held{}, false
	}
	return found[0], true
}
