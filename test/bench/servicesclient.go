//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// inNamespace runs f on a thread of its own that is in a network namespace.
func inNamespace(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// newNamespace makes one without a name, whose loopback is up.
func newNamespace() (ns netns.NsHandle, err error) {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var err error
		ns, err = netns.New()
		done <- err
	}()
	err = <-done
	return ns, err
}

// connectTo is a connection by the kernel's own blocking call, which nothing of Go's stands between: it returns how long that took, and ends the connection by a reset, of which nothing stays. It is
// called in the client's namespace.
func connectTo(to netip.AddrPort, limit time.Duration) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	most := unix.NsecToTimeval(limit.Nanoseconds())
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &most), unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})); err != nil {
		return 0, err
	}
	begin := time.Now()
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if errors.Is(err, unix.EINTR) { // by Go's scheduler; the kernel goes on
		err = connected(fd, limit)
	}
	return time.Since(begin), err
}

// connected waits until a connection that was begun is there, or is not to be.
func connected(fd int, limit time.Duration) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(limit.Milliseconds()))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		}
		number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && number != 0 {
			err = unix.Errno(number)
		}
		return err
	}
}

// How long one attempt of a probe may take, and how often there is one: little of what a processor has.
const (
	probeLimit = 5 * time.Millisecond
	probeEvery = 2 * time.Millisecond
	patience   = 5 * time.Second
)

// answers waits until there are connections to where there were none.
func answers(ctx context.Context, to netip.AddrPort) error {
	next := time.NewTicker(probeEvery)
	defer next.Stop()
	for {
		_, err := connectTo(to, probeLimit)
		if err == nil {
			return nil
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w: %w", to, context.Cause(ctx), err)
		}
	}
}

// connectRate is connections a second by several clients at once.
func connectRate(ctx context.Context, ns netns.NsHandle, clients int, lasting time.Duration, pick func() netip.AddrPort) (float64, error) {
	begin := time.Now()
	counts := make([]int, clients)
	group := errgroup.Group{}
	for i := range clients {
		group.Go(func() error {
			return inNamespace(ns, func() error {
				for time.Since(begin) < lasting && ctx.Err() == nil {
					if _, err := connectTo(pick(), patience); err != nil {
						return err
					}
					counts[i]++
				}
				return ctx.Err()
			})
		})
	}
	err := group.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / time.Since(begin).Seconds(), err
}

// stream is bytes a second of one connection, until the other end has them all.
func stream(ns netns.NsHandle, to netip.AddrPort, size int) (rate float64, err error) {
	var conn net.Conn
	if err := inNamespace(ns, func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), patience)
		return err
	}); err != nil {
		return 0, err
	}
	defer conn.Close()
	text := make([]byte, 1<<20)
	begin := time.Now()
	for range size / len(text) {
		if _, err := conn.Write(text); err != nil {
			return 0, err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, conn)
	return float64(size) / time.Since(begin).Seconds(), err
}

// readers are what swallow reads into: were they made for each connection, the bench would collect garbage while it measures.
var readers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// swallow takes connections, and what comes by them.
func swallow(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			text := readers.Get().(*[256 << 10]byte)
			defer readers.Put(text)
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, text[:])
		}()
	}
}
