//go:build linux

package pod

import (
	"strings"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/uuid"
)

// State is how far a pod has come.
type State string

// The states of a pod.
const (
	Adding   State = "adding"   // if that is cut off, the next start undoes it
	Ready    State = "ready"    // attached to all its networks
	Removing State = "removing" // its Errors say why it is not removed yet
)

// Pod is what is known of a pod.
type Pod struct {
	UUID        string       `json:"uuid"`
	State       State        `json:"state"`
	Namespace   string       `json:"namespace"` // file that its network namespace is pinned on
	Container   string       `json:"container,omitempty"`
	Networks    []string     `json:"networks"` // as they were asked for; null: the defaults
	Attachments []Attachment `json:"attachments"`
	Created     time.Time    `json:"created"`
	Error       string       `json:"error,omitempty"` // why its namespace is not removed yet
}

// Attachment is a pod on a network.
type Attachment struct {
	Network   Ref             `json:"network"`
	Interface string          `json:"interface,omitempty"`
	Result    *current.Result `json:"result,omitempty"` // as CNI 1.1 has it; null: not whole
	Error     string          `json:"error,omitempty"`  // why it is not removed yet
}

// Request asks for a pod.
type Request struct {
	// UUID is a new one if it is "", or the Container's (UUIDOf). Another UUID for a Container
	// needs a grant.
	UUID string
	// Networks are called in this order. nil asks for the configuration's defaults, and an empty
	// list for no network but lo.
	Networks []string
	// Path is a file of the network namespace; "": one is made.
	Path string
	// PID is a process in the namespace, instead of a Path; 0 is none.
	PID int
	// Container is the id that an OCI runtime has given it, whose hook asks with the PID of the
	// first process. The pod is removed when that process has ended. The remains of an earlier
	// container of this id are removed first.
	Container string
	User      *uint32 // without a Container: the host's user that asks; nil is root
}

// container identifies containers in UUIDs.
var containers = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://kurma.io/container"))

// UUIDOf is the UUID of an OCI container's pod if nothing else names one: version 5, of the
// container's id.
func UUIDOf(container string) string { return uuid.NewSHA1(containers, []byte(container)).String() }

// ParseUUID reads a pod's UUID, and returns it in small letters with hyphens.
func ParseUUID(s string) (string, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != 36 || id == uuid.Nil {
		return "", invalid("uuid: %q is not a UUID such as 146d7cef-fbf6-41da-a2f8-eba218597f9c", clip(s))
	}
	return id.String(), nil
}

// clip keeps what strangers wrote from filling messages.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
