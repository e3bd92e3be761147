package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// RavenPath is the file of the Kubernetes controller in the peer's form, which `kuryr
// controller` reads if no other is named; it need not exist.
const RavenPath = "/etc/kuryr/raven.conf"

// Kubernetes is section kubernetes: how its API server is reached. All empty is the
// service account of the pod this runs in.
type Kubernetes struct {
	Kubeconfig string
	APIServer  string
	TokenFile  string
	CAFile     string
	CertFile   string
	KeyFile    string
	Insecure   bool
}

// Controller is section controller: what Raven makes in the SDN for a cluster.
type Controller struct {
	Listen         string // host:port of /metrics, /healthz and /readyz; "" is nowhere
	LeaderElection bool
	Namespace      string // of the Lease

	Router           string
	PublicNetwork    string
	PodRanges        []netip.Prefix
	PodPrefixLen     int
	PodPrefixLenV6   int
	SubnetPools      []string
	ServiceRanges    []netip.Prefix
	VIPSubnets       []netip.Prefix
	VIPPlacement     string // VIPPlacementCluster or VIPPlacementNamespace
	NodeRanges       []netip.Prefix
	NodePortsNetwork string
	Network          string
	Subnets          []string
	SecurityGroups   []string

	UnderlayIsolation bool
	NodeNetworks      []netip.Prefix

	Nested             string
	WorkerNodesSubnets []string

	Services      bool
	LoadBalancers string // LoadBalancersSDN or LoadBalancersNode

	PoolMinimum int
	PoolMaximum int
	PoolBatch   int
	PoolTTL     time.Duration
	MaxPorts    int

	Calls   int
	Workers int
	Audit   time.Duration
}

func defaultController() Controller {
	return Controller{
		Listen: "127.0.0.1:9654", LeaderElection: true, Namespace: "kube-system",
		PodRanges: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/9")}, PodPrefixLen: 16, PodPrefixLenV6: 64,
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		NodeRanges:    []netip.Prefix{netip.MustParsePrefix("10.95.0.0/16")}, NodePortsNetwork: "kuryr-nodes",
		LoadBalancers: LoadBalancersSDN, VIPPlacement: VIPPlacementCluster,
		PoolMinimum: 5, PoolBatch: 10, PoolTTL: 10 * time.Minute,
		Calls: 8, Workers: 8, Audit: time.Hour,
	}
}

var kubernetesSettings = []*Setting{
	text("kubernetes.kubeconfig",
		"kubeconfig file; empty, with kubernetes.api_server empty too, is the service account of the "+
			"pod that this runs in", absoluteOrNone,
		func(c *Config) *string { return &c.Kubernetes.Kubeconfig }),
	text("kubernetes.api_server",
		"address of the API server, in place of a kubeconfig, such as https://10.0.0.1:6443",
		orNone(httpURL),
		func(c *Config) *string { return &c.Kubernetes.APIServer }),
	text(
		"kubernetes.token_file",
		"file with the token for kubernetes.api_server, read anew when it changes", absoluteOrNone,
		func(c *Config) *string { return &c.Kubernetes.TokenFile },
	),
	text(
		"kubernetes.ca_file",
		"file with the authorities of the API server's certificate; empty are the system's",
		absoluteOrNone, func(c *Config) *string { return &c.Kubernetes.CAFile },
	),
	text(
		"kubernetes.cert_file", "file with the certificate that Kuryr shows to kubernetes.api_server",
		absoluteOrNone, func(c *Config) *string { return &c.Kubernetes.CertFile },
	),
	text(
		"kubernetes.key_file", "file with that certificate's private key", absoluteOrNone,
		func(c *Config) *string { return &c.Kubernetes.KeyFile },
	),
	boolean(
		"kubernetes.insecure", "do not verify the certificate of kubernetes.api_server",
		func(c *Config) *bool { return &c.Kubernetes.Insecure },
	),
}

var controllerSettings = []*Setting{
	text(
		"controller.listen",
		"host:port where `kuryr controller` serves /metrics, /healthz and /readyz; empty is nowhere",
		listenAddr, func(c *Config) *string { return &c.Controller.Listen },
	),
	boolean(
		"controller.leader_election", "have one of several replicas lead, by a Lease",
		func(c *Config) *bool { return &c.Controller.LeaderElection },
	),
	text("controller.namespace", "namespace of the Lease", word, func(c *Config) *string {
		return &c.Controller.Namespace
	}),
	text(
		"controller.router",
		"name or id of the router that all networks of the cluster are on; empty is one that is made",
		word, func(c *Config) *string { return &c.Controller.Router },
	),
	text("controller.public_network",
		"name or id of the external network; it must be there. Empty is the SDN's one, if it has one",
		word,
		func(c *Config) *string { return &c.Controller.PublicNetwork }),
	ranges(
		"controller.pod_ranges",
		"ranges that namespaces' subnets are cut from, at most one of each family",
		func(c *Config) *[]netip.Prefix { return &c.Controller.PodRanges },
	),
	number(
		"controller.pod_prefix_len", "prefix length of a namespace's IPv4 subnet", 8, 29,
		func(c *Config) *int { return &c.Controller.PodPrefixLen },
	),
	number(
		"controller.pod_prefix_len_v6", "prefix length of a namespace's IPv6 subnet", 16, 124,
		func(c *Config) *int { return &c.Controller.PodPrefixLenV6 },
	),
	list("controller.subnet_pools",
		"ids of existing subnet pools that namespaces' subnets are cut from, in place of "+
			"controller.pod_ranges", word,
		func(c *Config) *[]string { return &c.Controller.SubnetPools }),
	ranges(
		"controller.service_ranges",
		"the cluster's ranges of ClusterIPs, for the VIP network; empty makes none",
		func(c *Config) *[]netip.Prefix { return &c.Controller.ServiceRanges },
	),
	boolean(
		"controller.services", "have Services be load balancers of the SDN, in place of kube-proxy",
		func(c *Config) *bool { return &c.Controller.Services },
	),
	text("controller.load_balancers",
		"who balances ClusterIPs, with controller.services: sdn, or node, the kernel of each node, "+
			"where the SDN cannot", oneOf(LoadBalancersSDN, LoadBalancersNode),
		func(c *Config) *string { return &c.Controller.LoadBalancers }),
	prefixes("controller.vip_subnets",
		"subnets of the VIP network, with controller.services, each with a range of ClusterIPs in "+
			"it and room for more; a range without one has one twice its size",
		func(netip.Addr) error { return nil }, func(c *Config) *[]netip.Prefix { return &c.Controller.VIPSubnets }),
	text("controller.vip_placement",
		"where Services of type LoadBalancer are reached, besides floating IPs: cluster, at their "+
			"ClusterIPs, or namespace, at VIPs of their own on a subnet of their namespace's network, "+
			"where their "+
			"floating IPs lead too", oneOf(VIPPlacementCluster, VIPPlacementNamespace),
		func(c *Config) *string { return &c.Controller.VIPPlacement }),
	ranges("controller.node_ranges",
		"ranges of the network that nodes have ports of their own on, to reach pods and be reached, "+
			"where the SDN gives them no other way (Neutron); empty makes none",
		func(c *Config) *[]netip.Prefix { return &c.Controller.NodeRanges }),
	text(
		"controller.node_ports_network", "name that this network is made with", word,
		func(c *Config) *string { return &c.Controller.NodePortsNetwork },
	),
	text(
		"controller.network", "id of one existing network for all namespaces; empty is one for each",
		word, func(c *Config) *string { return &c.Controller.Network },
	),
	list(
		"controller.subnets", "ids of that network's subnets that pods get addresses on; empty is all",
		word, func(c *Config) *[]string { return &c.Controller.Subnets },
	),
	list("controller.security_groups",
		"ids of the security groups of pods' ports; empty is one that lets everything pass, where the "+
			"SDN needs one", word,
		func(c *Config) *[]string { return &c.Controller.SecurityGroups }),
	boolean(
		"controller.underlay_isolation",
		"keep pods from controller.node_networks and the nodes' addresses, but for the API servers "+
			"and for name servers; what is beyond they reach",
		func(c *Config) *bool { return &c.Controller.UnderlayIsolation },
	),
	prefixes("controller.node_networks",
		"the nodes' networks, of both families, for controller.underlay_isolation",
		func(netip.Addr) error { return nil },
		func(c *Config) *[]netip.Prefix { return &c.Controller.NodeNetworks }),
	text("controller.nested",
		"how nodes get pods' ports that are virtual machines of the SDN: vlan, as subports of the "+
			"trunk of the node's own port; empty is that nodes are none. A node's label "+
			"openstack.org/kuryr-nested goes over it", orNone(oneOf("vlan")),
		func(c *Config) *string { return &c.Controller.Nested }),
	list(
		"controller.worker_nodes_subnets", "ids of the subnets that such nodes' own ports are on", word,
		func(c *Config) *[]string { return &c.Controller.WorkerNodesSubnets },
	),
	number(
		"controller.pool_minimum", "ports kept available in each pool", 0, 100000,
		func(c *Config) *int { return &c.Controller.PoolMinimum },
	),
	number(
		"controller.pool_maximum", "most ports of a pool, those of pods too; 0 is no limit", 0, 100000,
		func(c *Config) *int { return &c.Controller.PoolMaximum },
	),
	number("controller.pool_batch", "ports made at once", 1, 1000, func(c *Config) *int {
		return &c.Controller.PoolBatch
	}),
	duration(
		"controller.pool_ttl",
		"how long a port above the minimum is kept that no pod has, such as 10m; 0 is for ever",
		time.Second, func(c *Config) *time.Duration { return &c.Controller.PoolTTL },
	),
	number(
		"controller.max_ports",
		"most ports of all pools together; 0 is nine tenths of the SDN's quota, where it tells one", 0,
		10000000, func(c *Config) *int { return &c.Controller.MaxPorts },
	),
	number("controller.calls", "calls of the SDN at once", 1, 1000, func(c *Config) *int { return &c.Controller.Calls }),
	number(
		"controller.workers", "objects of one sort that are worked on at once", 1, 1000,
		func(c *Config) *int { return &c.Controller.Workers },
	),
	duration(
		"controller.audit",
		"how often pools' ports, load balancers, and the router's legs and routes are compared with "+
			"the SDN's; 0 is only when there is a reason",
		time.Minute, func(c *Config) *time.Duration { return &c.Controller.Audit },
	),
}

// Check reports what is wrong with the settings of a cluster together.
func (c Config) Check() error {
	return errors.Join(c.Kubernetes.consistent(), c.Controller.consistent())
}

// consistent checks what single settings cannot.
func (k Kubernetes) consistent() error {
	wrong := func(key, detail string) error { return &Error{Where: "configuration", Key: key, Detail: detail} }
	switch {
	case k.Kubeconfig != "" && k.APIServer != "":
		return wrong("kubernetes.kubeconfig", "and kubernetes.api_server are both given: want one of them")
	case (k.CertFile == "") != (k.KeyFile == ""):
		return wrong("kubernetes.cert_file", "and kubernetes.key_file are needed together")
	case k.APIServer == "" && k.TokenFile+k.CAFile+k.CertFile != "":
		return wrong("kubernetes.api_server", "is needed with kubernetes.token_file, ca_file and cert_file")
	}
	return nil
}

// consistent checks what single settings cannot.
func (c Controller) consistent() error {
	wrong := func(key, detail string) error { return &Error{Where: "configuration", Key: key, Detail: detail} }
	switch {
	case c.Nested != "" && len(c.WorkerNodesSubnets) == 0:
		return wrong(
			"controller.worker_nodes_subnets",
			"is needed with controller.nested: a node's own port is found by the node's address on them",
		)
	case c.UnderlayIsolation && len(c.NodeNetworks) == 0:
		return wrong("controller.node_networks", "is needed with controller.underlay_isolation")
	case c.UnderlayIsolation && len(c.SecurityGroups) > 0:
		return wrong(
			"controller.security_groups",
			"and controller.underlay_isolation exclude each other: what one group lets pass no other "+
				"takes away",
		)
	}
	return nil
}

// ranges takes prefixes of both families, at most one of each.
func ranges(key, help string, field func(*Config) *[]netip.Prefix) *Setting {
	s := prefixes(key, help, func(netip.Addr) error { return nil }, field)
	set := s.set
	s.set = func(c *Config, values []string) error {
		if err := set(c, values); err != nil {
			return err
		}
		if all := *field(c); len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
			return errors.New("want at most one range of each family")
		}
		return nil
	}
	return s
}

// list takes words, each once.
func list(key, help string, r rule, field func(*Config) *[]string) *Setting {
	return &Setting{
		Key: key, Help: help, List: true, Form: r.form,
		set: func(c *Config, values []string) error {
			for i, v := range values {
				if err := r.check(v); err != nil {
					return err
				}
				if v == "" || slices.Contains(values[:i], v) {
					return fmt.Errorf("%q is empty or given twice", v)
				}
			}
			*field(c) = slices.Clone(values)
			return nil
		},
		get: func(c *Config) string { return strings.Join(*field(c), ",") },
	}
}
