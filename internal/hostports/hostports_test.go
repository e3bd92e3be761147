//go:build linux

package hostports_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func port(protocol sdn.Protocol, address string) hostports.Port {
	return hostports.Port{Protocol: protocol, Address: netip.MustParseAddrPort(address)}
}

// inHost runs f in a network namespace of its own that has loopback.
func inHost(t *testing.T, f func(t *testing.T, h *hostports.Holder)) {
	t.Helper()
	ns := nstest.New(t)
	h := &hostports.Holder{}
	t.Cleanup(h.Close)
	nstest.Do(t, ns, func() { f(t, h) })
}

// listen is what a program does; with reuse as Go's own and most servers do it.
func listen(network, address string, reuse bool) (io.Closer, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		value := 0
		if reuse {
			value = 1
		}
		return errors.Join(
			raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, value)
			}),
			err,
		)
	}}
	if strings.HasPrefix(network, "udp") {
		return c.ListenPacket(context.Background(), network, address)
	}
	return c.Listen(context.Background(), network, address)
}

// No program can listen at a reserved port, whatever it allows. At a released one it can.
func TestReserveKeepsPrograms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reserve, network, address string
		want                      bool // that the program gets it
	}{
		{"0.0.0.0:80", "4", "0.0.0.0:80", false},
		{"0.0.0.0:80", "4", "127.0.0.1:80", false},
		{"0.0.0.0:80", "", ":80", false}, // of both families, as most servers listen
		{"0.0.0.0:80", "6", "[::]:80", true},
		{"0.0.0.0:80", "4", "0.0.0.0:81", true},
		{"127.0.0.1:80", "4", "127.0.0.1:80", false},
		{"127.0.0.1:80", "4", "0.0.0.0:80", false},
		{"127.0.0.1:80", "4", "127.0.0.2:80", true},
		{"[::]:80", "6", "[::1]:80", false},
		{"[::]:80", "4", "0.0.0.0:80", true},
		{"[::1]:80", "6", "[::]:80", false},
	} {
		for name, protocol := range map[string]sdn.Protocol{"tcp": sdn.TCP, "udp": sdn.UDP} {
			for _, reuse := range []bool{false, true} {
				t.Run(fmt.Sprint(name, c, reuse), func(t *testing.T) {
					t.Parallel()
					inHost(t, func(t *testing.T, h *hostports.Holder) {
						for range 2 {
							if err := h.Reserve("one", port(protocol, c.reserve)); err != nil {
								t.Fatal(err)
							}
						}
						l, err := listen(name+c.network, c.address, reuse)
						if (err == nil) != c.want || err != nil && !errors.Is(err, unix.EADDRINUSE) {
							t.Errorf("a program listening gets %v", err)
						}
						if l != nil {
							l.Close()
						}
						h.ReleaseAll("one")
						h.ReleaseAll("one")
						if l, err = listen(name+c.network, c.address, reuse); err != nil {
							t.Errorf("after the release %v", err)
						} else {
							l.Close()
						}
					})
				})
			}
		}
	}
}

// What a program has is refused by its name, as bind(2) would.
func TestProgramsAreKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ network, address, reserve string }{
		{"4", "127.0.0.1:80", "0.0.0.0:80"}, {"4", "0.0.0.0:80", "127.0.0.1:80"},
		{"", ":80", "0.0.0.0:80"}, {"", ":80", "[::1]:80"}, {"6", "[::1]:80", "[::]:80"},
	} {
		for name, protocol := range map[string]sdn.Protocol{"tcp": sdn.TCP, "udp": sdn.UDP} {
			for _, reuse := range []bool{false, true} {
				t.Run(fmt.Sprint(name, c, reuse), func(t *testing.T) {
					t.Parallel()
					inHost(t, func(t *testing.T, h *hostports.Holder) {
						l, err := listen(name+c.network, c.address, reuse)
						if err != nil {
							t.Fatal(err)
						}
						for _, reserve := range []func(string, hostports.Port) error{h.Reserve, h.Restore} {
							if err := reserve("one", port(protocol, c.reserve)); !errors.Is(err, hostports.ErrInUse) {
								t.Errorf("got error %v", err)
							}
						}
						if got := h.Users(port(protocol, c.reserve)); len(got) != 1 || got[0].PID != os.Getpid() || got[0].Name == "" {
							t.Errorf("it is used by %v", got)
						}
						l.Close()
						if got := h.Users(port(protocol, c.reserve)); len(got) != 0 {
							t.Errorf("it is used by %v though the program has ended", got)
						}
						if err := h.Reserve("one", port(protocol, c.reserve)); err != nil {
							t.Errorf("when the program has ended: %v", err)
						}
					})
				})
			}
		}
	}
}

// A server that has just ended, with connections that the kernel still remembers, hinders no other.
func TestEndedConnections(t *testing.T) {
	t.Parallel()
	inHost(t, func(t *testing.T, h *hostports.Holder) {
		l, err := net.Listen("tcp4", "127.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		client, err := net.Dial("tcp4", "127.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		server.Close() // first, so that TIME_WAIT is on its side
		_, _ = io.ReadAll(client)
		client.Close()
		if err := h.Reserve("one", port(sdn.TCP, "0.0.0.0:80")); err != nil {
			t.Error(err)
		}
	})
}

// Owners do not get each other's ports, but what one is known to have he gets back.
func TestOwners(t *testing.T) {
	t.Parallel()
	inHost(t, func(t *testing.T, h *hostports.Holder) {
		reserve := func(owner, address string, want error) {
			t.Helper()
			if err := h.Reserve(owner, port(sdn.TCP, address)); !errors.Is(err, want) {
				t.Errorf("%s reserves %s: %v, want %v", owner, address, err, want)
			}
		}
		reserve("one", "127.0.0.1:80", nil)
		reserve("one", "127.0.0.1:81", nil)
		reserve("two", "127.0.0.1:80", hostports.ErrHeld)
		reserve("two", "0.0.0.0:80", hostports.ErrHeld)
		reserve("one", "0.0.0.0:80", hostports.ErrHeld)
		reserve("two", "127.0.0.2:80", nil)
		reserve("two", "[::]:80", nil)
		h.Release("two", port(sdn.TCP, "127.0.0.1:80"), port(sdn.TCP, "127.0.0.2:80"))
		reserve("three", "127.0.0.1:80", hostports.ErrHeld)
		if err := h.Restore("three", port(sdn.TCP, "0.0.0.0:80")); err != nil {
			t.Error(err)
		}
		h.Release("one", port(sdn.TCP, "127.0.0.1:80"), port(sdn.TCP, "0.0.0.0:80")) // no longer its own
		reserve("one", "127.0.0.1:80", hostports.ErrHeld)
		h.ReleaseAll("three")
		reserve("one", "127.0.0.1:80", nil)
		reserve("four", "[::1]:80", hostports.ErrHeld)
	})
}

func TestAddressesOfOthers(t *testing.T) {
	t.Parallel()
	inHost(t, func(t *testing.T, h *hostports.Holder) {
		for _, address := range []string{"203.0.113.9:80", "[2001:db8::9]:80", "[fe80::9]:80"} {
			for _, protocol := range []sdn.Protocol{sdn.TCP, sdn.UDP} {
				if err := h.Reserve("one", port(protocol, address)); !errors.Is(err, hostports.ErrNoAddress) {
					t.Errorf("%s: %v", address, err)
				}
			}
		}
		// After a restart the address may be yet to come.
		for _, address := range []string{"203.0.113.9:80", "[2001:db8::9]:80"} {
			if err := h.Restore("one", port(sdn.TCP, address)); err != nil {
				t.Errorf("%s: %v", address, err)
			}
		}
	})
}

func TestProtocolWithoutSockets(t *testing.T) {
	t.Parallel()
	inHost(t, func(t *testing.T, h *hostports.Holder) {
		if err := h.Reserve("one", port(sdn.SCTP, "0.0.0.0:80")); err != nil {
			t.Error(err)
		}
		if err := h.Reserve("two", port(sdn.SCTP, "127.0.0.1:80")); !errors.Is(err, hostports.ErrHeld) {
			t.Errorf("got error %v", err)
		}
		h.ReleaseAll("one")
		if err := h.Reserve("two", port(sdn.SCTP, "127.0.0.1:80")); err != nil {
			t.Error(err)
		}
	})
}

// TestNoFiles is not parallel: the limit is the process's.
func TestNoFiles(t *testing.T) {
	inHost(t, func(t *testing.T, h *hostports.Holder) {
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		err := h.Reserve("one", port(sdn.TCP, "0.0.0.0:80"))
		if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); back != nil {
			t.Fatal(back)
		}
		if !errors.Is(err, hostports.ErrNoFiles) || !strings.Contains(err.Error(), "LimitNOFILE") {
			t.Errorf("got error %v", err)
		}
		if err := h.Reserve("one", port(sdn.TCP, "0.0.0.0:80")); err != nil {
			t.Errorf("with files again: %v", err)
		}
	})
}

// TestRetain checks that an owner keeps the ports that it names, and loses its others alone.
func TestRetain(t *testing.T) {
	t.Parallel()
	inHost(t, func(t *testing.T, h *hostports.Holder) {
		one, two, other := port(sdn.UDP, "0.0.0.0:81"), port(sdn.UDP, "0.0.0.0:82"), port(sdn.UDP, "0.0.0.0:83")
		for p, owner := range map[hostports.Port]string{one: "a", two: "a", other: "b"} {
			if err := h.Reserve(owner, p); err != nil {
				t.Fatal(err)
			}
		}
		h.Retain("a", two, port(sdn.UDP, "0.0.0.0:84"))
		for p, want := range map[hostports.Port]error{one: nil, two: hostports.ErrHeld, other: hostports.ErrHeld} {
			if err := h.Reserve("c", p); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", p.Address, err, want)
			}
		}
	})
}
