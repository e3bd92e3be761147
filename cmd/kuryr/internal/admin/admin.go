// Package admin is how the kuryr command and monitoring talk to a running Kuryr: a small
// HTTP interface on a Unix socket that is root's alone, and its client.
//
//	GET  /healthz           200 while the process serves
//	GET  /readyz            200 when Docker can be served, else 503 and the reasons, a line each
//	GET  /metrics           Prometheus
//	     /v2.0/…            the SDN (package sdn/neutronapi)
//	GET  /admin/status      Status
//	POST /admin/reconcile   Reconcile: makes the kernel follow the store
//	GET  /admin/check       Check: what differs, changing nothing
//	GET  /admin/backup      the store's file
//	GET  /admin/forgotten   Orphans: what Docker does not have, changing nothing
//	POST /admin/forget      PurgeOptions → Repairs: deletes it
//	POST /admin/mend        Repairs: the host's switches, doors through its firewall, and the kernel
//	GET  /admin/intents     the rows of the daemon's database, by kind and key; without one 404
//	GET  /admin/pods        Pods: those of a cluster's node with their ports; elsewhere 404
//	POST /admin/down        DownOptions → DownReport: takes everything out of the kernel and ends the process
//	POST /admin/stop        {}: ends the process and leaves the kernel as it is
//
// Errors are one sentence of plain text. The package owns paths and bodies; what is done
// is the Daemon's. It must not decide who may ask: that is the listener's
// (internal/rootsock).
package admin

import (
	"context"
	"io"
	"time"
)

// Daemon is a running Kuryr.
type Daemon interface {
	// Unready gives the reasons for which it cannot serve; none: it can. It must not block.
	Unready() []string
	Status(ctx context.Context) (Status, error)
	// Reconcile makes the kernel follow the store. An error of the kernel is told in the answer too.
	Reconcile(ctx context.Context) (Reconcile, error)
	// Check tells what in the kernel is not as the store wants it.
	Check(ctx context.Context) (Check, error)
	// Backup writes the store.
	Backup(ctx context.Context, w io.Writer) error
	Repairer
	// Down takes everything of Kuryr's out of the kernel; the process ends when it has returned nil.
	Down(ctx context.Context, o DownOptions) (DownReport, error)
	// Stop ends the process, as a signal does.
	Stop(ctx context.Context) error
}

// Status is how a running Kuryr is.
type Status struct {
	Version      string    `json:"version"`
	Host         string    `json:"host"`
	Started      time.Time `json:"started"`
	Ready        bool      `json:"ready"`
	Reasons      []string  `json:"reasons"` // for not being ready
	Installation string    `json:"installation"`
	Store        Store     `json:"store"`
	StoreOnly    bool      `json:"store_only,omitempty"`  // there is nothing of the kernel's to the store
	Cluster      bool      `json:"cluster,omitempty"`     // it is the daemon of a cluster's node
	PluginSocket string    `json:"plugin_socket"`         // "" where Docker is not served
	NodeSocket   string    `json:"node_socket,omitempty"` // "" where container runtimes are not served by CNI
	// where the SDN is served to other processes; "" where it is not
	API       string           `json:"api"`
	Objects   map[string]int64 `json:"objects"` // by noun
	Reconcile Reconcile        `json:"reconcile"`
	Findings  []Finding        `json:"findings"` // about the host
	Unreached []Unreached      `json:"unreached"`
}

// Store is the file of the embedded SDN.
type Store struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// Reconcile is what came of making the kernel follow the store. The zero Reconcile: none
// has ended yet.
type Reconcile struct {
	At           time.Time `json:"at"` // its end
	Milliseconds float64   `json:"milliseconds"`
	Changed      []string  `json:"changed"`
	Error        string    `json:"error,omitempty"`

	Kernel []Difference `json:"-"` // Changed, taken apart
}

// Difference is one thing in the kernel that is not as the store wants it.
type Difference struct {
	Router string `json:"domain"` // id of a router, or of a network without one; "" is the host
	Object string `json:"object"`
	Want   string `json:"want"` // "": it should not exist
	Have   string `json:"have"` // "": it does not exist
}

// Check is what differs between store and kernel, and what about the host stands in the way.
type Check struct {
	Differences []string     `json:"differences"`
	Kernel      []Difference `json:"kernel,omitempty"` // Differences, taken apart
	Findings    []Finding    `json:"findings"`
}

// Finding is something about the host that stops, or may stop, Kuryr's packets.
type Finding struct {
	What        string `json:"what"`
	Remediation string `json:"mend"`
	Note        bool   `json:"note,omitempty"` // packets pass all the same
}

// Unreached is a range behind a router that the host cannot lead to.
type Unreached struct {
	Router string `json:"router"`
	Prefix string `json:"prefix"`
	Reason string `json:"reason"`
}

// DownOptions say how far Down goes.
type DownOptions struct {
	Force bool `json:"force"` // also while containers are plugged
	Purge bool `json:"purge"` // also the store and the host's forwarding switch
}

// DownReport tells what Down did, a line each.
type DownReport struct {
	Done []string `json:"done"`
}
