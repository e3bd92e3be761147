//go:build e2e

package docker_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// A container that may send any frame (Docker gives it NET_RAW) cannot pass for another. On Docker's own bridge it can,
// and there the test demands just that: so it is known to be able to fail.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	r := newRig(t, privatehost.Options{})
	guarded := driver == "kuryr"
	r.network(t, "lan", "--ipv6", "--subnet", "10.50.0.0/24", "--subnet", "fd50::/64")
	victim, friend, thief := r.run(t, "victim", "lan"), r.run(t, "friend", "lan"), r.run(t, "thief", "lan")
	const strange = "02:66:66:66:66:66"
	forge := func(t *testing.T, args ...string) {
		t.Helper()
		r.docker(t, append([]string{"exec", "thief", "probe", "forge"}, args...)...)
	}

	t.Run("datagrams", func(t *testing.T) {
		caught := catch(t, victim, func() {
			for _, f := range []struct {
				text, mac string
				src, dst  netip.Addr
			}{
				{"honest4", "", thief.ip4, victim.ip4},
				{"honest6", "", thief.ip6, victim.ip6},
				{"address4", "", friend.ip4, victim.ip4},
				{"address6", "", friend.ip6, victim.ip6},
				{"foreign4", "", netip.MustParseAddr("192.0.2.1"), victim.ip4},
				{"mac4", strange, thief.ip4, victim.ip4},
				{"mac6", strange, thief.ip6, victim.ip6},
				{"both4", friend.mac, friend.ip4, victim.ip4},
			} {
				forge(t, "udp", "-src-mac", f.mac, "-dst-mac", victim.mac, "-src", f.src.String(), "-dst", f.dst.String(),
					"-port", "9000", "-text", f.text)
			}
		})
		for text, passes := range map[string]bool{"honest4": true, "honest6": true, "address4": !guarded, "address6": !guarded,
			"mac4": !guarded, "mac6": !guarded, "both4": !guarded} {
			if strings.Contains(caught, text) != passes {
				t.Errorf("%s: want passing %v; the victim got:\n%s", text, passes, caught)
			}
		}
		if guarded && strings.Contains(caught, "foreign4") {
			t.Errorf("a foreign source address passed:\n%s", caught)
		}
	})

	// The frames above may have taught a bridge without guard where the MAC addresses are not.
	if !guarded {
		reaches(t, friend.in, victim.ip4, netip.Addr{})
	}
	for family, claim := range map[string]func(){
		"ARP": func() {
			forge(t, "arp", "-dst-mac", victim.mac, "-src", friend.ip4.String(), "-dst", victim.ip4.String())
		},
		"neighbour discovery": func() {
			forge(t, "na", "-dst-mac", victim.mac, "-src", friend.ip6.String(), "-dst", victim.ip6.String())
		},
	} {
		t.Run(family, func(t *testing.T) {
			to := friend.ip4
			if family != "ARP" {
				to = friend.ip6
			}
			reaches(t, victim.in, to, netip.Addr{})
			time.Sleep(1200 * time.Millisecond) // the kernel holds an entry against changes for a second
			claim()
			time.Sleep(200 * time.Millisecond)
			want := friend.mac
			if !guarded {
				want = thief.mac
			}
			if res := victim.in("ip", "neigh", "show", to.String()); !strings.Contains(res.Stdout, want) {
				t.Errorf("the victim does not take %s to be at %s: %s", to, want, res)
			}
		})
	}

	t.Run("the honest still talk", func(t *testing.T) {
		reaches(t, thief.in, victim.ip4, thief.ip4)
		reaches(t, thief.in, victim.ip6, thief.ip6)
		reaches(t, thief.in, out4, host4)
	})
}

// catch returns the datagrams that come to a container's port 9000 while f runs and shortly after.
func catch(t *testing.T, b box, f func()) string {
	t.Helper()
	read, write := io.Pipe()
	cmd := b.Command(context.Background(), "nsenter", "-t", b.pid, "-n", "--", probe, "catch", "9000", "4")
	cmd.Stdout = write
	if err := b.StartCommand(cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		_ = write.Close()
	}()
	lines := bufio.NewReader(read)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("nothing can be caught: %q, %v", line, err)
	}
	f()
	var caught bytes.Buffer
	_, _ = caught.ReadFrom(lines)
	return caught.String()
}
