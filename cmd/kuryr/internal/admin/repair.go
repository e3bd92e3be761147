package admin

import (
	"context"
	"net/http"
	"time"
)

// Repairer repairs what Kuryr can repair by itself.
type Repairer interface {
	// Orphans compares with Docker and changes nothing.
	Orphans(ctx context.Context) (Orphans, error)
	// Purge deletes orphans. The answer has what could not be deleted yet.
	Purge(ctx context.Context, o PurgeOptions) (Repairs, error)
	// Repair turns the host's switches, opens the doors through its firewall and makes the
	// kernel follow the store.
	Repair(ctx context.Context) (Repairs, error)
}

// Orphans are what Docker and Kuryr do not both have.
type Orphans struct {
	Off     string           `json:"off,omitempty"`    // why nothing is compared
	Error   string           `json:"error,omitempty"`  // why nothing could be compared
	Engine  string           `json:"engine,omitempty"` // that was listed
	After   string           `json:"after"`            // docker.forget_after
	Orphans []Orphan         `json:"forgotten"`
	Unknown []UnknownNetwork `json:"unknown"` // Docker has them by this driver, Kuryr does not
	Broken  []Broken         `json:"broken"`  // containers that run and cannot use their network
}

// Orphan is something that Docker does not have and Kuryr keeps.
type Orphan struct {
	Noun      string    `json:"noun"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Why       string    `json:"why"`
	Kept      string    `json:"kept,omitempty"`   // why it is not deleted
	Engine    string    `json:"engine,omitempty"` // that had it, if it is kept for that
	Connected bool      `json:"connected,omitempty"`
	Since     time.Time `json:"since,omitzero"` // of the first list without it
	Due       time.Time `json:"due,omitzero"`   // of its deletion; none: never by itself
	Changed   time.Time `json:"changed,omitzero"`
}

// Broken is a container's place on a network that packets do not pass.
type Broken struct {
	Container string `json:"container"`
	Endpoint  string `json:"endpoint"`
	State     string `json:"state"` // unknown (to Kuryr), absent (the interface), loose (not on its bridge, or down)
}

// UnknownNetwork is a network of Docker's.
type UnknownNetwork struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// PurgeOptions are what Purge deletes beside what is due.
type PurgeOptions struct {
	Now    bool   `json:"now"`    // what is not due yet
	Engine string `json:"engine"` // what this engine had, which is gone; "unknown" is that of what none has listed
}

// Repairs tells what was done and what could not be done, a line each.
type Repairs struct {
	Done   []string     `json:"done"`
	Failed []string     `json:"failed"`
	Kernel []Difference `json:"kernel,omitempty"` // what was changed in the kernel
}

func handleRepairs(mux *http.ServeMux, s server) {
	mux.HandleFunc("GET /admin/forgotten", answer(
		s, workTimeout,
		func(ctx context.Context, _ *http.Request) (Orphans, error) { return s.daemon.Orphans(ctx) },
	))
	mux.HandleFunc("POST /admin/mend", answer(
		s, workTimeout,
		func(ctx context.Context, _ *http.Request) (Repairs, error) { return s.daemon.Repair(ctx) },
	))
	mux.HandleFunc("POST /admin/forget", answer(s, workTimeout,
		func(ctx context.Context, r *http.Request) (Repairs, error) {
			var o PurgeOptions
			if err := decode(r, &o); err != nil {
				return Repairs{}, err
			}
			return s.daemon.Purge(ctx, o)
		}))
}

// Orphans asks for the orphans.
func (c *Client) Orphans(ctx context.Context) (out Orphans, err error) {
	return out, c.call(ctx, http.MethodGet, "/admin/forgotten", nil, &out)
}

// Purge deletes orphans.
func (c *Client) Purge(ctx context.Context, o PurgeOptions) (out Repairs, err error) {
	return out, c.call(ctx, http.MethodPost, "/admin/forget", o, &out)
}

// Repair makes the running Kuryr repair what it can.
func (c *Client) Repair(ctx context.Context) (out Repairs, err error) {
	return out, c.call(ctx, http.MethodPost, "/admin/mend", nil, &out)
}
