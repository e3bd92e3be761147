package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of every type here.
var GroupVersion = schema.GroupVersion{Group: "openstack.org", Version: "v1"}

// AddToScheme tells a scheme of the types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&KuryrPort{}, &KuryrPortList{},
		&KuryrPortPool{}, &KuryrPortPoolList{},
		&KuryrNetwork{}, &KuryrNetworkList{},
		&KuryrLoadBalancer{}, &KuryrLoadBalancerList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Labels of KuryrPorts. The spec's metadata.portStatus cannot be a field of a resource's metadata, so it is a label.
const (
	LabelPortStatus = "openstack.org/portStatus" // a PortStatus
	LabelNode       = "openstack.org/node"       // NodeLabel of the node whose port it is; on KuryrPortPools too
	LabelPool       = "openstack.org/pool"       // the name of its KuryrPortPool
	LabelForNode    = "openstack.org/forNode"    // "true" on the port that is the node's own, by which its daemon finds it
)

// Finalizer keeps an object until what it stands for has gone from the SDN. Pods and namespaces never get one.
const Finalizer = "openstack.org/kuryr"

// Condition types.
const (
	ConditionReady = "Ready" // it is in the SDN as the spec says
)

// Reasons of conditions, besides those of the SDN's errors.
const (
	ReasonReady     = "Ready"
	ReasonPending   = "Pending"   // being made, or waiting for another object
	ReasonExhausted = "Exhausted" // the SDN's quota, the subnet's addresses or the pool's maximum
	ReasonInvalid   = "Invalid"   // the SDN will never take it as it is; the message names the field
	ReasonSDN       = "SDN"       // the SDN does not answer; it is asked again
	ReasonDeleting  = "Deleting"
	ReasonInUse     = "InUse"       // its deletion waits for others that use it, which the message names
	ReasonTaken     = "Taken"       // something else has the address
	ReasonUnserved  = "Unsupported" // this SDN cannot do it
	ReasonRefused   = "Refused"     // the namespace is not granted it
)

// ReasonNodeStarting is the reason of a Node's condition NetworkUnavailable while its daemon runs for the first time since the node's boot and has not brought all into the kernel: nobody is to
// be led there.
const ReasonNodeStarting = "KuryrStarting"
