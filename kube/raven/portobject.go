package raven

import (
	"fmt"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/node"
	"github.com/kuryr/kuryr/sdn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tagged marks what Raven makes for who looks at the SDN by other means.
var tagged = []string{"kuryr-kubernetes"}

// portSpec is what the SDN is asked for, for the pool or, with a wish, for one pod.
func (w *poolWork) portSpec(key string, wish wished) sdn.PortSpec {
	s := w.pool.Spec
	can := w.SDN.Capabilities()
	spec := sdn.PortSpec{
		Base:    w.Base(v1.KeyKindPort, key, "kuryr-pool/"+w.name, s.ProjectID),
		Network: sdn.ID(s.Network), MAC: wish.mac, DeviceID: w.name, DeviceOwner: sdn.OwnerContainer,
	}
	if can.HasTags() {
		spec.Tags = tagged
	}
	if can.HostBinding {
		spec.Host = s.Node
	}
	if s.Trunk != "" {
		w.inTrunk(&spec)
	}
	switch {
	case wish.pod != "":
		spec.Name = wish.name
	case s.ForNode:
		spec.Name = "kuryr-node/" + s.Node
	}
	spec.Addresses = wish.addresses
	if spec.Addresses == nil {
		for _, id := range s.Subnets {
			spec.Addresses = append(spec.Addresses, sdn.Address{Subnet: sdn.ID(id)})
		}
	}
	groups := s.SecurityGroups
	if len(wish.groups) > 0 {
		groups = w.ground.WithNodes(wish.groups)
	}
	for _, g := range groups {
		spec.Groups = append(spec.Groups, sdn.ID(g))
	}
	spec.WithoutGroups = len(groups) == 0 && can.SecurityGroups
	return spec
}

// object is the KuryrPort of a port.
func (w *poolWork) object(p sdn.Port, subnets map[sdn.ID]sdn.Subnet, wish wished) *v1.KuryrPort {
	o := &v1.KuryrPort{
		ObjectMeta: metav1.ObjectMeta{
			Name: string(p.ID), Finalizers: []string{v1.Finalizer}, OwnerReferences: []metav1.OwnerReference{owner(w.pool)},
			Labels: map[string]string{
				v1.LabelNode: v1.NodeLabel(w.pool.Spec.Node), v1.LabelPool: w.name, v1.LabelPortStatus: string(v1.PortCreated),
			},
		},
		Spec: v1.KuryrPortSpec{
			ID: string(p.ID), Active: true, Address: p.MAC.String(), Node: w.pool.Spec.Node, Pool: w.name, Dedicated: wish.pod,
			ProjectID: w.pool.Spec.ProjectID, VIF: v1.PortVIF{Type: p.VIF.Type, Details: p.VIF.Details, VNICType: string(p.VNICType)},
			Network: v1.PortNetwork{ID: string(p.Network), Name: w.pool.Spec.NetworkName, MTU: w.mtu, Subnets: portSubnets(p, subnets)},
		},
	}
	o.Spec.SecurityGroups = groupsOf(p)
	if o.Spec.ForNode = w.pool.Spec.ForNode; o.Spec.ForNode {
		o.Labels[v1.LabelForNode] = "true"
		o.Spec.Network.Subnets = node.WithRoutes(o.Spec.Network.Subnets, w.paths)
	}
	if wish.floating != "" {
		o.Annotations = map[string]string{v1.AnnotationFloatingIP: wish.floating}
	}
	return o
}

// groupsOf are the ids of a port's security groups.
func groupsOf(p sdn.Port) (ids []string) {
	for _, g := range p.Groups {
		ids = append(ids, string(g))
	}
	return ids
}

// unpluggable tells why a node cannot plug the port; nil where it can.
func unpluggable(p sdn.Port, host string) error {
	if host == "" || p.VIF.Type != sdn.VIFUnbound && p.VIF.Type != sdn.VIFBindingFailed && len(p.VIF.Hidden) == 0 {
		return nil
	}
	return &sdn.Error{Kind: sdn.KindUnavailable, Noun: "port", ID: string(p.ID), Field: "host", Detail: fmt.Sprintf("the SDN does not serve the host %s, or does not tell how (%s)", host, p.VIF.Type)}
}

// portSubnets are the subnets that a port has addresses on, in the order of its addresses.
func portSubnets(p sdn.Port, subnets map[sdn.ID]sdn.Subnet) []v1.PortSubnet {
	all := []v1.PortSubnet{}
	for _, a := range p.Addresses {
		if !a.Addr.IsValid() {
			continue
		}
		at := slices.IndexFunc(all, func(s v1.PortSubnet) bool { return s.ID == string(a.Subnet) })
		if at < 0 {
			at = len(all)
			all = append(all, portSubnet(subnets[a.Subnet], a.Subnet))
		}
		all[at].IPs = append(all[at].IPs, a.Addr.String())
	}
	return all
}

func portSubnet(s sdn.Subnet, id sdn.ID) v1.PortSubnet {
	out := v1.PortSubnet{ID: string(id)}
	if s.CIDR.IsValid() {
		out.CIDR = s.CIDR.String()
	}
	if s.Gateway.IsValid() {
		out.Gateway = s.Gateway.String()
	}
	for _, d := range s.Nameservers {
		out.DNS = append(out.DNS, d.String())
	}
	for _, route := range s.HostRoutes {
		out.Routes = append(out.Routes, v1.PortRoute{Destination: route.Destination.String(), NextHop: route.NextHop.String()})
	}
	return out
}
