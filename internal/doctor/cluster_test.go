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
		"well":                   {func(*ClusterFacts) {}, OK, "it works: raven-1 leads"},
		"no answer":              {func(c *ClusterFacts) { c.Err = errors.New("connection refused") }, Problem, "connection refused"},
		"no lease":               {func(c *ClusterFacts) { c.Lease.There = false }, Warning, "has not led yet"},
		"a lease given up":       {func(c *ClusterFacts) { c.Lease.Held, c.Lease.Holder = false, "" }, Problem, "nobody holds the Lease s/r"},
		"a lease not renewed":    {func(c *ClusterFacts) { c.Lease.Held = false }, Problem, "not renewed by raven-1"},
		"a node":                 {func(c *ClusterFacts) { c.Nodes = []Unready{{"n1", "KuryrStopped"}} }, Problem, "node n1 is not available: KuryrStopped"},
		"a daemon":               {func(c *ClusterFacts) { c.Daemons = DaemonSetFacts{true, 3, 2} }, Warning, "2 of 3 nodes"},
		"a network":              {func(c *ClusterFacts) { c.Names = []Unready{{"blue-1", "quota"}} }, Warning, "the network blue-1 is not ready: quota"},
		"a pool":                 {func(c *ClusterFacts) { c.Pools = []Unready{{"n1-1", "quota"}} }, Warning, "the pool n1-1 is not ready: quota"},
		"a port on its way":      {func(c *ClusterFacts) { c.Leaving = []LeavingObject{{"KuryrPort", "p", time.Minute, ""}} }, OK, "of 7 ports none"},
		"a port that stays":      {func(c *ClusterFacts) { c.Leaving = []LeavingObject{{"KuryrPort", "p", time.Hour, ""}} }, Problem, "KuryrPort p is being deleted for 1h0m0s"},
		"a port that a pod has":  {func(c *ClusterFacts) { c.Leaving = []LeavingObject{{"KuryrPort", "p", time.Hour, "a/b"}} }, Warning, "the pod a/b has it"},
		"all daemons are ready":  {func(c *ClusterFacts) { c.Daemons = DaemonSetFacts{true, 3, 3} }, OK, "of 2 nodes none"},
		"a network that is gone": {func(c *ClusterFacts) { c.Leaving = []LeavingObject{{"KuryrNetwork", "blue-1", time.Hour, ""}} }, Problem, "KuryrNetwork blue-1"},
	} {
		c := ClusterFacts{Lease: LeaseFacts{"s/r", true, true, "raven-1"}}
		c.Counts.Nodes, c.Counts.Ports = 2, 7
		row.change(&c)
		all := Cluster(c)
		if Worst(all) != row.want || !slices.ContainsFunc(all, func(f Finding) bool {
			return f.Verdict == row.want && strings.Contains(f.What, row.says) && (f.Mend != "") == (row.want != OK)
		}) {
			t.Errorf("%s: %+v", name, all)
		}
	}
}
