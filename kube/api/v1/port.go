package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PortStatus is where a port is in its life.
//
// +kubebuilder:validation:Enum=created;available;bound;deleting
type PortStatus string

// The life of a port. Raven creates it as created, then makes it available. The claimant, which is
// the node's daemon, writes bound, and when the pod has gone available, or deleting if the port is
// dedicated or the object is being deleted (has a deletionTimestamp). On a node without a daemon
// Raven does that, and creates a port for a waiting pod as bound.
//
// To be rid of a port, delete the object, which its finalizer keeps. The claimant then never claims
// it, and labels it deleting: immediately if no pod has it, otherwise when the pod has gone. Only
// then Raven deletes the port in the SDN and removes the finalizer. So no port is deleted under a
// pod whose claim is not yet written here. For nodes that are gone Raven labels the ports itself.
const (
	PortCreated   PortStatus = "created"   // in the SDN, not yet to be used
	PortAvailable PortStatus = "available" // its node may claim it
	PortBound     PortStatus = "bound"     // a pod's
	PortDeleting  PortStatus = "deleting"  // on its way out of the SDN; no pod has it, nor will
)

// KuryrPort is one port of the SDN, whatever SDN that is. Its name is the port's id there.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=kp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.portStatus`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.network.subnets[0].ips[0]`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.status.pod.namespace`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.pod.name`
// +kubebuilder:printcolumn:name="Second address",type=string,JSONPath=`.spec.network.subnets[1].ips[0]`,priority=1
// +kubebuilder:printcolumn:name="MAC",type=string,JSONPath=`.spec.address`,priority=1
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.id",message="the object has the port's id for a name"
type KuryrPort struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KuryrPortSpec `json:"spec"`
	// +kubebuilder:default={}
	Status KuryrPortStatus `json:"status,omitempty"`
}

// KuryrPortSpec is all that a node needs in order to plug the port. Raven alone writes it.
//
// +kubebuilder:validation:XValidation:rule="has(self.dedicated) == has(oldSelf.dedicated) && (!has(self.dedicated) || self.dedicated == oldSelf.dedicated)",message="a port stays one pod's, or its pool's"
type KuryrPortSpec struct {
	// ID is the port's in the SDN.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a port keeps its id"
	ID string `json:"id"`
	// Active says that the SDN passes the port's traffic, or will as soon as it is plugged.
	Active bool `json:"active"`
	// Address is the MAC, such as fa:16:3e:bf:84:ff.
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{2}:){5}[0-9a-f]{2}$`
	Address string `json:"address"`
	// Network is the port's, with the port's own addresses in its subnets.
	Network PortNetwork `json:"network"`
	// Node is the host that the port is bound to; only its daemon may claim it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a port keeps its node"
	Node string `json:"node"`
	// Pool is the KuryrPortPool that made it and that it goes back to.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a port keeps its pool"
	Pool string `json:"pool"`
	// Dedicated says that it was made for one pod (a fixed address, a MAC), whose UID this is; it never goes back to a pool.
	// +optional
	Dedicated types.UID `json:"dedicated,omitempty"`
	// ForNode says that it is the node's own, which its daemon plugs into the node's own network namespace. No pod ever has it.
	// +optional
	ForNode bool `json:"forNode,omitempty"`
	// ProjectID is the project that has it, empty where the SDN has none.
	// +optional
	ProjectID string `json:"projectID,omitempty"`
	// SecurityGroups are their ids.
	// +optional
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// VIF says how it is plugged.
	VIF PortVIF `json:"vif"`
}

// PortNetwork is a network as one of its ports sees it.
type PortNetwork struct {
	ID string `json:"id"`
	// +optional
	Name string `json:"name,omitempty"`
	// MTU in bytes; 0 is the kernel's default.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU int `json:"mtu"`
	// Subnets are those that the port has addresses on.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=id
	Subnets []PortSubnet `json:"subnets"`
}

// PortSubnet is a subnet with the port's addresses on it.
type PortSubnet struct {
	ID string `json:"id"`
	// CIDR is the subnet's, such as 10.11.9.0/24.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be a range such as 10.11.9.0/24"
	CIDR string `json:"cidr"`
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// IPs are the port's addresses, without a length.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(ip, isIP(ip))",message="must be addresses without a length"
	IPs []string `json:"ips"`
	// +optional
	DNS []string `json:"dns,omitempty"`
	// +optional
	Routes []PortRoute `json:"routes,omitempty"`
}

// PortRoute is a route that every port of a subnet has.
type PortRoute struct {
	Destination string `json:"destination"`
	// NextHop is 0.0.0.0 or :: for what is on the link.
	NextHop string `json:"nextHop"`
}

// PortVIF says how a port is plugged: sdn.VIF.
type PortVIF struct {
	// Type is the SDN's: bridge, ovs, vlan, …
	Type string `json:"type"`
	// +optional
	Details map[string]string `json:"details,omitempty"`
	// +optional
	VNICType string `json:"vnicType,omitempty"`
}

// KuryrPortStatus tells whose the port is. The claimant writes PortStatus and Pod, Raven the rest
// and the PortStatus of ports that no claimant has written.
type KuryrPortStatus struct {
	// PortStatus is what the label openstack.org/portStatus says too, by which ports are found; the label counts where they differ.
	// +kubebuilder:default=created
	// +optional
	PortStatus PortStatus `json:"portStatus,omitempty"`
	// Pod is the one that it is bound to.
	// +optional
	Pod *PortPod `json:"pod,omitempty"`
	// Released is since when no pod has had the port: when it was created, or when the last pod
	// gave it back. A claimant of an older release does not write it.
	// +optional
	Released *metav1.Time `json:"released,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SetAvailable says that no pod has the port since then.
func (s *KuryrPortStatus) SetAvailable(since time.Time) {
	released := metav1.NewTime(since.UTC().Truncate(time.Second)) // as the API keeps it
	s.PortStatus, s.Pod, s.Released = PortAvailable, nil, &released
}

// AvailableSince tells since when no pod has the port, which must be available; not ok where nobody has written that down.
func (p *KuryrPort) AvailableSince() (since time.Time, ok bool) {
	switch {
	case p.Status.Released != nil:
		return p.Status.Released.Time, true
	case p.Status.PortStatus == "" || p.Status.PortStatus == PortCreated: // no pod has had it
		return p.CreationTimestamp.Time, !p.CreationTimestamp.IsZero()
	}
	return time.Time{}, false
}

// PortPod is the interface of a pod that has a port.
type PortPod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Container is the sandbox's id, as the container runtime tells it to CNI.
	Container string `json:"container"`
	// Interface is its name in the pod, such as eth0.
	Interface string `json:"interface"`
	// Since is when the port was claimed.
	Since metav1.Time `json:"since"`
}

// KuryrPortList is a list of them.
//
// +kubebuilder:object:root=true
type KuryrPortList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KuryrPort `json:"items"`
}
