//go:build linux

package portproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// The addresses of the container of these tests.
const four, six = "10.99.0.2", "fd99::2"

// container is a namespace with the two addresses, by its path.
func container(t *testing.T) (path string, within func(func())) {
	t.Helper()
	ns := nstest.New(t)
	within = func(f func()) { nstest.Do(t, ns, f) }
	within(func() {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Error(err)
			return
		}
		for _, a := range []string{four + "/32", six + "/128"} {
			addr, err := netlink.ParseAddr(a)
			if err == nil {
				addr.Flags = unix.IFA_F_NODAD // otherwise it is tentative for a moment
				err = netlink.AddrAdd(lo, addr)
			}
			if err != nil {
				t.Error(err)
			}
		}
		waitRoute(t, six)
	})
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns)), within
}

// waitRoute waits for the local route of an IPv6 address of this namespace. The kernel adds it
// some time after the address; before that, it sends to the address by the route of the address's
// prefix, and drops what arrives.
func waitRoute(t *testing.T, address string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(net.ParseIP(address))
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("routes %v, %v", routes, err)
			return
		}
	}
}

func newProxy(t *testing.T, c Config) *Proxy {
	t.Helper()
	p := New(c)
	t.Cleanup(p.Close)
	return p
}

// serveTCP listens in a container and hands each connection to serve.
func serveTCP(t *testing.T, within func(func()), address string, serve func(*net.TCPConn)) uint16 {
	t.Helper()
	var l net.Listener
	within(func() {
		var err error
		if l, err = net.Listen("tcp", net.JoinHostPort(address, "0")); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c.(*net.TCPConn))
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// upper answers with what it was told up to the end of that.
func upper(c *net.TCPConn) {
	defer c.Close()
	text, err := io.ReadAll(c)
	if err == nil {
		_, _ = c.Write(bytes.ToUpper(text))
	}
}

func at(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}

func TestTCP(t *testing.T) {
	path, within := container(t)
	for _, c := range []struct{ bound, listen, target, client string }{
		{four, "0.0.0.0", four, "127.0.0.1"}, // a service bound to the container's address alone
		{"0.0.0.0", "127.0.0.1", four, "127.0.0.1"},
		{six, "::", six, "::1"},
		{four, "::1", four, "::1"}, // from one family to the other
	} {
		t.Run(c.listen+" to "+c.bound, func(t *testing.T) {
			p := newProxy(t, Config{})
			port := serveTCP(t, within, c.bound, upper)
			f := Forward{sdn.TCP, at(c.listen, 8080), path, at(c.target, port)}
			for range 2 { // a repeat is no error
				if err := p.Start("e", f); err != nil {
					t.Fatal(err)
				}
			}
			conn, err := net.Dial("tcp", net.JoinHostPort(c.client, "8080"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			want := bytes.Repeat([]byte("half-close "), 100000)
			go func() {
				_, _ = conn.Write(want)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, bytes.ToUpper(want)) {
				t.Errorf("%d bytes came back of %d: %v", len(got), len(want), err)
			}
			p.StopAll("e")
			if conn, err := net.Dial("tcp", net.JoinHostPort(c.client, "8080")); err == nil {
				conn.Close()
				t.Error("it listens after StopAll")
			}
		})
	}
}

func TestStopEndsConnections(t *testing.T) {
	path, within := container(t)
	p := newProxy(t, Config{})
	told := make(chan error, 1)
	port := serveTCP(t, within, four, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, err := c.Read(make([]byte, 1))
		told <- err
	})
	f := Forward{sdn.TCP, at("127.0.0.1", 8081), path, at(four, port)}
	if err := p.Start("e", f); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", "127.0.0.1:8081")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.Stop("e", f)
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection goes on")
	}
	if err := <-told; err == nil {
		t.Error("the container's connection goes on")
	}
}

// TestNobody: a client learns without a timeout of a port that no process of the container
// listens at, and of a container that is gone.
func TestNobody(t *testing.T) {
	path, _ := container(t)
	p := newProxy(t, Config{})
	for i, ns := range []string{path, "/run/no/such/namespace", "/dev/null"} {
		listen := at("127.0.0.1", uint16(8090+i))
		if err := p.Start("e", Forward{sdn.TCP, listen, ns, at(four, 9)}); err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", listen.String())
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v, want a reset", ns, err)
		}
	}
	if n := testutil.ToFloat64(p.refused.WithLabelValues("container")); n != 3 {
		t.Errorf("%v were counted, not 3", n)
	}
}

func TestConflicts(t *testing.T) {
	path, _ := container(t)
	p := newProxy(t, Config{})
	taken, err := net.Listen("tcp", "127.0.0.1:8100")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	one := Forward{sdn.TCP, at("127.0.0.1", 8101), path, at(four, 80)}
	if err := p.Start("one", one); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		f    Forward
		want error
	}{
		{Forward{sdn.TCP, at("0.0.0.0", 8100), path, at(four, 80)}, hostports.ErrInUse},
		{Forward{sdn.TCP, at("0.0.0.0", 8101), path, at(four, 80)}, hostports.ErrHeld},
		{Forward{sdn.UDP, at("192.0.2.1", 8102), path, at(four, 80)}, hostports.ErrNoAddress},
		{Forward{sdn.SCTP, at("0.0.0.0", 8103), path, at(four, 80)}, ErrProtocol},
		{Forward{sdn.UDP, at("0.0.0.0", 8101), path, at(four, 80)}, nil},
		{Forward{sdn.TCP, at("::", 8101), path, at(six, 80)}, nil},
	} {
		if err := p.Start("two", c.f); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.f, err, c.want)
		}
	}
	p.StopAll("one")
	if err := p.Start("two", one); err != nil {
		t.Errorf("after it was given back: %v", err)
	}
}

func TestUDP(t *testing.T) {
	path, within := container(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"192.0.2.7/32", "2001:db8::7/128"} { // answers come from the address that was asked
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrReplace(lo, addr); err != nil {
			t.Fatal(err)
		}
	}
	waitRoute(t, "2001:db8::7")
	for _, c := range []struct{ bound, listen, client string }{
		{four, "0.0.0.0", "192.0.2.7"}, {six, "::", "2001:db8::7"}, {four, "127.0.0.1", "127.0.0.1"},
	} {
		t.Run(c.listen, func(t *testing.T) {
			var server net.PacketConn
			within(func() {
				var err error
				if server, err = net.ListenPacket("udp", net.JoinHostPort(c.bound, "0")); err != nil {
					t.Error(err)
				}
			})
			if server == nil {
				t.FailNow()
			}
			defer server.Close()
			go func() {
				data := make([]byte, largest)
				for {
					n, from, err := server.ReadFrom(data)
					if err != nil {
						return
					}
					_, _ = server.WriteTo(bytes.ToUpper(data[:n]), from)
				}
			}()
			p := newProxy(t, Config{})
			if err := p.Start("e", Forward{sdn.UDP, at(c.listen, 8053), path, at(
				c.bound, server.LocalAddr().(*net.UDPAddr).AddrPort().Port(),
			)}); err != nil {
				t.Fatal(err)
			}
			client, err := net.Dial("udp", net.JoinHostPort(c.client, "8053")) // hears only who it has asked
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := client.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 16)
				n, err := client.Read(got)
				if err != nil || string(got[:n]) != "HELLO" {
					t.Fatalf("%q, %v", got[:n], err)
				}
			}
			if n := testutil.ToFloat64(p.total.WithLabelValues("udp")); n != 1 {
				t.Errorf("%v flows, not 1", n)
			}
		})
	}
}

// TestFlowEnds: a flow that is quiet gives its place to another.
func TestFlowEnds(t *testing.T) {
	path, within := container(t)
	var server net.PacketConn
	within(func() {
		var err error
		if server, err = net.ListenPacket("udp", net.JoinHostPort(four, "0")); err != nil {
			t.Error(err)
		}
	})
	if server == nil {
		t.FailNow()
	}
	defer server.Close()
	p := newProxy(t, Config{Connections: 1, Idle: time.Millisecond})
	if err := p.Start("e", Forward{sdn.UDP, at("127.0.0.1", 8054), path, at(
		four, server.LocalAddr().(*net.UDPAddr).AddrPort().Port(),
	)}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		client, err := net.Dial("udp", "127.0.0.1:8054")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		got := make([]byte, 16)
		for asked := true; asked; { // a datagram that finds no place is lost
			if _, err := client.Write([]byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
			if err := server.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			_, _, err := server.ReadFrom(got)
			asked = err != nil || got[0] != byte(i)
		}
	}
}

// TestFull: beyond the bound a client is turned away, and let in when another has gone.
func TestFull(t *testing.T) {
	path, within := container(t)
	p := newProxy(t, Config{Connections: 1})
	entered := make(chan struct{})
	port := serveTCP(t, within, four, func(c *net.TCPConn) {
		entered <- struct{}{}
		upper(c)
	})
	if err := p.Start("e", Forward{sdn.TCP, at("127.0.0.1", 8082), path, at(four, port)}); err != nil {
		t.Fatal(err)
	}
	ask := func(c net.Conn) error {
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		_, err := io.ReadAll(c)
		return err
	}
	first, err := net.Dial("tcp", "127.0.0.1:8082")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	<-entered
	second, err := net.Dial("tcp", "127.0.0.1:8082")
	if err == nil {
		_, err = second.Read(make([]byte, 1))
		second.Close()
	}
	if err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a second client is let in: %v", err)
	}
	if err := ask(first); err != nil {
		t.Fatal(err)
	}
	for err = errors.New("not asked"); err != nil; { // its place is given back a moment later
		third, failed := net.Dial("tcp", "127.0.0.1:8082")
		if errors.Is(failed, unix.ECONNRESET) { // it was turned away during the Dial
			continue
		}
		if failed != nil {
			t.Fatal(failed)
		}
		select {
		case <-entered:
			err = ask(third)
		case <-closed(third):
		}
		third.Close()
	}
}

// closed tells when a connection has ended.
func closed(c net.Conn) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		_, _ = c.Read(make([]byte, 1))
		close(done)
	}()
	return done
}
