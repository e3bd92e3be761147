package node

import (
	"context"
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// Attachment is one interface of one container, as a container runtime names it to CNI. Container and Interface are its identity.
type Attachment struct {
	Container string // CNI_CONTAINERID
	Interface string // CNI_IFNAME
	Namespace string // path of the network namespace, CNI_NETNS; may be gone or "" when it is taken away

	Network string // the conflist's name: GC is about the attachments of one
	Pod     *Pod   // nil where it is not Kubernetes that asks
	Want    Want
}

// Pod is what Kubernetes tells by CNI_ARGS of the pod that a container is of.
type Pod struct {
	Namespace string
	Name      string
	UID       string // "" from a container runtime that does not tell it
}

// Want is what the caller asks of the port beyond that there is one.
type Want struct {
	Port sdn.ID           // that very port (PORT_UUID)
	MAC  net.HardwareAddr // nil: any
	IPs  []string         // addresses, with or without a length; none: any

	// Network is the SDN's network by its id or name. With "" it is the conflist's name, or
	// for pods their namespace's network. Pools have no other, and refuse one.
	Network   string
	Bandwidth sdn.Limits  // zero: none
	Published []Published // ports of the host that lead to it
}

// Published is a port of the host that leads to one of the container (CNI's capability portMappings, Kubernetes' hostPort).
type Published struct {
	HostIP   netip.Addr // invalid: every address of the host
	HostPort uint16
	Port     uint16
	Protocol sdn.Protocol
}

// Wiring is a port that is to be plugged, with all that this takes.
type Wiring struct {
	Port    sdn.Port
	MTU     int
	Subnets []sdn.Subnet
	Limits  sdn.Limits // that the node itself is to keep it to; zero where the SDN does, or where there are none
}

// Source is where the node's daemon has ports from: a network of the SDN by its name, or the node's pools. All methods may be called at once from many goroutines,
// and are idempotent: a container runtime asks again for what it has not heard the end of.
type Source interface {
	// Claim gives the attachment its port: the one it has already, or a new one. It is written down durably before Claim returns.
	// Errors: IsNotFound for a network, a port or a pod that is not there; IsExhausted where there is no address or no port and none comes before ctx ends;
	// IsConflict where what it wants is another's; IsInvalid naming the field; IsUnsupported for a wish that the Source cannot grant: none is passed over in silence.
	Claim(ctx context.Context, a Attachment) (Wiring, error)
	// Find is the port that the attachment has; IsNotFound for none.
	Find(ctx context.Context, a Attachment) (Wiring, error)
	// Release gives back what the attachment has, which has to be unplugged by then: another may have the port and its addresses at once. Nothing is no error. Where the SDN or the API server is away a Source either owes it by itself and says nil, or
	// says IsUnavailable: then the server owes it, and asks again.
	Release(ctx context.Context, a Attachment) error
	// Attachments are all that have a port, for GC and for who starts again.
	Attachments(ctx context.Context) ([]Attachment, error)
}

// Recoverer is a Source that has something to bring in order when the daemon starts.
type Recoverer interface {
	// Recover is called at the start, beside the first requests, again and again until it gives nil.
	Recover(ctx context.Context) error
}

// Keeper is a Source that keeps ports of containers that are no more for their pods' next ones.
type Keeper interface {
	// Keeps tells whether this is an attachment without an interface whose port is kept: who starts again does not give it back.
	Keeps(a Attachment) bool
}

// Prober is a Source that can tell whether it would serve a claim, for CNI's STATUS. A Source that is none is always ready.
type Prober interface {
	// Ready is nil, or why a container could not be given a port of the conflist's network; wanted is Want.Network.
	Ready(ctx context.Context, network, wanted string) error
}
