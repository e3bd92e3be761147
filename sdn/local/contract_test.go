package local

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"github.com/kuryr/kuryr/sdn/sdntest"
)

const testHost = "this-host"

// open opens a store in a folder of the test's own.
func open(t testing.TB, o Options) *Provider {
	t.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(t.TempDir(), "sdn.db")
	}
	if o.Host == "" {
		o.Host = testHost
	}
	o.Logger = slog.New(slog.DiscardHandler)
	ok(t, o.complete())
	p, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	hold(t, p, o)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// once skips a further run of the contract in short mode, which runs TestContractWithDatapath.
func once(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("short mode runs the contract once")
	}
}

func TestContractOfStore(t *testing.T) {
	once(t)
	t.Parallel()
	sdntest.Run(t, func(t *testing.T) sdntest.Fixture {
		o := Options{Path: filepath.Join(t.TempDir(), "sdn.db"), PortsPerNetwork: 400}
		p := open(t, o)
		deaf := &lossy{Provider: p}
		return sdntest.Fixture{
			Provider: deaf, Host: testHost,
			DropReply: func(*testing.T) { deaf.drop.Store(true) },
			Reopen: func(t *testing.T) sdn.Provider {
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				return open(t, o)
			},
		}
	})
}

// The same in one store, by many at once, as on an SDN that is slow: no test is in another's way.
func TestContractSideBySide(t *testing.T) {
	once(t)
	t.Parallel()
	p := open(t, Options{PortsPerNetwork: 400})
	sdntest.RunSideBySide(t, func(*testing.T) sdntest.Fixture { return sdntest.Fixture{Provider: p, Host: testHost} })
}

// lossy loses the answer to one changing call.
type lossy struct {
	*Provider
	drop atomic.Bool
}

func (l *lossy) lose(err error) error {
	if l.drop.Swap(false) {
		return sdn.Unavailable(err, "test", "the answer was lost")
	}
	return err
}

func (l *lossy) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	n, err := l.Provider.EnsureNetwork(ctx, spec)
	return n, l.lose(err)
}

func (l *lossy) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	ports, err := l.Provider.EnsurePorts(ctx, specs)
	return ports, l.lose(err)
}

// The same with a data path, which must add up, call by call, to what the store as a whole says.
func TestContractWithDatapath(t *testing.T) {
	t.Parallel()
	sdntest.Run(t, func(t *testing.T) sdntest.Fixture {
		fake := newFake()
		o := Options{Path: filepath.Join(t.TempDir(), "sdn.db"), PortsPerNetwork: 400, Datapath: fake}
		p := open(t, o)
		t.Cleanup(func() { checkSum(t, p) }) // after the suite's own cleaning up
		deaf := &lossy{Provider: p}
		return sdntest.Fixture{
			Provider: deaf, Host: testHost,
			DropReply: func(*testing.T) { deaf.drop.Store(true) },
			Reopen: func(t *testing.T) sdn.Provider {
				checkSum(t, p)
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				next := open(t, o)
				t.Cleanup(func() { checkSum(t, next) })
				return next
			},
		}
	})
}

// openMemory opens a provider whose store is in memory.
func openMemory(t testing.TB, m *engine.Memory, o Options) *Provider {
	t.Helper()
	ok(t, o.complete())
	w, err := m.Begin(t.Context())
	ok(t, err)
	if engine.InstallationOf(w) == "" {
		ok(t, engine.Create(w, ""))
	}
	ok(t, w.Commit())
	p, err := start(t.Context(), m, o)
	ok(t, err)
	hold(t, p, o)
	return p
}

// TestContractInMemory runs the contract on the second store, which proves that the rules need no more
// than the interface says.
func TestContractInMemory(t *testing.T) {
	t.Parallel()
	sdntest.Run(t, func(t *testing.T) sdntest.Fixture {
		m, fake := engine.NewMemory(), newFake()
		o := Options{Host: testHost, PortsPerNetwork: 400, Datapath: fake}
		p := openMemory(t, m, o)
		t.Cleanup(func() { checkSum(t, p) }) // after the suite has deleted its objects
		deaf := &lossy{Provider: p}
		return sdntest.Fixture{
			Provider: deaf, Host: testHost,
			DropReply: func(*testing.T) { deaf.drop.Store(true) },
			Reopen: func(t *testing.T) sdn.Provider {
				next := openMemory(t, m, o)
				t.Cleanup(func() { checkSum(t, next) })
				return next
			},
		}
	})
}

// checkSum compares what the data path was told with what the store says.
func checkSum(t testing.TB, p *Provider) {
	t.Helper()
	diff, err := p.Check(context.Background())
	if sdn.IsUnavailable(err) {
		return // closed and opened anew: that one is checked
	}
	if err != nil {
		t.Error(err)
	}
	for _, d := range diff {
		t.Errorf("domain %s\n  is told  %s\n  should be %s", d.Router, d.Have, d.Want)
	}
}
