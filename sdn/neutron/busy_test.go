package neutron

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// A creation makes something, with or without a Key, in a double of the tests.
type creation struct {
	noun   string // of Neutron's paths
	make   func(ctx context.Context, p *Provider, key sdn.Key) error
	number int // of objects that it makes
}

func creations() map[string]creation {
	pool := func(ctx context.Context, p *Provider, key sdn.Key) error {
		_, err := p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Base: sdn.Base{Key: key}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}})
		return err
	}
	network := func(subnets int) func(context.Context, *Provider, sdn.Key) error {
		return func(ctx context.Context, p *Provider, key sdn.Key) error {
			spec := sdn.NetworkSpec{Base: sdn.Base{Key: key}}
			for i := range subnets {
				s := sdn.SubnetSpec{CIDR: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i))}
				if !key.IsZero() {
					s.Key = sdn.Key{Owner: key.Owner, Kind: "subnet", Name: fmt.Sprint(key.Name, i)}
				}
				spec.Subnets = append(spec.Subnets, s)
			}
			_, err := p.EnsureNetwork(ctx, spec)
			return err
		}
	}
	return map[string]creation{
		"subnet pool": {"subnetpools", pool, 1},
		"network":     {"networks", network(0), 1},
		"subnet":      {"subnets", network(1), 1},
		"subnets":     {"subnets", network(2), 2},
	}
}

// What Neutron is too busy to make is asked for again as often as any request is, and made once.
func TestBusy(t *testing.T) {
	t.Parallel()
	for name, c := range creations() {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			t.Run(fmt.Sprint(name, ", ", status), func(t *testing.T) {
				t.Parallel()
				d := newDouble()
				p, proxy := onDouble(t, d, nil)
				post := neutrontest.Call{Method: "POST", Collection: c.noun}
				busy := neutrontest.Answer{Status: status, Header: map[string]string{"Retry-After": "3"}}
				proxy.Say(post, maxAttempts-1, busy)
				if err := c.make(t.Context(), p, testKey("one")); err != nil {
					t.Errorf("got error %v after %v", err, proxy.Calls())
				}
				if n := d.count(c.noun); n != c.number || proxy.Count(post) != maxAttempts {
					t.Errorf("%d requests made %d objects, want %d to make %d", proxy.Count(post), n, maxAttempts, c.number)
				}

				proxy.Reset()
				proxy.Say(post, 100, busy)
				err := c.make(t.Context(), p, testKey("two"))
				if !sdn.IsUnavailable(err) || sdn.RetryAfterOf(err) != 3*time.Second || proxy.Count(post) != maxAttempts {
					t.Errorf("%d requests, want %d, with error %v", proxy.Count(post), maxAttempts, err)
				}
				p.client.breaker.done(false, nil)
			})
		}
	}
}

// What cannot be looked for is not asked for twice.
func TestBusyWithoutKey(t *testing.T) {
	t.Parallel()
	for name, c := range creations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, proxy := onDouble(t, newDouble(), nil)
			post := neutrontest.Call{Method: "POST", Collection: c.noun}
			proxy.Say(post, 1, neutrontest.Answer{Status: http.StatusTooManyRequests})
			if err := c.make(t.Context(), p, sdn.Key{}); !sdn.IsUnavailable(err) || proxy.Count(post) != 1 {
				t.Errorf("%d requests, error %v", proxy.Count(post), err)
			}
		})
	}
}

// lying answers 503 to the first request of a kind, and has it done nevertheless: at once, or only when the next one was done.
type lying struct {
	before  http.Handler
	path    string
	late    bool
	mu      sync.Mutex
	lied    bool
	pending *http.Request
}

func (l *lying) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.Method != http.MethodPost || r.URL.Path != l.path:
		l.before.ServeHTTP(w, r)
	case !l.lied:
		l.lied, l.pending = true, r.Clone(context.Background())
		body, _ := io.ReadAll(r.Body) // the test's own
		l.pending.Body = io.NopCloser(bytes.NewReader(body))
		if !l.late {
			l.do()
		}
		answer(w, http.StatusServiceUnavailable, "")
	default:
		l.before.ServeHTTP(w, r)
		l.do()
	}
}

func (l *lying) do() {
	if l.pending != nil {
		l.before.ServeHTTP(httptest.NewRecorder(), l.pending)
		l.pending = nil
	}
}

// Nothing is made twice, also where whoever answered 503 had passed the request on.
func TestBusyAndDone(t *testing.T) {
	t.Parallel()
	for name, c := range creations() {
		for _, late := range []bool{false, true} {
			if late && c.noun == "subnets" {
				continue // the double makes subnets that overlap, which Neutron refuses
			}
			t.Run(fmt.Sprint(name, ", late: ", late), func(t *testing.T) {
				t.Parallel()
				d := newDouble()
				l := &lying{before: d, path: "/v2.0/" + c.noun, late: late}
				proxy := neutrontest.NewBefore(t, l)
				p, _ := onDouble(t, d, func(c *Config) { c.Endpoint = proxy.URL })
				if err := c.make(t.Context(), p, testKey("one")); err != nil || d.count(c.noun) != c.number {
					t.Errorf("%d objects were made, want %d, error %v", d.count(c.noun), c.number, err)
				}
				if want := map[bool]int{false: 1, true: 2}[late]; proxy.Count(neutrontest.Call{Method: "POST", Collection: c.noun}) != want {
					t.Errorf("asked %v, want %d POSTs", proxy.Calls(), want)
				}
			})
		}
	}
}

// Ports, whether Neutron guards them by their MAC or not, one by one and in bulk.
func TestBusyPorts(t *testing.T) {
	t.Parallel()
	mac := net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, 0x77}
	specs := func(names ...string) (specs []sdn.PortSpec) {
		for _, name := range names {
			spec := sdn.PortSpec{Base: sdn.Base{Key: testKey(name)}, Network: doubleNet}
			if name == mac.String() {
				spec.MAC = mac
			}
			specs = append(specs, spec)
		}
		return specs
	}
	for name, specs := range map[string][]sdn.PortSpec{"one": specs("a"), "with a MAC": specs(mac.String()), "bulk": specs("a", "b", "c"), "both": specs("a", "b", mac.String())} {
		for how, posts := range map[string]int{"refused": 2, "done": 1, "done late": 2} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				d := newPortDouble(100)
				l := &lying{before: d, path: "/v2.0/ports", late: how == "done late", lied: how == "refused"}
				p, proxy, _ := onPortsBefore(t, l)
				if l.lied {
					proxy.Say(postPorts, 1, neutrontest.Answer{Status: http.StatusTooManyRequests})
				}
				var waited []error
				p.client.backoff = func(_ context.Context, _ int, err error) bool {
					waited = append(waited, err)
					return true
				}
				ports, err := p.EnsurePorts(t.Context(), specs)
				if err != nil || d.count() != len(specs) {
					t.Fatalf("%d ports were made, want %d, error %v, after %v", d.count(), len(specs), err, proxy.Calls())
				}
				for i, port := range ports {
					if port.Key != specs[i].Key || d.ports[string(port.ID)] == nil {
						t.Errorf("port %d is %+v", i, port)
					}
				}
				if name == "both" {
					return // of two requests at once, either may be the first
				}
				if proxy.Count(postPorts) != posts {
					t.Errorf("asked %v, want %d POSTs", proxy.Calls(), posts)
				}
				if how != "done" && (len(waited) == 0 || !isBusy(waited[0])) {
					t.Errorf("waited for %v", waited)
				}
			})
		}
	}
}

// Who is always too busy is asked so often, and no more often than the budget allows; a port without a Key once.
func TestBusyPortsForEver(t *testing.T) {
	t.Parallel()
	p, proxy, _ := onPorts(t, newPortDouble(100))
	proxy.Say(postPorts, 1000, neutrontest.Answer{Status: http.StatusTooManyRequests})
	spec := sdn.PortSpec{Base: sdn.Base{Key: testKey("a")}, Network: doubleNet}
	for key, want := range map[sdn.Key]int{testKey("a"): maxAttempts, {}: 1} {
		spec.Key = key
		before := proxy.Count(postPorts)
		if _, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{spec}); !sdn.IsUnavailable(err) || proxy.Count(postPorts)-before != want {
			t.Errorf("key %v: %d requests, want %d, error %v", key, proxy.Count(postPorts)-before, want, err)
		}
	}
	for p.client.budget.take() {
	}
	spec.Key = testKey("b")
	before := proxy.Count(postPorts)
	if _, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{spec}); !sdn.IsUnavailable(err) || proxy.Count(postPorts)-before != 1 {
		t.Errorf("without a budget: %d requests, error %v", proxy.Count(postPorts)-before, err)
	}
}
