//go:build linux

package firewall

import (
	"context"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/nstest"
)

func TestDeletes(t *testing.T) {
	t.Parallel()
	gone, other := message(unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, "kuryr_lb"),
		message(unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, "kuryr")
	for name, row := range map[string]struct {
		text []byte
		want bool
	}{
		"nothing":        {nil, false},
		"it goes":        {gone, true},
		"another goes":   {other, false},
		"one of many":    {append(append([]byte{}, other...), gone...), true},
		"it comes":       {message(unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, "kuryr_lb"), false},
		"another family": {message(unix.NFT_MSG_DELTABLE, unix.NFPROTO_BRIDGE, "kuryr_lb"), false},
		"cut off":        {gone[:len(gone)-8], true},
	} {
		if got := deletes(row.text, "kuryr_lb"); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWatchTable(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	ns := nstest.New(t)
	gone, ended := make(chan struct{}, 8), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	table := &nftables.Table{Name: "kuryr_lb", Family: nftables.TableFamilyINet}
	change := func(f func(*nftables.Conn)) {
		nstest.Do(t, ns, func() {
			c, err := nftables.New()
			if err == nil {
				f(c)
				err = c.Flush()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	listening := make(chan struct{})
	go nstest.Do(t, ns, func() {
		close(listening)
		ended <- WatchTable(ctx, "kuryr_lb", func() { gone <- struct{}{} })
	})
	<-listening
	select {
	case <-gone: // it is not there as listening begins
	case <-time.After(nstest.Limit):
		t.Fatal("a table that is not there was not told of")
	}
	change(func(c *nftables.Conn) { c.AddTable(table) })
	change(func(c *nftables.Conn) { c.DelTable(table) })
	select {
	case <-gone:
	case <-time.After(nstest.Limit):
		t.Error("not heard")
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(nstest.Limit):
		t.Error("it does not end")
	}
}
