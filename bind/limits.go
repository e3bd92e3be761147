//go:build linux

package bind

import (
	"errors"
	"fmt"

	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	leastBucket = 64 << 10 // bytes: one of the largest packets that the kernel makes of a sender's segments
	waits       = 25       // milliseconds that a packet may wait for its turn, as with CNI's reference plugin
	mostRate    = 1<<32 - 1
)

// limit has each end of an interface send no faster than the limits say, by a token
// bucket (tc-tbf(8)) that shapes. It lives and dies with its link, so nothing of it is
// ever left. What a container receives its host end sends; what it sends its own end
// does, so a container that may administer its network can undo that.
func (h *host) limit(i Interface, r Result) error {
	for _, end := range []struct {
		name, path string
		kbps       int64
		burst      int64
	}{
		{r.HostName, i.Port.VIF.Details[sdn.DetailNamespace], i.Limits.IngressKbps, i.Limits.IngressBurst},
		{r.Name, i.Namespace, i.Limits.EgressKbps, i.Limits.EgressBurst},
	} {
		rate, bucket := tokens(end.kbps, end.burst)
		if rate == 0 {
			continue
		}
		if err := h.shape(end.path, end.name, rate, bucket); err != nil {
			return fmt.Errorf("limit of %s: %w", end.name, err)
		}
	}
	return nil
}

// tokens are a limit's rate in bytes a second and its bucket in bytes; a rate of 0 is no
// limit. A burst that is not given, or that would take over a second, which is how
// container runtimes write that it is not given, is a tenth of a second's, as with
// Neutron.
func tokens(kbps, burst int64) (rate uint64, bucket uint32) {
	if kbps <= 0 || kbps >= mostRate/125 {
		return 0, 0
	}
	if burst <= 0 || burst > kbps {
		burst = kbps / 10
	}
	return uint64(kbps) * 125, uint32(max(burst*125, leastBucket))
}

func (h *host) shape(path, name string, rate uint64, bucket uint32) error {
	ns, err := h.openNamespace(path)
	if err != nil {
		return err
	}
	defer ns.close()
	nl, err := netlink.NewHandleAt(netns.NsHandle(ns.fd), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("%s: %w", ns, err)
	}
	defer nl.Close()
	link, err := nl.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return sdn.Unsupported("interface", "%s: an interface of this kind has no such end that could be limited", ns)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", ns, err)
	}
	err = nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
		},
		Rate: rate, Buffer: netlink.Xmittime(rate, bucket),
		Limit: uint32(min(rate*waits/1000+uint64(bucket), mostRate)),
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return sdn.Unsupported(
			"interface", "the kernel of this machine cannot limit it: its module sch_tbf is missing (%v)",
			err,
		)
	}
	if err != nil {
		return fmt.Errorf("queue in %s: %w", ns, err)
	}
	return nil
}
