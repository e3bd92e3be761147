package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// KuryrPortPool says which ports a node (or the trunk of a virtual machine that is one) has ready for pods of one project, network and set of security groups.
// Its members are the KuryrPorts whose label openstack.org/pool names it, and whose owner it is, so that it does not grow with them. Its name is PoolName's.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=kpp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.networkName`
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.available`
// +kubebuilder:printcolumn:name="Bound",type=integer,JSONPath=`.status.bound`
// +kubebuilder:printcolumn:name="Minimum",type=integer,JSONPath=`.spec.minimum`
// +kubebuilder:printcolumn:name="Maximum",type=integer,JSONPath=`.spec.maximum`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type KuryrPortPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KuryrPortPoolSpec   `json:"spec"`
	Status KuryrPortPoolStatus `json:"status,omitempty"`
}

// KuryrPortPoolSpec is a pool's key and its policy. The key never changes: another key is another pool.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maximum) || self.maximum == 0 || self.minimum <= self.maximum",message="minimum must not be above maximum"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.trunk) || has(self.trunk) && self.trunk == oldSelf.trunk",message="a pool keeps its trunk"
// +kubebuilder:validation:XValidation:rule="has(self.forNode) == has(oldSelf.forNode) && (!has(self.forNode) || self.forNode == oldSelf.forNode)",message="a pool stays the node's own, or pods'"
// +kubebuilder:validation:XValidation:rule="has(self.projectID) == has(oldSelf.projectID) && (!has(self.projectID) || self.projectID == oldSelf.projectID)",message="a pool keeps its project"
// +kubebuilder:validation:XValidation:rule="has(self.subnets) == has(oldSelf.subnets) && (!has(self.subnets) || self.subnets == oldSelf.subnets)",message="a pool keeps its subnets"
// +kubebuilder:validation:XValidation:rule="has(self.securityGroups) == has(oldSelf.securityGroups) && (!has(self.securityGroups) || self.securityGroups == oldSelf.securityGroups)",message="a pool keeps its security groups"
type KuryrPortPoolSpec struct {
	// Node is the host that the ports are bound to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool keeps its node"
	Node string `json:"node"`
	// Trunk is the id of the trunk that the ports are subports of, where the node is a virtual machine. Raven writes it once, when it has found it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Trunk string `json:"trunk,omitempty"`
	// Network is the id of the ports' network.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a pool keeps its network"
	Network string `json:"network"`
	// ForNode says that the pool's one port is the node's own, and no pod's.
	// +optional
	ForNode bool `json:"forNode,omitempty"`
	// NetworkName is its name, for people.
	// +optional
	NetworkName string `json:"networkName,omitempty"`
	// Subnets are those that each port has an address on; none is what the SDN gives.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	// +listType=set
	Subnets []string `json:"subnets,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ProjectID string `json:"projectID,omitempty"`
	// SecurityGroups are their ids. None is none, not the project's default.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Minimum is how many are kept available: fewer, and a batch is made.
	// +kubebuilder:validation:Minimum=0
	Minimum int `json:"minimum"`
	// Maximum is how many there may be in all, bound ones too; 0 is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Maximum int `json:"maximum,omitempty"`
	// Batch is how many are made at once.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Batch int `json:"batch"`
	// TTL is how long an available port above Minimum is kept; nothing is for ever.
	// +optional
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// KuryrPortPoolStatus is what the pool has and what is being made for it.
type KuryrPortPoolStatus struct {
	// +optional
	Available int `json:"available"`
	// +optional
	Bound int `json:"bound"`
	// Pending are ports that may have been made in the SDN and have no KuryrPort yet. It is written before the SDN is asked, so no kill loses a port; it is
	// as long as what is being made at this moment.
	// +optional
	// +listType=map
	// +listMapKey=key
	Pending []PendingPort `json:"pending,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PendingPort is a port about to be made.
type PendingPort struct {
	// Key is the name in the port's sdn.Key, of kind KeyKindPort.
	Key string `json:"key"`
	// Pod is the UID of the one that it is dedicated to.
	// +optional
	Pod types.UID `json:"pod,omitempty"`
}

// KuryrPortPoolList is a list of them.
//
// +kubebuilder:object:root=true
type KuryrPortPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KuryrPortPool `json:"items"`
}
