//go:build linux

package bind

import (
	"context"
	"errors"
	"fmt"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// Remove deletes the interface of this name in a namespace, with its host end, if it is a
// port's. It is for callers that do not know the port. Unplug still has to tell the port's
// switch. An absent namespace or interface is no error, and another interface of the name
// stays.
func (b *Binder) Remove(_ context.Context, namespace, name string) error {
	ns, err := b.host.openNamespace(namespace)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.close()
	err = ns.within(func(s *socket) error {
		l, err := s.link(0, name)
		if err != nil {
			return err
		}
		if ours, err := s.portOwns(l); err != nil || !ours {
			return err
		}
		var b batch
		b.add("delete "+name, unix.RTM_DELLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, 0, 0))
		return s.do(&b)
	})
	if err != nil && !errors.Is(err, errNoLink) {
		return fmt.Errorf("remove interface %s in %s: %w", name, ns, err)
	}
	return nil
}

// portOwns reports whether the link is a port's container end: by its own group, or by
// the host end's.
func (s *socket) portOwns(l link) (bool, error) {
	if l.group == groupPort {
		return true, nil
	}
	if l.kind != "veth" {
		return false, nil
	}
	nsid := l.peerNSID
	if l.peerHere {
		nsid = -1
	} else if nsid < 0 { // the peer's namespace has ended
		return false, nil
	}
	links, err := s.links(nsid, "veth")
	if err != nil {
		return false, err
	}
	for _, peer := range links {
		if peer.index == l.peer {
			return peer.group == groupPort || peer.group == groupDying, nil
		}
	}
	return false, nil
}
