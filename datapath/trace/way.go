//go:build linux

package trace

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// device is a link of a site.
type device struct {
	name string
	peer int // the site where its other end is; -1: none of them, or it has no other end
}

// devices are the links of all sites by index, with where their other ends are.
func devices(sites []Site) ([]map[int]device, error) {
	out := make([]map[int]device, len(sites))
	for i, site := range sites {
		h, err := netlink.NewHandleAt(site.NS)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", site.Name, err)
		}
		defer h.Close()
		links, err := h.LinkList()
		if err != nil {
			return nil, fmt.Errorf("%s: list the links: %w", site.Name, err)
		}
		numbers := map[int]int{} // the kernel's for other namespaces, as seen from this one
		for j, other := range sites {
			if n, err := h.GetNetNsIdByFd(int(other.NS)); err == nil && n >= 0 && j != i {
				numbers[n] = j
			}
		}
		out[i] = map[int]device{}
		for _, l := range links {
			d := device{l.Attrs().Name, -1}
			if j, ok := numbers[l.Attrs().NetNsID]; ok && l.Type() == "veth" {
				d.peer = j
			}
			out[i][l.Attrs().Index] = d
		}
	}
	return out, nil
}

// way puts the sightings of one direction into the order of the packet's way. Each
// namespace tells its own in order, but none knows of the others: from one to the next it
// goes by a pair of devices.
func (b *builder) way(back bool) []*seen {
	queues := make([][]*seen, len(b.Sites))
	total, at := 0, 0
	for i := range b.seen {
		s := &b.seen[i]
		if (s.kind != request) == back {
			queues[s.site] = append(queues[s.site], s)
			total++
		}
	}
	if back {
		at = b.end
	}
	var out []*seen
	for len(out) < total {
		for n := 0; len(queues[at]) == 0; n++ { // a gap: one observer saw nothing
			at = n
		}
		s := queues[at][0]
		queues[at] = queues[at][1:]
		out = append(out, s)
		if peer := b.devices[s.site][s.index].peer; s.out && peer >= 0 && len(queues[peer]) > 0 {
			at = peer
		}
	}
	if !back && total > 0 {
		b.end = out[total-1].site
	}
	return out
}
