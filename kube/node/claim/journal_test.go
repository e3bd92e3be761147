package claim

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// A record whose port cannot be read keeps no daemon from its start, and its port from no other pod's: the pod has it until its DEL. What the API tells of the port counts.
func TestUnreadableRecord(t *testing.T) {
	for name, known := range map[string]bool{"the API knows the port": true, "the API has none": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, aPort(1), aPod("a", "ua"), aPod("b", "ub"))
			w.begun()
			got := w.adds(ask("ca", "a", "ua"))
			w.says(string(got.Port.ID), v1.PortBound, "ca")
			w.kill()
			for _, r := range w.journal.all {
				r.Port.Address = "by hand"
				must(t, w.journal.put(r))
			}
			if !known {
				w.api.remove(t, aPort(1))
			}
			w.start()
			w.begun()
			if has, err := w.Find(t.Context(), ask("ca", "a", "ua")); err != nil || has.Port.ID != got.Port.ID || has.Port.VIF.Type != sdn.VIFBridge {
				t.Errorf("it has %+v, error %v", has.Port, err)
			}
			switch again, err := w.Claim(t.Context(), ask("ca", "a", "ua")); {
			case known && (err != nil || again.Port.MAC.String() != aPort(1).Spec.Address):
				t.Errorf("asked again: %+v, error %v", again.Port, err)
			case !known && (!sdn.IsInvalid(err) || sdn.FieldOf(err) != "spec.address"):
				t.Errorf("asked again: error %v", err)
			}
			if holder(w, string(got.Port.ID)) != "ca" {
				t.Error("the port is not the pod's any more")
			}
			w.dels(ask("ca", "a", "ua"))
			if !known {
				anew := aPort(1)
				anew.UID = "anew"
				must(t, w.api.Create(t.Context(), anew))
			}
			w.adds(ask("cb", "b", "ub"))
		})
	}
}

// Of two records of one port the newer counts, whatever order they are read in, and one of the containers of this boot counts before what was adopted.
func TestTwoRecordsOfOnePort(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ older, newer record }{
		"by time":             {record{Since: noon}, record{Since: noon.Add(time.Second)}},
		"by time, both so":    {record{Since: noon, Adopted: true}, record{Since: noon.Add(time.Second), Adopted: true}},
		"adopted at the same": {record{Since: noon, Adopted: true}, record{Since: noon}},
		"adopted later":       {record{Since: noon.Add(time.Second), Adopted: true}, record{Since: noon}},
	} {
		for range 12 { // a map's order
			w := &world{t: t, api: newAPI(), dir: t.TempDir(), boot: thisBoot}
			w.open()
			must(t, w.gone.watcher.Close()) // it does not run
			for container, r := range map[string]record{"older": c.older, "newer": c.newer} {
				r.Attachment, r.UID, r.Port = ask(container, container, "u-"+container), types.UID("u-"+container), aPort(1).Spec
				must(t, w.journal.put(r))
			}
			w.open()
			must(t, w.gone.watcher.Close())
			if has := holder(w, portName(1)); has != "newer" {
				t.Fatalf("%s: %s has the port", name, has)
			}
			if _, err := w.Find(t.Context(), ask("older", "older", "u-older")); !sdn.IsNotFound(err) {
				t.Fatalf("%s: the older one has it too: %v", name, err)
			}
		}
	}
}
