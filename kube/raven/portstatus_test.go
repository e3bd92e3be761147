package raven

import (
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// TestPortStatus checks that a port is created first, by its label, and no pod's, and then
// available by label and status.
func TestPortStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	c.pod("blue", "p", "n1", nil)
	c.faults.trouble = trouble{api: true, from: 1, times: 1000, err: func(what kind) error {
		if what == "status KuryrPort" {
			return errAPIAway
		}
		return nil
	}}
	c.rounds(3)
	if len(c.ports()) == 0 {
		t.Fatal("no port is created")
	}
	for _, p := range c.ports() {
		if label := v1.PortStatus(p.Labels[v1.LabelPortStatus]); label != v1.PortCreated || p.Status.Pod != nil {
			t.Errorf("new port %s is labelled %s, status %+v", p.Name, label, p.Status)
		}
	}
	c.faults.trouble = trouble{}
	c.settle()
	c.mirrored()
	if len(c.bound()) != 1 {
		t.Error("the pod has no port")
	}
	for _, p := range c.ports() {
		since, ok := p.AvailableSince()
		if p.Status.Pod == nil && (!ok || !since.Equal(p.CreationTimestamp.Time)) {
			t.Errorf("port %s of %s is available since %s, %v", p.Name, p.CreationTimestamp, since, ok)
		}
	}
}

// TestPortStatusOfOlderRelease checks that the status of a free port is filled where the release
// that made it wrote the label alone.
func TestPortStatusOfOlderRelease(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	c.pod("blue", "p", "n1", nil)
	c.settle()
	for _, status := range []v1.PortStatus{"", v1.PortCreated} { // by the old CRD and by the new one
		for _, p := range c.ports() {
			if p.Status.Pod == nil {
				p.Status = v1.KuryrPortStatus{PortStatus: status}
				c.must(c.api.Status().Update(t.Context(), &p))
			}
		}
		c.start()
		c.settle()
		c.mirrored()
	}
}

// TestPortStatusOfLostNode checks that the ports of a node that is gone say deleting, by label and
// status, while the SDN does not delete them.
func TestPortStatusOfLostNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	pod := c.pod("blue", "p", "n1", nil)
	c.settle()
	c.faults.away = true
	c.remove(c.node("n1"))
	c.remove(pod)
	c.rounds(3)
	if len(c.ports()) == 0 {
		t.Fatal("the ports are gone though the SDN is unavailable")
	}
	for _, p := range c.ports() {
		if label := v1.PortStatus(p.Labels[v1.LabelPortStatus]); label != v1.PortDeleting || p.Status.PortStatus != label {
			t.Errorf("port %s is labelled %s, status %s", p.Name, label, p.Status.PortStatus)
		}
	}
	c.faults.away = false
	c.settle()
	c.check()
}
