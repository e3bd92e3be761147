package sdn

import (
	"context"
	"net/netip"
)

// PublishedPort is a port forwarding of an address of the host.
type PublishedPort struct {
	// Host is the address. The unspecified one (0.0.0.0 or ::) stands for all of its family.
	Host netip.Addr
	Forward
}

// PublicationSpec is all that one user publishes at addresses of the host, as one value.
type PublicationSpec struct {
	// Key identifies the publication. Its Owner is the Provider's Installation.
	Key Key
	// Project owns what a new publication is made of.
	Project string
	// Ports are what is published. None of them: the publication is deleted.
	Ports []PublishedPort
}

// Publication is what is published under a Key.
type Publication struct {
	Key   Key
	Ports []PublishedPort
}

// Publications lead transport ports of the host to those of ports. A publication consists of
// floating IPs that are OfHost: one for each address, whose Key has the publication's name, a
// slash and a word. A publication of an earlier version, made by EnsureFloatingIP, has that form
// too. All methods are Unsupported where Capabilities.HostAddresses is false.
type Publications interface {
	// Publish makes the publication be the spec, in one step: it adds what is missing, deletes
	// what the spec does not have, and keeps the ids of the rest. The answer's Ports are those
	// of the spec, by position. If one is refused, nothing changes. Transport ports that are
	// another's are a conflict, Exists, as in EnsureForwards; the field names the port of the
	// spec, such as "ports[3].external".
	Publish(ctx context.Context, spec PublicationSpec) (Publication, error)
	// Publication gets it. One that is absent has no Ports.
	Publication(ctx context.Context, key Key) (Publication, error)
	// Unpublish deletes the publication in one step. An absent one counts as deleted.
	Unpublish(ctx context.Context, key Key) error
}
