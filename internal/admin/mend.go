package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"
)

// Mender mends what stands between Kuryr and what it should be.
type Mender interface {
	// Memory compares with Docker and changes nothing.
	Memory(ctx context.Context) (Memory, error)
	// Forget removes what Docker has forgotten. What could not be removed is told in the answer.
	Forget(ctx context.Context, o ForgetOptions) (Mended, error)
	// Mend turns the host's switches, opens the doors through its firewall and makes the kernel follow the store.
	Mend(ctx context.Context) (Mended, error)
}

// Memory is what came of comparing Kuryr with Docker.
type Memory struct {
	Off       string           `json:"off,omitempty"`    // why nothing is compared
	Error     string           `json:"error,omitempty"`  // why nothing could be compared
	Engine    string           `json:"engine,omitempty"` // which answers
	After     string           `json:"after"`            // docker.forget_after
	Forgotten []Forgotten      `json:"forgotten"`
	Unknown   []UnknownNetwork `json:"unknown"` // Docker has them by this driver, the SDN does not
	Broken    []Broken         `json:"broken"`  // containers that run and cannot use their network
}

// Forgotten is something that Docker does not have and Kuryr keeps.
type Forgotten struct {
	Noun      string    `json:"noun"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Why       string    `json:"why"`
	Kept      string    `json:"kept,omitempty"`   // why it is not removed by itself
	Engine    string    `json:"engine,omitempty"` // which was seen to have it, where that is why it is kept
	Connected bool      `json:"connected,omitempty"`
	Since     time.Time `json:"since,omitzero"` // seen missing first
	Due       time.Time `json:"due,omitzero"`   // when it will be removed; none: never by itself
	Changed   time.Time `json:"changed,omitzero"`
}

// Broken is a container's place on a network that packets do not pass.
type Broken struct {
	Container string `json:"container"`
	Endpoint  string `json:"endpoint"`
	State     string `json:"state"` // unknown (to the SDN), absent (the interface), loose (not on its bridge, or down)
}

// UnknownNetwork is a network of Docker's.
type UnknownNetwork struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// ForgetOptions say what Forget removes beside what is due.
type ForgetOptions struct {
	Now    bool   `json:"now"`    // what is not due yet
	Engine string `json:"engine"` // what this engine had, which is gone for good; "unknown" is what none was seen to have
}

// Mended tells what was done and what could not be done, a line each.
type Mended struct {
	Done   []string     `json:"done"`
	Failed []string     `json:"failed"`
	Kernel []Difference `json:"kernel,omitempty"` // what was changed in the kernel
}

func mending(mux *http.ServeMux, s server) {
	mux.HandleFunc("GET /admin/forgotten", answer(s, workTimeout, func(ctx context.Context, _ *http.Request) (Memory, error) { return s.daemon.Memory(ctx) }))
	mux.HandleFunc("POST /admin/mend", answer(s, workTimeout, func(ctx context.Context, _ *http.Request) (Mended, error) { return s.daemon.Mend(ctx) }))
	mux.HandleFunc("POST /admin/forget", answer(s, workTimeout, func(ctx context.Context, r *http.Request) (Mended, error) {
		var o ForgetOptions
		decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&o); err != nil && !errors.Is(err, io.EOF) {
			return Mended{}, badRequest{err}
		}
		return s.daemon.Forget(ctx, o)
	}))
}

// Memory asks what Docker has forgotten.
func (c *Client) Memory(ctx context.Context) (out Memory, err error) {
	return out, c.call(ctx, http.MethodGet, "/admin/forgotten", nil, &out)
}

// Forget has removed what Docker has forgotten.
func (c *Client) Forget(ctx context.Context, o ForgetOptions) (out Mended, err error) {
	return out, c.call(ctx, http.MethodPost, "/admin/forget", o, &out)
}

// Mend has mended what the running Kuryr can mend.
func (c *Client) Mend(ctx context.Context) (out Mended, err error) {
	return out, c.call(ctx, http.MethodPost, "/admin/mend", nil, &out)
}
