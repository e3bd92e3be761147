package doctor

import (
	"fmt"
	"time"
)

// LongGone is how long what is deleted may take to go before it is told of.
const LongGone = 5 * time.Minute

// ClusterFacts are how Kuryr is in a Kubernetes cluster as a whole, by the API server alone.
type ClusterFacts struct {
	Err     error // it could not be asked
	Lease   LeaseFacts
	Nodes   []Unready       // whose network is unavailable
	Pools   []Unready       // that are not ready
	Names   []Unready       // networks of namespaces that are not ready
	Leaving []LeavingObject // that are being deleted
	Daemons DaemonSetFacts
	Counts  struct{ Nodes, Networks, Pools, Ports int }
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
}

// DaemonSetFacts are on how many nodes the daemon is to run, and is ready.
type DaemonSetFacts struct {
	There       bool
	Want, Ready int
}

// Cluster judges them.
func Cluster(c ClusterFacts) []Finding {
	if c.Err != nil {
		return []Finding{{Check: "cluster", Verdict: Problem, What: "the API server does not tell: " + c.Err.Error(), Mend: "a kubeconfig of who may look at everything; `kuryr install kubernetes --apply`, where Kuryr is not installed"}}
	}
	all := append(raven(c.Lease), clusterNodes(c)...)
	all = append(all, unready("networks", "the network", "kuryrnetwork", c.Names, fmt.Sprintf("%d networks of namespaces are ready", c.Counts.Networks))...)
	all = append(all, unready("pools", "the pool", "kuryrportpool", c.Pools, fmt.Sprintf("%d pools are ready", c.Counts.Pools))...)
	return append(all, leaving(c)...)
}

func raven(l LeaseFacts) []Finding {
	f := findings{check: "raven"}
	switch {
	case !l.There:
		f.add(Warning, "there is no Lease "+l.Name+": Raven has not led yet, or runs without", "`kubectl -n kuryr-system get pods -l app.kubernetes.io/name=kuryr-controller`, and its log")
	case !l.Held && l.Holder == "":
		f.add(Problem, "nobody holds the Lease "+l.Name+": Raven does not work; pods get what their pools have, and nothing more", "`kubectl -n kuryr-system get pods -l app.kubernetes.io/name=kuryr-controller`, and its log")
	case !l.Held:
		f.add(Problem, "the Lease "+l.Name+" was not renewed by "+l.Holder+", which held it: Raven does not work; pods get what their pools have, and nothing more", "`kubectl -n kuryr-system get pods -l app.kubernetes.io/name=kuryr-controller`, and its log")
	}
	return f.orOK("it works: " + l.Holder + " leads")
}

func clusterNodes(c ClusterFacts) []Finding {
	f := findings{check: "nodes"}
	for _, n := range c.Nodes {
		f.add(Problem, "the network of the node "+n.Name+" is not available: "+n.Why, "`kubectl -n kuryr-system get pods -l app.kubernetes.io/name=kuryr-node -o wide`; `kuryr doctor` on the node")
	}
	if d := c.Daemons; d.There && d.Ready < d.Want {
		f.add(Warning, fmt.Sprintf("the daemon is ready on %d of %d nodes", d.Ready, d.Want), "`kubectl -n kuryr-system get pods -l app.kubernetes.io/name=kuryr-node -o wide`")
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

func leaving(c ClusterFacts) []Finding {
	f := findings{check: "deletions"}
	for _, l := range c.Leaving {
		since := l.For.Round(time.Second).String()
		switch {
		case l.For < LongGone:
		case l.Pod != "":
			f.add(Warning, fmt.Sprintf("%s %s is being deleted for %s, and the pod %s has it", l.Kind, l.Name, since, l.Pod), "nothing, if the pod is to stay: no port goes under a pod")
		default:
			f.add(Problem, fmt.Sprintf("%s %s is being deleted for %s", l.Kind, l.Name, since), "Raven's log, and that of its node's daemon, tell what holds it; never take the finalizer away by hand: what it stands for stays in the SDN")
		}
	}
	return f.orOK(fmt.Sprintf("of %d ports none is being deleted for long", c.Counts.Ports))
}
