package endpoint

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// wires is a Binder whose containers have the interfaces of some ports.
type wires map[sdn.ID]bool

func (w wires) Plug(context.Context, bind.Interface) (bind.Result, error) { return bind.Result{}, nil }
func (w wires) Unplug(context.Context, sdn.Port) error                    { return nil }

func (w wires) Connected(_ context.Context, p sdn.Port) (bool, error) { return w[p.ID], nil }

// someEngine runs the endpoint up on net, and has ended there.
type someEngine struct{}

func (someEngine) List(context.Context) (engine.List, error) {
	up := engine.Container{Endpoints: []engine.Endpoint{{ID: "up", Network: "net"}}}
	return engine.List{
		Engine: "engine", Networks: []engine.Network{{ID: "net", Ours: true}}, Containers: []engine.Container{up},
	}, nil
}

func (someEngine) Endpoints(context.Context, string) ([]engine.Endpoint, error) {
	return []engine.Endpoint{{ID: "up", Network: "net"}, {ID: "ended", Network: "net"}}, nil
}

// An endpoint that the engine does not have is an orphan with all its parts, unless a container has
// its interface or the engine is starting it.
func TestJudged(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.Binder = wires{"connected": true}
	lister := engine.NewLister(someEngine{})
	lister.Attach(s.Unlisted)
	for id, e := range map[string]Spec{
		"up": {Network: "net"}, "ended": {Network: "net"}, "gone": {Network: "net"}, "lost": {Network: "other"},
		"connected": {Network: "net"}, "starting": {Network: "net", Started: time.Now()}, "unknown": {},
	} {
		row := reconcile.Row[Spec, Last]{
			Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Done: true, Engine: "engine", Spec: e,
			Last: Last{Port: sdn.Port{Meta: sdn.Meta{ID: sdn.ID(id)}}},
		}
		rows := s.parts(id, row.Last.Port)
		rows.endpoints = append(rows.endpoints, row)
		if err := s.store(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
	}
	list, err := lister.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var unlisted, used []string
	for r := range s.endpoints.Rows() {
		if !s.isListed(r.Key, list.Content) {
			unlisted = append(unlisted, r.Key)
		}
		if s.isPartUsed(r.Key) {
			used = append(used, r.Key)
		}
	}
	slices.Sort(unlisted)
	slices.Sort(used)
	if want := []string{"connected", "gone", "lost", "starting", "unknown"}; !slices.Equal(unlisted, want) {
		t.Errorf("not listed: %v, want %v", unlisted, want)
	}
	if want := []string{"connected", "starting"}; !slices.Equal(used, want) {
		t.Errorf("used: %v, want %v", used, want)
	}
}
