// Package identity has the identity of Docker's objects in the SDN: their Keys, tags and names.
// It owns the form of these, which earlier versions and kuryr-libnetwork share.
package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// The kinds of Keys.
const (
	KindPool         = "docker-pool"
	KindPort         = "docker-port"
	KindEndpoint     = "docker-endpoint"
	KindNetwork      = "docker-network"
	KindSubnet       = "docker-subnet"
	KindRouter       = "docker-router"
	KindSharedRouter = "docker-shared-router"
	KindHidden       = "docker-ipam"
	KindHiddenSubnet = "docker-ipam-subnet"
	KindPublish      = "docker-publish"
	KindExposed      = "docker-exposed"
	KindFloating     = "docker-floating"
	// KindLink is the kind of a subnet pool that names the existing network of an engine's network.
	KindLink = "docker-existing"
)

// Namer makes the Keys of one daemon's objects.
type Namer struct {
	Owner string // sdn.Provider.Installation
	Host  string // 8 characters, which stand for the host's name
	Store string // 6 characters, which stand for the id of the daemon's database
	// Compat selects the names that the previous version finds objects by.
	Compat bool
}

// NewNamer returns the Namer of a host, by its name, and of a database, by its id.
func NewNamer(owner, host, store string, compat bool) Namer {
	return Namer{Owner: owner, Host: digest(host, 4), Store: digest(store, 3), Compat: compat}
}

func digest(text string, size int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:size])
}

// HostTag returns the tag of this host's objects.
func (n Namer) HostTag() string { return TagHost + n.Host }

// Nonce returns a random name of a row for which the engine has no id. It begins with the store.
func (n Namer) Nonce() string {
	var random [5]byte
	rand.Read(random[:])
	return n.Store + hex.EncodeToString(random[:])
}

// maxID is the length of the longest id that a name has unchanged: that of Docker's ids.
const maxID = 64

// Key returns the Key of the object of an engine's id in the local scope. The id may be followed
// by a slash and what tells the objects of one id apart.
//
// With Compat only a second object of an id has its incarnation in the name: the previous version
// finds the first one by the id alone.
func (n Namer) Key(kind, id string, o reconcile.Object) sdn.Key {
	if n.Compat && !o.Earlier {
		return n.GlobalKey(kind, id)
	}
	id, part, parted := strings.Cut(id, "/")
	if len(id) > maxID {
		id = digest(id, sha256.Size)
	}
	if parted {
		part = "/" + part
	}
	incarnation := strconv.FormatUint(o.Incarnation, 10)
	if n.Compat {
		return n.GlobalKey(kind, id+part+"~"+incarnation)
	}
	return n.GlobalKey(kind, strings.Join([]string{n.Host, n.Store, id, incarnation}, "/")+part)
}

// GlobalKey returns the Key of an object that all hosts share.
func (n Namer) GlobalKey(kind, id string) sdn.Key {
	return sdn.Key{Owner: n.Owner, Kind: kind, Name: id}
}

// PoolKey returns the Key of a subnet pool.
func (n Namer) PoolKey(p PoolName) sdn.Key { return n.GlobalKey(KindPool, p.String()) }

// PortKey returns the Key of a port that has addresses. A port that has a MAC from its creation
// has it in the Key, so that the SDN need not be asked for the MAC.
func (n Namer) PortKey(network sdn.ID, mac net.HardwareAddr, nonce string) sdn.Key {
	parts := []string{n.Host, n.Store, string(network)}
	if mac != nil {
		parts = append(parts, mac.String())
	}
	return n.GlobalKey(KindPort, strings.Join(append(parts, nonce), "/"))
}

// Ours reports whether this installation made an object as one of the kinds.
func (n Namer) Ours(m sdn.Meta, kinds ...string) bool {
	return !m.Foreign && m.Key.Owner == n.Owner && slices.Contains(kinds, m.Key.Kind)
}

// OfThisHost reports whether this host made an object as one of the kinds. Objects of earlier
// versions whose Key does not have the host do not count.
func (n Namer) OfThisHost(m sdn.Meta, kinds ...string) bool {
	if !n.Ours(m, kinds...) {
		return false
	}
	if m.Key.Kind == KindPool {
		pool, ok := ParsePoolName(m.Key.Name)
		return ok && pool.Host == n.Host
	}
	return slices.Contains(m.Tags, n.HostTag()) || strings.HasPrefix(m.Key.Name, n.Host+"/")
}
