// Package uplink plugs the node's own port of the SDN into the host, so that the node (its kubelet's probes, pods of the host's network) reaches pods wherever they run.
//
// It is for SDNs whose routers are not on the nodes, such as Neutron: there a node is on the pods' network only by a port. Raven makes the port and labels it
// openstack.org/uplink; the package plugs it as the link kuryr0, and keeps on that link a route to each subnet that the port's router leads to.
//
// It owns that link, the routes on it, and a folder of records of what it has plugged, which a reboot voids together with the links. What is plugged stays when the daemon ends. It writes
// nothing to the API server, and must not choose which port it is.
package uplink
