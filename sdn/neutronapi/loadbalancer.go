package neutronapi

import (
	"context"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// LoadBalancers are served below /v2.0/lbaas/loadbalancers.
var LoadBalancers = Resource[LoadBalancer]{"loadbalancer", "loadbalancers"}

// ref names another object.
type ref struct {
	ID string `json:"id"`
}

// balancerStatus is how far an object of Octavia's is. created_at and updated_at are null where the SDN does not know.
type balancerStatus struct {
	ProvisioningStatus string  `json:"provisioning_status"`
	OperatingStatus    string  `json:"operating_status"`
	AdminStateUp       bool    `json:"admin_state_up"`
	CreatedAt          *string `json:"created_at"`
	UpdatedAt          *string `json:"updated_at"`
}

// LoadBalancer is a load balancer in Octavia's JSON.
type LoadBalancer struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	Tags        []string `json:"tags"`
	Revision    int64    `json:"kuryr:revision_number"` // Octavia has none
	balancerStatus
	VIPAddress     string          `json:"vip_address"`
	VIPSubnetID    string          `json:"vip_subnet_id"`
	VIPNetworkID   string          `json:"vip_network_id"`
	VIPPortID      string          `json:"vip_port_id"`
	VIPQoSPolicyID *string         `json:"vip_qos_policy_id"`
	VIPGroups      []string        `json:"vip_sg_ids"`
	AdditionalVIPs []AdditionalVIP `json:"additional_vips"`
	Listeners      []ref           `json:"listeners"`
	Pools          []ref           `json:"pools"`
	Provider       string          `json:"provider"`
	FlavorID       *string         `json:"flavor_id"`
	Zone           *string         `json:"availability_zone"`
}

// AdditionalVIP is a further address of a load balancer: that of the other family.
type AdditionalVIP struct {
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
	PortID    string `json:"port_id"`
}

// The statuses of Octavia's that there are here.
const (
	provisioned = "ACTIVE"
	updating    = "PENDING_UPDATE"
	online      = "ONLINE"
	offline     = "OFFLINE"
	noMonitor   = "NO_MONITOR"
)

// backendName is Octavia's name of a provider of load balancers; the SDN's default one has the name of the SDN's API.
func backendName(backend string) string {
	if backend == "" {
		return Kuryr
	}
	return backend
}

func octaviaTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.UTC().Format("2006-01-02T15:04:05")
	return &text
}

// balancerState is the status of a load balancer and of what is below it: it is applied as a whole.
func balancerState(l sdn.LoadBalancer) balancerStatus {
	s := balancerStatus{ProvisioningStatus: provisioned, OperatingStatus: online, AdminStateUp: true, CreatedAt: octaviaTime(l.Created), UpdatedAt: octaviaTime(l.Updated)}
	if !l.Status.Ready {
		s.ProvisioningStatus, s.OperatingStatus = updating, offline
	}
	return s
}

// balancer is a load balancer with the network of its first VIP.
type balancer struct {
	sdn.LoadBalancer
	network sdn.ID
}

func encodeLoadBalancer(b balancer) LoadBalancer {
	common := encodeMeta(b.Meta)
	out := LoadBalancer{
		ID: common.ID, Name: common.Name, Description: common.Description, ProjectID: common.ProjectID, Tags: common.Tags, Revision: common.Revision, balancerStatus: balancerState(b.LoadBalancer),
		VIPNetworkID: string(b.network), VIPGroups: ids(b.Groups), AdditionalVIPs: []AdditionalVIP{}, Listeners: []ref{}, Pools: []ref{}, Provider: backendName(b.Backend), FlavorID: optional(b.Flavor), Zone: optional(b.Zone),
	}
	for i, v := range b.VIPs {
		address := ""
		if v.Addr.IsValid() {
			address = v.Addr.String()
		}
		if i == 0 {
			out.VIPAddress, out.VIPSubnetID, out.VIPPortID = address, string(v.Subnet), string(v.Port)
			continue
		}
		out.AdditionalVIPs = append(out.AdditionalVIPs, AdditionalVIP{string(v.Subnet), address, string(v.Port)})
	}
	for _, l := range b.Listeners {
		out.Listeners = append(out.Listeners, ref{string(l.ID)})
	}
	for _, p := range poolsOf(b.LoadBalancer) {
		out.Pools = append(out.Pools, ref{string(p.ID)})
	}
	return out
}

// balancerChange is what is to become of a load balancer.
type balancerChange = valueChange[sdn.LoadBalancerSpec]

func (s *server) loadBalancers() *definition[balancer, LoadBalancer, sdn.LoadBalancerSpec, balancerChange] {
	remove, removeIf := s.checked(sdn.NounLoadBalancer, func(context.Context, sdn.ID) error { return nil }, s.p.DeleteLoadBalancer)
	return &definition[balancer, LoadBalancer, sdn.LoadBalancerSpec, balancerChange]{
		Resource: LoadBalancers, title: "load balancer",
		meta: func(b balancer) sdn.Meta { return b.Meta }, get: s.loadBalancer, encode: encodeLoadBalancer,
		find: s.findLoadBalancers,
		spec: s.specLoadBalancer, patch: s.changeLoadBalancer, create: s.createLoadBalancer,
		update: func(ctx context.Context, id sdn.ID, by balancerChange) (balancer, error) {
			l, err := s.rewriteBalancer(ctx, id, by)
			return s.placed(ctx, l, err, nil)
		},
		canDelete: childless, remove: remove, removeIf: removeIf,
	}
}

func (s *server) loadBalancer(ctx context.Context, id sdn.ID) (balancer, error) {
	l, err := s.p.LoadBalancer(ctx, id)
	return s.placed(ctx, l, err, nil)
}

// placed finds the network of a load balancer's first VIP. What is known already is in seen, by subnet.
func (s *server) placed(ctx context.Context, l sdn.LoadBalancer, err error, seen map[sdn.ID]sdn.ID) (balancer, error) {
	out := balancer{LoadBalancer: l}
	if err != nil || len(l.VIPs) == 0 || l.VIPs[0].Subnet == "" {
		return out, err
	}
	subnet := l.VIPs[0].Subnet
	network, known := seen[subnet]
	if !known {
		found, err := s.p.Subnet(ctx, subnet)
		if err != nil && !sdn.IsNotFound(err) {
			return out, err
		}
		if network = found.Network; seen != nil {
			seen[subnet] = network
		}
	}
	out.network = network
	return out, nil
}

func (s *server) findLoadBalancers(ctx context.Context, f *filter) iter.Seq2[balancer, error] {
	q := sdn.LoadBalancerQuery{Match: f.match(), Subnets: f.ids("vip_subnet_id"), Addresses: f.addrs("vip_address"), Ports: f.ids("vip_port_id")}
	seen := map[sdn.ID]sdn.ID{}
	return func(yield func(balancer, error) bool) {
		for l, err := range s.p.FindLoadBalancers(ctx, q) {
			if b, err := s.placed(ctx, l, err, seen); !yield(b, err) {
				return
			}
		}
	}
}

func (s *server) createLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (balancer, error) {
	find := func(m sdn.Match) iter.Seq2[sdn.LoadBalancer, error] {
		return s.p.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{Match: m})
	}
	l, err := unlessThere(ctx, s, "load balancer", spec.Base, find, func() (sdn.LoadBalancer, error) {
		return s.p.ApplyLoadBalancer(ctx, spec)
	})
	return s.placed(ctx, l, err, nil)
}

// rewriteBalancer applies a change to a load balancer as it is.
func (s *server) rewriteBalancer(ctx context.Context, id sdn.ID, by balancerChange) (sdn.LoadBalancer, error) {
	return changeValue(ctx, s, sdn.NounLoadBalancer, id, by, s.p.LoadBalancer, func(l sdn.LoadBalancer) (sdn.LoadBalancerSpec, sdn.Meta) {
		return sdn.LoadBalancerSpec{ID: l.ID, IfRevision: l.Revision, VIPs: l.VIPs, Listeners: slices.Clone(l.Listeners), Pools: slices.Clone(l.Pools), Backend: l.Backend, Flavor: l.Flavor, Zone: l.Zone}, l.Meta
	}, s.p.ApplyLoadBalancer)
}

// childless refuses to delete a load balancer along with what is below it, unless the request says cascade.
func childless(c *call, b balancer) (bool, error) {
	cascade := false
	if text := c.URL.Query().Get("cascade"); text != "" {
		var err error
		if cascade, err = strconv.ParseBool(text); err != nil {
			return false, badRequest("Invalid input for field/attribute cascade. Value: '" + text + "'.")
		}
	}
	if !cascade && len(b.Listeners)+len(b.Pools) > 0 && c.owns(b.Meta) {
		return false, refuse(http.StatusBadRequest, "ValidationException", "Validation failure: Cannot delete Load Balancer %s - it has children", b.ID)
	}
	return false, nil
}
