//go:build linux

package lb

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/vishvananda/netlink"
)

// Table is what balances in one namespace. All methods may be called at once from many goroutines.
type Table struct {
	config Config
	mu     sync.Mutex
}

// New makes a Table. It does nothing in the kernel before Restore.
func New(c Config) *Table { return &Table{config: c} }

// Restore makes the kernel balance exactly these frontends, and takes over what a former process left: what works goes on working all the while. It reads the
// kernel, once; it is to be called before Apply, and may be called again at any time. Nothing is changed if it fails before the kernel is told; an
// error after that leaves the Table as it was told to be, and the next Restore or Apply finishes it. Errors: IsInvalid, naming the frontend and the field.
func (t *Table) Restore(ctx context.Context, all []Frontend) error { return errors.ErrUnsupported }

// Apply removes frontends and then sets others, all or nothing, at the cost of what changes. It is idempotent: what is not there need not be removed, and what is
// as it was costs nothing. Where the kernel is not as it was left, it is read and mended, as by Restore. Stale entries of connection tracking are gone when it returns:
// those of UDP flows to endpoints and frontends that went, and to frontends that had no endpoint. Connections of TCP and SCTP go on until they end.
// Errors: IsInvalid, naming the frontend and the field.
func (t *Table) Apply(ctx context.Context, set []Frontend, remove []Key) error {
	return errors.ErrUnsupported
}

// Check compares the kernel with what was told, changing neither. It reads the whole table.
func (t *Table) Check(ctx context.Context) ([]Difference, error) { return nil, errors.ErrUnsupported }

// Close lets go of the kernel, which balances on, for the next process.
func (t *Table) Close() error { return nil }

// Remove deletes the table and what Bridges needed; absent is fine. The Table is then as New made it.
func (t *Table) Remove(ctx context.Context) error { return errors.ErrUnsupported }

// UpMAC is where frames go that a bridge is to hand to its namespace; see LeadUp.
var UpMAC = net.HardwareAddr{0x0e, 0x6b, 0x75, 0x72, 0x79, 0x72}

// LeadUp has a bridge hand frames for UpMAC to its namespace, which Config.Bridges needs of every bridge with clients and endpoints on it. Idempotent. It
// is for who makes the bridge: a bridge that comes later than the Table is not told of it otherwise.
func LeadUp(h *netlink.Handle, bridge netlink.Link) error { return errors.ErrUnsupported }
