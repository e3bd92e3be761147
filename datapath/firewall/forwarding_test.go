//go:build linux

package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/ipv6"

	"github.com/kuryr/kuryr/internal/nstest"
)

// advertise sends one real router advertisement from eth0 of a namespace: router lifetime
// 1800 s and one on-link, autonomous prefix.
func advertise(t *testing.T, ns netns.NsHandle, prefix string) {
	t.Helper()
	in(t, ns, func() error {
		c, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		defer c.Close()
		p := ipv6.NewPacketConn(c)
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if err := p.SetMulticastInterface(link); err != nil {
			return err
		}
		if err := p.SetMulticastHopLimit(255); err != nil {
			return err
		}
		ra := []byte{134, 0, 0, 0, 64, 0, 1800 >> 8, 1800 & 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
		ra = append(ra, 3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0)
		ra = append(ra, netip.MustParseAddr(prefix).AsSlice()...)
		_, err = p.WriteTo(ra, nil, &net.IPAddr{IP: net.ParseIP("ff02::1"), Zone: "eth0"})
		return err
	})
}

// learnt reports whether the host has an IPv6 default route from an advertisement, and its
// own address and on-link route in the prefix.
func learnt(t *testing.T, host netns.NsHandle, prefix string) (route, onLink, address bool) {
	t.Helper()
	p := netip.PrefixFrom(netip.MustParseAddr(prefix), 64)
	in(t, host, func() error {
		link, err := netlink.LinkByName("up0")
		if err != nil {
			return err
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		for _, r := range routes {
			isDefault := r.Dst == nil || r.Dst.IP.IsUnspecified()
			route = route || isDefault && r.Gw != nil && int(r.Protocol) == 9 // RTPROT_RA
			onLink = onLink || r.Dst != nil && r.Dst.String() == p.String()
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		for _, a := range addrs {
			ip, _ := netip.AddrFromSlice(a.IP)
			address = address || p.Contains(ip)
		}
		return err
	})
	return route, onLink, address
}

func learn(t *testing.T, s site, prefix string) {
	t.Helper()
	polls := 0
	eventually(t, "the advertisement of "+prefix+" is accepted", func() bool {
		// One that comes before the link is ready is lost, so it is repeated, as routers do.
		if polls%50 == 0 {
			advertise(t, s.outside, prefix)
		}
		polls++
		route, onLink, address := learnt(t, s.host, prefix)
		return route && onLink && address
	})
}

// sysctls returns every per-link setting of both families, and the v4 switch.
func sysctls(t *testing.T, ns netns.NsHandle) map[string]string {
	t.Helper()
	all := map[string]string{}
	in(t, ns, func() error {
		files, err := filepath.Glob(sysctlRoot + "/ipv[46]/conf/*/*")
		for _, f := range append(files, sysctlRoot+"/ipv4/ip_forward") {
			if text, err := os.ReadFile(f); err == nil { // some are write-only or have no value yet
				all[strings.TrimPrefix(f, sysctlRoot+"/")] = strings.TrimSpace(string(text))
			}
		}
		return err
	})
	return all
}

func differences(before, after map[string]string) map[string]string {
	d := map[string]string{}
	for k, v := range after {
		if before[k] != v {
			d[k] = before[k] + "->" + v
		}
	}
	return d
}

func TestForwardingKeepsRouterAdvertisements(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	h := quietHost(t)
	// A link that someone has made a router's, and one whose owner wants no advertisements.
	sh(t, s.host, `ip link add lan0 type veth peer name lan1; ip link set lan0 up; ip link set lan1 up
		echo 1 > /proc/sys/net/ipv6/conf/lan0/forwarding; echo 1 > /proc/sys/net/ipv4/conf/lan0/forwarding
		echo 0 > /proc/sys/net/ipv6/conf/lan1/accept_ra; echo 2 > /proc/sys/net/ipv6/conf/lan0/accept_ra`)
	learn(t, s, "2001:db8:a::")
	s.wantPaths(t, "before the switch", false)
	before := sysctls(t, s.host)

	for range 2 { // idempotent
		in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
	}
	for k, v := range differences(before, sysctls(t, s.host)) {
		coupled := k == ipForward || strings.HasPrefix(k, "ipv4/conf/") &&
			strings.HasSuffix(k, "/forwarding") || k == redirects4
		if k != forwarding6 && !coupled {
			t.Errorf("enabling changed %s: %s", k, v)
		}
	}
	if route, onLink, _ := learnt(t, s.host, "2001:db8:a::"); !route || !onLink {
		t.Errorf("after the switch: default route %v, on-link route %v; both must stay", route, onLink)
	}
	learn(t, s, "2001:db8:b::")
	s.wantPaths(t, "after the switch, with the links' flags off", true)

	// A link made later gets what it got before.
	sh(
		t, s.host,
		`ip link add new0 type veth peer name new1; test $(cat `+
			`/proc/sys/net/ipv6/conf/new0/forwarding) = 0; ip link del new0`,
	)

	for range 2 {
		in(t, s.host, func() error { return h.restored(t) })
	}
	if d := differences(before, sysctls(t, s.host)); len(d) > 0 {
		t.Errorf("restoring left %v", d)
	}
	if route, onLink, _ := learnt(t, s.host, "2001:db8:b::"); !route || !onLink {
		t.Errorf("after restoring: default route %v, on-link route %v; both must stay", route, onLink)
	}
	learn(t, s, "2001:db8:c::")
	s.wantPaths(t, "after restoring", false)
	if _, err := os.Stat(h.recordPath()); !os.IsNotExist(err) {
		t.Errorf("the record is still there: %v", err)
	}
}

// TestPlainSwitchLosesRoutes shows that the kernel does what turn6 works around; when
// this fails, turn6 can go.
func TestPlainSwitchLosesRoutes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	learn(t, s, "2001:db8:a::")
	sh(t, s.host, `echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`)
	if route, _, _ := learnt(t, s.host, "2001:db8:a::"); route {
		t.Error("the default route by advertisement outlives a plain switch on this kernel")
	}
}

func TestForwardingOfOthersStays(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	h := quietHost(t)
	sh(t, s.host, `echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`)
	before := sysctls(t, s.host)
	in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
	in(t, s.host, func() error { return h.restored(t) })
	if d := differences(before, sysctls(t, s.host)); len(d) > 0 {
		t.Errorf("changed what was not ours: %v", d)
	}
}

func TestForwardingTurnedOffBehindOurBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	h := quietHost(t)
	before := sysctls(t, s.host)
	in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
	sh(t, s.host, `echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding`)
	if got := h.findingsIn(t, s.host); len(got) != 2 {
		t.Errorf("findings %q, want one for each family", got)
	}
	in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
	s.wantPaths(t, "switched on again", true)
	in(t, s.host, func() error { return h.restored(t) })
	if d := differences(before, sysctls(t, s.host)); len(d) > 0 {
		t.Errorf("restoring left %v", d)
	}
}

func TestOneFamilyOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	h := quietHost(t)
	before := sysctls(t, s.host)
	in(t, s.host, func() error { return h.EnableForwarding(t.Context(), false, true) })
	d := differences(before, sysctls(t, s.host))
	if len(d) != 1 || d[forwarding6] != "0->1" {
		t.Errorf("IPv6 alone changed %v", d)
	}
}

// restored restores, and fails if a switch stays on.
func (h *Host) restored(t *testing.T) error {
	kept, err := h.RestoreForwarding(t.Context())
	if err == nil && len(kept) > 0 {
		return fmt.Errorf("kept %v", kept)
	}
	return err
}

// A switch that another user found on stays on until that user has left.
func TestForwardingOfLaterUsersStays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, come, leave, users string }{
		{"bridge of both families", `ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0
			ip addr add fd17::1/64 dev docker0 nodad`, "ip link del docker0",
			"net.ipv4.ip_forward docker0 net.ipv6.conf.all.forwarding docker0"},
		{"IPv4 alone", "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0",
			"ip link del docker0", "net.ipv4.ip_forward docker0"},
		{"route to a veth", `ip link add cali1 type veth peer name c1; ip link set cali1 up
			ip route add 10.1.1.1/32 dev cali1`, "ip link del cali1", "net.ipv4.ip_forward cali1"},
		{"Docker without a bridge", "iptables -N DOCKER-USER", "iptables -X DOCKER-USER",
			"net.ipv4.ip_forward Docker"},
		{"another Kuryr's port", `ip link add kuryr-node0 type veth peer name c1
			ip addr add 10.1.1.1/32 dev kuryr-node0`, "ip link del kuryr-node0",
			"net.ipv4.ip_forward kuryr-node0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, h := newSite(t), quietHost(t)
			// This one worked before and is no reason to leave the switch on.
			sh(t, s.host, "ip link add br0 type bridge; ip addr add 172.18.0.1/16 dev br0")
			before := sysctls(t, s.host)
			in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
			sh(t, s.host, c.come)
			h = New(Config{Dir: h.dir, Logger: h.log}) // the next process knows as much
			for range 2 {
				var users []string
				in(t, s.host, func() error {
					kept, err := h.RestoreForwarding(t.Context())
					for _, k := range kept {
						users = append(append(users, k.Sysctl), k.Users...)
					}
					return err
				})
				if got := strings.Join(users, " "); got != c.users {
					t.Errorf("kept %q, want %q", got, c.users)
				}
			}
			if now := sysctls(t, s.host)[ipForward]; now != "1" {
				t.Errorf("ip_forward is %s", now)
			}
			sh(t, s.host, c.leave)
			in(t, s.host, func() error { return h.restored(t) })
			if d := differences(before, sysctls(t, s.host)); len(d) > 0 {
				t.Errorf("restoring left %v", d)
			}
		})
	}
}

func TestSysctlConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folders := []string{filepath.Join(dir, "etc/sysctl.d"), filepath.Join(dir, "usr/lib/sysctl.d")}
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const name = "net.ipv4.ip_forward"
	for _, c := range []struct{ path, text, want string }{
		{"etc/sysctl.d/none.txt", name + "=1", " "},
		{"usr/lib/sysctl.d/50-k8s.conf", "# " + name + "=0\nnet/ipv4/ip_forward = 1\n", "50-k8s.conf 1"},
		{"etc/sysctl.d/50-k8s.conf", "net.ipv4.tcp_sack=1", " "},
		{"etc/sysctl.d/60.conf", "-" + name + "=0\n" + name + " =  2", "60.conf 2"},
		{"usr/lib/sysctl.d/70.conf", name + "=1\n" + name + "=0", "70.conf 0"},
		{"etc/sysctl.conf", name + "=1", "sysctl.conf 1"},
	} {
		write(c.path, c.text)
		file, value := sysctlConfig(folders, name)
		if got := strings.TrimPrefix(filepath.Base(file), ".") + " " + value; got != c.want {
			t.Errorf("with %s: %q, want %q", c.path, got, c.want)
		}
	}
}

// A switch that is turned off while Kuryr runs is turned on again, without any event of a
// firewall. It stays another program's if it was on before.
func TestForwardingTurnedOffWhileWatching(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"0", "1"} {
		s, h := newSite(t), quietHost(t)
		sh(t, s.host, "for f in ipv4/ip_forward ipv6/conf/all/forwarding; do echo "+before+" > /proc/sys/net/$f; done")
		in(t, s.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
		h.watchIn(t, s.host)
		for range 2 {
			sh(t, s.host, "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding")
			eventually(t, "forwarding is on again", func() bool {
				now := sysctls(t, s.host)
				return now[ipForward] == "1" && now[forwarding6] == "1"
			})
		}
		in(t, s.host, func() error { return h.restored(t) })
		now := sysctls(t, s.host)
		if now[ipForward] != before || now[forwarding6] != before {
			t.Errorf("restored to %s and %s, want %s", now[ipForward], now[forwarding6], before)
		}
	}
}

func TestRecordOfAnotherNamespaceIsVoid(t *testing.T) {
	t.Parallel()
	a, b := newSite(t), newSite(t)
	h := quietHost(t)
	in(t, a.host, func() error { return h.EnableForwarding(t.Context(), true, true) })
	sh(t, b.host, `echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`)
	before := sysctls(t, b.host)
	in(t, b.host, func() error { return h.restored(t) })
	if d := differences(before, sysctls(t, b.host)); len(d) > 0 {
		t.Errorf("a record of another namespace changed %v", d)
	}
}

func TestRecordDamaged(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	for _, c := range []struct{ text, want string }{
		{"{", "damaged"},
		{fmt.Sprintf(`{"version": %d}`, recordVersion+1), "newer Kuryr"},
	} {
		h := quietHost(t)
		if err := os.WriteFile(h.recordPath(), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := h.RestoreForwarding(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("record %q: error %v, want one with %q", c.text, err, c.want)
		}
		if text, _ := os.ReadFile(h.recordPath()); string(text) != c.text {
			t.Errorf("record %q was replaced by %q", c.text, text)
		}
	}
}
