package neutron

import (
	"context"
	"net/http"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// foreign404s are bodies that a proxy, or another service, answers 404 with while it does not reach Neutron.
var foreign404s = map[string]string{
	"a page":             "<html><head><title>404 Not Found</title></head><body>nginx</body></html>",
	"nothing":            "",
	"another's object":   `{"error": {"code": 404, "message": "The resource could not be found.", "title": "Not Found"}}`,
	"another's type":     `{"error": {"type": "PortNotFound", "message": "no such route"}}`,
	"a gateway's word":   `{"message": "no Route matched with those values"}`,
	"Neutron's, no type": `{"NeutronError": "The resource could not be found."}`,
}

// A 404 that is not Neutron's says nothing of what was asked for: nothing counts as deleted or absent because of it.
func TestForeign404(t *testing.T) {
	t.Parallel()
	for name, body := range foreign404s {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble()
			d.add("networks", map[string]any{"id": "x"})
			p, proxy := onDouble(t, d, nil)
			if err := p.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			proxy.Say(neutrontest.Call{}, 100, neutrontest.Answer{Status: http.StatusNotFound, Body: body})
			for what, ask := range map[string]func(context.Context) error{
				"a network": func(ctx context.Context) error { _, err := p.Network(ctx, "y"); return err },
				"a search": func(ctx context.Context) error {
					_, err := sdn.All(p.FindNetworks(ctx, sdn.NetworkQuery{}))
					return err
				},
				"a deletion": func(ctx context.Context) error { return p.DeleteNetwork(ctx, "x") },
				"ports":      func(ctx context.Context) error { return p.DeletePorts(ctx, []sdn.ID{"x"}) },
				"forwards":   func(ctx context.Context) error { return p.DeleteForwards(ctx, "x", []sdn.ID{"y"}) },
			} {
				if err := ask(t.Context()); !sdn.IsUnavailable(err) {
					t.Errorf("%s: the error is %v", what, err)
				}
			}
			if n := proxy.Count(neutrontest.Call{}); n < breakerFailures {
				t.Fatalf("%d requests were sent, which open no breaker", n)
			}
			if p.client.breaker.allow() == nil {
				t.Error("Neutron is not taken for away")
			}
			if len(d.objects["networks"]) != 1 {
				t.Error("the network is deleted")
			}
		})
	}
}
