package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/httpserve"
)

// listenFunc listens at a port of all of the node's addresses.
type listenFunc func(port uint16) (net.Listener, error)

func listenTCP(port uint16) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(port))))
}

// healthTimeout bounds what a load balancer may take to ask.
const healthTimeout = 10 * time.Second

// maxHealthHeader bounds a request's header, in bytes.
const maxHealthHeader = 16 << 10

// healthServer is a server that any client may ask. What a client sends and keeps open is bounded.
func healthServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadTimeout: healthTimeout, WriteTimeout: healthTimeout, IdleTimeout: healthTimeout,
		MaxHeaderBytes: maxHealthHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// health answers load balancers that ask which nodes have endpoints of their own (spec.healthCheckNodePort), as kube-proxy does: 200 with some, 503 with none.
type health struct {
	addrs   []netip.Prefix // that it answers at; none is all
	healthy func(types.NamespacedName) bool
	listen  listenFunc
	log     *slog.Logger

	mu    sync.Mutex
	ports map[types.NamespacedName]*healthPort
}

// healthPort is one Service's.
type healthPort struct {
	port   uint16
	locals atomic.Int64
	server *http.Server
}

func newHealth(addrs []netip.Prefix, healthy func(types.NamespacedName) bool, listen listenFunc, log *slog.Logger) *health {
	if listen == nil {
		listen = listenTCP
	}
	return &health{addrs: addrs, healthy: healthy, listen: listen, log: log, ports: map[types.NamespacedName]*healthPort{}}
}

// set has a Service's port answer with so many local endpoints; port 0 is none.
func (h *health) set(name types.NamespacedName, port uint16, locals int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.ports[name]
	if p != nil && p.port != port {
		_ = p.server.Close()
		delete(h.ports, name)
		p = nil
	}
	if port == 0 {
		return nil
	}
	if p == nil {
		l, err := h.listen(port)
		if err != nil {
			return fmt.Errorf("healthCheckNodePort %d: %w", port, err)
		}
		p = &healthPort{port: port}
		p.server = healthServer(h.handler(name, p), h.log)
		h.ports[name] = p
		go func() {
			if err := httpserve.RunPublic(context.Background(), p.server, l); !errors.Is(err, http.ErrServerClosed) {
				h.log.Warn("a Service's health check has ended", "service", name.String(), "port", port, "err", err)
			}
		}()
	}
	p.locals.Store(int64(locals))
	return nil
}

// close ends all of them.
func (h *health) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, p := range h.ports {
		_ = p.server.Close()
		delete(h.ports, name)
	}
}

// answer is in kube-proxy's form.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

func (h *health) handler(name types.NamespacedName, p *healthPort) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.answersAt(r) {
			panic(http.ErrAbortHandler) // as a port where nobody listens would, the connection ends
		}
		a := answer{LocalEndpoints: p.locals.Load(), ServiceProxyHealthy: h.healthy(name)}
		a.Service.Namespace, a.Service.Name = name.Namespace, name.Name
		body, err := json.MarshalIndent(a, "", "\t")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(a.LocalEndpoints, 10))
		if a.LocalEndpoints == 0 || !a.ServiceProxyHealthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(body)
	})
}

// answersAt tells whether a request came to an address that NodePorts answer at.
func (h *health) answersAt(r *http.Request) bool {
	if len(h.addrs) == 0 {
		return true
	}
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if at == nil {
		return false
	}
	ap, err := netip.ParseAddrPort(at.String())
	return err == nil && slices.ContainsFunc(h.addrs, func(p netip.Prefix) bool { return p.Contains(ap.Addr().Unmap()) })
}
