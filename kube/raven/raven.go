package raven

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/node"
	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Config is what Raven is told. What is zero and has a default gets it.
type Config struct {
	Provider sdn.Provider // needed
	// Live reads what is in the API server at this moment, where the cache may be behind; nil is nothing such.
	Live   client.Reader
	Logger *slog.Logger
	// Registerer is where Raven counts; nil is nowhere.
	Registerer prometheus.Registerer

	Router        string // id or name of the router that everything is on; "" is one of Raven's own
	PublicNetwork string // id or name of the external network; "" is the SDN's one, if it has one
	Project       string // of what is made; "" is the provider's own

	Ranges           []Range        // that namespaces' subnets are cut from, at most one of each family
	SubnetPools      []string       // ids of existing subnet pools that they are cut from in place of Ranges, at most one of each family
	NodeRanges       []netip.Prefix // of the network that nodes have ports of their own on, at most one of each family; none is no such network
	NodePortsNetwork string         // name that it is made with; default "kuryr-nodes"
	ServiceRanges    []netip.Prefix // of ClusterIPs, for the VIP network: at most one of each family; none is no VIP network
	// Services has Services be load balancers of the SDN. Without it they are another's,
	// and what Raven has made for them is taken away.
	Services bool
	// NodeBalanced is instead of Services: the kernels of nodes balance ClusterIPs, and
	// the SDN leads to them. There is no VIP network.
	NodeBalanced bool
	// NamespaceVIPs has Services of type LoadBalancer have VIPs of their own besides
	// their ClusterIPs, on a subnet of their namespace's network. With Services.
	NamespaceVIPs bool
	// VIPSubnets are those of the VIP network, each with a range of ClusterIPs in it;
	// such a range without one has one twice its size.
	VIPSubnets []netip.Prefix
	// Network is the id of one network for all namespaces that do not name another;
	// Subnets are those of its subnets that pods get addresses on, none is all.
	Network string
	Subnets []string
	// SecurityGroups are the ids that pods' ports get. None is a group of Raven's own
	// that lets everything pass, where the SDN would pass nothing without one.
	SecurityGroups []string
	// UnderlayIsolation keeps pods from NodeNetworks and the nodes' addresses, but for
	// the API servers and name servers; by a security group of Raven's own, so there are
	// to be no SecurityGroups.
	UnderlayIsolation bool
	NodeNetworks      []netip.Prefix

	// Nested has nodes that no label says otherwise of be virtual machines of the SDN,
	// whose own ports have trunks: v1.NestedVLAN, or "" for machines that the SDN binds
	// ports to.
	Nested string
	// NodeSubnets are the ids of the subnets that the own ports of nested nodes are on.
	NodeSubnets []string

	Pool     pool.Policy
	MaxPorts int           // all pools together; 0 is no limit
	Calls    int           // of the SDN at once; default 8
	Timeout  time.Duration // of one call of the SDN; default 1 minute
	Workers  int           // objects of one sort worked on at once; default 8
	// Audit is how often pools' ports, load balancers, and the router's legs and routes
	// are compared with the SDN's, for what was changed there behind Raven's back; 0 is
	// when there is a reason.
	Audit time.Duration
}

// Range is where subnets of a family are cut from.
type Range struct {
	Prefix netip.Prefix
	Len    int // prefix length of a namespace's subnet
}

// Raven is the controller. See [New].
type Raven struct {
	*core.Core
	nodes   *node.Node
	cfg     Config
	metrics *counts
	ground  core.Infrastructure // written by Prepare before anything else begins
	budget  *budget
	memory  memory
	vips    vips
	applied applied
	keeping keeping
	barrier barrier

	poolWakes     core.Enqueuer
	balancerWakes core.Enqueuer

	lbSubnets lbSubnets
	routed    routed

	strayed core.LastSync
	legged  core.LastSync
}

// New makes a Raven that reads and writes Kubernetes with api and tells people by
// recorder. [Raven.Prepare] comes before any reconciler.
func New(cfg Config, api client.Client, recorder events.EventRecorder) (*Raven, error) {
	if cfg.Provider == nil {
		return nil, errors.New("raven: no provider")
	}
	cfg.Calls, cfg.Workers, cfg.Timeout = cmp.Or(cfg.Calls, 8), cmp.Or(cfg.Workers, 8), cmp.Or(cfg.Timeout, time.Minute)
	cfg.Pool.Batch = max(cfg.Pool.Batch, 1)
	if err := cfg.Pool.Validate(); err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if cfg.UnderlayIsolation && len(cfg.SecurityGroups) > 0 {
		return nil, errors.New("raven: UnderlayIsolation and SecurityGroups: what one group lets pass no other takes away")
	}
	cfg.NodePortsNetwork = cmp.Or(cfg.NodePortsNetwork, "kuryr-nodes")
	if err := oneOfAFamily("node", cfg.NodeRanges); err != nil {
		return nil, err
	}
	if err := checkRanges(cfg.Ranges, cfg.ServiceRanges, cfg.NodeNetworks); err != nil {
		return nil, err
	}
	r := &Raven{
		Core: core.New(api, cfg.Live, recorder, cfg.Logger, cfg.Provider, cfg.Calls, cfg.Timeout),
		cfg:  cfg, metrics: newCounts(cfg.Registerer), budget: newBudget(cfg.MaxPorts),
	}
	r.nodes = node.New(r.Core, node.Config{
		Infrastructure: &r.ground, Project: cfg.Project,
		Ranges: cfg.NodeRanges, Networks: cfg.NodeNetworks, PortsNetwork: cfg.NodePortsNetwork,
		Balanced: cfg.NodeBalanced, Isolated: cfg.UnderlayIsolation, Audit: cfg.Audit,
		ServicePrefixes: r.servicePrefixes, ServiceRanges: r.rangesForNodes, Isolating: r.isolating,
	})
	return r, nil
}

// checkRanges refuses ranges that cannot be served.
func checkRanges(pods []Range, services, nodes []netip.Prefix) error {
	var claims []core.Claim
	families := map[bool]int{}
	for _, p := range pods {
		if !p.Prefix.IsValid() || p.Len < p.Prefix.Bits() || p.Len > p.Prefix.Addr().BitLen()-2 {
			return fmt.Errorf("range %s: no subnet with a prefix length of %d can be cut from it", p.Prefix, p.Len)
		}
		if families[p.Prefix.Addr().Is6()]++; families[p.Prefix.Addr().Is6()] > 1 {
			return fmt.Errorf("range %s: another one of its family is given", p.Prefix)
		}
		claims = append(claims, core.Claim{What: "the pods' range", Prefix: p.Prefix})
	}
	for _, p := range services {
		claims = append(claims, core.Claim{What: "the services' range", Prefix: p})
	}
	if err := oneOfAFamily("service", services); err != nil {
		return err
	}
	for _, p := range nodes {
		claims = append(claims, core.Claim{What: "the nodes' network", Prefix: p})
	}
	return core.Overlap(claims)
}

func oneOfAFamily(what string, ranges []netip.Prefix) error {
	families := map[bool]int{}
	for _, p := range ranges {
		if families[p.Addr().Is6()]++; families[p.Addr().Is6()] > 1 {
			return fmt.Errorf("%s range %s: another one of its family is given", what, p)
		}
	}
	return nil
}
