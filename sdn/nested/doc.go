// Package nested makes an SDN's ports reachable from inside a virtual machine whose own port is of the same SDN. It is a Provider in front of another:
// where a caller binds a port to this host, which is that machine, the port is attached to the machine's own port instead, and nothing is bound. So a
// front end works in a virtual machine as it does on bare metal, and needs no right to bind ports.
//
// There are two modes. With Macvlan the container's interface is on the machine's own, so its port must be on the same network, and
// what it sends is let pass by a pair of its address and MAC among the AllowedPairs of the machine's port; its own port is never plugged, never ACTIVE, and
// the machine's security groups are its; what this package makes is of VNICBaremetal, also before it is bound. With VLAN its port becomes a subport of the trunk that the machine's port has, on whatever network, with
// security groups of its own.
//
// What a port that is attached here looks like is what one that is bound here does: it has this host, and a VIF of the mode's type with what a
// binding must know. A port's tag tells that it is a host's, and is there before the port is attached and for as long as it may be: so a process that was killed leaves
// nothing that the next cannot see and undo. It may be there longer: to unbind a port takes the tag off only if its tags are written anyway, since a port that is
// unbound mostly goes next; until then this process shows it as it is, and another takes it for one of this host that may be attached. In a trunk a port has its device
// last: Neutron attaches none that has one.
//
// A process remembers the ports that it attached, with their VLANs, and the machine's own port as it was last: a container's start and stop cost as few calls as can be. Nothing rests
// on that: what is changed is changed at its revision, or is right whatever has become of it, and a process that remembers nothing asks the SDN.
//
// The machine's own port is found by the MACs of the machine, once; its AllowedPairs are changed at their revision, since other machines' and
// other programs' changes must not be lost. The package knows no SDN and touches no kernel.
package nested
