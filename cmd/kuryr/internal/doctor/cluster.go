package doctor

import (
	"fmt"
	"time"
)

// LongGone is how long what is deleted may take to go before it is told of.
const LongGone = 5 * time.Minute

// ClusterFacts are how Kuryr is in a Kubernetes cluster as a whole, by the API server alone.
type ClusterFacts struct {
	Err         error  // it could not be asked
	Namespace   string // of Kuryr's own pods
	Lease       LeaseFacts
	Deployments []DeploymentFacts
	Nodes       []Unready       // whose network is unavailable
	Pools       []Unready       // that are not ready
	Names       []Unready       // networks of namespaces that are not ready
	Leaving     []LeavingObject // that are being deleted
	Daemons     DaemonSetFacts
	Balancers   []Unready // Services' load balancers that are not ready
	Unserved    string    // why the SDN can have no load balancers at all; "" where it can
	Proxy       DaemonSetFacts
	// controller.load_balancers and node.load_balancers, each "" where its services are off;
	// and what the SDN's load balancers are
	Balancing struct{ Raven, Nodes, SDN string }
	Counts    struct{ Nodes, Labelled, Networks, Pools, Ports, Balancers int }
}

// LeaseFacts are who leads as Raven.
type LeaseFacts struct {
	Name   string // namespace and name
	There  bool
	Held   bool
	Holder string // that has it, or had it last
}

// Unready is an object and why it is not ready.
type Unready struct{ Name, Why string }

// LeavingObject is one that is being deleted.
type LeavingObject struct {
	Kind, Name string
	For        time.Duration
	Pod        string // that still has the port; "" for none
	Users      string // what says who still uses it; "" for none
}

// DeploymentFacts are how many of a Deployment's pods there are to be, and are ready.
type DeploymentFacts struct {
	Name        string
	Want, Ready int
	Label       string // of the nodes that its pods may be on; "" for all nodes
}

// DaemonSetFacts are on how many nodes the daemon is to run, and is ready.
type DaemonSetFacts struct {
	There       bool
	Want, Ready int
}

// Cluster judges them.
func Cluster(c ClusterFacts) []Finding {
	if c.Err != nil {
		return []Finding{{
			Check: "cluster", Verdict: Problem, What: "the API server does not tell: " + c.Err.Error(),
			Remediation: "a kubeconfig of who may look at everything; `kuryr install kubernetes --apply`, " +
				"where Kuryr is not installed",
		}}
	}
	all := append(raven(c), deployments(c)...)
	all = append(all, clusterNodes(c)...)
	all = append(
		all,
		unready("networks", "the network", "kuryrnetwork", c.Names, fmt.Sprintf(
			"%d networks of namespaces are ready", c.Counts.Networks,
		))...,
	)
	all = append(
		all,
		unready("pools", "the pool", "kuryrportpool", c.Pools, fmt.Sprintf(
			"%d pools are ready", c.Counts.Pools,
		))...,
	)
	all = append(all, balancers(c)...)
	all = append(all, balancing(c)...)
	return append(all, leaving(c)...)
}

// pods is how Kuryr's own pods of a name are seen.
func (c ClusterFacts) pods(name string) string {
	return "`kubectl -n " + c.Namespace + " get pods -l app.kubernetes.io/name=" + name + " -o wide`"
}

func raven(c ClusterFacts) []Finding {
	l, remedy := c.Lease, c.pods("kuryr-controller")+", and its log"
	f := findings{check: "raven"}
	switch {
	case !l.There:
		f.add(Warning, "there is no Lease "+l.Name+": Raven has not led yet, or runs without", remedy)
	case !l.Held && l.Holder == "":
		f.add(
			Problem,
			"nobody holds the Lease "+l.Name+": Raven does not work; pods get what their pools have, and nothing more",
			remedy,
		)
	case !l.Held:
		f.add(
			Problem,
			"the Lease "+l.Name+" was not renewed by "+l.Holder+
				", which held it: Raven does not work; pods get what their pools have, and nothing more",
			remedy,
		)
	}
	return f.orOK("it works: " + l.Holder + " leads")
}

// deployments judges those of Kuryr that the cluster has. One that is wanted and has no
// pod that is ready does not work.
func deployments(c ClusterFacts) []Finding {
	f := findings{check: "deployments"}
	for _, d := range c.Deployments {
		what := fmt.Sprintf("of the Deployment %s %d of %d pods are ready", d.Name, d.Ready, d.Want)
		switch {
		case d.Ready >= d.Want:
		case d.Ready > 0:
			f.add(Warning, what, c.pods(d.Name))
		case d.Label != "" && c.Counts.Labelled == 0:
			f.add(
				Problem, what+": no node has the label "+d.Label,
				"`kubectl label node NODE "+d.Label+"=`, the node that has its store",
			)
		default:
			f.add(Problem, what, c.pods(d.Name)+", and their log")
		}
	}
	return f.orOK(fmt.Sprintf("the pods of %d Deployments are ready", len(c.Deployments)))
}

func clusterNodes(c ClusterFacts) []Finding {
	f := findings{check: "nodes"}
	for _, n := range c.Nodes {
		f.add(
			Problem, "the network of the node "+n.Name+" is not available: "+n.Why,
			c.pods("kuryr-node")+"; `kuryr doctor` on the node",
		)
	}
	if d := c.Daemons; d.There && d.Ready < d.Want {
		f.add(Warning, fmt.Sprintf("the daemon is ready on %d of %d nodes", d.Ready, d.Want), c.pods("kuryr-node"))
	}
	return f.orOK(fmt.Sprintf("of %d nodes none says that its network is unavailable", c.Counts.Nodes))
}

func unready(check, what, kind string, all []Unready, well string) []Finding {
	f := findings{check: check}
	for _, u := range all {
		f.add(Warning, what+" "+u.Name+" is not ready: "+u.Why, "`kubectl describe "+kind+" "+u.Name+"`; see Raven's log")
	}
	return f.orOK(well)
}

// shownBalancers is how many are named that are not ready.
const shownBalancers = 5

// balancers judges Services, where they are load balancers of the SDN. Where there are
// none they are another's affair.
func balancers(c ClusterFacts) []Finding {
	f := findings{check: "load balancers"}
	if c.Counts.Balancers == 0 {
		return nil
	}
	if c.Unserved != "" {
		f.add(
			Problem, "no Service is served: "+c.Unserved,
			"loadBalancers: node of the chart, by which nodes balance, or Octavia in the cloud's "+
				"catalogue (neutron.load_balancer_endpoint); see docs/services.md",
		)
	}
	for i, u := range c.Balancers {
		if i == shownBalancers {
			f.add(Warning, fmt.Sprintf("%d more load balancers are not ready", len(c.Balancers)-i), "`kubectl get klb -A`")
			break
		}
		f.add(
			Warning, "the load balancer "+u.Name+" is not ready: "+u.Why,
			"`kubectl describe klb`, and the Service's Events",
		)
	}
	if c.Proxy.Want > 0 {
		f.add(
			Warning,
			fmt.Sprintf(
				"kube-proxy is to run on %d nodes, and Services are load balancers of the SDN", c.Proxy.Want,
			),
			"when node.services is on, take it away: docs/services.md, moving from kube-proxy",
		)
	}
	return f.orOK(fmt.Sprintf("%d load balancers of Services are ready", c.Counts.Balancers))
}

// balancing tells who balances ClusterIPs and what says so, and judges that Raven and the
// nodes are told the same.
func balancing(c ClusterFacts) []Finding {
	const node, remedy = "node", "`kuryr install kubernetes --apply --set loadBalancers=…`, which is " +
		"the setting of both, or controller.load_balancers and node.load_balancers alike"
	f := findings{check: "who balances"}
	switch b := c.Balancing; {
	case b.Raven == node && b.Nodes == "":
		f.add(
			Problem,
			"controller.load_balancers is node, and node.services is off: ClusterIPs lead to nodes, "+
				"which refuse them",
			"node.config.node.services=true",
		)
	case b.Raven == node && b.Nodes != node:
		f.add(
			Problem,
			"controller.load_balancers is node, and node.load_balancers is "+b.Nodes+
				": ClusterIPs lead to nodes, which refuse them",
			remedy,
		)
	case b.Nodes == node && b.Raven == "":
		f.add(
			Warning,
			"node.load_balancers is node, and controller.services is off: no ClusterIP of a pod's "+
				"leads anywhere",
			"config.controller.services=true",
		)
	case b.Nodes == node && b.Raven != node:
		f.add(
			Warning,
			"node.load_balancers is node, and controller.load_balancers is "+b.Raven+
				": pods' connections are balanced by the SDN, and nodes' own by the nodes",
			remedy,
		)
	case b.Raven == node:
		return f.orOK(
			"each node's kernel balances ClusterIPs, as controller.load_balancers and " +
				"node.load_balancers are node; the SDN is asked for no load balancers",
		)
	case b.Raven == "" && b.Nodes == "":
		return f.orOK("Services are another's, such as kube-proxy's: controller.services and node.services are off")
	case b.Raven == "":
		return f.orOK(
			"Raven makes no load balancers, as controller.services is off; nodes serve NodePorts and " +
				"external addresses, as node.services is on",
		)
	case c.Unserved == "":
		return f.orOK(
			"the SDN balances ClusterIPs (" + b.SDN + "), as controller.load_balancers is " + b.Raven +
				"; with node each node's kernel would",
		)
	}
	return f.list
}

func leaving(c ClusterFacts) []Finding {
	f := findings{check: "deletions"}
	for _, l := range c.Leaving {
		since := l.For.Round(time.Second).String()
		switch {
		case l.For < LongGone:
		case l.Pod != "":
			f.add(
				Warning,
				fmt.Sprintf(
					"%s %s is being deleted for %s, and the pod %s has it", l.Kind, l.Name, since, l.Pod,
				),
				"nothing, if the pod is to stay: no port goes under a pod",
			)
		case l.Users != "":
			f.add(
				Warning, fmt.Sprintf("%s %s is being deleted for %s: %s", l.Kind, l.Name, since, l.Users),
				"nothing, or have the Services that use it use another",
			)
		default:
			f.add(
				Problem, fmt.Sprintf("%s %s is being deleted for %s", l.Kind, l.Name, since),
				"Raven's log, and that of its node's daemon, tell what holds it; never take the finalizer "+
					"away by hand: what it stands for stays in the SDN",
			)
		}
	}
	return f.orOK(fmt.Sprintf("of %d ports none is being deleted for long", c.Counts.Ports))
}
