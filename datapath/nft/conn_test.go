//go:build linux

package nft

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/nstest"
)

// TestHighDescriptor checks that a connection works whose descriptor does not fit into the sets
// of select: the process has many files open.
func TestHighDescriptor(t *testing.T) {
	ns := nstest.New(t)
	for {
		f, err := os.Open(os.DevNull)
		must(t, err)
		defer f.Close()
		if f.Fd() >= unix.FD_SETSIZE {
			break
		}
	}
	c := connect(t, ns)
	raw, err := c.socket.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		if fd < unix.FD_SETSIZE {
			t.Errorf("descriptor %d is low", fd)
		}
	}))
	create(t, c)
	if there, err := golden.Exists(c); !there || err != nil {
		t.Errorf("table is there: %v, %v", there, err)
	}
	x := Begin(c)
	x.DeleteSets(golden, "absent")
	if err := x.Commit(); !IsAbsent(err) {
		t.Errorf("set that is absent: %v", err)
	}
}

// TestLongTransaction checks a transaction whose elements need many messages, and a listing of
// many parts.
func TestLongTransaction(t *testing.T) {
	c := connect(t, nstest.New(t))
	create(t, c)
	const count = 20000
	var want []Element
	for n := range uint32(count) {
		address := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		want = append(want, Element{Set: "hosts", Key: Addr(address)})
	}
	x := Begin(c)
	x.AddElements(golden, want)
	must(t, x.Commit())
	have, err := golden.Elements(c, "hosts", false)
	must(t, err)
	// While a hash table grows or shrinks, a listing of parts has some elements twice, or not.
	if n := len(have); n < count*9/10 || n > count*11/10 {
		t.Errorf("%d elements, want %d", n, count)
	}
	x = Begin(c)
	x.DeleteElements(golden, want)
	must(t, x.Commit())
	have, err = golden.Elements(c, "hosts", false)
	must(t, err)
	left := map[string]bool{}
	for _, e := range have {
		left[e.Key] = true
	}
	if len(left) != 1 {
		t.Errorf("elements %v, want the one that was there before", have)
	}
}

// TestManyRules checks that answers to a transaction with many rules fit: the library asks for
// one of each rule.
func TestManyRules(t *testing.T) {
	c := connect(t, nstest.New(t))
	const count = 3000
	many := Chain{Name: "many"}
	for range count {
		many.Add("rule", Count)
	}
	x := Begin(c)
	x.AddTable(golden)
	x.AddChains(golden, []Chain{many})
	must(t, x.Commit())
	if rules, err := golden.Rules(c, many.Name); err != nil || len(rules) != count {
		t.Errorf("%d rules, %v", len(rules), err)
	}
}

// TestRefusedByTheSocket checks that an error of the socket ends a call, and a later call fails
// as well.
func TestRefusedByTheSocket(t *testing.T) {
	c := connect(t, nstest.New(t))
	must(t, c.Close())
	for range 2 {
		if _, err := c.ListTables(); err == nil {
			t.Error("a closed connection lists tables")
		}
		c.AddTable(&nftables.Table{Name: "t", Family: nftables.TableFamilyINet})
		if err := c.Flush(); err == nil {
			t.Error("a closed connection adds a table")
		}
	}
	c = connect(t, nstest.New(t))
	must(t, c.socket.SetWriteBuffer(0))
	x := Begin(c)
	x.AddTable(golden)
	x.AddChains(golden, goldenChains())
	if err := x.Commit(); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("transaction that is too long: %v, want EMSGSIZE", err)
	}
}
