package neutron

import (
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
	"github.com/kuryr/kuryr/sdn/neutronapi"
	"github.com/kuryr/kuryr/sdn/sdntest"
)

// servedHost is the host that the embedded SDN of these tests binds ports to.
const servedHost = "this-host"

// shared is an embedded SDN without a kernel, served by Kuryr's REST API.
type shared struct {
	sdn    *local.Provider
	proxy  *neutrontest.Proxy
	server *httptest.Server
}

// share opens the store at path and serves it. Its method end is idempotent.
func share(t *testing.T, path string) *shared {
	t.Helper()
	store, err := local.Open(t.Context(), local.Options{
		Path: path, Host: servedHost, PortsPerNetwork: 400, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &shared{sdn: store}
	caller := neutronapi.Caller{Role: neutronapi.Admin, Project: "served"}
	s.proxy = neutrontest.Handler(neutronapi.As(caller, neutronapi.NewHandler(store, neutronapi.Options{})))
	s.server = httptest.NewServer(s.proxy)
	t.Cleanup(s.end)
	return s
}

// end stops serving and closes the store, as a crash would: connections are cut.
func (s *shared) end() {
	s.proxy.Reset()
	s.server.CloseClientConnections()
	s.server.Close()
	_ = s.sdn.Close()
}

// config is that of a user.
func (s *shared) config() Config {
	return Config{
		Installation: s.sdn.Installation(), Host: servedHost, Endpoint: s.server.URL,
		Auth: Auth{Type: "none"}, Project: "served",
	}
}

// user opens a provider of its own.
func (s *shared) user(t *testing.T) *Provider {
	t.Helper()
	p, err := Open(s.config(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// storePath is that of a test's store.
func storePath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "sdn.db")
}

// TestContractOverREST checks the contract of this provider on the embedded SDN's API, which it takes
// for a Neutron. The API has load balancers at an address that is not configured here.
func TestContractOverREST(t *testing.T) {
	t.Parallel()
	sdntest.Run(t, func(t *testing.T) sdntest.Fixture {
		store := storePath(t)
		s := share(t, store)
		p := s.user(t)
		if err := p.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		deaf := &deaf{Provider: fewer{p, s.sdn}, p: p, proxy: s.proxy}
		return sdntest.Fixture{
			Provider: deaf, Host: servedHost,
			DropReply: func(*testing.T) { deaf.drop = true },
			Reopen: func(t *testing.T) sdn.Provider {
				s.end()
				again := share(t, store)
				p := again.user(t)
				if err := p.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
				return fewer{p, again.sdn}
			},
		}
	})
}

// fewer is a provider on the API of an SDN that does less than each Neutron, without an extension that
// says so.
type fewer struct {
	*Provider
	sdn sdn.Provider
}

func (f fewer) Capabilities() sdn.Capabilities {
	can, has := f.Provider.Capabilities(), f.sdn.Capabilities()
	can.AdminState, can.AddressModes = has.AdminState, has.AddressModes
	can.ExternalNetwork = has.ExternalNetwork
	return can
}
