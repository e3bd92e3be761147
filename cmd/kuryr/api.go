//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/internal/tlsfiles"
	"github.com/kuryr/kuryr/sdn/identity"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutronapi"
	"github.com/kuryr/kuryr/sdn/rpc"
	"golang.org/x/sync/errgroup"
)

// apiServer is the SDN as it is served to other processes.
type apiServer struct {
	cfg       config.Config
	log       *slog.Logger
	root      http.Handler // for sockets that are root's alone
	calls     http.Handler // for the processes of this machine
	public    http.Handler // for sdn.listen; nil where it is not served there
	plain     bool
	addresses []string // where it answers
}

// The files in state_dir that tokens issued stand on.
const (
	keyFile     = "api.key"
	revokedFile = "api.revoked"
)

// newAPI makes what serves the SDN, and refuses what would let in others than it should.
func newAPI(cfg config.Config, back *backend, plain bool, m *metrics.API, log *slog.Logger) (*apiServer, error) {
	served := neutronapi.NewHandler(back.provider, neutronapi.Options{Logger: log, Audit: func(ctx context.Context, c neutronapi.Change) { audit(ctx, log, c) }})
	gate := identity.GateConfig{API: served, As: asCaller, Metrics: m}
	a := &apiServer{cfg: cfg, log: log, root: identity.NewGate(gate), plain: plain}
	a.calls = rpc.NewHandler(back.provider, rpc.HandlerOptions{Logger: log})
	if cfg.SDN.Listen == "" || back.parts == nil {
		return a, nil
	}
	wrong := func(key, detail string) error { return &config.Error{Where: "configuration", Key: key, Detail: detail} }
	scheme := "https"
	switch {
	case plain:
		if scheme = "http"; !isLoopback(cfg.SDN.Listen) {
			return nil, wrong("sdn.listen", "must be an address of the loopback interface, such as 127.0.0.1:9696, where tokens would go over the network in the clear")
		}
	case cfg.SDN.TLSCert == "":
		return nil, wrong("sdn.tls_cert", "is needed with sdn.listen: the file with the API's certificate; `kuryr sdn certificates` makes one")
	case cfg.SDN.TLSKey == "":
		return nil, wrong("sdn.tls_key", "is needed with sdn.listen: the file with the API's private key")
	}
	file, err := identity.OpenTokens(cfg.SDN.Tokens, log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, wrong("sdn.tokens", "there is no file "+cfg.SDN.Tokens+", which says who may use the API; `kuryr sdn token` and `kuryr sdn password` make its lines")
	}
	if err != nil {
		return nil, fmt.Errorf("sdn.tokens: %w", err)
	}
	key, err := identity.LoadKey(filepath.Join(cfg.StateDir, keyFile))
	if err != nil {
		return nil, err
	}
	gate.Identity, err = identity.New(identity.Config{
		Tokens: file.Set, Key: key, RevokedPath: filepath.Join(cfg.StateDir, revokedFile), Scheme: scheme, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	gate.Rate = cfg.SDN.Rate
	a.public = asked(scheme, identity.NewGate(gate))
	return a, nil
}

// asked tells the API by what scheme it is asked, which its links must have: of a connection whose number is bounded net/http does not know that it is TLS. What a
// proxy in front says counts more.
func asked(scheme string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const header = "X-Forwarded-Proto"
		if r.Header.Get(header) == "" {
			r.Header.Set(header, scheme)
		}
		h.ServeHTTP(w, r)
	})
}

// asCaller puts who asks into a request's context. Root makes what belongs to no project.
func asCaller(ctx context.Context, id identity.Identity) context.Context {
	caller := neutronapi.Caller{Project: id.Project, Role: neutronapi.Role(id.Role), Name: id.Name}
	if id == (identity.Identity{}) {
		caller = rootCaller
	}
	return neutronapi.WithCaller(ctx, caller)
}

// rootCaller is who asks at a socket that is root's alone. No token is without a project.
var rootCaller = neutronapi.Caller{Role: neutronapi.Admin, Name: "root"}

// audit is the line in the log of a request that changed something, or would have. What `kuryr docker` does for Docker at the socket, several changes for
// each container, is a line at debug only, as in one process with the SDN; what comes over the network never is, whatever it calls itself.
func audit(ctx context.Context, log *slog.Logger, c neutronapi.Change) {
	attrs := []any{
		"user", c.Caller.Name, "project", c.Caller.Project, "role", string(c.Caller.Role),
		"peer", identity.PeerOf(ctx), "method", c.Method, "path", c.Path[:min(len(c.Path), mostPath)],
		"status", c.Status,
	}
	if len(c.IDs) > 0 {
		attrs = append(attrs, "ids", c.IDs[:min(len(c.IDs), mostIDs)], "made", len(c.IDs))
	}
	if c.Error != "" {
		attrs = append(attrs, "refused", c.Error)
	}
	level := slog.LevelInfo
	if c.Caller == rootCaller && strings.HasPrefix(c.Agent, neutron.Agent) {
		level = slog.LevelDebug
	}
	log.Log(ctx, level, "change by the API", attrs...)
}

// mostIDs is how many of the ids of one bulk the log has, and mostPath how many bytes of a path: an address may be of some kilobytes.
const mostIDs, mostPath = 10, 512

// listen serves the API until ctx ends. The socket of rpc is first: a client that finds
// the other one alone takes this process for one of an earlier version.
func (a *apiServer) listen(ctx context.Context, work *errgroup.Group) error {
	calls, err := rootsock.Listen(rpcSocket(a.cfg))
	if err != nil {
		return fmt.Errorf("sdn.socket: %w", err)
	}
	work.Go(func() error { return rpc.Serve(ctx, calls, a.calls, a.log) })
	l, err := rootsock.Listen(a.cfg.SDN.Socket)
	if err != nil {
		return fmt.Errorf("sdn.socket: %w", err)
	}
	work.Go(func() error { return identity.Serve(ctx, l, a.root, a.log) })
	a.addresses = []string{"unix://" + a.cfg.SDN.Socket}
	if a.public == nil {
		return nil
	}
	var public net.Listener
	scheme := "https://"
	if a.plain {
		scheme = "http://"
		public, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.SDN.Listen)
		a.log.Warn("the API is served without TLS: whoever may look into this machine's loopback interface can read tokens", "listen", a.cfg.SDN.Listen)
	} else {
		public, err = tlsfiles.Listen(ctx, a.cfg.SDN.Listen, tlsfiles.Files{Cert: a.cfg.SDN.TLSCert, Key: a.cfg.SDN.TLSKey, AnyClient: true}, a.log)
	}
	if err != nil {
		return fmt.Errorf("sdn.listen: %w", err)
	}
	work.Go(func() error { return identity.Serve(ctx, public, a.public, a.log) })
	a.addresses = append(a.addresses, scheme+public.Addr().String())
	return nil
}

// isLoopback tells whether an address can be reached from this machine alone.
func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

var errStoreOnly = errors.New("this kuryr has the store alone (--store-only): there is no kernel state of its own")
