//go:build linux

package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/restapi"
)

// servedSDN is the embedded SDN's store, served at a socket as if it had every host there is.
type servedSDN struct {
	socket string
	store  *local.Provider
	server *http.Server
}

func serveSDN(ctx context.Context, dir string) (*servedSDN, error) {
	store, err := local.Open(ctx, local.Options{Path: filepath.Join(dir, "sdn.db"), Host: warmNode, NoSync: true, PortsPerNetwork: -1})
	if err != nil {
		return nil, err
	}
	s := &servedSDN{socket: filepath.Join(dir, "sdn.sock"), store: store}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	s.server = &http.Server{Handler: restapi.As(restapi.Caller{Role: restapi.Admin}, restapi.NewHandler(everyHost{store}, restapi.Options{}))}
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

func (s *servedSDN) close() { _ = errors.Join(s.server.Close(), s.store.Close()) }

// everyHost takes each host for its own.
type everyHost struct{ sdn.Provider }

func (p everyHost) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
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
