//go:build linux

package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/kuryr/kuryr/internal/netns"
	vns "github.com/vishvananda/netns"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// sighting is a packet on a device.
type sighting struct {
	site  int
	index int // of the device
	out   bool
	packet
}

// capture is a packet socket on all devices of a namespace: which of them a packet takes
// is what is asked. The kernel filters by flow.
type capture struct{ file *os.File }

// maxPacket is as much as is read of a packet: headers, an ICMP error's quote, the token.
const maxPacket = 256

func openCapture(ns vns.NsHandle, p probe) (*capture, error) {
	program, err := bpf.Assemble(p.filter())
	if err != nil {
		return nil, err
	}
	var fd int
	err = netns.Do(ns, func() error {
		// Protocol 0: nothing comes before the filter is there.
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		code := make([]unix.SockFilter, len(program))
		for i, c := range program {
			code[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
		}
		err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{
			Len: uint16(len(code)), Filter: &code[0],
		})
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL)})
		}
		if err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("packet socket: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &capture{os.NewFile(uintptr(fd), "packet socket")}, nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// run gives what is seen until the socket is closed.
func (c *capture) run(site int, seen func(sighting)) error {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, maxPacket)
	for {
		var n int
		var from unix.Sockaddr
		err := raw.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
		})
		if err != nil {
			return err
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		pkt, fits := parsePacket(buf[:max(n, 0)])
		if !ok || !fits {
			continue
		}
		pkt.transport = append([]byte(nil), pkt.transport...)
		seen(sighting{site, link.Ifindex, link.Pkttype == unix.PACKET_OUTGOING, pkt})
	}
}

func (c *capture) close() error { return c.file.Close() }

// filter passes ICMP of the family, and what has the probe's source port or token: little
// even on a busy host. What it is exactly is found out later.
func (p probe) filter() []bpf.Instruction {
	version, proto, icmp := uint32(4), uint32(9), uint32(unix.IPPROTO_ICMP)
	if !p.four() {
		version, proto, icmp = 6, 6, unix.IPPROTO_ICMPV6
	}
	head := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: version, SkipTrue: toDrop},
		bpf.LoadAbsolute{Off: proto, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmp, SkipTrue: toPass},
	}
	if p.Protocol != unix.IPPROTO_ICMP {
		head = append(head, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(p.wire()), SkipTrue: toDrop})
		if p.four() {
			head = append(head, bpf.LoadMemShift{Off: 0})
		} else {
			head = append(head, bpf.LoadConstant{Dst: bpf.RegX, Val: 40})
		}
		at, want := p.mark()
		head = append(head,
			bpf.LoadIndirect{Off: 0, Size: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(p.source), SkipTrue: toPass},
			bpf.LoadIndirect{Off: 2, Size: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(p.source), SkipTrue: toPass},
			bpf.LoadIndirect{Off: uint32(at), Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(want), SkipTrue: toPass},
		)
	}
	head = append(head, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: maxPacket})
	drop, pass := len(head)-2, len(head)-1
	for i, instruction := range head {
		if jump, ok := instruction.(bpf.JumpIf); ok {
			to := drop
			if jump.SkipTrue == toPass {
				to = pass
			}
			jump.SkipTrue = uint8(to - i - 1)
			head[i] = jump
		}
	}
	return head
}

// Where jumps go, before the program's length is known.
const toDrop, toPass = 254, 255
