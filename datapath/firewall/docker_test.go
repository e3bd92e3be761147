//go:build linux

package firewall

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/nstest"
)

// What Docker makes in the filter table for a bridge docker0 with one container that
// publishes its TCP ports, and for an --internal bridge br-int, in the order its code
// leaves: its jumps at FORWARD's top, whatever was there before. The capitals FORBIDDEN
// (an address that the operator forbade in DOCKER-USER), PUBLISHED and INTERNAL stand for
// addresses.
var dockerVersions = map[string]string{
	// Docker 20.10 to 27: what is not published is left to FORWARD's policy.
	"20.10": `*filter
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-I FORWARD 1 -j DOCKER-USER
-I FORWARD 2 -j DOCKER-ISOLATION-STAGE-1
-I FORWARD 3 -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-I FORWARD 4 -o docker0 -j DOCKER
-I FORWARD 5 -i docker0 ! -o docker0 -j ACCEPT
-I FORWARD 6 -i docker0 -o docker0 -j ACCEPT
-I FORWARD 7 -i br-int -o br-int -j ACCEPT
-A DOCKER -d PUBLISHED ! -i docker0 -o docker0 -p tcp -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 ! -s INTERNAL -o br-int -j DROP
-A DOCKER-ISOLATION-STAGE-1 ! -d INTERNAL -i br-int -j DROP
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -d FORBIDDEN -j DROP
-A DOCKER-USER -j RETURN
COMMIT
`,
	// Docker 28: what is not published is dropped in DOCKER; the two stages are still there.
	"28": `*filter
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-I FORWARD 1 -j DOCKER-USER
-I FORWARD 2 -j DOCKER-FORWARD
-A DOCKER -d PUBLISHED ! -i docker0 -o docker0 -p tcp -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-FORWARD -i br-int -o br-int -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 ! -s INTERNAL -o br-int -j DROP
-A DOCKER-ISOLATION-STAGE-1 ! -d INTERNAL -i br-int -j DROP
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-USER -d FORBIDDEN -j DROP
COMMIT
`,
	// Docker 29 with its iptables backend: the stages are gone.
	"29": `*filter
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-INTERNAL - [0:0]
:DOCKER-USER - [0:0]
-I FORWARD 1 -j DOCKER-USER
-I FORWARD 2 -j DOCKER-FORWARD
-A DOCKER -d PUBLISHED ! -i docker0 -o docker0 -p tcp -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-INTERNAL
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-FORWARD -i br-int -o br-int -j ACCEPT
-A DOCKER-INTERNAL ! -s INTERNAL -o br-int -j DROP
-A DOCKER-INTERNAL ! -d INTERNAL -i br-int -j DROP
-A DOCKER-USER -d FORBIDDEN -j DROP
COMMIT
`,
}

var (
	replace4 = strings.NewReplacer("FORBIDDEN", "192.0.2.99/32", "PUBLISHED", "172.17.0.3/32", "INTERNAL", "172.18.0.0/16")
	replace6 = strings.NewReplacer("FORBIDDEN", "2001:db8::99/128", "PUBLISHED", "fd17::3/128", "INTERNAL", "fd18::/64")
)

// likeDocker makes the rules of a Docker version in both families, and the policy that
// Docker sets when it turned forwarding on itself.
func likeDocker(t *testing.T, ns netns.NsHandle, version string) {
	t.Helper()
	rules := dockerVersions[version]
	sh(t, ns, "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP\n"+
		"iptables-restore --noflush <<'EOF'\n"+replace4.Replace(rules)+"EOF\n"+
		"ip6tables-restore --noflush <<'EOF'\n"+replace6.Replace(rules)+"EOF\n")
}

// dockers are the containers of Docker beside a site: on docker0 (its second address is
// the one that is published), and on br-int.
type dockers struct {
	site
	bridge, internal netns.NsHandle
}

// dockerSite adds Docker's bridges. The host's addresses on kr0 and up0 publish Docker's
// container, those on docker0 and br-int Kuryr's.
func dockerSite(t *testing.T) (dockers, *Host) {
	t.Helper()
	s, h := forwardingSite(t)
	d := dockers{site: s, bridge: nstest.New(t), internal: nstest.New(t)}
	d.join(t, "docker0", d.bridge, "172.17.0.1/16", "172.17.0.2/16", "fd17::1/64", "fd17::2/64")
	d.join(t, "br-int", d.internal, "172.18.0.1/16", "172.18.0.2/16", "fd18::1/64", "fd18::2/64")
	sh(t, d.bridge, "ip addr add 172.17.0.3/16 dev eth0; ip addr add fd17::3/64 dev eth0 nodad")
	sh(t, d.host, `
		iptables -t nat -A PREROUTING -p tcp -d 10.9.0.1 -j DNAT --to-destination 172.17.0.3
		ip6tables -t nat -A PREROUTING -p tcp -d fd00:9::1 -j DNAT --to-destination fd17::3
		for a in 172.17.0.1 172.18.0.1; do iptables -t nat -A PREROUTING -p tcp -d $a -j DNAT --to-destination 10.9.0.2; done
		for a in fd17::1 fd18::1; do ip6tables -t nat -A PREROUTING -p tcp -d $a -j DNAT --to-destination fd00:9::2; done`)
	return d, h
}

// wantApart checks the paths between Kuryr's container and Docker's.
func (d dockers) wantApart(t *testing.T, when string) {
	t.Helper()
	for _, p := range []struct {
		name          string
		from, to      netns.NsHandle
		addr, dialled string
		open          bool
	}{
		{"to a container's unpublished port", d.inside, d.bridge, "172.17.0.2", "", false},
		{"to a container's unpublished port, IPv6", d.inside, d.bridge, "fd17::2", "", false},
		{"to a published port", d.inside, d.bridge, "172.17.0.3", "10.9.0.1", true},
		{"to a published port, IPv6", d.inside, d.bridge, "fd17::3", "fd00:9::1", true},
		{"to an internal network", d.inside, d.internal, "172.18.0.2", "", false},
		{"to an internal network, IPv6", d.inside, d.internal, "fd18::2", "", false},
		{"from Docker's bridge to Kuryr's published port", d.bridge, d.inside, "10.9.0.2", "172.17.0.1", true},
		{"from Docker's bridge to Kuryr's published port, IPv6", d.bridge, d.inside, "fd00:9::2", "fd17::1", true},
		{"from an internal network to Kuryr's published port", d.internal, d.inside, "10.9.0.2", "172.18.0.1", false},
		{"from an internal network to Kuryr's published port, IPv6", d.internal, d.inside, "fd00:9::2", "fd18::1", false},
	} {
		addr := netip.MustParseAddr(p.addr)
		dialled := addr
		if p.dialled != "" {
			dialled = netip.MustParseAddr(p.dialled)
		}
		if got := connectsVia(t, p.from, p.to, addr, dialled, p.open); got != p.open {
			t.Errorf("%s: %s: passes=%v, want %v", when, p.name, got, p.open)
		}
	}
}

// dropsTheRest is an operator's DOCKER-USER that lets Docker's bridges pass and refuses
// everything else.
const dropsTheRest = `for p in iptables ip6tables; do
	$p -D DOCKER-USER -j RETURN 2>/dev/null || true
	for l in docker0 br-int; do $p -A DOCKER-USER -i $l -j RETURN; $p -A DOCKER-USER -o $l -j RETURN; done
	$p -A DOCKER-USER -j DROP
done`

// Whatever the version and the policy, Kuryr's containers and Docker's are as far apart
// as two networks of Docker's.
func TestApartFromDockersBridges(t *testing.T) {
	t.Parallel()
	const policyAccepts = "iptables -P FORWARD ACCEPT; ip6tables -P FORWARD ACCEPT"
	guard, door, returns := []string{guardRule("kr+")}, doorRules("kr+", "ACCEPT"), doorRules("kr+", "RETURN")
	for _, c := range []struct {
		name, version string
		// then is what happens after Docker started.
		then string
		// user and forward are our rules in DOCKER-USER and FORWARD.
		user, forward []string
	}{
		{"20.10", "20.10", "", nil, slices.Concat(guard, door)},
		{"20.10, policy accept", "20.10", policyAccepts, nil, guard},
		{"20.10, DOCKER-USER drops", "20.10", dropsTheRest, returns, slices.Concat(guard, door)},
		{"28", "28", "", nil, slices.Concat(guard, door)},
		{"28, policy accept", "28", policyAccepts, nil, guard},
		{"29", "29", "", nil, door},
		{"29, policy accept", "29", policyAccepts, nil, nil},
		{"29, DOCKER-USER drops", "29", dropsTheRest, returns, door},
		{"29, DOCKER-USER drops, policy accept", "29", dropsTheRest + "\n" + policyAccepts, returns, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, h := dockerSite(t)
			likeDocker(t, d.host, c.version)
			sh(t, d.host, c.then)
			before := saved(t, d.host)
			h.openIn(t, d.host)
			open := saved(t, d.host)
			for chain, want := range map[string][]string{dockerUser: c.user, "FORWARD": c.forward} {
				for _, program := range []string{"iptables", "ip6tables"} {
					var have []string
					for line := range strings.Lines(sh(t, d.host, program+" -S "+chain)) {
						if strings.Contains(line, comment) {
							have = append(have, strings.TrimSpace(strings.TrimPrefix(line, "-A "+chain)))
						}
					}
					if !slices.Equal(have, want) {
						t.Errorf("our rules in %s of %s are %q, want %q", chain, program, have, want)
					}
				}
			}
			d.wantApart(t, "doors open")
			d.wantPaths(t, "doors open", true)
			if got := h.findingsIn(t, d.host); len(got) > 0 {
				t.Errorf("findings %q, want none", got)
			}
			h.openIn(t, d.host)
			if again := saved(t, d.host); again != open {
				t.Errorf("second time: rules changed from\n%s\nto\n%s", open, again)
			}
			in(t, d.host, func() error { return h.CloseDoors(t.Context()) })
			if after := saved(t, d.host); after != before {
				t.Errorf("closing left\n%s\nwant\n%s", after, before)
			}
		})
	}
}

// An operator's accept of everything at FORWARD's top puts our rule before Docker's: it
// must not cut answers and published ports then.
func TestGuardOutOfOrder(t *testing.T) {
	t.Parallel()
	d, h := dockerSite(t)
	likeDocker(t, d.host, "20.10")
	sh(t, d.host, "iptables -I FORWARD -j ACCEPT")
	h.openIn(t, d.host)
	if got := sh(t, d.host, "iptables -S FORWARD 1"); !strings.Contains(got, guardRule("kr+")) {
		t.Fatalf("the first rule is %q", got)
	}
	if !connectsVia(t, d.inside, d.bridge, netip.MustParseAddr("172.17.0.3"), netip.MustParseAddr("10.9.0.1"), true) {
		t.Error("a published port of Docker's cannot be reached")
	}
	if !connectsVia(t, d.bridge, d.inside, netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("172.17.0.1"), true) {
		t.Error("a published port of Kuryr's cannot be reached")
	}
	if connects(t, d.inside, d.bridge, netip.MustParseAddr("172.17.0.2"), false) {
		t.Error("an unpublished port can be reached")
	}
}

// Without our rule the tests above would see what it is there for: the old door, and the
// open policy, let unpublished ports be reached.
func TestDockersBridgesWithoutGuard(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]string{
		"policy accept": "iptables -P FORWARD ACCEPT",
		"accept first":  "iptables -I DOCKER-USER -i kr+ -j ACCEPT",
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := dockerSite(t)
			likeDocker(t, d.host, "20.10")
			sh(t, d.host, rules)
			if !connects(t, d.inside, d.bridge, netip.MustParseAddr("172.17.0.2"), true) {
				t.Error("Docker's rules alone cut Kuryr's container from an unpublished port")
			}
		})
	}
}

// A missing guard is found and named, and it comes and goes with the chain it leads to.
func TestGuardFollowsDocker(t *testing.T) {
	t.Parallel()
	d, h := dockerSite(t)
	likeDocker(t, d.host, "20.10")
	sh(t, d.host, "iptables -P FORWARD ACCEPT; ip6tables -P FORWARD ACCEPT")
	if got := h.findingsIn(t, d.host); len(got) != 2 || !strings.Contains(got[0], "do not publish") {
		t.Errorf("findings %q, want one for each family", got)
	}
	h.watchIn(t, d.host)
	rules := func(n int) func() bool {
		return func() bool { return strings.Count(saved(t, d.host), comment) == n }
	}
	eventually(t, "a guard for each family", rules(2))
	// An upgrade: Docker 29 empties the stages at its start.
	sh(t, d.host, "for p in iptables ip6tables; do for c in 1 2; do $p -F DOCKER-ISOLATION-STAGE-$c; done; done")
	likeDocker(t, d.host, "29")
	eventually(t, "a door for each family and no guard", rules(4))
	d.wantApart(t, "upgraded")
	d.wantPaths(t, "upgraded", true)
	likeDocker(t, d.host, "20.10")
	eventually(t, "doors and guards", rules(6))
	d.wantApart(t, "back at 20.10")
}
