// Package claim is the claimant of a node's ports: it gives the pods of one node the ports that Raven has made for that node, and tells Kubernetes of it afterwards.
//
// The ports of a node's pools belong to that node alone, so a claim needs nobody's leave: it is a record in a journal of this machine, and no call of the API server is in its
// path. What is known of ports, pods, pools, networks and namespaces comes by watch into an index in memory. Behind the answer a queue writes what the journal says to the KuryrPort (label
// and status) and to the pod (annotation), again and again until the API server has it; and what is missing there after a kill is found by comparing the two.
//
// The journal is the truth of who has which port on this boot of the machine; a reboot voids it together with the containers. The API is the truth of which ports there are. A port is
// never given to two: it is taken in memory before it is written down, and what is given back stays in the journal until the API server tells nobody of it any more.
//
// It owns the journal's folder, the label openstack.org/portStatus where that is bound or a port comes back, status.pod and status.portStatus of KuryrPorts, and the pods' annotation
// openstack.org/kuryr-vif. It must not make or delete ports or pools, knows no SDN, and plugs nothing.
package claim
