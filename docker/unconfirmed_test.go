package docker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// An SDN may create a port after the request for it has failed. On an existing network nothing but
// the row of that request can find it. These tests run in bubbles of synctest.

const unconfirmedMAC = "02:00:00:00:00:09"

// unconfirmedBox is a box on an existing network whose SDN can lose answers.
func unconfirmedBox(t *testing.T, change ...func(*Config)) (*box, *leaving, *network) {
	t.Helper()
	b, l := awayBox(t)
	for _, c := range change {
		c(&b.config)
	}
	b.restart()
	n := b.create(b.zun(b.theirs("net", "10.50.0.0/24"), "10.50.0.0/24", ""))
	b.pass(time.Second) // the network's tags are written
	return b, l, n
}

// pass lets time pass while the driver runs.
func (b *box) pass(long time.Duration) {
	b.t.Helper()
	b.whileRunning(func() { time.Sleep(long) })
}

// whileRunning does something while the driver runs.
func (b *box) whileRunning(do func()) {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.must(b.driver.Run(ctx)) })
	do()
	synctest.Wait()
	stop()
	running.Wait()
}

// expireUnconfirmed lets pass the time in which unconfirmed objects are looked for, and checks that no row of
// them is left.
func (b *box) expireUnconfirmed() {
	b.t.Helper()
	b.pass(15 * time.Minute)
	for name, text := range b.driver.Intents() {
		if strings.Contains(string(text), `"unconfirmed":true`) {
			b.t.Errorf("still looked for: %s: %s", name, text)
		}
	}
}

// loses requests an address whose port the SDN creates later, if at all.
func (b *box) loses(l *leaving, n *network, address, mac string) {
	b.t.Helper()
	body := m{"PoolID": n.v4[0].id, "Address": address, "Options": m{}}
	if mac != "" {
		body["Options"] = m{optMAC: mac}
	}
	l.loses.Store(true)
	b.contains(b.fails("IpamDriver.RequestAddress", body), "in time")
	l.loses.Store(false)
	if len(l.lost) != 1 {
		b.t.Fatalf("%d ports are lost, want one", len(l.lost))
	}
}

// unbound returns how many ports of Kuryr's no endpoint has.
func (b *box) unbound() (count int) {
	b.t.Helper()
	match := sdn.Match{Owner: b.provider.Installation(), Kind: identity.KindPort}
	ports, err := sdn.All(b.provider.FindPorts(b.t.Context(), sdn.PortQuery{Match: match}))
	b.must(err)
	for _, p := range ports {
		if p.DeviceID == "" {
			count++
		}
	}
	return count
}

// TestUnconfirmed: a port that the SDN creates after its request has failed is deleted, whether it
// appears soon or late, also after a restart.
func TestUnconfirmed(t *testing.T) {
	t.Parallel()
	for _, asked := range []struct{ address, mac string }{
		{"", ""}, {"", unconfirmedMAC}, {"10.50.0.9", ""}, {"10.50.0.9", unconfirmedMAC},
	} {
		for _, restart := range []bool{false, true} {
			for _, after := range []time.Duration{0, time.Second, 5 * time.Minute} {
				t.Run(fmt.Sprintf("%+v restart=%v after=%v", asked, restart, after), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						b, l, n := unconfirmedBox(t)
						before := b.dump()
						b.loses(l, n, asked.address, asked.mac)
						if after > 0 {
							b.pass(after)
						}
						b.must(l.land(t.Context()))
						if b.unbound() != 1 {
							t.Fatal("the port has not appeared")
						}
						if restart {
							b.restart()
						}
						b.expireUnconfirmed()
						b.unchanged(before)
					})
				})
			}
		}
	}
}

// TestUnconfirmedGivenAgain: a request for the same is served and keeps its port, whether the lost
// port has appeared before it, or appears during it.
func TestUnconfirmedGivenAgain(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "10.50.0.9"} {
		for _, lands := range []string{"before", "during", "never"} {
			t.Run(address+lands, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b, l, n := unconfirmedBox(t)
					before := b.dump()
					b.loses(l, n, address, unconfirmedMAC)
					switch lands {
					case "before":
						b.must(l.land(t.Context()))
					case "during":
						l.lands.Store(true)
					}
					e := &endpoint{net: n, ip4: address, mac: unconfirmedMAC}
					b.take(e)
					b.expireUnconfirmed()
					b.restart()
					b.pass(time.Second)
					if b.unbound() != 1 {
						t.Errorf("%d ports, want the one that was given", b.unbound())
					}
					b.ok("NetworkDriver.CreateEndpoint", e.createBody())
					e.joined = b.ok("NetworkDriver.Join", e.joinBody())
					b.stop(e)
					b.pass(time.Minute)
					b.unchanged(before)
				})
			})
		}
	}
}

// TestUnconfirmedTaken: a lost port that has an endpoint when it is found is that endpoint's.
func TestUnconfirmedTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l, n := unconfirmedBox(t)
		b.loses(l, n, "10.50.0.9", unconfirmedMAC)
		match := sdn.Match{Keys: []sdn.Key{l.lost[0].Key}}
		b.must(l.land(t.Context()))
		port, _, err := sdn.First(l.FindPorts(t.Context(), sdn.PortQuery{Match: match}))
		b.must(err)
		device := newID()
		_, err = l.UpdatePort(t.Context(), port.ID, sdn.PortPatch{DeviceID: &device})
		b.must(err)
		b.expireUnconfirmed()
		if b.portOf(device).ID != port.ID {
			t.Errorf("the endpoint has %+v", b.portOf(device))
		}
	})
}

// TestUnconfirmedEndpoint: so is the port of an endpoint whose address another IPAM driver chose
// deleted, but not that of the same endpoint when it is created at last.
func TestUnconfirmedEndpoint(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("again=%v restart=%v", again, restart), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b, l, n := unconfirmedBox(t)
					before := b.dump()
					e := &endpoint{net: n, id: newID(), ip4: "10.50.0.9", mac: unconfirmedMAC}
					l.loses.Store(true)
					b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), "in time")
					l.loses.Store(false)
					if restart {
						b.restart()
					}
					if again {
						l.lands.Store(true)
						b.ok("NetworkDriver.CreateEndpoint", e.createBody())
						b.expireUnconfirmed()
						b.portOf(e.id)
						e.joined = b.ok("NetworkDriver.Join", e.joinBody())
						b.stop(e)
					} else {
						b.must(l.land(t.Context()))
						b.portOf(e.id)
					}
					b.expireUnconfirmed()
					b.unchanged(before)
				})
			})
		}
	}
}

// late is an SDN that loses the answer of one call, and makes its object when it appears.
type late struct {
	sdn.Provider
	works   sdn.Provider
	loses   string // the method; "": no answer is lost
	appears func(context.Context) error
}

func newLate(p sdn.Provider) *late {
	l := &late{works: p}
	l.Provider = &dockertest.Provider{Provider: p, Before: l.before}
	return l
}

func (l *late) before(c dockertest.Call) error {
	if c.Method != l.loses {
		return nil
	}
	l.loses = ""
	l.appears = func(ctx context.Context) (err error) {
		if spec, ok := dockertest.Arg[sdn.FloatingIPSpec](c); ok {
			_, err = l.works.EnsureFloatingIP(ctx, *spec)
		} else if spec, ok := dockertest.Arg[sdn.SecurityGroupSpec](c); ok {
			_, err = l.works.ApplySecurityGroup(ctx, *spec)
		} else if spec, ok := dockertest.Arg[sdn.PublicationSpec](c); ok {
			_, err = l.works.Publish(ctx, *spec)
		}
		return err
	}
	return sdn.Unavailable(context.DeadlineExceeded, "SDN", "it does not answer in time")
}

// TestUnconfirmedParts: so is deleted what an endpoint has beside its port, while the endpoint stays.
func TestUnconfirmedParts(t *testing.T) {
	t.Parallel()
	const join, program = "NetworkDriver.Join", "NetworkDriver.ProgramExternalConnectivity"
	tcp := []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}
	whole := func(t *testing.T) *box { return newBox(t) }
	for name, part := range map[string]struct {
		box           func(t *testing.T) *box
		e             endpoint
		method, loses string
	}{
		"floating IP": {whole, endpoint{driver: m{optFloatingIP: floatingAuto}}, join, "EnsureFloatingIP"},
		"host ports":  {whole, endpoint{published: tcp}, program, "Publish"},
		"forwarding floating IP": {
			plainOnly, endpoint{published: tcp, driver: m{optPublish: publishFloating}}, program, "EnsureFloatingIP",
		},
		"group": {plainOnly, endpoint{exposed: []m{{"Proto": 6, "Port": 80}}}, program, "ApplySecurityGroup"},
	} {
		for _, restart := range []bool{false, true} {
			for _, after := range []time.Duration{0, 5 * time.Minute} {
				t.Run(fmt.Sprintf("%s restart=%v after=%v", name, restart, after), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						b := part.box(t)
						l := newLate(b.config.Provider)
						b.config.Provider = l
						b.restart()
						n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
						before := b.dump()
						e := part.e
						e.net = n
						b.take(&e)
						b.ok("NetworkDriver.CreateEndpoint", e.createBody())
						body := e.joinBody()
						if part.method == program {
							b.ok(join, body)
							body = e.programBody()
						}
						l.loses = part.loses
						b.contains(b.fails(part.method, body), "in time")
						if after > 0 {
							b.pass(after)
						}
						without := b.dump()
						b.must(l.appears(t.Context()))
						if b.dump() == without {
							t.Fatal("it has not appeared")
						}
						if restart {
							b.restart()
						}
						b.expireUnconfirmed()
						if now := b.dump(); now != without {
							t.Errorf("before it appeared\n%s\nafter\n%s", without, now)
						}
						b.stop(&e)
						b.pass(time.Minute)
						if now := b.dump(); now != before {
							t.Errorf("before\n%s\nafter\n%s", before, now)
						}
					})
				})
			}
		}
	}
}

// TestUnconfirmedNever: a port that never appears is looked for until its time is over, while the SDN
// answers. What the SDN was certainly not asked for is not looked for. Metrics count both kinds of
// pending rows.
func TestUnconfirmedNever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		b, l, n := unconfirmedBox(t, func(c *Config) { c.Registerer = reg })
		wants := func(deleting, unconfirmed float64) {
			t.Helper()
			rows := gauge(t, reg, "kuryr_intent_rows", "address", "deleting")
			if unsure := gauge(t, reg, "kuryr_intent_unconfirmed", "address"); rows != deleting || unsure != unconfirmed {
				t.Errorf("%v rows are being deleted and %v are unconfirmed, want %v and %v", rows, unsure, deleting, unconfirmed)
			}
		}
		wants(0, 0)
		b.loses(l, n, "", unconfirmedMAC)
		l.lost = nil
		wants(1, 1)
		b.pass(9 * time.Minute)
		wants(1, 1)
		l.gone.Store(true) // this time does not count
		b.pass(time.Hour)
		l.gone.Store(false)
		wants(1, 1)
		b.expireUnconfirmed()
		wants(0, 0)
		e := &endpoint{net: n}
		b.take(e)
		l.gone.Store(true)
		b.giveBack(e)
		wants(1, 0)
		l.gone.Store(false)
		b.pass(2 * time.Minute)
		wants(0, 0)
		l.unsent.Store(true)
		b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Options": m{optMAC: unconfirmedMAC}})
		wants(0, 0)
	})
}

// TestCleanupIsRetried: the first call that the SDN serves again makes all cleanups due, however long
// it was unavailable.
func TestCleanupIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l, n := unconfirmedBox(t)
		e := b.run(&endpoint{net: n})
		other := b.create(v4Network("10.1.0.0/24"))
		l.gone.Store(true)
		b.stop(e)
		b.remove(other)
		b.whileRunning(func() {
			time.Sleep(20*time.Minute + 100*time.Millisecond)
			l.gone.Store(false)
			b.requestPool(&pool{cidr: "10.2.0.0/24"}, false)
			time.Sleep(time.Second)
		})
		if pending := b.pendingRows(); len(pending) > 0 {
			t.Errorf("still pending: %v", pending)
		}
	})
}

// gauge returns a value of a gauge that has labels with all these values.
func gauge(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, metric := range f.GetMetric() {
			has := map[string]bool{}
			for _, l := range metric.GetLabel() {
				has[l.GetValue()] = true
			}
			found := true
			for _, l := range labels {
				found = found && has[l]
			}
			if found {
				return metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no %s of %v", name, labels)
	return 0
}
