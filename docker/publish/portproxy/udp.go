//go:build linux

package portproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// udpCarrier is a published UDP port. A client's datagrams to one address of the host are
// a flow, with a socket of its own in the container's namespace, by which answers find
// back.
type udpCarrier struct {
	proxy   *Proxy
	forward Forward
	conn    *net.UDPConn
	stopped chan struct{}

	mu    sync.Mutex
	flows map[flowKey]*udpFlow
}

// flowKey tells flows apart. An answer leaves from the address that was asked, which on a
// host with several is not what the kernel would choose.
type flowKey struct {
	client netip.AddrPort
	local  netip.Addr
	index  uint32 // the interface, of link-local addresses
}

type udpFlow struct {
	conn net.Conn
	last atomic.Int64 // when the client was heard of, in nanoseconds since 1970
}

// largest is the longest datagram.
const largest = 65535

func (p *Proxy) listenUDP(f Forward) (carrier, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
		if f.Listen.Addr().Is4() {
			level, option = unix.IPPROTO_IP, unix.IP_PKTINFO
		}
		failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(failed, err)
	}}
	c, err := config.ListenPacket(context.Background(), network(f), f.Listen.String())
	if err != nil {
		return nil, err
	}
	return &udpCarrier{
		proxy: p, forward: f, conn: c.(*net.UDPConn), stopped: make(chan struct{}),
		flows: map[flowKey]*udpFlow{},
	}, nil
}

func (u *udpCarrier) run() {
	data, control := make([]byte, largest), make([]byte, 128)
	for {
		n, c, _, client, err := u.conn.ReadMsgUDPAddrPort(data, control)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !pause(u.stopped) {
				return
			}
			continue
		}
		key := flowKey{client: client}
		key.local, key.index = asked(control[:c])
		if f := u.flow(key); f != nil {
			f.last.Store(time.Now().UnixNano())
			if _, err := f.conn.Write(data[:n]); errors.Is(err, unix.ECONNREFUSED) { // that was about an earlier one
				_, _ = f.conn.Write(data[:n])
			}
		}
	}
}

func (u *udpCarrier) stop() {
	close(u.stopped)
	_ = u.conn.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, f := range u.flows {
		_ = f.conn.Close()
	}
	u.flows = nil
}

// flow is the flow of a key, made if there is none; nil where it cannot be.
func (u *udpCarrier) flow(key flowKey) *udpFlow {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f := u.flows[key]; f != nil || u.flows == nil {
		return f
	}
	if !u.proxy.enter("udp") {
		return nil
	}
	conn, err := dial(u.forward)
	if err != nil {
		u.proxy.leave("udp")
		u.proxy.unreached(u.forward, err)
		return nil
	}
	f := &udpFlow{conn: conn}
	f.last.Store(time.Now().UnixNano())
	u.flows[key] = f
	go u.answer(key, f)
	return f
}

// answer carries what the container says back to the client, until neither has said
// anything for a while.
func (u *udpCarrier) answer(key flowKey, f *udpFlow) {
	defer u.proxy.leave("udp")
	defer u.end(key, f)
	data, from := make([]byte, largest), sentFrom(key)
	heard := time.Now()
	for {
		if f.conn.SetReadDeadline(heard.Add(u.proxy.idle)) != nil {
			return
		}
		n, err := f.conn.Read(data)
		switch {
		case err == nil:
			heard = time.Now()
			_, _, _ = u.conn.WriteMsgUDPAddrPort(data[:n], from, key.client) // a client that has gone is told nothing
		case errors.Is(err, os.ErrDeadlineExceeded):
			last := time.Unix(0, f.last.Load())
			if time.Since(last) >= u.proxy.idle {
				return
			}
			heard = last
		case errors.Is(err, unix.ECONNREFUSED): // nobody listens in the container yet
		default:
			return
		}
	}
}

func (u *udpCarrier) end(key flowKey, f *udpFlow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.flows[key] == f {
		delete(u.flows, key)
	}
	_ = f.conn.Close()
}

// asked reads which of the host's addresses a datagram came to (ip(7), ipv6(7)).
func asked(control []byte) (local netip.Addr, index uint32) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return local, 0
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[4:8])), 0
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			local = netip.AddrFrom16([16]byte(m.Data[:16]))
			if local.IsLinkLocalUnicast() {
				index = binary.NativeEndian.Uint32(m.Data[16:20])
			}
			return local, index
		}
	}
	return local, 0
}

// sentFrom is the control message that has an answer leave from the address that was asked.
func sentFrom(key flowKey) []byte {
	switch {
	case key.local.Is4():
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: key.local.As4()})
	case key.local.Is6():
		return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: key.local.As16(), Ifindex: key.index})
	}
	return nil
}
