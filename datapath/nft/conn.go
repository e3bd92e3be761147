//go:build linux

package nft

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// bufferSize limits a transaction, which is one message to the kernel, and the answers to it. The
// kernel allocates what is used.
const bufferSize = 256 << 20

// longestAnswer is more than the longest answer. The kernel makes a part of a listing as long as
// the buffer that received the part before, up to 32 KiB. Few parts make a long listing fast: for
// each part, the kernel walks through the set from its start.
const longestAnswer = 64 << 10

// Conn is a lasting connection to nftables in one network namespace.
//
// The library would wait for answers with pselect6, and panics if the socket's descriptor is 1024
// or higher (google/nftables#352). So Conn has a socket of its own, and the library reaches it by
// the hook that it has for tests.
type Conn struct {
	*nftables.Conn
	socket *netlink.Conn
}

// Dial opens a connection to the network namespace of a descriptor, or of the calling thread
// if the descriptor is 0.
func Dial(ns int) (*Conn, error) {
	socket, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns})
	if err != nil {
		return nil, fmt.Errorf("nftables socket: %w", err)
	}
	c := &Conn{socket: socket}
	// An error then comes without the message that it refuses, which may be long.
	if err = errors.Join(socket.SetReadBuffer(bufferSize), socket.SetWriteBuffer(bufferSize),
		socket.SetOption(netlink.CapAcknowledge, true)); err == nil {
		c.Conn, err = nftables.New(nftables.AsLasting(), nftables.WithTestDial(c.exchange))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables socket: %w", err), socket.Close())
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.socket.Close() }

// exchange sends requests and returns the kernel's answers. The kernel has answered when the
// requests are sent, and continues a listing when a part of it is received. Without requests,
// exchange returns io.EOF: there are no more answers.
func (c *Conn) exchange(requests []netlink.Message) ([]netlink.Message, error) {
	if len(requests) == 0 {
		return nil, io.EOF
	}
	if _, err := c.socket.SendMessages(requests); err != nil {
		return nil, err
	}
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var answers []netlink.Message
	var failed error
	if err := raw.Control(func(fd uintptr) { answers, failed = drain(int(fd)) }); err != nil {
		return nil, err
	}
	return answers, failed
}

// drain receives all that a socket has. Answers that did not fit are an error, and the others
// are received all the same, so that none is left for the next exchange.
func drain(fd int) (answers []netlink.Message, failed error) {
	buffer := make([]byte, longestAnswer)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return answers, failed
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			failed = err
			continue
		case err != nil:
			return answers, err
		}
		list, err := syscall.ParseNetlinkMessage(bytes.Clone(buffer[:n]))
		if err != nil {
			failed = err
		}
		for _, m := range list {
			// The port number is left out: the library knows another one.
			answers = append(answers, netlink.Message{Data: m.Data, Header: netlink.Header{
				Length: m.Header.Len, Type: netlink.HeaderType(m.Header.Type),
				Flags:    netlink.HeaderFlags(m.Header.Flags),
				Sequence: m.Header.Seq}})
		}
	}
}
