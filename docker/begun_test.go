package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// doomed is a provider during whose changes the plugin is killed, right before one or right after it. It makes a network and each of its subnets by changes of
// their own, as Neutron does.
type doomed struct {
	sdn.Provider
	steps, last int // the last is where it dies; 0: nowhere
}

// step dies if it is time. Who is killed has no deferred functions, but none of ours does what would be missed.
func (p *doomed) step() {
	if p.steps++; p.steps == p.last {
		runtime.Goexit()
	}
}

func newDoomed(of sdn.Provider) *doomed {
	p := &doomed{}
	step := func(c dockertest.Call) error {
		if c.Changes() && !strings.Contains(c.Method, "Port") {
			p.step()
		}
		return nil
	}
	p.Provider = &dockertest.Provider{Provider: of, Before: step, After: func(c dockertest.Call, err error) error {
		_ = step(c)
		return err
	}}
	return p
}

func (p *doomed) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	bare := s
	bare.Subnets = nil
	n, err := p.Provider.EnsureNetwork(ctx, bare)
	for _, subnet := range s.Subnets {
		if subnet.Network = n.ID; err == nil {
			_, err = p.EnsureSubnet(ctx, subnet)
		}
	}
	if err != nil {
		return n, err
	}
	return p.Network(ctx, n.ID)
}

// killable is a host on such an SDN whose engine cannot be the only one: there is another engine's network.
type killable struct {
	*clocked
	sdn    *doomed
	theirs sdn.Network // that was there before
	dead   bool
}

func newKillable(t *testing.T, wrap func(sdn.Provider) sdn.Provider, change func(*Config)) *killable {
	t.Helper()
	k := &killable{clocked: newClocked(t)}
	k.sdn = newDoomed(wrap(k.provider))
	k.provider = k.sdn
	k.config.Provider, k.config.StateDir = k.provider, t.TempDir()
	if change != nil {
		change(&k.config)
	}
	k.again()
	k.theirs = k.clocked.theirs("net", "10.50.0.0/24")
	k.must(k.driver.Seen(t.Context(), "two", k.create(v4Network("10.99.0.0/24")).id))
	k.again()
	k.empty = k.dump()
	return k
}

// mortally does something that may be killed at the given step, and tells whether it was. Then the plugin is there again, and immortal.
func (k *killable) mortally(last int, do func()) (died bool) {
	k.t.Helper()
	k.sdn.steps, k.sdn.last, died = 0, last, true
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
		died = false
	}()
	<-done
	if k.sdn.last = 0; died {
		k.again()
	}
	return died
}

// ask is docker network create, whose plugin may die. What the engine has not got an answer to it may ask again of the next one (retries), and what it got it
// gives back, if it can (back).
func (k *killable) ask(n *network, retries, back bool) (created bool) {
	k.t.Helper()
	var body m
	asked := func() {
		if body == nil {
			body = k.request(n)
		}
		k.ok("NetworkDriver.CreateNetwork", body)
		created = true
	}
	died := k.mortally(k.sdn.last, asked)
	k.dead = died
	switch {
	case !died:
	case retries && body != nil:
		asked()
	case back:
		for _, p := range append(slices.Clone(n.v4), n.v6...) {
			if p.id != "" {
				k.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
			}
		}
	}
	return created
}

// begun are the records on the disk.
func (k *killable) begun() []string {
	k.t.Helper()
	files, err := filepath.Glob(filepath.Join(k.config.StateDir, begunFolder, "*"))
	k.must(err)
	return files
}

// settled checks that nothing is left, neither in the SDN nor on the disk.
func (k *killable) settled() {
	k.t.Helper()
	k.must(k.driver.Reconcile(k.t.Context()))
	k.idle()
	k.clean()
	k.compare(landing)
	if left := k.begun(); len(left) > 0 {
		k.t.Errorf("still written down: %v", left)
	}
}

// makings are networks as an engine asks for them, and the SDNs that it does so of.
var makings = map[string]struct {
	wrap   func(sdn.Provider) sdn.Provider
	change func(*Config)
	make   func(*killable) *network
}{
	"routed": {func(p sdn.Provider) sdn.Provider { return p }, nil, func(*killable) *network { return dualNetwork() }},
	"tagless": {func(p sdn.Provider) sdn.Provider { return tagless(p) }, func(c *Config) { c.Routed = false },
		func(*killable) *network { return &network{v4: []*pool{{cidr: "10.60.0.0/24"}}, v6: []*pool{{}}} }},
	"existing": {func(p sdn.Provider) sdn.Provider { return tagless(p) }, func(c *Config) { c.Routed = false }, func(k *killable) *network {
		n := k.zun(k.theirs, "10.50.0.0/24", "")
		n.v6 = []*pool{{cidr: "fd50::/64"}} // which is added
		return n
	}},
}

// The plugin is killed at every step of the making of a network, and again at every step of the removal of what the first kill has left. Whatever the
// engine does in between, and whoever else uses the SDN: what the engine does not have is gone at the end, and what it has is whole.
func TestBegunKilledAnywhere(t *testing.T) {
	t.Parallel()
	for name, making := range makings {
		for _, engine := range []struct {
			name          string
			retries, back bool
		}{{"gives up", false, false}, {"gives back", false, true}, {"retries", true, false}} {
			t.Run(name+"/"+engine.name, func(t *testing.T) {
				t.Parallel()
				killed := 0
				for first, dead := 1, true; dead; first++ {
					for second, again := 0, true; again; second++ {
						k := newKillable(t, making.wrap, making.change)
						n := making.make(k)
						k.sdn.last = first
						created := k.ask(n, engine.retries, engine.back)
						dead = k.dead
						if created {
							k.engine.has(n)
						}
						// Who gives up leaves most; what the others leave is some of it.
						removes := k.mortally(second, func() { k.compare(0); k.compare(time.Minute) })
						again = dead && (removes || second == 0) && !engine.retries && !engine.back
						for range 3 {
							k.compare(time.Minute)
						}
						if created {
							k.stop(k.run(&endpoint{net: n}))
							k.engine.forgets(n)
							k.remove(n)
						}
						k.settled()
						killed++
						if t.Failed() {
							t.Fatalf("killed at step %d, then at step %d; created: %t", first, second, created)
						}
					}
				}
				if killed < 9 { // the last of them lives
					t.Errorf("killed only %d times", killed)
				}
			})
		}
	}
}

// The plugin is killed at every step of the first use of a range by another driver's network.
func TestHiddenKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		died, step := true, 0
		for step = 1; died; step++ {
			k := newKillable(t, makings["tagless"].wrap, nil)
			p := &pool{cidr: "10.61.0.0/24"}
			k.requestPool(p, false)
			died = k.mortally(step, func() {
				k.ok("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:01"}})
			})
			if back || !died {
				k.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
			}
			for range 4 {
				k.compare(time.Minute)
			}
			if k.settled(); t.Failed() {
				t.Fatalf("killed at step %d, given back: %t", step, back)
			}
		}
		if step < 6 {
			t.Errorf("killed only at %d steps", step-2)
		}
	}
}

// deaf is a caller that has hung up before the answer.
type deaf struct{ *httptest.ResponseRecorder }

func (deaf) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A network whose answer reached nobody goes, whoever else there is; one whose answer was heard stays, since it may be of an engine that is not asked.
func TestBegunAnswer(t *testing.T) {
	t.Parallel()
	for _, heard := range []bool{false, true} {
		k := newKillable(t, makings["routed"].wrap, nil)
		n := dualNetwork()
		body := k.request(n)
		if heard {
			k.ok("NetworkDriver.CreateNetwork", body)
		} else {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/NetworkDriver.CreateNetwork", strings.NewReader(encode(body)))
			k.driver.Handler().ServeHTTP(deaf{httptest.NewRecorder()}, r)
		}
		if written := len(k.begun()); heard != (written == 0) {
			t.Errorf("heard: %t, and %d are written down", heard, written)
		}
		select {
		case <-k.driver.Unanswered():
			if heard {
				t.Error("a comparison is asked for")
			}
		default:
			if !heard {
				t.Error("no comparison is asked for")
			}
		}
		full := k.dump()
		k.compare(0)
		k.compare(time.Hour)
		if heard {
			if now := k.dump(); now != full {
				t.Errorf("what was answered is gone; there is\n%s", now)
			}
			k.remove(n)
		}
		k.settled()
	}
}

// The engine asks again for what is about to go: it has it.
func TestBegunAgain(t *testing.T) {
	t.Parallel()
	for name, making := range makings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKillable(t, making.wrap, making.change)
			n := making.make(k)
			body := k.request(n)
			if !k.mortally(4, func() { k.ok("NetworkDriver.CreateNetwork", body) }) {
				t.Fatal("it lives")
			}
			found, err := k.driver.Forgotten(t.Context(), k.engine)
			k.must(err)
			k.ok("NetworkDriver.CreateNetwork", body)
			full := k.dump()
			nouns := map[string]int{}
			for _, f := range found.Forgotten {
				if f.Kept != "" {
					continue
				}
				nouns[f.Noun]++
				if err := k.driver.Forget(t.Context(), f); !errors.As(err, &stayed{}) {
					t.Errorf("%v: %v", f, err)
				}
			}
			if nouns[NounNetwork] != 1 {
				t.Errorf("found %v", nouns)
			}
			if now := k.dump(); now != full {
				t.Errorf("before\n%s\nafter\n%s", full, now)
			}
			k.remove(n)
			k.settled()
		})
	}
}

// What the SDN makes only after the kill is looked for once more, and goes.
func TestBegunLands(t *testing.T) {
	t.Parallel()
	k := newKillable(t, makings["tagless"].wrap, makings["tagless"].change)
	n := makings["tagless"].make(k)
	body := k.request(n)
	if !k.mortally(1, func() { k.ok("NetworkDriver.CreateNetwork", body) }) {
		t.Fatal("it lives")
	}
	k.release(n)
	next := k.compare(time.Minute)
	if wait := next.Sub(k.time); wait <= 0 || wait > landing {
		t.Fatalf("looks again after %s", wait)
	}
	_, err := k.sdn.Provider.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Key: k.driver.names.GlobalKey(identity.KindNetwork, n.id)}})
	k.must(err)
	for range 2 {
		k.compare(landing)
	}
	k.settled()
}

// What was there and went is not waited for, also where the plugin is killed right after.
func TestBegunWent(t *testing.T) {
	t.Parallel()
	k := newKillable(t, makings["tagless"].wrap, makings["tagless"].change)
	n := makings["tagless"].make(k)
	body := k.request(n)
	if !k.mortally(2, func() { k.ok("NetworkDriver.CreateNetwork", body) }) {
		t.Fatal("it lives")
	}
	k.release(n)
	k.compare(0)
	if !k.mortally(4, func() { k.compare(time.Minute) }) {
		t.Fatal("it lives")
	}
	k.clean()
	if left := k.begun(); len(left) != 1 {
		t.Fatalf("written down: %v", left)
	}
	k.compare(0)
	if left := k.begun(); len(left) > 0 {
		t.Errorf("still written down: %v", left)
	}
}

// A range that was given to the engine, and that it may have for another driver's network, is one of those that stay where another engine may be.
func TestBegunRangeIsOld(t *testing.T) {
	t.Parallel()
	k := newKillable(t, makings["tagless"].wrap, nil)
	p := &pool{cidr: "10.61.0.0/24"}
	k.requestPool(p, false)
	if len(k.begun()) != 1 {
		t.Errorf("written down: %v", k.begun())
	}
	for _, b := range k.driver.begun.all {
		k.driver.begun.strike(b.Kind, b.Name) // as TestBegunRangeAges
	}
	k.again()
	k.wants("network kept, pool kept")
	k.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
	k.settled()
}

// It is struck out when the engine would have made its network by now.
func TestBegunRangeAges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := &Driver{begun: openBegun(dir, slog.Default())}
		name := identity.PoolName{Space: localSpace, Nonce: "nonce", CIDR: netip.MustParsePrefix("10.61.0.0/24")}
		d.beginPool(t.Context(), name)
		for _, there := range []bool{true, false} {
			if d.begun.has(identity.KindPool, name.String()) != there {
				t.Errorf("written down: %t, want %t", !there, there)
			}
			<-time.After(creation)
			synctest.Wait()
		}
	})
}

// Without a disk everything is made, and what cannot be read is passed over.
func TestBegunWithoutDisk(t *testing.T) {
	t.Parallel()
	k := newKillable(t, makings["routed"].wrap, nil)
	k.must(os.WriteFile(filepath.Join(k.config.StateDir, begunFolder, "network-x.json"), []byte("{"), 0o600))
	k.again()
	k.must(os.RemoveAll(filepath.Join(k.config.StateDir, begunFolder)))
	n := k.create(dualNetwork())
	k.engine.has(n)
	k.compare(0)
	k.engine.forgets(n)
	k.remove(n)
	k.settled()
}

// What is written down can be read by who is not the plugin.
func TestNotes(t *testing.T) {
	t.Parallel()
	k := newKillable(t, makings["existing"].wrap, makings["existing"].change)
	n := makings["existing"].make(k)
	k.create(n)
	k.requestPool(&pool{cidr: "10.61.0.0/24"}, false)
	notes, err := Notes(k.config.StateDir)
	k.must(err)
	for _, text := range notes {
		if !strings.Contains(string(text), "10.61.0.0/24") {
			t.Errorf("of what was begun: %s", text)
		}
	}
	if len(notes) != 1 {
		t.Errorf("notes: %s", notes)
	}
}

// Only what is this host's engine's alone is written down.
func TestBegunRecords(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind, name string
		want       string
	}{
		{identity.KindNetwork, fmt.Sprintf("%064x", 7), "network-" + fmt.Sprintf("%064x", 7)},
		{identity.KindNetwork, "x1w0slzlj5cy1pxqh2hwnebv9", ""},
		{identity.KindPool, "33112ee1,local_scope,8e54b4a0838a4892,fd86::/64,", "pool-8e54b4a0838a4892"},
		{identity.KindPool, "33112ee1,global_scope,8e54b4a0838a4892,fd86::/64,", ""},
		{identity.KindPool, "of somebody", ""},
		{identity.KindHidden, "x", ""},
	} {
		if got := recordOf(test.kind, test.name); got != test.want {
			t.Errorf("%s %s: %q, want %q", test.kind, test.name, got, test.want)
		}
	}
}
