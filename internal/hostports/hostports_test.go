package hostports_test

import (
	"errors"
	"net"
	"testing"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
)

func TestFree(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	port := uint16(tcp.Addr().(*net.TCPAddr).Port)
	if err := hostports.Free(t.Context(), sdn.TCP, false, port); !errors.Is(err, hostports.ErrInUse) {
		t.Errorf("a port with a listener on one address: %v", err)
	}
	if err := hostports.Free(t.Context(), sdn.TCP, true, port); err != nil {
		t.Errorf("the same port of the other family: %v", err)
	}
	if err := hostports.Free(t.Context(), sdn.SCTP, false, port); err != nil {
		t.Errorf("a protocol nobody can ask for: %v", err)
	}
	tcp.Close()
	for range 2 { // asking must not take it
		if err := hostports.Free(t.Context(), sdn.TCP, false, port); err != nil {
			t.Errorf("a port nobody listens at: %v", err)
		}
	}
	udp, err := net.ListenPacket("udp6", "[::]:0")
	if err != nil {
		t.Skip("no IPv6 here:", err)
	}
	defer udp.Close()
	if err := hostports.Free(t.Context(), sdn.UDP, true, uint16(udp.LocalAddr().(*net.UDPAddr).Port)); !errors.Is(err, hostports.ErrInUse) {
		t.Errorf("a UDP port with a listener: %v", err)
	}
}
