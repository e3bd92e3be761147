//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// tap hears what leaves and enters a client by its link, with the kernel's own times. How long a program's connect() takes is in its tail how long the program waits for a processor: its p99 is ten
// to a hundred times its median, and where forty programs wanted two processors that of the same way differed by up to 28 % from itself in the same turns. From the moment that a SYN leaves until its
// answer is there nothing runs but the kernel's way there and back, and the p99 of that differed by 3 %. It is all that Kuryr and kube-proxy differ in: what they have in common, and what would hide
// a difference, is left out.
type tap struct{ fd int }

// handshakes lets pass IPv4 TCP packets with SYN, which are each connection's first and its answer.
var handshakes = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 4},
	bpf.LoadMemShift{Off: 0},
	bpf.LoadIndirect{Off: 13, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: synFlag, SkipTrue: 1},
	bpf.RetConstant{Val: 128},
	bpf.RetConstant{Val: 0},
}

const (
	synFlag = 0x02
	ackFlag = 0x10
)

// newTap is called in the client's namespace.
func newTap() (*tap, error) {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return nil, err
	}
	program, err := bpf.Assemble(handshakes)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	code := make([]unix.SockFilter, len(program))
	for i, c := range program {
		code[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
	}
	every := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)) // one protocol alone is told of nothing that leaves
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: every, Ifindex: link.Index})); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("hear the client's link: %w", err)
	}
	return &tap{fd}, nil
}

func (t *tap) close() { unix.Close(t.fd) }

// exchange is the time from the first packet of the connection that was made last until its answer.
func (t *tap) exchange() (time.Duration, error) {
	var left, came time.Time
	packet, control := make([]byte, 128), make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	for {
		n, told, _, _, err := unix.Recvmsg(t.fd, packet, control, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && !left.IsZero() && !came.IsZero():
			return came.Sub(left), nil
		case err != nil: // EAGAIN too: who connects has the answer after the tap
			return 0, fmt.Errorf("hear a connection's packets: %w", err)
		}
		at, err := kernelTime(control[:told])
		if err != nil {
			return 0, err
		}
		flags := int(packet[0]&0xf)*4 + 13
		switch {
		case flags >= n:
			return 0, errors.New("hear a connection's packets: one is cut")
		case packet[flags]&ackFlag != 0:
			came = at
		case left.IsZero(): // a SYN that is sent again does not begin anew
			left = at
		}
	}
}

func kernelTime(control []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			at := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			return time.Unix(at.Unix()), nil
		}
	}
	return time.Time{}, errors.New("a packet has no time")
}
