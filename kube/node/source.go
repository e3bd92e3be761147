package node

import (
	"context"
	"net"

	"github.com/kuryr/kuryr/sdn"
)

// Attachment is one interface of one container, as a container runtime names it to CNI. Container and Interface are its identity.
type Attachment struct {
	Container string // CNI_CONTAINERID
	Interface string // CNI_IFNAME
	Namespace string // path of the network namespace, CNI_NETNS; may be gone or "" when it is taken away

	Network string // the conflist's name
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
}

// Wiring is a port that is to be plugged, with all that this takes.
type Wiring struct {
	Port    sdn.Port
	MTU     int
	Subnets []sdn.Subnet
}

// Source is where the node's daemon has ports from: a network of the SDN by its name, or the node's pools. All methods may be called at once from many goroutines,
// and are idempotent: a container runtime asks again for what it has not heard the end of.
type Source interface {
	// Claim gives the attachment its port: the one it has already, or a new one. It is written down durably before Claim returns.
	// Errors: IsNotFound for a network, a port or a pod that is not there; IsExhausted where there is no address or no port and none comes before ctx ends;
	// IsConflict where what it wants is another's; IsInvalid naming the field.
	Claim(ctx context.Context, a Attachment) (Wiring, error)
	// Find is the port that the attachment has; IsNotFound for none.
	Find(ctx context.Context, a Attachment) (Wiring, error)
	// Release gives back what the attachment has. Nothing is no error, and nor is an SDN or an API server that is away: it is owed then.
	Release(ctx context.Context, a Attachment) error
	// Attachments are all that have a port, for GC and for who starts again.
	Attachments(ctx context.Context) ([]Attachment, error)
}
