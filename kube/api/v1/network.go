package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// KuryrNetwork is a namespace's network in the SDN. Its name is NetworkName's, so that a namespace deleted and made again has another one, at once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=kn
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.status.network`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.status.subnets[0].cidr`
// +kubebuilder:printcolumn:name="Second CIDR",type=string,JSONPath=`.status.subnets[1].cidr`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type KuryrNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KuryrNetworkSpec   `json:"spec"`
	Status KuryrNetworkStatus `json:"status,omitempty"`
}

// KuryrNetworkSpec says whose network it is and which: one of its own, unless Network names one that is there.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="another network is another object"
// +kubebuilder:validation:XValidation:rule="!has(self.subnets) || has(self.network)",message="subnets are those of an existing network, which must be named"
type KuryrNetworkSpec struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// UID is the namespace's.
	UID types.UID `json:"uid"`
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ProjectID string `json:"projectID,omitempty"`
	// Network is the id of an existing network, which is used and never deleted.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Network string `json:"network,omitempty"`
	// Subnets are ids of the existing network's that pods get addresses on; none is all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	// +listType=set
	Subnets []string `json:"subnets,omitempty"`
}

// KuryrNetworkStatus is the network as it is in the SDN.
type KuryrNetworkStatus struct {
	// +optional
	Network string `json:"network,omitempty"`
	// +optional
	Router string `json:"router,omitempty"`
	// MTU in bytes.
	// +optional
	MTU int `json:"mtu,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=id
	Subnets []NetworkSubnet `json:"subnets,omitempty"`
	// SecurityGroups are the ids that the pods' ports get: what the namespace says at this moment, else what Raven's configuration says.
	// +optional
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// PoolPolicy is what the namespace says at this moment of how pools are to be kept: the value of its annotation openstack.org/kuryr-pool.
	// +optional
	PoolPolicy string `json:"poolPolicy,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NetworkSubnet is a subnet that the namespace's pods get addresses on.
type NetworkSubnet struct {
	ID   string `json:"id"`
	CIDR string `json:"cidr"`
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// KuryrNetworkList is a list of them.
//
// +kubebuilder:object:root=true
type KuryrNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KuryrNetwork `json:"items"`
}
