package docker

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// made is the target of rows for which nothing is created.
type made struct{}

func (made) Ensure(_ context.Context, _ reconcile.Object, _, last json.RawMessage) (json.RawMessage, error) {
	return last, nil
}

func (made) Delete(context.Context, reconcile.Object, json.RawMessage, json.RawMessage) error {
	return nil
}

type madeKind = reconcile.Kind[json.RawMessage, json.RawMessage]

// stored is a Driver with rows of the kinds that engines have, and the engine that has them.
type stored struct {
	*Driver
	t         *testing.T
	engine    *fakeEngine
	networks  *madeKind
	pools     *madeKind
	addresses *madeKind
	endpoints *madeKind
	plugs     *madeKind
	used      map[string]bool
}

func newStored(t *testing.T) *stored {
	t.Helper()
	store, err := reconcile.Open(reconcile.Config{
		Path: filepath.Join(t.TempDir(), "docker.db"), GracePeriod: time.Minute,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &stored{Driver: &Driver{database: store}, t: t, engine: newFakeEngine("one"), used: map[string]bool{}}
	lister := engine.NewLister(s.engine)
	register := func(name string, listed func(c *engine.Content, key string) bool) *madeKind {
		type row = reconcile.Row[json.RawMessage, json.RawMessage]
		o := reconcile.Options[json.RawMessage, json.RawMessage]{
			StaleAfter: -1, InUse: func(r row) bool { return s.used[r.Key] },
		}
		if listed != nil {
			o.Engine = lister
			o.Listed = func(r row, content any) bool { return listed(content.(*engine.Content), r.Key) }
		}
		return reconcile.Register(store, name, made{}, o)
	}
	hasNetwork := func(c *engine.Content, key string) bool { _, ok := c.Network(key); return ok }
	s.networks, s.pools = register("network", hasNetwork), register("pool", hasNetwork)
	hasEndpoint := func(c *engine.Content, key string) bool { return c.IsRunning("net", key) }
	s.addresses, s.endpoints = register("address", hasEndpoint), register("endpoint", hasEndpoint)
	s.plugs = register("plug", nil)
	if err := store.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stored) put(k *madeKind, key, engine, spec, last string, owners ...string) {
	s.t.Helper()
	row := reconcile.Row[json.RawMessage, json.RawMessage]{
		Object: reconcile.Object{Key: key}, Phase: reconcile.Wanted, Done: true, Engine: engine, Owners: owners,
		Spec: json.RawMessage(spec), Last: json.RawMessage(last),
	}
	if err := k.Import(s.t.Context(), []reconcile.Row[json.RawMessage, json.RawMessage]{row}); err != nil {
		s.t.Fatal(err)
	}
}

// says is what is told of orphans, a line each.
func says(list []Orphan) string {
	var lines []string
	for _, o := range list {
		line := o.String() + " (" + string(o.ID) + ")"
		if o.Keep != "" {
			line += " stays: " + o.Keep
		}
		if !o.Due.IsZero() {
			line += " due"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// What the engine does not have is told of by the names that people know, and deleted in its time or
// on demand; what another engine had only by the name of that.
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStored(t)
		s.engine.view.Networks = []engine.Network{{ID: "net", Ours: true}}
		s.put(s.networks, "net", "one", `{}`, `{"id":"1"}`)
		s.put(s.networks, "gone", "one", `{}`, `{"id":"2"}`)
		s.put(s.networks, "other", "two", `{}`, `{"id":"3"}`)
		s.put(s.networks, "never", "", `{}`, `{"id":"4"}`)
		s.put(s.pools, "x", "one", `{"cidr":"10.0.0.0/24"}`, `{"id":"5","key":{}}`)
		s.put(s.addresses, "y", "one", `{}`, `{"port":{"ID":"6","Addresses":[{"Addr":"10.0.0.5"},{"Addr":"fd00::5"}]}}`)
		s.put(s.endpoints, "e", "one", `{}`, `{"Port":{"ID":"7"}}`)
		s.put(s.endpoints, "used", "one", `{}`, `{"Port":{"ID":"8"}}`)
		s.put(s.plugs, "e", "", `{}`, `{}`, s.endpoints.Ref("e"))
		s.used["used"] = true

		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.database.Run(ctx) })
		defer running.Wait()
		defer stop()
		synctest.Wait()
		const missing = ": Docker does not have it "
		want := strings.Join([]string{
			"address 10.0.0.5 fd00::5" + missing + "(6) due",
			"endpoint e" + missing + "(7) due",
			"endpoint used" + missing + "(8) stays: a container has its interface",
			"network gone" + missing + "(2) due",
			"network never" + missing + "(4) stays: no engine has listed it",
			"network other" + missing + "(3) stays: it is another engine's, or this one's before it lost its data",
			"pool 10.0.0.0/24" + missing + "(5) due",
		}, "\n")
		orphans := func() string {
			t.Helper()
			list, err := s.Orphans(t.Context())
			if err != nil {
				t.Error(err)
			}
			return says(list)
		}
		if got := orphans(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		purge := func(now bool, engine, want string) {
			t.Helper()
			purged, err := s.Purge(t.Context(), now, engine)
			if got := says(purged); err != nil || got != want {
				t.Errorf("purged\n%s\n%v, want\n%s", got, err, want)
			}
			synctest.Wait()
		}
		purge(false, "", "")
		purge(false, "two", "network other: Docker does not have it (3) due")
		purge(false, reconcile.UnknownEngine, "network never: Docker does not have it, nor has any engine listed it (4) due")
		if _, err := s.Purge(t.Context(), false, "one"); err == nil {
			t.Error("what the engine has that answers is purged")
		}
		purged, err := s.Purge(t.Context(), true, "")
		if got := says(purged); err != nil || strings.Count(got, "\n") != 3 || strings.Contains(got, "used") {
			t.Errorf("purged\n%s\n%v", got, err)
		}
		if got := orphans(); !strings.HasPrefix(got, "endpoint used") || strings.Contains(got, "\n") {
			t.Errorf("left: %s", got)
		}
	})
}

// The endpoints of containers have the ports of their rows. A network without a row is unknown.
func TestRunning(t *testing.T) {
	t.Parallel()
	port := sdn.Port{
		Meta: sdn.Meta{ID: "p", Base: sdn.Base{Tags: []string{"a"}}}, Network: "n", Host: "box",
		MAC:       net.HardwareAddr{2, 0, 0, 0, 0, 1},
		Addresses: []sdn.Address{{Subnet: "s", Addr: netip.MustParseAddr("10.0.0.5")}},
		VIF:       sdn.VIF{Type: sdn.VIFBridge, Details: map[string]string{"bridge": "b"}},
	}
	rows := map[string]json.RawMessage{
		"network/net": json.RawMessage(`{"key":"net"}`),
		"share/swarm": json.RawMessage(`{"key":"swarm"}`),
		"endpoint/a":  json.RawMessage(encode(m{"key": "a", "spec": m{"Network": "net"}, "last": m{"Port": port}})),
	}
	on := func(network string, ids ...string) (list []engine.Endpoint) {
		for _, id := range ids {
			list = append(list, engine.Endpoint{ID: id, Network: network, Container: "c" + id})
		}
		return list
	}
	list := engine.List{
		Networks: []engine.Network{
			{ID: "net", Ours: true}, {ID: "swarm", Ours: true}, {ID: "lost", Ours: true}, {ID: "bridge"},
		},
		Containers: []engine.Container{
			{Endpoints: on("net", "a", "b")}, {Endpoints: on("lost", "c")}, {Endpoints: on("bridge", "d")},
		},
	}
	all, unknown := running(list, rows, nil)
	want := []Running{{on("net", "a")[0], port}, {on("net", "b")[0], sdn.Port{}}}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("running\n%+v\nwant\n%+v", all, want)
	}
	if len(unknown) != 1 || unknown[0].ID != "lost" {
		t.Errorf("unknown networks %+v", unknown)
	}
}
