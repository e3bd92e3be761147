package agent

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Attachment is one interface of one container, as a container runtime names it to CNI. Container and
// Interface are its identity.
type Attachment struct {
	Container string // CNI_CONTAINERID
	Interface string // CNI_IFNAME
	Namespace string // path of the network namespace, CNI_NETNS; may be gone or "" in a DEL

	Network string // the conflist's name, to which GC is limited
	Pod     *Pod   `json:",omitempty"` // nil if not Kubernetes asks
	Want    Want   `json:",omitzero"`
}

// Key is the key of the attachment's row.
func (a Attachment) Key() string { return a.Container + "/" + a.Interface }

// Pod is the container's pod, by CNI_ARGS.
type Pod struct {
	Namespace string
	Name      string
	UID       string // "" from a container runtime that does not send it
}

// Want is what the caller asks of the port.
type Want struct {
	Port sdn.ID           `json:",omitempty"` // that very port (PORT_UUID)
	MAC  net.HardwareAddr `json:",omitempty"` // nil: any
	IPs  []string         `json:",omitempty"` // addresses, with or without a length; none: any

	// Network is the SDN's network by its id or name. With "" it is the conflist's name, or
	// for pods their namespace's network. Pools have no other, and refuse one.
	Network   string      `json:",omitempty"`
	Bandwidth sdn.Limits  `json:",omitzero"`  // zero: none
	Published []Published `json:",omitempty"` // ports of the host that lead to it
}

// Published is a port of the host that leads to one of the container (CNI's capability portMappings,
// Kubernetes' hostPort).
type Published struct {
	HostIP   netip.Addr // invalid: every address of the host
	HostPort uint16
	Port     uint16
	Protocol sdn.Protocol
}

// Wiring is a port with all that plugging it takes.
type Wiring struct {
	Port    sdn.Port
	MTU     int
	Subnets []sdn.Subnet
	// Limits are those that the node enforces; zero if the SDN does, or if there are none.
	Limits sdn.Limits `json:",omitzero"`
}

// Intent is what the row of an attachment asks for.
type Intent struct {
	Attachment
	// Port is the port that the Source allocated before the intent was stored. It is nil where
	// the Source creates the port afterwards.
	Port *Allocation `json:",omitempty"`
	// Found means that the attachment is older than its row. Its interface is not plugged again.
	Found bool `json:",omitempty"`
	// Args are the CNI_ARGS that the port must agree with; "" if they name no port.
	Args string `json:",omitempty"`
}

// Allocation is a port that a Source allocated to an attachment.
type Allocation struct {
	Wiring Wiring
	Pool   string
	UID    string    // of the pod in the API; the container runtime may send none
	Since  time.Time // in seconds, as the API keeps it
	// Adopted means that the attachment was found in the API. Its container is of an earlier
	// boot, or the table was lost. The port waits for the pod's next sandbox.
	Adopted bool `json:",omitempty"`
}

// Source provides the ports of attachments: a network of the SDN, or the node's pools. Its
// methods can be called concurrently. Those that take an attachment or an intent are called for
// one key at a time.
type Source interface {
	// Allocate returns the attachment's port, allocated in memory only, or nil if Ensure will
	// create it. Errors: IsNotFound for a missing network, port or pod; IsExhausted if no port
	// becomes free before ctx ends; IsConflict if it asks for a port of another; IsInvalid with
	// the field; IsUnsupported.
	Allocate(ctx context.Context, a Attachment) (*Allocation, error)
	// Free takes back an allocation whose intent was not stored. Others are no error.
	Free(i Intent)
	// Ensure provides the port of a stored intent. It is idempotent. Its errors are those of
	// Allocate.
	Ensure(ctx context.Context, i Intent) (Wiring, error)
	// Find returns the port that the attachment has; IsNotFound for none.
	Find(ctx context.Context, a Attachment) (Wiring, error)
	// Leave is Find for an attachment that is being deleted. Afterwards no other attachment
	// takes the port over before Release.
	Leave(ctx context.Context, i Intent) (Wiring, error)
	// Release frees what the attachment has. It must be unplugged already, because another
	// attachment may get the port immediately. It returns reconcile.ErrWaiting until
	// Server.Wake is called for the object.
	Release(ctx context.Context, o reconcile.Object, i Intent) error
	// RowOf returns the key of the row that a DEL of the attachment means, if there is one.
	RowOf(a Attachment) (key string, ok bool)
}

// Restorer is a Source that keeps in memory what the rows say.
type Restorer interface {
	// Restore is called once, before all other methods.
	Restore(s *Server) error
}

// Lister is a Source whose attachments can have no row, because the table does not survive a
// reboot.
type Lister interface {
	// Attachments lists all attachments of this host that have a port.
	Attachments(ctx context.Context) ([]Attachment, error)
}

// Recoverer is a Source that has work to do when the daemon starts.
type Recoverer interface {
	// Recover is called at the start, beside the first requests, until it succeeds.
	Recover(ctx context.Context) error
}

// Prober is a Source that reports whether it could provide a port, for CNI's STATUS. Other Sources are
// always ready.
type Prober interface {
	// Ready is nil, or why a container could not get a port of the conflist's network; wanted is
	// Want.Network.
	Ready(ctx context.Context, network, wanted string) error
}
