package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*ClusterFacts)
		want   Verdict
		says   string
	}{
		"well": {func(*ClusterFacts) {}, OK, "it works: raven-1 leads"},
		"no answer": {
			func(c *ClusterFacts) { c.Err = errors.New("connection refused") }, Problem,
			"connection refused",
		},
		"no lease": {func(c *ClusterFacts) { c.Lease.There = false }, Warning, "has not led yet"},
		"a lease given up": {
			func(c *ClusterFacts) { c.Lease.Held, c.Lease.Holder = false, "" }, Problem,
			"nobody holds the Lease s/r",
		},
		"a lease not renewed": {func(c *ClusterFacts) { c.Lease.Held = false }, Problem, "not renewed by raven-1"},
		"no Raven": {
			func(c *ClusterFacts) { c.Deployments[0].Ready = 0 }, Problem,
			"of the Deployment kuryr-controller 0 of 2 pods are ready",
		},
		"one Raven": {func(c *ClusterFacts) { c.Deployments[0].Ready = 1 }, Warning, "1 of 2 pods"},
		"no SDN":    {func(c *ClusterFacts) { c.Deployments[1].Ready = 0 }, Problem, "0 of 1 pods are ready"},
		"no node for the SDN": {
			func(c *ClusterFacts) { c.Deployments[1].Ready, c.Counts.Labelled = 0, 0 }, Problem,
			"0 of 1 pods are ready: no node has the label x/y",
		},
		"an SDN that is stopped": {
			func(c *ClusterFacts) { c.Deployments[1].Want, c.Deployments[1].Ready = 0, 0 }, OK,
			"2 Deployments",
		},
		"a node": {
			func(c *ClusterFacts) { c.Nodes = []Unready{{"n1", "KuryrStopped"}} }, Problem,
			"node n1 is not available: KuryrStopped",
		},
		"a daemon": {func(c *ClusterFacts) { c.Daemons = DaemonSetFacts{true, 3, 2} }, Warning, "2 of 3 nodes"},
		"a network": {
			func(c *ClusterFacts) { c.Names = []Unready{{"blue-1", "quota"}} }, Warning,
			"the network blue-1 is not ready: quota",
		},
		"a pool": {
			func(c *ClusterFacts) { c.Pools = []Unready{{"n1-1", "quota"}} }, Warning,
			"the pool n1-1 is not ready: quota",
		},
		"a port on its way": {
			func(c *ClusterFacts) { c.Leaving = []LeavingObject{{Kind: "KuryrPort", Name: "p", For: time.Minute}} }, OK,
			"of 7 ports none",
		},
		"a port that stays": {
			func(c *ClusterFacts) { c.Leaving = []LeavingObject{{Kind: "KuryrPort", Name: "p", For: time.Hour}} },
			Problem, "KuryrPort p is being deleted for 1h0m0s",
		},
		"a port that a pod has": {
			func(c *ClusterFacts) {
				c.Leaving = []LeavingObject{{Kind: "KuryrPort", Name: "p", For: time.Hour, Pod: "a/b"}}
			},
			Warning, "the pod a/b has it",
		},
		"a load balancer that others use": {
			func(c *ClusterFacts) {
				c.Leaving = []LeavingObject{{
					Kind: "KuryrLoadBalancer", Name: "web", For: time.Hour, Users: "the Services app use it",
				}}
			},
			Warning, "KuryrLoadBalancer web is being deleted for 1h0m0s: the Services app use it",
		},
		"all daemons are ready": {func(c *ClusterFacts) { c.Daemons = DaemonSetFacts{true, 3, 3} }, OK, "of 2 nodes none"},
		"Services": {
			func(c *ClusterFacts) { c.Counts.Balancers = 7 }, OK, "7 load balancers of Services are ready",
		},
		"a Service": {func(c *ClusterFacts) {
			c.Counts.Balancers, c.Balancers = 7, []Unready{{"a/web", "quota"}}
		}, Warning, "the load balancer a/web is not ready: quota"},
		"many Services": {func(c *ClusterFacts) {
			c.Counts.Balancers, c.Balancers = 7, make([]Unready, 7)
		}, Warning, "2 more load balancers"},
		"no load balancers": {
			func(c *ClusterFacts) { c.Counts.Balancers, c.Unserved = 7, "no Octavia" }, Problem,
			"no Service is served: no Octavia",
		},
		"nodes alike": {
			func(c *ClusterFacts) { c.Balancing.Raven, c.Balancing.Nodes = "node", "node" }, OK,
			"each node's kernel balances ClusterIPs, as",
		},
		"the SDN": {
			func(c *ClusterFacts) { c.Balancing.Raven, c.Balancing.SDN = "sdn", "Octavia" }, OK,
			"the SDN balances ClusterIPs (Octavia), as controller.load_balancers is sdn",
		},
		"another":          {func(*ClusterFacts) {}, OK, "Services are another's"},
		"nodes' own alone": {func(c *ClusterFacts) { c.Balancing.Nodes = "sdn" }, OK, "Raven makes no load balancers"},
		"Raven alone": {
			func(c *ClusterFacts) { c.Balancing.Raven, c.Balancing.Nodes = "node", "sdn" }, Problem,
			"controller.load_balancers is node, and node.load_balancers is sdn",
		},
		"nodes off": {func(c *ClusterFacts) { c.Balancing.Raven = "node" }, Problem, "node.services is off"},
		"Raven off": {func(c *ClusterFacts) { c.Balancing.Nodes = "node" }, Warning, "controller.services is off"},
		"nodes alone": {
			func(c *ClusterFacts) { c.Balancing.Raven, c.Balancing.Nodes = "sdn", "node" }, Warning,
			"node.load_balancers is node, and controller.load_balancers is sdn",
		},
		"kube-proxy beside": {func(c *ClusterFacts) {
			c.Counts.Balancers, c.Proxy = 7, DaemonSetFacts{true, 2, 2}
		}, Warning, "kube-proxy is to run on 2 nodes"},
		"kube-proxy alone": {func(c *ClusterFacts) { c.Proxy = DaemonSetFacts{true, 2, 2} }, OK, "of 2 nodes none"},
		"a network that is gone": {
			func(c *ClusterFacts) {
				c.Leaving = []LeavingObject{{Kind: "KuryrNetwork", Name: "blue-1", For: time.Hour}}
			},
			Problem, "KuryrNetwork blue-1",
		},
	} {
		c := ClusterFacts{
			Namespace: "blue", Lease: LeaseFacts{"s/r", true, true, "raven-1"},
			Deployments: []DeploymentFacts{{"kuryr-controller", 2, 2, ""}, {"kuryr-sdn", 1, 1, "x/y"}},
		}
		c.Counts.Nodes, c.Counts.Labelled, c.Counts.Ports = 2, 1, 7
		row.change(&c)
		all := Cluster(c)
		if Worst(all) != row.want || !slices.ContainsFunc(all, func(f Finding) bool {
			return f.Verdict == row.want && strings.Contains(f.What, row.says) && (f.Remediation != "") == (row.want != OK)
		}) {
			t.Errorf("%s: %+v", name, all)
		}
		for _, f := range all {
			if strings.Contains(f.Remediation, "-n ") && !strings.Contains(f.Remediation, "-n blue ") {
				t.Errorf("%s: %q is in another namespace", name, f.Remediation)
			}
		}
	}
}
