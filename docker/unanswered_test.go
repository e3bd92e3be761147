package docker

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// These tests are about what Docker was not told of, because the plugin was killed or the answer was
// lost. Docker may ask again, give back what it knows of, or forget it all.

// TestUnansweredNetwork kills the plugin at every step of the creation of a network, and again at
// every step of the deletion of what the first kill has left. In the end what Docker does not have is
// gone, though other engines can be there, and what it has is whole.
func TestUnansweredNetwork(t *testing.T) {
	t.Parallel()
	for name, making := range makings {
		for _, docker := range []struct {
			name          string
			retries, back bool
		}{{"forgets", false, false}, {"releases", false, true}, {"retries", true, false}} {
			t.Run(name+"/"+docker.name, func(t *testing.T) {
				t.Parallel()
				first := 1
				for dead := true; dead; first += every(2) {
					for second, again := 0, true; again; second += every(3) {
						inBubble(t, making, func(k *killable) {
							defer k.logf("killed at step %d, then at step %d", first, second)
							n := making.net(k)
							var body m
							created := false
							create := func() {
								k.ok("NetworkDriver.CreateNetwork", body)
								created = true
							}
							dead = k.killedAt(first, func() {
								body = k.request(n)
								create()
							})
							switch {
							case dead && docker.retries && body != nil:
								create()
							case dead && docker.back:
								k.releasePools(n)
							}
							if created {
								k.engine.has(n)
							}
							// Docker that forgets leaves most; otherwise some of it is
							// left.
							removes := k.killedAt(second, k.expire)
							again = dead && (removes || second == 0) && !docker.retries && !docker.back
							k.expire()
							if created {
								k.stop(k.run(&endpoint{net: n}))
								k.engine.forgets(n)
								k.remove(n)
							}
							k.nothingLeft()
						})
					}
				}
				if first < 10 { // it lived at the last but one
					t.Errorf("killed only at %d steps", first-2)
				}
			})
		}
	}
}

// TestUnansweredAddress kills the plugin at every step of a request for an address: of a network's
// range, and of one that another driver's network uses, whose first address makes a hidden network.
func TestUnansweredAddress(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		for _, docker := range []string{"forgets", "releases", "retries"} {
			died, step := true, 0
			for step = 1; died; step++ {
				inBubble(t, makings["tagless"], func(k *killable) {
					defer k.logf("killed at step %d, hidden: %t, Docker %s", step, hidden, docker)
					n, p := v4Network("10.61.0.0/24"), &pool{cidr: "10.62.0.0/24"}
					k.create(n)
					k.engine.has(n)
					k.pass(time.Second)
					full := k.dump()
					if hidden {
						k.requestPool(p, false)
					} else {
						p = n.v4[0]
					}
					body := m{"PoolID": p.id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:01"}}
					var answer m
					request := func() { answer = k.ok("IpamDriver.RequestAddress", body) }
					died = k.killedAt(step, request)
					if docker == "retries" && died {
						request()
					}
					switch {
					case answer != nil:
						address := bareAddress(k.box, answer["Address"])
						k.ok("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": address})
						fallthrough
					case docker == "releases":
						if hidden {
							k.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
						}
					}
					k.expire()
					k.unchanged(full)
					k.engine.forgets(n)
					k.remove(n)
					k.nothingLeft()
				})
			}
			if want := map[bool]int{false: 3, true: 6}[hidden]; step <= want {
				t.Errorf("killed only at %d steps", step-2)
			}
		}
	}
}

// deaf is a caller that has hung up before the answer.
type deaf struct{ *httptest.ResponseRecorder }

func (deaf) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// unheard sends a call whose answer is lost.
func (k *killable) unheard(method string, body m) {
	k.t.Helper()
	r := httptest.NewRequestWithContext(k.t.Context(), http.MethodPost, "/"+method, strings.NewReader(encode(body)))
	k.driver.Handler().ServeHTTP(deaf{httptest.NewRecorder()}, r)
}

// flush stores what calls have noted, as the next call of Docker does.
func (k *killable) flush() {
	k.t.Helper()
	p := &pool{cidr: "10.98.0.0/24"}
	k.requestPool(p, false)
	k.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
}

// TestUnheardNetwork: a network whose answer was lost is deleted, though other engines can be
// there. One whose answer was heard stays, since it can be of an engine that is not asked.
func TestUnheardNetwork(t *testing.T) {
	t.Parallel()
	for _, heard := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			inBubble(t, makings["routed"], func(k *killable) {
				n := dualNetwork()
				body := k.request(n)
				if heard {
					k.ok("NetworkDriver.CreateNetwork", body)
				} else {
					k.unheard("NetworkDriver.CreateNetwork", body)
				}
				if restart {
					k.flush()
					k.restart()
				}
				full := k.dump()
				k.expire()
				if heard {
					k.unchanged(full)
					k.remove(n)
				}
				k.nothingLeft()
			})
		}
	}
}

// TestUnheardIsCompared: an answer that was lost leads to a comparison before the next event of
// the engine.
func TestUnheardIsCompared(t *testing.T) {
	t.Parallel()
	inBubble(t, makings["routed"], func(k *killable) {
		lists := k.engine.lists.Load
		k.whileRunning(func() {
			body := k.request(dualNetwork())
			time.Sleep(10 * time.Minute)
			before := lists()
			k.unheard("NetworkDriver.CreateNetwork", body)
			time.Sleep(3 * time.Second)
			if lists() == before {
				t.Error("the engine is not asked")
			}
		})
		k.nothingLeft()
	})
}

// TestUnheardPool: so is a range whose answer was lost. One that was heard can be another
// network driver's, of an engine that is not asked.
func TestUnheardPool(t *testing.T) {
	t.Parallel()
	for _, heard := range []bool{false, true} {
		inBubble(t, makings["tagless"], func(k *killable) {
			p := &pool{cidr: "10.61.0.0/24"}
			if heard {
				k.requestPool(p, false)
			} else {
				k.unheard("IpamDriver.RequestPool", m{"AddressSpace": localSpace, "Pool": p.cidr})
			}
			full := k.dump()
			if heard {
				k.pass(2 * time.Minute)
			}
			k.flush()
			k.restart()
			k.expire()
			if stays := k.dump() == full; stays != heard {
				t.Errorf("the range stays: %t, heard: %t", stays, heard)
			}
			if heard {
				k.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
			}
			k.nothingLeft()
		})
	}
}

// TestUnansweredAgain: Docker asks again for what is about to be deleted, and has it.
func TestUnansweredAgain(t *testing.T) {
	t.Parallel()
	for name, making := range makings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, making, func(k *killable) {
				n := making.net(k)
				body := k.request(n)
				if !k.killedAt(4, func() { k.ok("NetworkDriver.CreateNetwork", body) }) {
					t.Fatal("it lives")
				}
				k.pass(50 * time.Second)
				k.ok("NetworkDriver.CreateNetwork", body)
				k.pass(time.Second)
				full := k.dump()
				k.expire()
				k.unchanged(full)
				k.remove(n)
				k.nothingLeft()
			})
		})
	}
}

// TestUnansweredUnconfirmed: what the SDN makes only after the kill is looked for, and deleted.
func TestUnansweredUnconfirmed(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		inBubble(t, makings["tagless"], func(k *killable) {
			n := makings["tagless"].net(k)
			body := k.request(n)
			if !k.killedAt(1, func() { k.ok("NetworkDriver.CreateNetwork", body) }) {
				t.Fatal("it lives")
			}
			if back {
				k.releasePools(n)
			}
			k.pass(5 * time.Minute)
			key := k.driver.daemon.Names.GlobalKey(identity.KindNetwork, n.id)
			_, err := k.steps.Provider.EnsureNetwork(k.t.Context(), sdn.NetworkSpec{Base: sdn.Base{Key: key, Name: "late"}})
			k.must(err)
			k.nothingLeft()
		})
	}
}
