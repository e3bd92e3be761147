package docker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// lateBox is a box with an engine's network that is an existing one, on which nothing but the debt can find a port that nobody has.
func lateBox(t *testing.T) (*box, *leaving, *network) {
	t.Helper()
	b, l := awayBox(t)
	theirs := b.theirs("net", "10.50.0.0/24")
	return b, l, b.create(b.zun(theirs, "10.50.0.0/24", ""))
}

// loses asks for an address whose port the SDN makes too late.
func (b *box) loses(l *leaving, n *network, address, mac string) {
	b.t.Helper()
	body := m{"PoolID": n.v4[0].id, "Address": address, "Options": m{}}
	if mac != "" {
		body["Options"] = m{optMAC: mac}
	}
	l.loses.Store(true)
	b.contains(b.fails("IpamDriver.RequestAddress", body), "in time")
	l.loses.Store(false)
	if n := b.driver.owed.count(); n != 1 || len(l.lost) != 1 {
		b.t.Fatalf("%d owed, %d lost, want one of each", n, len(l.lost))
	}
}

// ported is how many ports nobody has.
func (b *box) ported() (unbound int) {
	b.t.Helper()
	ports, err := sdn.All(b.provider.FindPorts(b.t.Context(), sdn.PortQuery{Match: sdn.Match{Owner: b.provider.Installation(), Kind: identity.KindPort}}))
	b.must(err)
	for _, p := range ports {
		if p.DeviceID == "" {
			unbound++
		}
	}
	return unbound
}

const lateMAC = "02:00:00:00:00:09"

// TestLate: a port that the SDN makes after its request has failed goes, whether it has come by the first look or not, also after a restart.
func TestLate(t *testing.T) {
	t.Parallel()
	for _, asked := range []struct{ address, mac string }{{"", ""}, {"", lateMAC}, {"10.50.0.9", ""}, {"10.50.0.9", lateMAC}} {
		for _, restart := range []bool{false, true} {
			for _, looked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%+v restart=%v looked=%v", asked, restart, looked), func(t *testing.T) {
					t.Parallel()
					b, l, n := lateBox(t)
					before := b.dump()
					b.loses(l, n, asked.address, asked.mac)
					if looked {
						b.must(b.settle())
					}
					b.must(l.land(t.Context()))
					if b.ported() != 1 {
						t.Fatal("the port has not landed")
					}
					if restart {
						b.restart()
					} else if looked {
						b.must(b.settle())
						if b.ported() != 1 {
							t.Error("it was looked for again at once")
						}
						b.wait(b.driver.timeout)
					}
					b.must(b.settle())
					if now := b.dump(); now != before {
						t.Errorf("before\n%s\nafter\n%s", before, now)
					}
					b.back(l)
				})
			}
		}
	}
}

// TestLateGivenAgain: who asks for the same again gets it, and keeps it: be the late port made before that, or just then, so that it is the one that is given.
func TestLateGivenAgain(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "10.50.0.9"} {
		for _, lands := range []string{"before", "meanwhile"} {
			t.Run(address+lands, func(t *testing.T) {
				t.Parallel()
				b, l, n := lateBox(t)
				before := b.dump()
				b.loses(l, n, address, lateMAC)
				key := l.lost[0].Key
				if lands == "before" {
					b.must(l.land(t.Context()))
				} else {
					l.lands.Store(true)
				}
				e := &endpoint{net: n, ip4: address, mac: lateMAC}
				b.take(e)
				given, found, err := sdn.First(b.provider.FindPorts(t.Context(), sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
				b.must(err)
				if found != (lands == "meanwhile") {
					t.Errorf("the late port is there: %v, %+v", found, given)
				}
				b.wait(b.driver.timeout)
				b.must(b.settle())
				if b.ported() != 1 || b.driver.owed.count() != 0 {
					t.Errorf("%d ports, %d owed, want the one that was given and nothing", b.ported(), b.driver.owed.count())
				}
				b.restart()
				b.must(b.settle())
				b.ok("NetworkDriver.CreateEndpoint", e.createBody())
				e.joined = b.ok("NetworkDriver.Join", e.joinBody())
				b.back(l)
				b.stop(e)
				if now := b.dump(); now != before {
					t.Errorf("before\n%s\nafter\n%s", before, now)
				}
			})
		}
	}
}

// TestLateTaken: a port that an endpoint got in the meantime, by its address, is that endpoint's.
func TestLateTaken(t *testing.T) {
	t.Parallel()
	b, l, n := lateBox(t)
	b.loses(l, n, "10.50.0.9", lateMAC)
	key := l.lost[0].Key
	b.must(l.land(t.Context()))
	port, _, err := sdn.First(l.FindPorts(t.Context(), sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	b.must(err)
	device := newID()
	_, err = l.UpdatePort(t.Context(), port.ID, sdn.PortPatch{DeviceID: &device})
	b.must(err)
	b.must(b.settle())
	if b.portOf(device).ID != port.ID || b.driver.owed.count() != 0 {
		t.Errorf("%+v, %d owed", b.portOf(device), b.driver.owed.count())
	}
}

// TestLateNever: a port that is never made is not looked for for ever, nor is one that was certainly not asked for.
func TestLateNever(t *testing.T) {
	t.Parallel()
	b, l, n := lateBox(t)
	b.loses(l, n, "", lateMAC)
	for looks := 0; b.driver.owed.count() > 0; looks++ {
		b.must(b.settle())
		if looks > 20 {
			t.Fatal("it is still looked for")
		}
		at, waits := b.driver.owed.nextLook()
		b.wait(time.Until(at))
		if looks == 0 && !waits {
			t.Error("it was looked for once only")
		}
	}
	if mayLand(sdn.Unavailable(sdn.ErrNotSent, "SDN", "it is away")) || !mayLand(sdn.Unavailable(nil, "SDN", "it is away")) || !mayLand(context.Canceled) {
		t.Error("what may land is not told from what was not sent")
	}
	b.back(l)
}

// TestLateRun: Run looks again by itself.
func TestLateRun(t *testing.T) {
	t.Parallel()
	b, l, n := lateBox(t)
	b.config.CallTimeout = time.Second
	b.restart()
	b.loses(l, n, "", lateMAC)
	b.must(b.settle())
	b.must(l.land(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.driver.Run(ctx) }()
	for b.driver.owed.count() > 0 {
		b.requestGateway(n.v4[0])
	}
	stop()
	b.must(<-ended)
	if b.ported() != 0 {
		t.Error("the port is still there")
	}
}

// TestLateEndpoint: so goes the port of an endpoint whose address another IPAM driver chose; but not that of one which the engine was answered at last.
func TestLateEndpoint(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("again=%v", again), func(t *testing.T) {
			t.Parallel()
			b, l, n := lateBox(t)
			before := b.dump()
			e := &endpoint{net: n, id: newID(), ip4: "10.50.0.9", mac: lateMAC}
			l.loses.Store(true)
			b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), "in time")
			l.loses.Store(false)
			b.must(b.settle())
			b.restart()
			if again {
				l.lands.Store(true)
				b.ok("NetworkDriver.CreateEndpoint", e.createBody())
				b.must(b.settle())
				b.portOf(e.id)
				e.joined = b.ok("NetworkDriver.Join", e.joinBody())
				b.stop(e)
			} else {
				b.must(l.land(t.Context()))
				b.portOf(e.id)
				b.must(b.settle())
			}
			if now := b.dump(); now != before || b.driver.owed.count() != 0 {
				t.Errorf("%d owed, before\n%s\nafter\n%s", b.driver.owed.count(), before, now)
			}
		})
	}
}

// Ports that are looked for are no clean-ups that somebody has to see to.
func TestLateIsCounted(t *testing.T) {
	t.Parallel()
	b, l, n := lateBox(t)
	registry := prometheus.NewRegistry()
	b.config.Registerer = registry
	b.restart()
	b.loses(l, n, "10.50.0.9", "")
	l.gone.Store(true)
	b.ok("IpamDriver.ReleasePool", m{"PoolID": n.v4[0].id})
	l.gone.Store(false)
	want := `# HELP kuryr_docker_late_ports Ports of failed calls that the SDN may yet make, and that are looked for.
# TYPE kuryr_docker_late_ports gauge
kuryr_docker_late_ports 1
# HELP kuryr_docker_owed Clean-ups that the Docker engine asked for and that are done when the SDN is back.
# TYPE kuryr_docker_owed gauge
kuryr_docker_owed 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kuryr_docker_late_ports", "kuryr_docker_owed"); err != nil {
		t.Error(err)
	}
}
