//go:build linux

package lb

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// Limits of a Frontend, by what one register of the kernel holds of it.
const (
	MaxEndpoints = 1<<13 - 1
	MaxAffinity  = (1<<17 - 1) * time.Second
)

// Config is what a Table needs to know of its surroundings. The zero Config is a table
// for the namespace New's caller is in.
type Config struct {
	// of the tables, in the inet and the bridge family; "" is DefaultName. Two Tables in one
	// namespace have two names
	Name string
	// Run calls a function in the table's network namespace; nil calls it where the caller
	// is. It is needed only to open sockets and to look addresses up, so that a namespace
	// may be left until then.
	Run func(func() error) error
	// NodeAddrs are those of the namespace's own addresses that the unspecified Key.Addr
	// stands for; none: each of them. Loopback addresses are none of them, ever: what comes
	// from one has no way to an endpoint.
	NodeAddrs []netip.Prefix
	// Bridges is what the names of the namespace's bridges begin with ("br-") where clients
	// and endpoints may be on one and the same, as in a router. Endpoints' answers are then
	// led up to the namespace (see LeadUp), so that a client's address is kept there too.
	// "": there are none.
	Bridges string
	// Inside is what the names of links begin with by which clients inside come; this
	// namespace's own connections are from inside, too. See Frontend.Inside. None: no client
	// is inside, and no packet is looked up for it.
	Inside []string
	Logger *slog.Logger // nil: slog.Default()
	// Observe is told of each transaction when it has ended. It is called with the Table's
	// lock held, and so must be quick and not call the Table. nil: no call.
	Observe func(Transaction)
}

// Transaction is what the kernel was asked to do together, all or nothing.
type Transaction struct {
	Elements int           // of sets and maps, added and removed
	Took     time.Duration // in the kernel and on the way there
	Err      error         // nil: it was done
}

// Key is where clients connect. The unspecified Addr (0.0.0.0 or ::) is each of the
// namespace's own addresses of that family that Config.NodeAddrs allows; a Key with that
// very address goes before it.
type Key struct {
	Addr     netip.Addr
	Protocol sdn.Protocol // TCP, UDP or SCTP
	Port     uint16
}

func (k Key) String() string {
	return fmt.Sprintf("%s %s", ipproto.Name(k.Protocol), netip.AddrPortFrom(k.Addr, k.Port))
}

// Frontend is a Key and where its connections lead.
type Frontend struct {
	Key
	// Endpoints are of the Key's family, in any order. Each gets the same share of new
	// connections; one that is there twice gets two.
	Endpoints []netip.AddrPort
	// Draining get no new connections, of clients inside neither, and keep the flows of UDP
	// that they have until they are not here any more; connections of TCP and SCTP go on
	// without that. They are of the Key's family, as many as there are. One that is an
	// endpoint too is that alone.
	Draining []netip.AddrPort
	// Affinity is for how long after its last new connection a client's address keeps its
	// endpoint, in whole seconds; 0 does not. It ends when the endpoint goes, or drains.
	Affinity time.Duration
	// Sources are who may connect; none: everyone. What others send is dropped.
	Sources []netip.Prefix
	// Masquerade has endpoints see an address of this namespace in place of the client's,
	// which is needed where their answers would not come back this way. An endpoint that
	// reaches itself is masqueraded always.
	Masquerade bool
	Empty      Empty
	// Inside is what clients inside (Config.Inside) get in place of Endpoints, Masquerade
	// and Empty. nil: the same as all others.
	Inside *Inside
}

// Inside is where a Frontend leads clients inside; its fields are as the Frontend's.
type Inside struct {
	Endpoints  []netip.AddrPort
	Masquerade bool
	Empty      Empty
}

// forInside is what a Frontend is to clients inside, where that is something else.
func (f Frontend) forInside() Frontend {
	return Frontend{
		Key: f.Key, Endpoints: f.Inside.Endpoints, Affinity: f.Affinity, Sources: f.Sources,
		Masquerade: f.Inside.Masquerade, Empty: f.Inside.Empty,
	}
}

// Empty is what a client gets while there is no endpoint.
type Empty uint8

// What a client gets.
const (
	Reject Empty = iota // TCP: a reset. Others: ICMP's port unreachable
	Drop                // nothing
)

// Difference is one thing in the kernel that is not as it should be.
type Difference struct {
	Object string // such as "element service4"
	Want   string // "": it should not exist
	Have   string // "": it does not exist
}

func (d Difference) String() string {
	return fmt.Sprintf("%s: want %q, have %q", d.Object, d.Want, d.Have)
}

func (k Key) validate() error {
	invalid := func(field, detail string, args ...any) error {
		return sdn.Invalid("frontend "+k.String(), field, detail, args...)
	}
	switch {
	case !k.Addr.IsValid() || k.Addr.Is4In6() || k.Addr.Zone() != "":
		return invalid("address", "want an IPv4 or IPv6 address without a zone")
	case k.Addr.IsLoopback() || k.Addr.IsMulticast():
		return invalid("address", "loopback and multicast addresses are not balanced")
	case k.Protocol != sdn.TCP && k.Protocol != sdn.UDP && k.Protocol != sdn.SCTP:
		return invalid("protocol", "want tcp, udp or sctp")
	case k.Port == 0:
		return invalid("port", "want 1 to 65535")
	}
	return nil
}

func (f Frontend) validate() error {
	if err := f.Key.validate(); err != nil {
		return err
	}
	invalid := func(field, detail string, args ...any) error {
		return sdn.Invalid("frontend "+f.Key.String(), field, detail, args...)
	}
	if len(f.Endpoints) > MaxEndpoints {
		return invalid("endpoints", "%d of them, want at most %d", len(f.Endpoints), MaxEndpoints)
	}
	for field, list := range map[string][]netip.AddrPort{"endpoints": f.Endpoints, "draining": f.Draining} {
		for _, e := range list {
			if a := e.Addr(); e.Port() == 0 || a.Is4() != f.Addr.Is4() || a.Is4In6() || a.Zone() != "" ||
				a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
				return invalid(field, "%s: want a unicast address of the frontend's family, and a port", e)
			}
		}
	}
	if f.Affinity < 0 || f.Affinity > MaxAffinity || f.Affinity%time.Second != 0 {
		return invalid("affinity", "%s: want whole seconds from 0 to %s", f.Affinity, MaxAffinity)
	}
	for _, p := range f.Sources {
		if !p.IsValid() || p.Addr().Is4() != f.Addr.Is4() || p.Addr().Is4In6() {
			return invalid("sources", "%s: want a prefix of the frontend's family", p)
		}
	}
	if f.Empty != Reject && f.Empty != Drop {
		return invalid("empty", "%d: want Reject or Drop", f.Empty)
	}
	if f.Inside != nil {
		return f.forInside().validate()
	}
	return nil
}
