//go:build linux

package policy

import (
	"errors"
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func newFilter(t testing.TB, ns netns.NsHandle) *Filter {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)), nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(16<<20), c.SetWriteBuffer(16<<20))
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseLasting() })
	return In(c)
}

func TestBase(t *testing.T) {
	ns := nstest.New(t)
	if err := newFilter(t, ns).create(); err != nil {
		t.Fatal(err)
	}
}
