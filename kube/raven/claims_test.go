package raven

import (
	"fmt"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod of a node without a daemon is given one port, whatever else has its pool looked at before the cache shows that it has it.
func TestOnePortForAPodBehindACache(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool.Minimum = 8 })
	c.withoutDaemon("n1")
	c.pod("default", "a", "n1", nil)
	c.settle()
	pod := c.pod("default", "b", "n1", nil)
	c.tellAll()
	for range 4 {
		_, _ = (pools{c.raven}).Reconcile(t.Context(), core.Request("", c.networkPool("default"))) // that its status is behind is no matter
	}
	var has []string
	for _, p := range c.ports() {
		if p.Status.Pod != nil && p.Status.Pod.UID == pod.UID {
			has = append(has, p.Name)
		}
	}
	if len(has) != 1 {
		t.Errorf("it has the ports %v", has)
	}
	c.settle()
	c.whole()
}

// withoutDaemon adds a node whose claimant Raven is.
func (c *cluster) withoutDaemon(name string) {
	c.t.Helper()
	c.addNode(name, nil)
	n := c.node(name)
	n.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	c.must(c.api.Update(c.t.Context(), n))
}

// mirrored checks that of each port label and status say the same, and that nothing is promised any more.
func (c *cluster) mirrored() {
	c.t.Helper()
	for _, p := range c.ports() {
		label := v1.PortStatus(p.Labels[v1.LabelPortStatus])
		is := v1.PortAvailable
		if p.Status.Pod != nil {
			is = v1.PortBound
		}
		if label != is || p.Status.PortStatus != is {
			c.t.Errorf("port %s is labelled %s, and has %+v", p.Name, label, p.Status)
		}
	}
}

// A port that is made for a pod which waits costs two writes, its object and its status, besides the pod's annotation.
func TestWritesForAPodThatWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool.Minimum, cfg.Pool.Batch = 0, 1 })
	c.withoutDaemon("n1")
	c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
	c.settle() // so that it is known whose the node is
	const pods = 5
	for i := range pods - 1 {
		c.pod("blue", fmt.Sprint("p", i), "n1", nil)
	}
	c.pod("blue", "wishes", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
	c.settle()
	c.whole()
	c.mirrored()
	for what, want := range map[string]int{"status KuryrPort": pods, "patch KuryrPort": 0} {
		if n := c.faults.calls[what]; n != want {
			t.Errorf("%s: %d times for %d pods, want %d: %v", what, n, pods, want, c.faults.calls)
		}
	}
	if n := len(c.ports()); n != pods {
		t.Errorf("%d ports for %d pods", n, pods)
	}
}

// A pod that goes between the making of its port and its getting it leaves the port to the next.
func TestPromisedToAPodThatIsGone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool.Minimum, cfg.Pool.Batch = 0, 1 })
	c.withoutDaemon("n1")
	c.settle() // so that it is known whose the node is
	gone := c.pod("default", "gone", "n1", nil)
	c.faults.trouble = trouble{api: true, from: 1, times: 1000, err: func(what kind) error {
		if what == "status KuryrPort" {
			return errAPIAway
		}
		return nil
	}}
	c.rounds(3)
	ports := c.ports()
	if len(ports) != 1 || promised(&ports[0]) != gone.UID {
		t.Fatalf("%d ports, want one that is promised: %+v", len(ports), ports)
	}
	c.remove(gone)
	c.pod("default", "next", "n1", nil)
	c.tellAll()
	c.faults.trouble = trouble{}
	c.settle()
	c.whole()
	c.mirrored()
	if now := c.ports(); len(now) != 1 || now[0].Name != ports[0].Name {
		t.Errorf("the port that nobody has is not used: %+v, was %+v", now, ports)
	}
}

// What Raven claims is whole after any kill, and no port is lost to the pool.
func TestClaimsKilledAtEveryWrite(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(*cluster){
		"pods come": func(c *cluster) {
			c.pod("blue", "web", "n1", nil)
			c.pod("blue", "wishes", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
		},
		"pods go": func(c *cluster) {
			c.remove(c.pod("blue", "never", "n1", nil))
			c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "old"}})
			c.pod("blue", "next", "n1", nil)
		},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", name, lost), func(t *testing.T) {
				t.Parallel()
				eachKill(t, lost, func() (*cluster, func()) {
					c := newCluster(t, func(cfg *Config) { cfg.Pool.Minimum, cfg.Pool.Batch = 0, 2 })
					c.withoutDaemon("n1")
					c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
					c.pod("blue", "old", "n1", nil)
					c.settle()
					act(c)
					return c, func() { c.whole(); c.mirrored() }
				})
			})
		}
	}
}
