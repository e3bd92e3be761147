//go:build linux

package api

import (
	"encoding/json"
	"time"

	"github.com/kuryr/kuryr/kurma/pod"
)

// DefaultSocket is where the daemon listens if nothing else is configured.
const DefaultSocket = "/run/kuryr/kurma.sock"

// Pod is what POST and GET /v1/pods answer.
type Pod = pod.Pod

// PodRequest is the body of POST /v1/pods. All of it may be left out: then a namespace is made, and joins the default networks.
type PodRequest struct {
	UUID      string    `json:"uuid,omitempty"`
	Networks  *[]string `json:"networks,omitempty"`  // left out or null: the defaults; []: none
	Namespace string    `json:"namespace,omitempty"` // file of the network namespace
	PID       int       `json:"pid,omitempty"`       // or a process in it
	Container string    `json:"container,omitempty"` // of an OCI runtime, whose hook asks
	// User is the host's user for whom it asks; left out: root. A Container is judged by its
	// process instead.
	User *uint32 `json:"user,omitempty"`
}

// Network is what GET /v1/networks answers.
type Network struct {
	Name       string          `json:"name"`
	Image      string          `json:"image"`
	Default    bool            `json:"default"`
	Interface  string          `json:"interface,omitempty"` // the template
	State      string          `json:"state"`
	Reason     string          `json:"reason,omitempty"` // why it does not run
	Generation string          `json:"generation"`
	Since      time.Time       `json:"since,omitzero"`   // it is in this state
	Restart    time.Time       `json:"restart,omitzero"` // when it is started again
	ImageID    string          `json:"image_id,omitempty"`
	PID        int             `json:"pid,omitempty"`
	Pods       int             `json:"pods"`
	Output     string          `json:"output,omitempty"` // the last that its main executable wrote; of one network alone
	Config     json.RawMessage `json:"config,omitempty"` // the entry; of one network alone
}

// Image is what GET /v1/images answers.
type Image struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	Reference string    `json:"reference,omitempty"`
	Size      int64     `json:"size"`
	Created   time.Time `json:"created,omitzero"`
}

// ImageRequest is the body of POST /v1/images.
type ImageRequest struct {
	Reference string `json:"reference"`         // as the key aci of the configuration has it
	Refresh   bool   `json:"refresh,omitempty"` // ask where it is from even if it is here
}

// Progress is a line of the answer to POST /v1/images. The last has the image or an error.
type Progress struct {
	Stage string `json:"stage,omitempty"` // what is done now
	Done  int64  `json:"done,omitempty"`  // bytes
	Total int64  `json:"total,omitempty"` // 0: not known
	Image *Image `json:"image,omitempty"`
	Failure
}

// Failure is the body of an answer that is not 2xx.
type Failure struct {
	Error  string     `json:"error,omitempty"`
	Reason pod.Reason `json:"reason,omitempty"`
}
