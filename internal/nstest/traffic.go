//go:build linux

package nstest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Limit is how long a test waits for what must come. A busy machine may delay a packet, and
// drop some, for seconds.
const Limit = 20 * time.Second

// again is the time after which a question is sent again, as by a real client.
const again = time.Second

// Eventually waits until ok returns true. It fails the test after Limit.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", Limit, what)
		}
	}
}

// Repeat calls send, and then arrived with the time until which it may wait. It repeats both
// until arrived returns true, or until the limit is over, and reports whether it did. A packet
// can be lost without any fault, to a full queue or while a neighbour is resolved.
func Repeat(limit time.Duration, send func(), arrived func(until time.Time) bool) bool {
	for end := time.Now().Add(limit); ; {
		send()
		until := time.Now().Add(again)
		if until.After(end) {
			until = end
		}
		if arrived(until) {
			return true
		}
		if !until.Before(end) || !time.Now().Before(end) {
			return false
		}
		time.Sleep(time.Until(until)) // where an error came before
	}
}

// A question begins with "?", and ends with its number, as its answer does.
const questionLength = 1 + 4

var questions atomic.Uint32

// Listen listens in a namespace, again while an earlier socket has the address: a program that a
// test starts has copies of the test's sockets until it is executed, so one that was closed can
// stay for a moment.
func Listen(t testing.TB, ns netns.NsHandle, network, address string) net.Listener {
	t.Helper()
	var l net.Listener
	Eventually(t, address+" is free", func() bool {
		var err error
		Do(t, ns, func() { l, err = net.Listen(network, address) })
		if err != nil && !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
		return err == nil
	})
	return l
}

// Serve answers the questions of Ask until the socket is closed. An answer is what the function
// returns about the client and the question's length.
func Serve(c net.PacketConn, answer func(client net.Addr, length int) string) {
	for b := make([]byte, 1<<16); ; {
		n, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n >= questionLength && b[0] == '?' {
			_, _ = c.WriteTo(append([]byte(answer(from, n)), b[n-4:n]...), from)
		}
	}
}

// Ask sends a question of a length over a connected socket of datagrams, again each second until
// it is answered, but no longer than the limit. It returns the answer of Serve. An ICMP error
// ends it as well: it is returned as the kernel's error.
func Ask(c net.Conn, length int, limit time.Duration) (answer string, err error) {
	question := make([]byte, max(length, questionLength))
	question[0] = '?'
	number := question[len(question)-4:]
	binary.BigEndian.PutUint32(number, questions.Add(1))
	forget(c)
	b := make([]byte, 1<<16)
	answered := Repeat(limit, func() { _, err = c.Write(question) }, func(until time.Time) bool {
		if err != nil {
			return true
		}
		_ = c.SetReadDeadline(until)
		for {
			var n int
			if n, err = c.Read(b); err != nil {
				return !errors.Is(err, os.ErrDeadlineExceeded)
			}
			if text, ours := bytes.CutSuffix(b[:n], number); ours {
				answer = string(text) // after the header, where the socket is a raw one of IPv4
				return true
			}
		}
	})
	if !answered && err == nil {
		err = os.ErrDeadlineExceeded
	}
	return answer, err
}

// forget takes the error of an earlier question from a socket.
func forget(c net.Conn) {
	if s, is := c.(syscall.Conn); is {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
			})
		}
	}
}

// Ping reports whether a ping is answered. It is sent each second until the limit is over. An
// ICMP error does not end it, as it can come from an address that is not yet resolved.
func Ping(t testing.TB, ns netns.NsHandle, addr string, limit time.Duration) bool {
	t.Helper()
	var err error
	return Repeat(limit, func() {}, func(until time.Time) bool {
		wait := fmt.Sprintf("%.2f", max(time.Until(until).Seconds(), 0.01))
		Do(t, ns, func() { err = exec.Command("ping", "-n", "-c", "1", "-W", wait, addr).Run() })
		return err == nil
	})
}

// WaitForAddresses waits until the namespace receives what is sent to its IPv6 addresses. The kernel
// makes an address usable, and its local route, some time after the address is added.
func WaitForAddresses(t testing.TB, ns netns.NsHandle) {
	t.Helper()
	local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	Eventually(t, "the IPv6 addresses are usable", func() bool {
		var addrs []netlink.Addr
		var routes []netlink.Route
		var err error
		Do(t, ns, func() {
			if addrs, err = netlink.AddrList(nil, netlink.FAMILY_V6); err == nil {
				routes, err = netlink.RouteListFiltered(netlink.FAMILY_V6, local,
					netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
			}
		})
		there := map[string]bool{}
		for _, r := range routes {
			if r.Dst != nil {
				there[r.Dst.IP.String()] = true
			}
		}
		return err == nil && !slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
			return a.Flags&unix.IFA_F_TENTATIVE != 0 || !there[a.IP.String()]
		})
	})
}
