//go:build e2e

package docker_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// A container that may send any frame (Docker gives it NET_RAW) cannot pass for another. On Docker's own bridge it can,
// and there the test demands just that: so it is known to be able to fail.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
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
		for text, passes := range map[string]bool{
			"honest4": true, "honest6": true, "address4": !guarded, "address6": !guarded,
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

	t.Run("frames", func(t *testing.T) {
		onlyKuryr(t)
		frames(t, r, victim, thief)
	})

	t.Run("the honest still talk", func(t *testing.T) {
		reaches(t, thief.in, victim.ip4, thief.ip4)
		reaches(t, thief.in, victim.ip6, thief.ip6)
		getsOut(t, thief)
	})
}

// catch returns the datagrams that come to a container's port 9000 while f runs and shortly after.
func catch(t *testing.T, b box, f func()) string {
	t.Helper()
	read, write := io.Pipe()
	cmd := b.Command(context.Background(), "nsenter", "-t", b.pid, "-n", "--", probe, "catch", "9000")
	cmd.Stdout = write
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
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
	_ = end.Close()
	var caught bytes.Buffer
	_, _ = caught.ReadFrom(lines)
	return caught.String()
}

// frames sends what only a router, a server or another may send, beside an honest
// datagram. Nothing but that one must be seen by the victim, whether it listens or not.
// The same frames are all seen on Docker's own bridge, so they are well formed, and the
// filter knows them.
func frames(t *testing.T, r rig, victim, thief box) {
	r.docker(t, "network", "create", "-d", "bridge", "--ipv6", "--subnet", "10.51.0.0/24", "--subnet", "fd51::/64", "open")
	r.removed(t, "open")
	openVictim, openThief := r.run(t, "open-victim", "open"), r.run(t, "open-thief", "open")
	ofServers := []string{
		"router advertisement", "router advertisement to one",
		"router advertisement behind a header", "DHCP offer",
	}
	const strange = "02:66:66:66:66:66"
	const everyone, all4, all6 = "ff:ff:ff:ff:ff:ff", "255.255.255.255", "33:33:00:00:00:01"
	for _, where := range []struct {
		name          string
		victim, thief box
		passes        bool
	}{{"Docker's bridge", openVictim, openThief, true}, {"Kuryr", victim, thief, false}} {
		t.Run(where.name, func(t *testing.T) {
			victim, thief := where.victim, where.thief
			own := linkLocal(t, thief)
			gate4, gate6 := thief.ip4.Prev(), thief.ip6.Prev()
			for gate4.Prev().As4()[3] != 0 {
				gate4 = gate4.Prev()
			}
			for gate6.Prev().As16()[15] != 0 {
				gate6 = gate6.Prev()
			}
			s := victim.sniff(t, "ether src "+thief.mac+" or ether src "+strange)
			forge := func(args ...string) {
				t.Helper()
				if res := thief.in(append([]string{probe, "forge"}, args...)...); !res.OK() {
					t.Fatal(res)
				}
			}
			udp := func(src, dst netip.Addr, more ...string) {
				t.Helper()
				forge(append([]string{"udp", "-dst-mac", victim.mac, "-src", src.String(), "-dst", dst.String()}, more...)...)
			}
			sent := map[string][]string{} // what it is, and how its line reads
			send := func(what string, words []string, f func()) {
				t.Helper()
				f()
				sent[what] = words
			}
			send("router advertisement", []string{all6, "router advertisement"}, func() {
				forge("ra", "-dst-mac", all6, "-src", own.String(), "-dst", "ff02::1")
			})
			send("router advertisement to one", []string{victim.mac, "router advertisement"}, func() {
				forge("ra", "-dst-mac", victim.mac, "-src", own.String(), "-dst", victim.ip6.String())
			})
			send("router advertisement of the gateway's", []string{gate6.String() + " >", "router advertisement"}, func() {
				forge("ra", "-dst-mac", all6, "-src", gate6.String(), "-dst", "ff02::1")
			})
			send("router advertisement behind a header", []string{"HBH", "router advertisement"}, func() {
				forge("ra", "-hop-by-hop", "-dst-mac", all6, "-src", own.String(), "-dst", "ff02::1")
			})
			send("router advertisement with a tag", []string{"vlan 5", "router advertisement"}, func() {
				forge("ra", "-vlan", "5", "-dst-mac", all6, "-src", own.String(), "-dst", "ff02::1")
			})
			send("redirect", []string{"redirect"}, func() {
				forge("redirect", "-dst-mac", victim.mac, "-src", own.String(), "-dst", victim.ip6.String())
			})
			send("DHCP offer", []string{thief.ip4.String() + ".67 > " + all4 + ".68"}, func() {
				forge("udp", "-dst-mac", everyone, "-src", thief.ip4.String(), "-dst", all4, "-src-port", "67", "-port", "68")
			})
			send("DHCPv6 advertisement", []string{".547 > ", ".546"}, func() {
				forge(
					"udp", "-dst-mac", victim.mac, "-src", own.String(), "-dst",
					victim.ip6.String(), "-src-port", "547", "-port", "546",
				)
			})
			send("the gateway's address by ARP", []string{"Reply " + gate4.String() + " is-at " + thief.mac}, func() {
				forge("arp", "-dst-mac", everyone, "-src", gate4.String(), "-dst", gate4.String())
			})
			send("ARP from a strange MAC", []string{"is-at " + strange}, func() {
				forge("arp", "-src-mac", strange, "-dst-mac", victim.mac, "-src", thief.ip4.String(), "-dst", victim.ip4.String())
			})
			send("the gateway's address by ND", []string{"neighbor advertisement, tgt is " + gate6.String()}, func() {
				forge("na", "-dst-mac", victim.mac, "-src", gate6.String(), "-dst", victim.ip6.String())
			})
			send(
				"the gateway's IPv4 address",
				[]string{gate4.String() + ".40000 > " + victim.ip4.String() + ".9"},
				func() { udp(gate4, victim.ip4, "-port", "9") },
			)
			send(
				"the gateway's IPv6 address",
				[]string{gate6.String() + ".40000 > " + victim.ip6.String() + ".9"},
				func() { udp(gate6, victim.ip6, "-port", "9") },
			)
			send("a strange MAC", []string{strange, ".10: UDP"}, func() {
				udp(thief.ip4, victim.ip4, "-src-mac", strange, "-port", "10")
			})
			send("a tag", []string{"vlan 6", ".11: UDP"}, func() { udp(thief.ip4, victim.ip4, "-vlan", "6", "-port", "11") })
			send("another protocol", []string{"0x88b5"}, func() {
				forge("other", "-dst-mac", victim.mac, "-src", own.String(), "-dst", own.String())
			})
			udp(thief.ip4, victim.ip4, "-port", "99") // the honest one
			seen := s.until(t, thief.ip4.String()+".40000 > "+victim.ip4.String()+".99: UDP")
			for what, words := range sent {
				if !where.passes && !has(anyGuard) && slices.Contains(ofServers, what) {
					continue
				}
				if found := holding(seen, words...); (len(found) > 0) != where.passes {
					t.Errorf(
						"%s: want passing %v; the victim saw of it %q, and in all:\n%s", what,
						where.passes, found, strings.Join(seen, "\n"),
					)
				}
			}
		})
	}
	if res := victim.in("sh", "-c", "ip -6 route; ip -6 addr"); has(anyGuard) &&
		strings.Contains(res.Stdout, "2001:db8:bad:") {
		t.Errorf("the victim learned from forged router advertisements: %s", res)
	}
}

// linkLocal is the container's own link-local address, which it may use.
func linkLocal(t *testing.T, b box) netip.Addr {
	t.Helper()
	fields := strings.Fields(b.in("ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "link").Stdout)
	if len(fields) < 4 {
		t.Fatalf("container %s has no link-local address", b.name)
	}
	return netip.MustParsePrefix(fields[3]).Addr()
}
