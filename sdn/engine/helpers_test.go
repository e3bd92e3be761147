package engine

import (
	"context"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

const testHost = "this-host"

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func egress(port uint16) sdn.Rule {
	return sdn.Rule{Direction: sdn.Egress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: port}}
}

func count[T any](found iter.Seq2[T, error]) (int, error) {
	all, err := sdn.All(found)
	return len(all), err
}

// newStore returns a store for an engine.
func newStore(t testing.TB) Store {
	t.Helper()
	m := NewMemory()
	w := begin(t, m)
	ok(t, Create(w, ""))
	ok(t, w.Commit())
	return m
}

// open returns an engine on a store of its own.
func open(t testing.TB, o Options) *Engine {
	t.Helper()
	return openOn(t, newStore(t), o)
}

// openOn returns an engine on a store.
func openOn(t testing.TB, s Store, o Options) *Engine {
	t.Helper()
	o.Host, o.Logger = testHost, slog.New(slog.DiscardHandler)
	if o.PortsPerNetwork == 0 {
		o.PortsPerNetwork = 1023
	}
	if o.Quotas == nil {
		o.Quotas = DefaultQuotas()
	}
	e, err := New(t.Context(), s, &fakeRealm{news: make(chan struct{})}, o)
	ok(t, err)
	return e
}

// fakeRealm has every change as soon as it is stored.
type fakeRealm struct {
	mu              sync.Mutex
	news            chan struct{}
	joined, dropped int
}

func (r *fakeRealm) Expect(Tx, map[RowID]*RowChange) (Expectation, error) {
	return fakeExpectation{r}, nil
}
func (r *fakeRealm) HasPort(sdn.ID, sdn.ID) bool                 { return true }
func (r *fakeRealm) HasBalancer(sdn.ID, sdn.ID, netip.Addr) bool { return true }
func (r *fakeRealm) Unreached(sdn.ID) []sdn.Unreached            { return nil }
func (r *fakeRealm) ExternalMTU() int                            { return 1500 }
func (r *fakeRealm) UplinkMTU(context.Context) int               { return 1500 }

func (r *fakeRealm) Location(domain, network sdn.ID) (nsPath, bridge string) {
	return "/fake/" + string(domain), "br-" + network.Short()
}

func (r *fakeRealm) Supports() Support {
	return Support{
		Groups: true, Limits: true, VLANs: true, SCTP: true, Members: 1000, Affinity: 24 * time.Hour,
	}
}

func (r *fakeRealm) News() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.news
}

// counts returns how many expectations have joined and how many were dropped.
func (r *fakeRealm) counts() (joined, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.joined, r.dropped
}

type fakeExpectation struct{ r *fakeRealm }

func (e fakeExpectation) Join() {
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	e.r.joined++
	close(e.r.news)
	e.r.news = make(chan struct{})
}

func (e fakeExpectation) Drop() {
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	e.r.dropped++
}

func (fakeExpectation) Wait(context.Context) error { return nil }
