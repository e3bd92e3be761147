//go:build linux

// Package firewall does what Kuryr needs of the host's own network namespace beyond its own
// links and its own nftables table: it turns on the kernel's forwarding switch, and opens
// doors through firewalls that are not ours.
//
// It owns the switches it turned (see EnableForwarding) and the record of that, every
// rule of an iptables filter table whose comment is exactly "kuryr" and that is about its
// links, and the one interface entry it makes in a firewalld zone. What belongs to
// Docker, ufw, firewalld or the operator it reads but never changes, and it opens only
// what is shut by default: a rule that shuts something on purpose stays in force. Where
// Docker relies on the default to hide the unpublished ports of its own containers, a
// rule of ours hides them from our links instead.
//
// It must not decide which packets may reach a Kuryr network. That is done by Kuryr's own
// table, in which a drop is final whatever other tables accept; so OpenDoors is called
// after that table stands, and CloseDoors before it goes.
//
// Everything works in the network namespace of the calling thread. All methods may be
// called concurrently on one Host; two processes must not share one directory at the same
// time.
package firewall

import (
	"context"
	"log/slog"
	"sync"
)

// Config says what a Host works on.
type Config struct {
	// Dir is the folder of the record of what was changed (file "host.json"); it is made when needed.
	Dir string
	// Link names Kuryr's links in the host in iptables' form, where a trailing "+" stands
	// for anything; "kr+" when empty.
	Link string
	// Logger gets a line for every change; slog.Default() when nil.
	Logger *slog.Logger
	// TableLost is called by Watch when something was taken from Kuryr's own table "inet
	// kuryr", which package router keeps, be it by that package itself: it looks and puts back
	// what is missing. nil: no call.
	TableLost func(context.Context)
}

// ownTable is the name of Kuryr's own nftables table, of family inet.
const ownTable = "kuryr"

// Host changes and watches the host's network namespace. Make it with New.
type Host struct {
	dir  string
	link string
	log  *slog.Logger

	tableLost func(context.Context)
	// keep4 and keep6 are set while Watch keeps the family's switch on.
	keep4, keep6 bool
	// mu makes reading, changing and writing the record, and comparing and repairing the
	// doors, one step each.
	mu sync.Mutex
}

// New returns a Host; it touches nothing yet.
func New(c Config) *Host {
	h := &Host{dir: c.Dir, link: c.Link, log: c.Logger, tableLost: c.TableLost}
	if h.link == "" {
		h.link = "kr+"
	}
	if h.log == nil {
		h.log = slog.Default()
	}
	return h
}
