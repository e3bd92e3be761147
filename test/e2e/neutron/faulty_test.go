//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// faulty stands before Neutron and spoils what it is told to, of the calls that somebody waits for.
type faulty struct {
	*neutrontest.Proxy
	unspoilt http.Handler
	random   atomic.Bool // every so many calls are spoilt, by one fault after the other
	calls    atomic.Int64
}

// every is one call of how many is spoilt, where that is so of any.
const every = 4

// ServeHTTP is http.Handler's.
func (f *faulty) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.UserAgent() == neutron.BackgroundAgent {
		f.unspoilt.ServeHTTP(w, req)
		return
	}
	if n := int(f.calls.Add(1)); f.random.Load() && n%every == 0 {
		all := []fault{
			half, say(http.StatusServiceUnavailable), cut, say(http.StatusInternalServerError),
			say(http.StatusTooManyRequests),
		}
		all[n/every%len(all)](f.Proxy, neutrontest.Call{Method: req.Method})
	}
	f.Proxy.ServeHTTP(w, req)
}

// faulty is the address of one, which ends with the test.
func (r *rig) faulty() (f *faulty, endpoint string) {
	r.Helper()
	endpoint = r.front(func(proxy *httputil.ReverseProxy) http.Handler {
		f = &faulty{Proxy: neutrontest.Handler(proxy), unspoilt: proxy}
		return f
	})
	r.Cleanup(f.Reset) // what is held back is let go
	return f, endpoint
}

// A fault is what becomes of the next call of a kind, or of all that follow.
type fault func(*neutrontest.Proxy, neutrontest.Call)

// These Neutron does, and its answer is lost, in the middle, as a whole, or for longer than anybody waits.
func half(p *neutrontest.Proxy, c neutrontest.Call)  { p.CutBody(c, 1, 20) }
func cut(p *neutrontest.Proxy, c neutrontest.Call)   { p.Cut(c, 1) }
func stall(p *neutrontest.Proxy, c neutrontest.Call) { p.Stall(c, 1) }

// say is an answer without Neutron.
func say(status int) fault {
	return func(p *neutrontest.Proxy, c neutrontest.Call) { p.Say(c, 1, saying(status)) }
}

// always is an answer without Neutron, however often it is asked.
func always(status int) fault {
	return func(p *neutrontest.Proxy, c neutrontest.Call) { p.Say(c, 1000, saying(status)) }
}

func saying(status int) neutrontest.Answer {
	kind := map[int]string{http.StatusConflict: "IpAddressAlreadyAllocated"}[status]
	return neutrontest.Answer{
		Status: status, Header: map[string]string{"Retry-After": "1", "Content-Type": "application/json"},
		Body: fmt.Sprintf(`{"NeutronError": {"type": %q, "message": "Spoilt by a test.", "detail": ""}}`, kind),
	}
}

// spoilt are calls, as "POST ports", and what becomes of the next of each.
type spoilt map[string]fault

func (f *faulty) spoil(r *rig, what spoilt) {
	r.Helper()
	f.Reset()
	for text, with := range what {
		with(f.Proxy, called(r, text))
	}
}

// came checks that the calls which were to be spoilt have come at all.
func (f *faulty) came(r *rig, what spoilt) {
	r.Helper()
	for text := range what {
		if f.Count(called(r, text)) == 0 {
			r.Errorf("no %s has come, of %v", text, f.Calls())
		}
	}
}

func called(r *rig, text string) (c neutrontest.Call) {
	r.Helper()
	if _, err := fmt.Sscan(text, &c.Method, &c.Collection); err != nil {
		r.Fatal(err)
	}
	return c
}

// Neutron refuses, is overloaded, breaks off, and holds answers back, in the middle of
// what Docker asks for: that works all the same or fails with a sentence that says what
// Neutron did, nothing is made twice, what is removed goes, and what runs does not
// notice.
func TestFaults(t *testing.T) {
	r := shared(t)
	f, endpoint := r.faulty()
	for _, h := range []host{r.h1, r.h2} {
		// What Docker has forgotten goes only when no call that is held back goes on any
		// more: it is that call's to clean up after itself.
		r.restarted(h, "KURYR_NEUTRON_ENDPOINT="+endpoint, "KURYR_NEUTRON_TIMEOUT=6s", forgetful)
	}
	f.networks(r)
	network, subnets := r.ownNetwork("faults", "10.126.0.0/24")
	r.h1.use("faults", network, subnets)
	r.h2.use("faults", network, subnets)
	a, b := r.h1.run("faults-a", "faults"), r.h2.run("faults-b", "faults")
	r.reaches(a.in, b.ip4, a.ip4)
	before := a.seat()
	f.containers(r, network)
	f.overloaded(r)

	// On networks of Kuryr's own: a port that Neutron makes when nobody waits for it any
	// more is found by comparing with Docker, which on an existing network could not tell
	// whose it is.
	var own []object
	for i, h := range []host{r.h1, r.h2} {
		h.network("spoilt", "--subnet", fmt.Sprintf("10.127.%d.0/24", i), "--gateway", fmt.Sprintf("10.127.%d.1", i))
		own = append(own, r.one(
			"networks",
			"tags="+halves(
				"kuryr.net.uuid", h.docker("network", "inspect", "-f", "{{.Id}}", "spoilt"),
			)[0],
		))
	}
	f.Reset()
	f.random.Store(true)
	loads := []*load{r.h1.load("spoilt"), r.h2.load("spoilt")}
	select {
	case <-time.After(8 * time.Second): // of a load
	case <-r.ctx.Done():
	}
	f.random.Store(false)
	f.Reset()
	for _, l := range loads {
		l.healthy(r)
		l.stop()
		l.done.Wait()
	}
	for _, n := range own {
		f.ports(r, n, 0)
	}
	f.ports(r, network, 2)
	r.reaches(a.in, b.ip4, a.ip4)
	if now := a.seat(); now != before {
		t.Errorf("something was done to the container that ran all the time:\n%s\nbefore:\n%s", now, before)
	}
}

// ports waits until a network has so many ports.
func (f *faulty) ports(r *rig, network object, want int) {
	r.Helper()
	r.until("the ports of the network", func(context.Context) error {
		if all := r.find("ports", "network_id="+network.ID()); len(all) != want {
			return fmt.Errorf("there are %d, not %d: %v", len(all), want, all)
		}
		return nil
	})
}

// networks of Kuryr's own: made once each, whatever is lost, and gone in the end.
func (f *faulty) networks(r *rig) {
	r.Helper()
	create := []string{"--subnet", "10.125.0.0/24", "--gateway", "10.125.0.1"}
	for _, c := range []struct {
		words     []string // of the refusal; nil where it works
		made, end spoilt
	}{
		{nil, spoilt{"POST subnetpools": cut, "POST networks": half, "POST subnets": stall}, spoilt{
			"DELETE networks": say(http.StatusServiceUnavailable), "DELETE subnetpools": cut,
		}},
		{nil, spoilt{"POST subnetpools": half, "POST networks": cut, "POST subnets": half}, spoilt{
			"DELETE networks": cut, "DELETE subnetpools": say(http.StatusInternalServerError),
		}},
		{[]string{"Neutron", "answers 500"}, spoilt{"POST networks": say(http.StatusInternalServerError)}, nil},
		{
			nil,
			spoilt{
				"POST subnetpools": say(http.StatusTooManyRequests),
				"POST networks":    say(http.StatusServiceUnavailable),
				"POST subnets":     say(http.StatusTooManyRequests),
			},
			nil,
		},
		{[]string{"Neutron", "answers 429"}, spoilt{"POST subnets": always(http.StatusTooManyRequests)}, nil},
	} {
		f.spoil(r, c.made)
		if c.words != nil {
			r.h1.refused(
				c.words,
				append(
					[]string{
						"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "faulty",
					},
					create...,
				)...,
			)
		} else {
			r.h1.network("faulty", create...)
		}
		f.came(r, c.made)
		f.spoil(r, c.end)
		if c.words == nil {
			id := r.h1.docker("network", "inspect", "-f", "{{.Id}}", "faulty")
			made := r.one("networks", "tags="+halves("kuryr.net.uuid", id)[0])
			r.one("subnetpools", "id="+r.one("subnets", "network_id="+made.ID()).Text("subnetpool_id"))
			r.h1.docker("network", "rm", "faulty")
			f.came(r, c.end)
		}
		f.Reset()
		r.until("something of the network is left", func(context.Context) error {
			for _, noun := range []string{"networks", "subnetpools"} {
				if left := r.find(noun, "project_id="+r.lab.Project()); len(left) > 0 {
					return fmt.Errorf("%v", left)
				}
			}
			return nil
		})
	}
}

// containers on a network that has two ports already.
func (f *faulty) containers(r *rig, network object) {
	r.Helper()
	for _, c := range []struct {
		words     []string // of the refusal; nil where it works
		made, end spoilt
	}{
		{nil, spoilt{"POST ports": half, "GET ports": say(http.StatusInternalServerError)}, spoilt{
			"DELETE ports": say(http.StatusServiceUnavailable),
		}},
		{
			nil,
			spoilt{"POST ports": cut, "GET ports": half, "PUT ports": say(
				http.StatusTooManyRequests,
			)},
			spoilt{"DELETE ports": cut},
		},
		{nil, spoilt{"POST ports": stall, "GET ports": say(http.StatusTooManyRequests)}, spoilt{
			"DELETE ports": say(http.StatusTooManyRequests),
		}},
		{nil, nil, spoilt{"DELETE ports": say(http.StatusInternalServerError)}},
		// the address that Neutron chose was just taken
		{nil, spoilt{"POST ports": say(http.StatusConflict)}, spoilt{"DELETE ports": say(http.StatusConflict)}},
		{nil, spoilt{"POST ports": say(http.StatusTooManyRequests)}, nil},
		{nil, spoilt{"POST ports": say(http.StatusServiceUnavailable)}, nil},
		{[]string{"Neutron", "answers 429"}, spoilt{"POST ports": always(http.StatusTooManyRequests)}, nil},
		{[]string{"Neutron", "answers 500"}, spoilt{"POST ports": say(http.StatusInternalServerError)}, nil},
		{[]string{"Neutron", "answers 503"}, spoilt{"POST ports": always(http.StatusServiceUnavailable)}, nil},
		// The port is there, and only this host changes it: the change is repeated.
		{nil, spoilt{"PUT ports": say(http.StatusServiceUnavailable)}, nil},
		{nil, spoilt{"PUT ports": half}, nil},
		{nil, spoilt{"PUT ports": stall}, nil},
		// The port is there, and whether it was changed is not known: it goes.
		{
			[]string{"Neutron", "answers 503"},
			spoilt{"PUT ports": always(http.StatusServiceUnavailable), "DELETE ports": cut}, nil,
		},
		{
			[]string{"Neutron", "answers 500"},
			spoilt{
				"PUT ports":    say(http.StatusInternalServerError),
				"DELETE ports": say(http.StatusInternalServerError),
			},
			nil,
		},
	} {
		f.spoil(r, c.made)
		run := append(
			[]string{"run", "-d", "--name", "faulty", "--stop-timeout", "1", "--network", "faults"},
			"box", "probe", "serve", fmt.Sprint(port),
		)
		if c.words != nil {
			r.h1.refused(c.words, run...)
			f.came(r, c.made)
		} else {
			r.h1.docker(run...)
			f.came(r, c.made)
			f.ports(r, network, 3)
		}
		f.spoil(r, c.end)
		r.h1.docker("rm", "-f", "faulty")
		f.Reset()
		f.ports(r, network, 2)
	}
}

// overloaded: nothing but 503 for a while: a start fails soon, what ends ends, and its port goes afterwards.
func (f *faulty) overloaded(r *rig) {
	r.Helper()
	goes := r.h1.run("faults-goes", "faults")
	id := goes.port().ID()
	f.Reset()
	f.Say(neutrontest.Call{}, 1000, saying(http.StatusServiceUnavailable))
	r.h1.refused([]string{"Neutron", "answers 503"}, "run", "--rm", "--network", "faults", "box", "true")
	r.h1.docker("rm", "-f", goes.name)
	f.Reset()
	r.until("the port of a container that went is left", func(context.Context) error {
		if left := r.find("ports", "id="+id); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	r.h1.docker("run", "--rm", "--network", "faults", "box", "true")
}
