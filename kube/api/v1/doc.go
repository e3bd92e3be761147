// Package v1 is the API group openstack.org/v1: what Kuryr keeps in Kubernetes of the ports, the pools of ports and the networks that it has in the SDN.
//
// It owns the types, their names, labels and finalizers, and the names by which objects are found without asking. A [KuryrPort] is one port of the SDN and has
// its id for a name; a [KuryrPortPool] says what ports a node is to have ready, and is the owner of them; a [KuryrNetwork] is a namespace's network. All three
// are cluster-scoped: none goes with a namespace before the SDN's object has gone. A [KuryrLoadBalancer] is a Service's load balancers, and is beside it in its namespace.
//
// Everything that Raven makes in the SDN is told here before it is made ([KuryrPortPoolStatus.Pending], the KuryrNetwork itself), so that after a kill at any
// point what was made is found by its sdn.Key, without listing the SDN.
//
// It holds no behaviour: no clients, no SDN, no kernel.
//
// +groupName=openstack.org
// +kubebuilder:object:generate=true
package v1
