package reconcile

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func keysOf[S any](rows iter.Seq[Row[S, string]]) (keys []string) {
	for r := range rows {
		keys = append(keys, r.Key)
	}
	slices.Sort(keys)
	return keys
}

// shared is a spec that rows may share.
type shared string

func (s shared) Index() []string { return []string{"spec/" + string(s)} }

type sharedTarget struct{}

func (sharedTarget) Ensure(context.Context, Object, shared, string) (string, error) { return "", nil }
func (sharedTarget) Delete(context.Context, Object, shared, string) error           { return nil }

// A row is found by what Index returns for it, as long as it does, and after a restart.
func TestByIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, path)
	register := func() *Kind[shared, string] {
		return Register(s, "port", sharedTarget{}, Options[shared, string]{})
	}
	k := register()
	other := Register(s, "other", &fakeTarget{}, Options[string, string]{})
	set(t, other, Request[string]{Key: "x", Spec: "1"})
	for _, key := range []string{"a", "b", "c", "d"} {
		set(t, k, Request[shared]{Key: key, Spec: "1"})
	}
	set(t, k, Request[shared]{Key: "b", Spec: "2"})
	succeed(t, "Remove", k.Remove(t.Context(), "c"))
	for range 2 {
		wantKeys(t, "rows with 1", keysOf(k.ByIndex("spec/1")), "a", "d")
		wantKeys(t, "rows with 2", keysOf(k.ByIndex("spec/2")), "b")
		wantKeys(t, "rows with 3", keysOf(k.ByIndex("spec/3")))
		wantKeys(t, "rows of the other kind", keysOf(other.Rows()), "x")
		succeed(t, "Close", s.Close())
		s = open(t, path)
		k = register()
		other = Register(s, "other", &fakeTarget{}, Options[string, string]{})
	}
}

// The unfinished rows of a kind are those that Run has work on, also after a restart.
func TestUnfinished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	metrics := prometheus.NewRegistry()
	s, err := Open(Config{Path: path, Logger: slog.New(slog.DiscardHandler), Registerer: metrics})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeTarget{fail: failing("delete stuck", errTest)}
	k := Register(s, "port", f, Options[string, string]{})
	for _, key := range []string{"done", "again", "stuck"} {
		set(t, k, Request[string]{Key: key, Spec: "1"})
	}
	succeed(t, "SetLater", k.SetLater(t.Context(), Request[string]{Key: "again", Spec: "2"}))
	if err := k.Remove(t.Context(), "stuck"); !IsPending(err) {
		t.Errorf("Remove: %v", err)
	}
	wantKeys(t, "unfinished", keysOf(k.each(unfinished)), "again", "stuck")
	if n, err := testutil.GatherAndCount(metrics, "kuryr_intent_rows"); n != 2 || err != nil {
		t.Errorf("kuryr_intent_rows: %d series, %v", n, err)
	}
	if c := k.countRows(); c != (counts{wanted: 2, deleting: 1}) {
		t.Errorf("counts %+v", c)
	}
	succeed(t, "Close", s.Close())
	s = open(t, path)
	k = Register(s, "port", f, Options[string, string]{})
	wantKeys(t, "unfinished", keysOf(k.each(unfinished)), "again", "stuck")
	succeed(t, "Start", s.Start(t.Context()))
	f.mu.Lock()
	f.fail = nil
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.Run(ctx)
	waitFor(t, func() bool { return len(keysOf(k.each(unfinished))) == 0 })
	wantKeys(t, "rows", keysOf(k.Rows()), "again", "done")
}

// BenchmarkOtherKinds compares the calls of a kind with ten rows in two stores: in one another kind
// has 10,000 rows. The ratio of their times must be near 1.
func BenchmarkOtherKinds(b *testing.B) {
	const many = 10_000
	newKind := func(others int) (*Kind[shared, string], *prometheus.Registry) {
		metrics := prometheus.NewRegistry()
		s := newStore(Config{
			Logger: slog.New(slog.DiscardHandler), Registerer: metrics, Path: "bench.db",
		}, &memory{map[string][]byte{}}, &content{id: "bench"}, "boot")
		k := Register(s, "port", sharedTarget{}, Options[shared, string]{})
		other := Register(s, "other", sharedTarget{}, Options[shared, string]{})
		fill := func(k *Kind[shared, string], n int) {
			var rows []Row[shared, string]
			for i := range n {
				rows = append(rows, Row[shared, string]{
					Object: Object{Key: fmt.Sprint(i)}, Phase: Wanted, Done: true, Spec: shared(fmt.Sprint(i % 2)),
				})
			}
			if err := k.Import(b.Context(), rows); err != nil {
				b.Fatal(err)
			}
		}
		fill(k, 10)
		fill(other, others)
		return k, metrics
	}
	alone, aloneMetrics := newKind(0)
	beside, besideMetrics := newKind(many)
	for _, c := range []struct {
		name string
		call func(k *Kind[shared, string], metrics *prometheus.Registry)
	}{
		{"Rows", func(k *Kind[shared, string], _ *prometheus.Registry) { keysOf(k.Rows()) }},
		{"Unfinished", func(k *Kind[shared, string], _ *prometheus.Registry) { keysOf(k.each(unfinished)) }},
		{"ByIndex", func(k *Kind[shared, string], _ *prometheus.Registry) { keysOf(k.ByIndex("spec/1")) }},
		{"Retry", func(k *Kind[shared, string], _ *prometheus.Registry) { k.store.Retry() }},
		{"Metrics", func(_ *Kind[shared, string], metrics *prometheus.Registry) {
			if _, err := metrics.Gather(); err != nil {
				b.Error(err)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var times [2]time.Duration
			for b.Loop() {
				begun := time.Now()
				c.call(alone, aloneMetrics)
				between := time.Now()
				c.call(beside, besideMetrics)
				times[0] += between.Sub(begun)
				times[1] += time.Since(between)
			}
			b.ReportMetric(float64(times[1])/float64(times[0]), "ratio")
		})
	}
}

// The unacknowledged rows of a kind are those that no later call has named, also after a restart.
func TestUnacked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, path)
	k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
	for _, key := range []string{"new", "named", "gone"} {
		set(t, k, Request[string]{Key: key, Spec: "1"})
	}
	wantKeys(t, "unacknowledged", keysOf(k.Unacked()), "gone", "named", "new")
	k.Ack("named")
	succeed(t, "Remove", k.Remove(t.Context(), "gone"))
	for range 2 {
		wantKeys(t, "unacknowledged", keysOf(k.Unacked()), "new")
		succeed(t, "Close", s.Close())
		s = open(t, path)
		k = Register(s, "port", &fakeTarget{}, Options[string, string]{})
	}
}
