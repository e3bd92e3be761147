// Package core is what Raven's reconcilers have in common: the client of the API server
// and the calls of the SDN, conditions, Events and errors, the watches of a controller,
// and what a namespace is granted.
//
// It owns no objects. It must not know of any reconciler.
package core

import (
	"context"
	"log/slog"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Core is the API server, the SDN, Events and a clock. Its only state bounds and saves
// calls of the SDN.
type Core struct {
	Client client.Client // reads come from the cache
	Live   client.Reader // reads from the API server, without the cache; may be nil
	Events events.EventRecorder
	Log    *slog.Logger
	Now    func() time.Time
	SDN    sdn.Provider

	timeout time.Duration // of one call of the SDN
	calls   chan struct{} // bounds concurrent calls
	subnets subnetCache
}

// New returns a Core that makes up to so many calls of the SDN concurrently, each with a
// timeout.
func New(api client.Client, live client.Reader, recorder events.EventRecorder, log *slog.Logger,
	provider sdn.Provider, calls int, timeout time.Duration,
) *Core {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Core{
		Client: api, Live: live, Events: recorder, Log: log, Now: time.Now, SDN: provider,
		timeout: timeout, calls: make(chan struct{}, calls),
	}
}

// Call makes a call of the SDN with a deadline, as soon as fewer than the bound are in
// progress.
func (r *Core) Call(ctx context.Context, call func(context.Context) error) error {
	select {
	case r.calls <- struct{}{}:
		defer func() { <-r.calls }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return call(ctx)
}

// Key returns the identity in the SDN of an object of this installation.
func (r *Core) Key(kind, name string) sdn.Key {
	return sdn.Key{Owner: r.SDN.Installation(), Kind: kind, Name: name}
}

// Base returns the Key, name and project of an object that Raven makes.
func (r *Core) Base(kind, key, name, project string) sdn.Base {
	return sdn.Base{Key: r.Key(kind, key), Name: name, Project: project}
}
