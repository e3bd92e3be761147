//go:build linux

package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// oldJournal is what versions before the intent store wrote.
func oldJournal(t *testing.T, path string, records map[string]string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucket([]byte("meta"))
		if err != nil {
			return err
		}
		pods, err := tx.CreateBucket([]byte("pods"))
		for uuid, text := range records {
			err = errors.Join(err, pods.Put([]byte(uuid), []byte(text)))
		}
		return errors.Join(err, meta.Put([]byte("schema"), []byte("1")))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// After an upgrade running pods stay attached, and what was cut off is undone. Their journal goes,
// and the earlier version refuses the store that takes its place.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pid := sleeper(t)
	ready := w.add(Request{UUID: someUUID, PID: pid, Networks: []string{"a", "b"}})
	adding := w.add(Request{UUID: numbered(1), Networks: []string{"a"}})
	removing := w.add(Request{UUID: numbered(2), Networks: []string{"a"}})
	records := map[string]string{}
	for state, p := range map[State]Pod{Ready: ready, Adding: adding, Removing: removing} {
		r, _ := w.pods.Get(p.UUID)
		attached, _ := json.Marshal(p.Attachments)
		asked, _ := json.Marshal(p.Networks)
		records[p.UUID] = fmt.Sprintf(`{"uuid":%q,"state":%q,"namespace":%q,"networks":%s,"attachments":%s,
			"created":%q,"space":{"dev":%d,"ino":%d}}`, p.UUID, state, p.Namespace, asked, attached,
			p.Created.Format("2006-01-02T15:04:05.999Z"), r.Spec.Space.Dev, r.Spec.Space.Ino)
	}
	w.stop()
	if err := os.Remove(w.path()); err != nil {
		t.Fatal(err)
	}
	oldJournal(t, w.path(), records)
	w.networks.calls = nil
	w.start()
	w.recover(0)
	same(t, w.networks.called(), []string{"del a", "del a"})
	same(t, w.List(), []Pod{ready})
	same(t, w.links(ready), []string{"eth0", "eth1", "lo+"})
	same(t, w.add(Request{UUID: someUUID, PID: pid, Networks: []string{"a", "b"}}), ready)
	if _, err := w.Add(t.Context(), Request{PID: pid}); !LookedAfter(err) {
		t.Errorf("its namespace is not its own: %v", err)
	}
	if left, _ := filepath.Glob(w.path() + ".old*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	w.restart()
	same(t, w.List(), []Pod{ready})
	w.del(someUUID)
	w.clean()
	w.stop()
	defer w.start()
	db, err := bbolt.Open(w.path(), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_ = db.View(func(tx *bbolt.Tx) error {
		same(t, string(tx.Bucket([]byte("meta")).Get([]byte("schema"))), "2")
		return nil
	})
	if err := Upgrade(w.path()); !errors.Is(err, reconcile.ErrInUse) {
		t.Errorf("open in another process: %v", err)
	}
}
