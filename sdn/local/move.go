package local

import "github.com/kuryr/kuryr/datapath/router"

// A network that moves between domains is fetched, ports and all, by the one that it comes to. So the one it leaves must not lose
// it before, however often either fails, and what had not got through of its ports must go along.

// makeBeforeBreak orders the changes of one ticket so that a network that moves is fetched by the domain it comes to before the one it
// leaves knows it no more: a network's own domain, which is new or gone, comes before routers or after them.
func makeBeforeBreak(a, b *change) int { return rank(a) - rank(b) }

func rank(c *change) int {
	switch {
	case c.gone:
		return 2
	case c.shape != nil && len(c.shape.Bridges) == 1 && c.shape.Bridges[0].Network == c.domain:
		return 0
	}
	return 1
}

// waitFor remembers the changes before c in its ticket that it must not overtake: those of a shape.
func (c *change) waitFor(before []*change) {
	for _, other := range before {
		if other.reshapes() {
			if c.behind == nil {
				c.behind = map[string]bool{}
			}
			c.behind[other.domain] = true
		}
	}
}

// followNetworks gives what is still to be done for ports to the domain that their network is in by now.
func followNetworks(list []*change) {
	for _, from := range list {
		if !from.reshapes() {
			continue
		}
		for id, e := range from.ports {
			of := network(e)
			if from.has(of) {
				continue
			}
			for _, to := range list {
				if to == from || !to.has(of) {
					continue
				}
				if to.ports == nil {
					to.ports = map[string]*edit[router.Port]{}
				}
				to.ports[id] = e.thenEdit(to.ports[id])
				to.define(from)
				delete(from.ports, id)
				break
			}
		}
	}
}

// network is the one that a port's edit is about; it never changes.
func network(e *edit[router.Port]) string {
	if e.add != nil {
		return e.add.Network
	}
	for _, p := range e.remove {
		return p.Network
	}
	return ""
}
