package raven

import (
	"context"
	"fmt"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readPorts counts how often single ports are asked for.
type readPorts struct {
	sdn.Provider
	n int
}

func (p *readPorts) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	p.n++
	return p.Provider.Port(ctx, id)
}

// What Raven itself writes into the specs of ports it does not ask the SDN for again; what somebody else has written at the same time is restored.
func TestOwnChangesAreNotRestored(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	reads := &readPorts{Provider: c.sdn}
	c.sdn = reads
	c.start()
	c.addNode("n1", nil)
	for i := range 3 {
		c.pod("default", fmt.Sprint("p", i), "n1", nil)
	}
	c.settle()
	a := c.group("a")
	c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: a})
	c.settle()
	changed := 0
	for _, p := range c.ports() {
		if p.Generation > 1 {
			changed++
		}
	}
	if changed != 3 || reads.n != 0 {
		t.Errorf("%d specs were changed, and the SDN was asked for %d ports", changed, reads.n)
	}

	var edited v1.KuryrPort
	for _, p := range c.ports() {
		if p.Status.Pod != nil {
			edited = p
		}
	}
	was := edited.Spec.Address
	edited.Spec.Address = "fa:16:3e:ff:ff:ff"
	c.must(c.api.Update(t.Context(), &edited))
	c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: ""})
	c.settle()
	c.must(c.api.Get(t.Context(), client.ObjectKeyFromObject(&edited), &edited))
	if edited.Spec.Address != was || reads.n != 1 || len(edited.Spec.SecurityGroups) != 0 {
		t.Errorf("the port that was edited has the address %s, had %s, and groups %v; the SDN was asked %d times", edited.Spec.Address, was, edited.Spec.SecurityGroups, reads.n)
	}
}
