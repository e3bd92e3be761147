package raven

import (
	"flag"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var strideFlag = flag.Int("stride", 9, "trouble comes at each so manyth request, beginning with one that the seed chooses; 1 is each")

// troubles are what befalls requests. Nothing else happens that would have anything looked at again, so what forgets to try again stays as it is.
var troubles = map[string]trouble{
	"the SDN is away once":      {times: 1, err: func(kind) error { return errAway }},
	"the SDN is away for long":  {times: 40, err: func(kind) error { return errAway }},
	"an answer of it is lost":   {times: 1, lost: true, err: func(kind) error { return errAway }},
	"the API is away once":      {api: true, times: 1, err: func(kind) error { return errAPIAway }},
	"the API is away for long":  {api: true, times: 40, err: func(kind) error { return errAPIAway }},
	"an answer of the API lost": {api: true, times: 1, lost: true, err: func(kind) error { return errAPIAway }},
	"a conflict": {api: true, times: 1, err: func(what kind) error {
		if strings.HasPrefix(string(what), "create") {
			return nil // which conflicts with nothing
		}
		return conflict(string(what))
	}},
}

var errAPIAway = apierrors.NewServiceUnavailable("the API server is away")

// Whatever request something befalls, of the SDN or of the API server: when it is over all is as it is to be, without anybody's doing.
func TestTroubleAtEveryRequest(t *testing.T) {
	t.Parallel()
	for scenario, act := range kills {
		for name, of := range troubles {
			t.Run(scenario+", "+name, func(t *testing.T) {
				t.Parallel()
				c := killCluster(t)
				first := 1 + c.rand.IntN(*strideFlag)
				for at := first; ; at += *strideFlag {
					if at > first {
						c = killCluster(t)
					}
					c.faults.trouble = of
					c.faults.trouble.from = at
					act(c)
					c.settle()
					c.whole()
					if t.Failed() {
						t.Fatalf("at request %d", at)
					}
					if c.faults.trouble.seen < at {
						return
					}
				}
			})
		}
	}
}

// killCluster is what the scenarios of kills begin with.
func killCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	c.namespace("green", nil)
	c.pod("green", "old", "n2", nil)
	c.settle()
	return c
}

// whole checks that everything is as the pods, the nodes and the namespaces that are there want it.
func (c *cluster) whole() {
	c.t.Helper()
	c.check()
	var pods corev1.PodList
	c.list(&pods)
	bound := c.bound()
	for _, p := range pods.Items {
		if bound[p.Name] == "" {
			c.t.Errorf("pod %s has no port", p.Name)
		}
	}
	if len(bound) != len(pods.Items) {
		c.t.Errorf("%d pods are there, and ports are of %v", len(pods.Items), bound)
	}
	for _, p := range c.ports() {
		if !p.DeletionTimestamp.IsZero() {
			c.t.Errorf("port %s is still being deleted", p.Name)
		}
	}
	for _, p := range c.pools() {
		if !core.IsReady(p.Status.Conditions) || !p.DeletionTimestamp.IsZero() || c.node(p.Spec.Node) == nil {
			c.t.Errorf("pool %s of node %s is there: %+v", p.Name, p.Spec.Node, p.Status)
		}
	}
	var networks v1.KuryrNetworkList
	c.list(&networks)
	for _, n := range networks.Items {
		var ns corev1.Namespace
		if err := c.api.Get(c.t.Context(), core.Request("", n.Spec.Namespace).NamespacedName, &ns); err != nil || ns.UID != n.Spec.UID || !core.IsReady(n.Status.Conditions) {
			c.t.Errorf("network %s of namespace %s is there (%v): %+v", n.Name, n.Spec.Namespace, err, n.Status)
		}
	}
}
