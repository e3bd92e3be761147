package claim

import (
	"net/netip"

	"github.com/kuryr/kuryr/datapath/hostport"
	"github.com/kuryr/kuryr/kube/node"
	"github.com/kuryr/kuryr/sdn"
)

// HostPorts leads ports of the node to addresses, as a hostport.Table does.
type HostPorts interface {
	Restore(owners map[string][]hostport.Mapping) error
	Set(owner string, list []hostport.Mapping) error
}

// publish leads to an attachment the ports of the node that its pod wishes, and no others. They belong to the port, which a pod's next sandbox may have.
func (c *Claimant) publish(a *attachment) error {
	if c.HostPorts == nil {
		if len(a.Attachment.Want.Published) > 0 {
			return sdn.Unsupported("attachment", "runtimeConfig.portMappings: this node does not lead ports of its own to pods")
		}
		return nil
	}
	list, err := mappings(a.Attachment.Want.Published, a.wiring.Port.Addresses)
	if err != nil {
		return err
	}
	return c.HostPorts.Set(a.Port, list)
}

// unpublish takes an attachment's ports of the node away.
func (c *Claimant) unpublish(a *attachment) error {
	if c.HostPorts == nil {
		return nil
	}
	return c.HostPorts.Set(a.Port, nil)
}

// republish makes the node lead its ports as the rows say. What cannot be is no reason to give no pod a port.
func (c *Claimant) republish() {
	if c.HostPorts == nil {
		return
	}
	owners := map[string][]hostport.Mapping{}
	for id, a := range c.index.holders {
		if a.leaving {
			continue
		}
		list, err := mappings(a.Attachment.Want.Published, a.wiring.Port.Addresses)
		if err != nil {
			c.Log.Error("ports of the node that a pod has are not led to it", "pod", podName(a), "error", err)
		} else if len(list) > 0 {
			owners[id] = list
		}
	}
	if err := c.HostPorts.Restore(owners); err != nil {
		c.Log.Error("ports of the node are not led to pods as they were", "error", err)
	}
}

// mappings are those for the first address of each family. A mapping at one address of the node is of that one's family.
func mappings(published []node.Published, addresses []sdn.Address) ([]hostport.Mapping, error) {
	var all []hostport.Mapping
	for _, p := range published {
		done := map[bool]bool{}
		for _, at := range addresses {
			four := at.Addr.Is4()
			if done[four] || p.HostIP.IsValid() && p.HostIP.Is4() != four {
				continue
			}
			done[four] = true
			all = append(all, hostport.Mapping{Host: p.HostIP, Protocol: p.Protocol, Port: p.HostPort, To: netip.AddrPortFrom(at.Addr, p.Port)})
		}
		if len(done) == 0 {
			return nil, sdn.Invalid("attachment", "runtimeConfig.portMappings", "the pod has no address of the family of %s", p.HostIP)
		}
	}
	return all, nil
}
