package claim

import (
	"net/netip"

	"github.com/kuryr/kuryr/datapath/hostport"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/sdn"
)

// HostPorts leads ports of the node to addresses, as a hostport.Table does.
type HostPorts interface {
	Restore(owners map[string][]hostport.Mapping) error
	Set(owner string, list []hostport.Mapping) error
}

// publish leads the ports of the node that an attachment asks for to it, and no others. They belong
// to the port, which a pod's next sandbox may get.
func (c *Allocator) publish(i agent.Intent) error {
	if c.HostPorts == nil {
		if len(i.Want.Published) > 0 {
			return sdn.Unsupported("attachment", "runtimeConfig.portMappings: this node does not lead ports of its own to pods")
		}
		return nil
	}
	port := i.Port.Wiring.Port
	list, err := mappings(i.Want.Published, port.Addresses)
	if err != nil {
		return err
	}
	return c.HostPorts.Set(string(port.ID), list)
}

// unpublish removes the ports of the node that lead to a port.
func (c *Allocator) unpublish(port string) error {
	if c.HostPorts == nil {
		return nil
	}
	return c.HostPorts.Set(port, nil)
}

// republish makes the node lead its ports as the rows say. A failure does not keep pods from getting
// ports.
func (c *Allocator) republish() {
	if c.HostPorts == nil {
		return
	}
	owners := map[string][]hostport.Mapping{}
	for id, a := range c.index.holders {
		if a.leaving {
			continue
		}
		list, err := mappings(a.Want.Published, a.Port.Wiring.Port.Addresses)
		if err != nil {
			c.Log.Error("published ports of a pod not restored", "pod", a.podName().String(), "err", err)
		} else if len(list) > 0 {
			owners[id] = list
		}
	}
	if err := c.HostPorts.Restore(owners); err != nil {
		c.Log.Error("published ports not restored", "err", err)
	}
}

// mappings returns those for the first address of each family. A mapping at one address of the node is
// of that address' family.
func mappings(published []agent.Published, addresses []sdn.Address) ([]hostport.Mapping, error) {
	var all []hostport.Mapping
	for _, p := range published {
		done := map[bool]bool{}
		for _, at := range addresses {
			four := at.Addr.Is4()
			if done[four] || p.HostIP.IsValid() && p.HostIP.Is4() != four {
				continue
			}
			done[four] = true
			all = append(all, hostport.Mapping{
				Host: p.HostIP, Protocol: p.Protocol, Port: p.HostPort, To: netip.AddrPortFrom(at.Addr, p.Port),
			})
		}
		if len(done) == 0 {
			return nil, sdn.Invalid("attachment", "runtimeConfig.portMappings",
				"the pod has no address of the family of %s", p.HostIP)
		}
	}
	return all, nil
}
