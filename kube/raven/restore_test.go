package raven

import (
	"context"
	"fmt"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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

// generations has the API server count the changes of ports' specs, as a real one does.
func (c *cluster) generations() {
	c.raven.api = interceptor.NewClient(c.raven.api.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			port, is := o.(*v1.KuryrPort)
			if !is {
				return w.Patch(ctx, o, patch, opts...)
			}
			var before v1.KuryrPort
			c.must(c.api.Get(ctx, client.ObjectKeyFromObject(o), &before))
			if err := w.Patch(ctx, o, patch, opts...); err != nil || equality.Semantic.DeepEqual(before.Spec, port.Spec) || port.Generation > before.Generation {
				return err
			}
			port.Generation = before.Generation + 1
			return c.api.Update(ctx, port)
		},
	})
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
	c.generations()
	for _, p := range c.ports() { // as it is where the API server counts
		p.Generation = 1
		c.must(c.api.Update(t.Context(), &p))
	}
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
	edited.Spec.Address, edited.Generation = "fa:16:3e:ff:ff:ff", edited.Generation+1
	c.must(c.api.Update(t.Context(), &edited))
	c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: ""})
	c.settle()
	c.must(c.api.Get(t.Context(), client.ObjectKeyFromObject(&edited), &edited))
	if edited.Spec.Address != was || reads.n != 1 || len(edited.Spec.SecurityGroups) != 0 {
		t.Errorf("the port that was edited has the address %s, had %s, and groups %v; the SDN was asked %d times", edited.Spec.Address, was, edited.Spec.SecurityGroups, reads.n)
	}
}
