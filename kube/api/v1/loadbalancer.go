package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// KuryrLoadBalancer is what a Service is in the SDN: for each of its ClusterIPs a load balancer that has it for its VIP, and for one of type LoadBalancer a floating IP that leads
// there. It has the Service's name and namespace. Members are not in it: they follow from the Service's EndpointSlices, and only their number is shown, so that it does not grow with
// them nor is written for each. It, and never the Service, has a finalizer.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=klb
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="VIP",type=string,JSONPath=`.spec.vips[0]`
// +kubebuilder:printcolumn:name="Second VIP",type=string,JSONPath=`.spec.vips[1]`,priority=1
// +kubebuilder:printcolumn:name="Floating IP",type=string,JSONPath=`.status.floatingIP.address`
// +kubebuilder:printcolumn:name="Members",type=integer,JSONPath=`.status.members`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type KuryrLoadBalancer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KuryrLoadBalancerSpec   `json:"spec"`
	Status KuryrLoadBalancerStatus `json:"status,omitempty"`
}

// KuryrLoadBalancerSpec is what the Service says of it. Raven writes it anew when the Service changes.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'LoadBalancer' || !has(self.floatingIP)",message="only a Service of type LoadBalancer has a floating IP"
// +kubebuilder:validation:XValidation:rule="self.type == 'LoadBalancer' || !has(self.ownVIPs) || !self.ownVIPs",message="only a Service of type LoadBalancer has VIPs of its own"
// +kubebuilder:validation:XValidation:rule="self.type == 'LoadBalancer' || !has(self.sharedID)",message="only a Service of type LoadBalancer shares a load balancer"
// +kubebuilder:validation:XValidation:rule="!has(self.sharedID) || !has(self.floatingIP) && (!has(self.ownVIPs) || !self.ownVIPs)",message="who shares a load balancer has neither a floating IP nor VIPs of its own"
type KuryrLoadBalancerSpec struct {
	// ServiceUID is that of the Service. One that is made again under the same name has another KuryrLoadBalancer.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="another Service has another KuryrLoadBalancer"
	ServiceUID types.UID `json:"serviceUID"`
	// Type of the Service.
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type string `json:"type"`
	// VIPs are the Service's ClusterIPs, at most one of each family; the first is that of its first family.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a)) && (self.size() < 2 || ip(self[0]).family() != ip(self[1]).family())",message="want addresses, one of each family"
	// +listType=atomic
	VIPs []string `json:"vips"`
	// Ports that it is asked at. A Service has some; ones that the SDN cannot serve are left out and told of by an Event.
	// +kubebuilder:validation:MaxItems=1000
	// +optional
	// +listType=map
	// +listMapKey=protocol
	// +listMapKey=port
	Ports []LoadBalancerPort `json:"ports,omitempty"`
	// AffinitySeconds is how long a client keeps its member after its last connection; absent does not.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	AffinitySeconds *int32 `json:"affinitySeconds,omitempty"`
	// Sources are the ranges that may connect, besides the cluster's own; none is everyone.
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=49
	// +optional
	// +listType=set
	Sources []string `json:"sources,omitempty"`
	// OwnVIPs has the Service have VIPs of its own besides these, one of each of their families, on its namespace's subnet of load balancers (controller.vip_placement).
	// The floating IP leads there, and only there do sources count.
	// +optional
	OwnVIPs bool `json:"ownVIPs,omitempty"`
	// SharedID is that of another's load balancer in the SDN where the Service's ports are to be listeners too (annotation load-balancer-id): there it is reached from outside,
	// and only there do sources count.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	SharedID string `json:"sharedID,omitempty"`
	// FloatingIP is wanted where it is there.
	// +optional
	FloatingIP *LoadBalancerFloatingIP `json:"floatingIP,omitempty"`
	// Options of the SDN's load balancers, by the Service's annotations loadbalancer.openstack.org/….
	// +optional
	Options LoadBalancerOptions `json:"options,omitzero"`
}

// LoadBalancerPort is a port of the VIPs.
type LoadBalancerPort struct {
	// Name is the Service's, by which its EndpointSlices tell the members' port; "" is that of a single port.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Name string `json:"name,omitempty"`
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol string `json:"protocol"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// TargetPort is a number or the name of pods' ports, for people: EndpointSlices have what it is of each pod.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	TargetPort string `json:"targetPort,omitempty"`
}

// LoadBalancerFloatingIP says which floating IP is wanted.
type LoadBalancerFloatingIP struct {
	// Address that the Service asks for; "" is any.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self)",message="want an address"
	// +optional
	Address string `json:"address,omitempty"`
	// Network is the id of the external network; "" is the cluster's.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Network string `json:"network,omitempty"`
	// Subnet is the id of that network's subnet which the address is to be of; "" is any.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Subnet string `json:"subnet,omitempty"`
	// SubnetName is a pattern of the names of subnets that the address may be of, where neither Address nor Subnet is said: a glob, or after "~" a regular expression; "!" before it negates it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SubnetName string `json:"subnetName,omitempty"`
	// SubnetTags are tags of such subnets, with commas between them: one is enough, or after "&" all must be there; "!" before it negates it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	SubnetTags string `json:"subnetTags,omitempty"`
	// Keep has a floating IP that was made for the Service stay in the SDN when it goes.
	// +optional
	Keep bool `json:"keep,omitempty"`
}

// LoadBalancerOptions are what is asked of the SDN's load balancers. What is absent is the SDN's.
type LoadBalancerOptions struct {
	// Provider is which of the SDN's load balancer providers, such as amphora or ovn.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Provider string `json:"provider,omitempty"`
	// Flavor of that provider, by id.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Flavor string `json:"flavor,omitempty"`
	// Zone is the SDN's availability zone.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Zone string `json:"zone,omitempty"`
	// Method by which a member is chosen.
	// +kubebuilder:validation:Enum=ROUND_ROBIN;LEAST_CONNECTIONS;SOURCE_IP;SOURCE_IP_PORT
	// +optional
	Method string `json:"method,omitempty"`
	// ConnectionLimit of each port; 0 is none.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ConnectionLimit int32 `json:"connectionLimit,omitempty"`
	// ClientTimeout and MemberTimeout end idle connections.
	// +optional
	ClientTimeout *metav1.Duration `json:"clientTimeout,omitempty"`
	// +optional
	MemberTimeout *metav1.Duration `json:"memberTimeout,omitempty"`
	// ConnectTimeout is how long a member may take to answer.
	// +optional
	ConnectTimeout *metav1.Duration `json:"connectTimeout,omitempty"`
	// InspectTimeout is how long more of a connection's first bytes are waited for.
	// +optional
	InspectTimeout *metav1.Duration `json:"inspectTimeout,omitempty"`
	// ProxyProtocol is the version of the PROXY protocol by which members are told the client's address; 0 is that they are not.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	// +optional
	ProxyProtocol int32 `json:"proxyProtocol,omitempty"`
	// ForwardedFor has TCP ports speak HTTP, and members be told the client's address in X-Forwarded-For.
	// +optional
	ForwardedFor bool `json:"forwardedFor,omitempty"`
	// Certificate has TCP ports end TLS: where the SDN finds certificate and key (a reference of Barbican's).
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Certificate string `json:"certificate,omitempty"`
	// HealthMonitor has the SDN check members too.
	// +optional
	HealthMonitor *LoadBalancerHealthMonitor `json:"healthMonitor,omitempty"`
	// Hostname stands in the Service's status in place of the address.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Hostname string `json:"hostname,omitempty"`
}

// LoadBalancerHealthMonitor is how the SDN checks members.
type LoadBalancerHealthMonitor struct {
	// +kubebuilder:validation:Minimum=1
	DelaySeconds int32 `json:"delaySeconds"`
	// +kubebuilder:validation:Minimum=1
	TimeoutSeconds int32 `json:"timeoutSeconds"`
	// Rise is how many answers in a row have a member serve; Fall how many that are missing have it not.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Rise int32 `json:"rise"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Fall int32 `json:"fall"`
}

// KuryrLoadBalancerStatus is what the SDN has.
type KuryrLoadBalancerStatus struct {
	// LoadBalancers are the SDN's, one for each VIP, and for each of the Service's own.
	// +optional
	// +listType=map
	// +listMapKey=vip
	LoadBalancers []LoadBalancerOfVIP `json:"loadBalancers,omitempty"`
	// Shares are others' load balancers with listeners of the Service's: the one that it asks for, and any that it has not left yet.
	// +optional
	// +listType=map
	// +listMapKey=id
	Shares []LoadBalancerShare `json:"shares,omitempty"`
	// Guests are the Services that share a load balancer of this Service's own, which is kept for them.
	// +optional
	// +listType=map
	// +listMapKey=loadBalancer
	// +listMapKey=serviceUID
	Guests []LoadBalancerGuest `json:"guests,omitempty"`
	// FloatingIP is the one that leads to a VIP.
	// +optional
	FloatingIP *LoadBalancerFloatingIPStatus `json:"floatingIP,omitempty"`
	// Members are the different endpoints that get new connections, of all ports.
	// +optional
	Members int `json:"members"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LoadBalancerOfVIP is a load balancer of the SDN.
type LoadBalancerOfVIP struct {
	VIP string `json:"vip"`
	ID  string `json:"id"`
	// Port of the VIP, where the SDN has one.
	// +optional
	Port string `json:"port,omitempty"`
	// Own is that the VIP is none of the Service's ClusterIPs.
	// +optional
	Own bool `json:"own,omitempty"`
	// Flavor and Zone are those that it was made with, as the Service asked; one that asks for none any more has it made anew.
	// +optional
	Flavor string `json:"flavor,omitempty"`
	// +optional
	Zone string `json:"zone,omitempty"`
	// Leaving is that it is about to be deleted, so that no Service may begin to share it.
	// +optional
	Leaving bool `json:"leaving,omitempty"`
}

// LoadBalancerShare is another's load balancer in the SDN.
type LoadBalancerShare struct {
	ID string `json:"id"`
	// Address is where it is reached: of a floating IP that leads to its VIP, or the VIP.
	// +optional
	Address string `json:"address,omitempty"`
	// Inherited is what older releases wrote: the UID of the deleted Service whose load balancer this took over.
	// +optional
	Inherited types.UID `json:"inherited,omitempty"`
	// Keep is what they wrote if the floating IP of that Service was kept.
	// +optional
	Keep bool `json:"keep,omitempty"`
}

// LoadBalancerGuest is a Service of the namespace that shares a load balancer.
type LoadBalancerGuest struct {
	// LoadBalancer is its id in the SDN.
	LoadBalancer string    `json:"loadBalancer"`
	ServiceUID   types.UID `json:"serviceUID"`
	Name         string    `json:"name"`
}

// LoadBalancerFloatingIPStatus is a floating IP.
type LoadBalancerFloatingIPStatus struct {
	// ID is absent while it is only about to be used.
	// +optional
	ID      string `json:"id,omitempty"`
	Address string `json:"address"`
	// Owner is whose it is: Kuryr's goes with the Service, a User's is let go and stays.
	// +kubebuilder:validation:Enum=Kuryr;User
	Owner string `json:"owner"`
	// Keep has one of Kuryr's stay in the SDN, leading nowhere, when the Service goes.
	// +optional
	Keep bool `json:"keep,omitempty"`
	// SubnetName and SubnetTags are the wish that it was last had for: until that changes it stays, whatever subnets are called.
	// +optional
	SubnetName string `json:"subnetName,omitempty"`
	// +optional
	SubnetTags string `json:"subnetTags,omitempty"`
}

// Owners of floating IPs.
const (
	FloatingIPOfKuryr = "Kuryr"
	FloatingIPOfUser  = "User"
)

// Conditions of KuryrLoadBalancers, beside ConditionReady, which is that of all.
const (
	ConditionProgrammed = "Programmed" // the VIPs are balanced in the SDN as the Service says
	ConditionFloatingIP = "FloatingIP" // the floating IP that is wanted leads to the VIP; there only where one is wanted
)

// KuryrLoadBalancerList is a list of them.
//
// +kubebuilder:object:root=true
type KuryrLoadBalancerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KuryrLoadBalancer `json:"items"`
}
