// Package claim allocates a node's ports: it gives the pods of one node the ports that Raven has
// created for that node, and writes that to Kubernetes afterwards.
//
// The ports of a node's pools belong to that node alone, so an allocation is a row of the node's
// table (agent.Server), and no call of the API server is in its path. Ports, pods, pools, networks
// and namespaces come by watch into an index in memory. After the answer a queue writes the row
// to the KuryrPort (label and status) and to the pod (annotation), until the API server has it.
// After a kill the two are compared. The queue is client-go's, which drops duplicates and does
// the tasks of one thing in turn.
//
// The table is the truth of which attachment has which port on this boot of the machine. A reboot
// discards it, together with the containers. The API is the truth of which ports there are. A
// port is never given to two attachments: it is taken in memory before the row is stored, and the
// row of what is given back stays until the API server tells of it no longer.
//
// The package owns the label openstack.org/portStatus where that is bound or a port comes back,
// status.pod and status.portStatus of KuryrPorts, and the pods' annotation
// openstack.org/kuryr-vif. It must not create or delete ports or pools, knows no SDN, and plugs
// nothing.
package claim
