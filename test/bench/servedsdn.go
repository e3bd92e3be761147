//go:build linux

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutronapi"
	"github.com/kuryr/kuryr/sdn/rpc"
)

// What a real neutron-server with OVN did on two processors: 2.5 ports made a second, one by one or in bulk, and 35 other requests.
const (
	neutronCreate = 400 * time.Millisecond
	neutronOther  = time.Second / 35
)

// servedSDN is the embedded SDN's store, served at a socket as if it had every host there is.
type servedSDN struct {
	socket string
	store  *local.Provider
	server *http.Server
	calls  *http.Server  // of sdn/rpc
	slow   atomic.Bool   // as slow as Neutron
	turn   chan struct{} // of the one that such an SDN is at
}

// takes lets a time go by that a slow SDN has for one request, when it is that one's turn.
func (s *servedSDN) takes(ctx context.Context, d time.Duration) {
	if !s.slow.Load() {
		return
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func serveSDN(ctx context.Context, dir string) (*servedSDN, error) {
	store, err := local.Open(ctx, local.Options{Path: filepath.Join(dir, "sdn.db"), Host: warmNode, NoSync: true, PortsPerNetwork: -1})
	if err != nil {
		return nil, err
	}
	s := &servedSDN{socket: filepath.Join(dir, "sdn.sock"), store: store, turn: make(chan struct{}, 1)}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	calls, err := net.Listen("unix", filepath.Join(dir, "sdn-rpc.sock"))
	if err != nil {
		return nil, errors.Join(err, listener.Close(), store.Close())
	}
	handler := neutronapi.NewHandler(everyHost{store, s}, neutronapi.Options{})
	served := neutronapi.As(neutronapi.Caller{Role: neutronapi.Admin}, handler)
	s.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			s.takes(r.Context(), neutronOther)
		}
		served.ServeHTTP(w, r)
	})}
	called := rpc.NewHandler(everyHost{store, s}, rpc.HandlerOptions{})
	s.calls = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/EnsurePorts") {
			s.takes(r.Context(), neutronOther)
		}
		called.ServeHTTP(w, r)
	})}
	go func() { _ = s.server.Serve(listener) }()
	go func() { _ = s.calls.Serve(calls) }()
	return s, nil
}

func (s *servedSDN) close() {
	_ = errors.Join(s.server.Close(), s.calls.Close(), s.store.Close())
}

// everyHost takes each host for its own.
type everyHost struct {
	sdn.Provider
	server *servedSDN
}

// UpdatePort leaves the host: one whose making is repeated would be moved.
func (p everyHost) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	host := patch.Host
	patch.Host = nil
	port, err := p.Provider.UpdatePort(ctx, id, patch)
	if host != nil {
		port.Host = *host
	}
	return port, err
}

func (p everyHost) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	p.server.takes(ctx, time.Duration(len(specs))*neutronCreate)
	specs = slices.Clone(specs)
	hosts := make([]string, len(specs))
	for i := range specs {
		hosts[i], specs[i].Host = specs[i].Host, warmNode
	}
	ports, err := p.Provider.EnsurePorts(ctx, specs)
	for i := range ports {
		ports[i].Host = hosts[i]
	}
	return ports, err
}
