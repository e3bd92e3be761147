//go:build linux

package plugin

import (
	"context"
	"errors"
	"log/slog"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// Config is what a Pod is made of.
type Config struct {
	Runtime string // "crun", "runc", a path of either, or "": the first of them in PATH
	State   string // folder of what must survive a reboot: private volumes of plugins
	Run     string // folder of containers, bundles and outputs, which a reboot voids; on a file system that one voids too
	NetNS   string // folder of the pods' namespaces, a shared mount point (netns.Open)

	// Volumes are folders of the host that images get. Any other mount point is a private folder below State, or an error if it is one of Kuryr's own.
	Volumes []Volume
	Images  Images                `json:"-"`
	Log     *slog.Logger          `json:"-"` // nil: slog.Default
	Metrics prometheus.Registerer `json:"-"` // nil: none

	CallLimit time.Duration // 0 is one minute, which is the specification's
	StopLimit time.Duration // from SIGTERM to SIGKILL of a main executable; 0 is two seconds

	// Ran is told, if it is not nil, when a network takes calls from now on. It must not wait.
	Ran func(Ref) `json:"-"`
	// Gone is told, if it is not nil, when a generation that is not of the configuration any more has gone.
	Gone func(Ref) `json:"-"`

	Store *reconcile.Store `json:"-"` // not started yet
}

// Image is what a plugin's container is made of. Rootfs is shared and is not written to.
type Image struct {
	ID     string
	Rootfs string
	Exec   []string // the main executable and its arguments
	Env    []string // KEY=value
	Dir    string   // working directory, "" is /
	Mounts []string // mount points that the image asks for
	// Installed is the file below the folder Installed that the image was read from, or "".
	Installed string
}

// Images finds images.
type Images interface {
	// Get fetches the image that ref names unless it is there. It may take long, and ends with ctx.
	Get(ctx context.Context, ref string) (Image, error)
}

// Ref names a generation of a network: what an attachment was made with is what takes it away. An empty Generation is the configuration's own.
type Ref struct {
	Name       string `json:"name"`
	Generation string `json:"generation,omitempty"` // of the entry's text: an entry that has not changed is the same generation
}

// Call is what a plugin is told about a pod.
type Call struct {
	Pod       string // UUID
	Namespace string // file of the pod's namespace on the host, in Config.NetNS
	Interface string // "" where the network has no containerInterface
}

// Result is what an add returned: CNI's result of version 1.1, from whatever form the plugin has answered in.
type Result = types100.Result

// State of a network.
type State string

// The states of a generation of a network.
const (
	Fetching State = "fetching" // its image
	Starting State = "starting"
	Running  State = "running"
	Failed   State = "failed" // for Status.Reason; it is tried again at Status.Retry
	Stopped  State = "stopped"
)

// Status tells how a generation of a network is.
type Status struct {
	Ref
	Image    string    `json:"image"` // as configured
	ImageID  string    `json:"image_id,omitempty"`
	Default  bool      `json:"default"`
	Current  bool      `json:"current"` // false: an older generation, or a removed network, that has attachments yet
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Retry    time.Time `json:"retry,omitzero"`
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"` // it is in this state
	Restarts int       `json:"restarts"`
	Output   string    `json:"output,omitempty"` // the end of what the main executable has written
}

// ErrUnknown says that no network, or no generation of it, is of this name.
var ErrUnknown = errors.New("there is no such network")

// NotRunningError says why a network takes no calls now.
type NotRunningError struct {
	Network string
	State   State
	Reason  string
}

func (e *NotRunningError) Error() string {
	s := "network " + e.Network + " is " + string(e.State)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// CallError is a call that was made and failed in the plugin.
type CallError struct {
	Network string
	Verb    string // add or del
	Code    int    // exit status, -1 where a signal ended it
	Timeout bool   // it did not end in time, and was killed with all its children
	Message string
}

func (e *CallError) Error() string { return "network " + e.Network + ": " + e.Verb + ": " + e.Message }
