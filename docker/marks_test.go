package docker

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/peertest"
	"github.com/kuryr/kuryr/sdn"
)

// settleMarks does what Run does about tags, and checks that nothing of it is left.
func (b *box) settleMarks() {
	b.t.Helper()
	b.must(b.driver.settleMarks(b.t.Context()))
	files, err := filepath.Glob(filepath.Join(b.config.StateDir, marksFolder, "*"))
	b.must(err)
	if due := b.driver.marks.due(); len(due) > 0 || len(files) > 0 {
		b.t.Errorf("tags are still to be seen to: %v, %v", due, files)
	}
}

// tags are those of a network of somebody else's and of its subnets.
func (b *box) tags(n sdn.Network) (tags []string) {
	b.t.Helper()
	now, err := b.provider.Network(b.t.Context(), n.ID)
	b.must(err)
	tags = append(tags, now.Tags...)
	for s, err := range b.provider.FindSubnets(b.t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}) {
		b.must(err)
		tags = append(tags, s.Tags...)
	}
	return slices.Sorted(slices.Values(tags))
}

// wears checks that a network of somebody else's tells of these uses and of no others.
func (b *box) wears(n sdn.Network, uses ...*network) {
	b.t.Helper()
	want := []string{"blue"}
	for _, u := range uses {
		want = append(append(want, useTags(u.id)...), u.v4[0].id)
	}
	slices.Sort(want)
	if got := b.tags(n); !slices.Equal(got, want) {
		b.t.Errorf("the tags are\n%v, want\n%v", got, want)
	}
}

// uses makes a network of the engine's of somebody else's.
func (b *box) uses(n sdn.Network) *network {
	b.t.Helper()
	made := b.zun(n, marksRange, "")
	made.id = scattered()
	return b.create(made)
}

// linkless checks that there is no link to an existing network.
func (b *box) linkless() {
	b.t.Helper()
	links, err := b.driver.allLinks(b.t.Context())
	b.must(err)
	if len(links) > 0 {
		b.t.Errorf("there are links: %+v", links)
	}
}

const marksRange = "10.50.0.0/24"

// The engine waits for no tag of what is somebody else's; they come and go right after, also where the plugin is killed before.
func TestMarks(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		b, _ := awayBox(t)
		theirs := b.theirs("net", marksRange)
		before := b.dump()
		again := func() {
			if kill {
				b.restart()
			}
		}
		one := b.uses(theirs)
		b.wears(theirs)
		again()
		b.settleMarks()
		b.wears(theirs, one)

		two := b.uses(theirs)
		again()
		b.remove(one)
		b.wears(theirs, one)
		again()
		// The engine's network is gone: its tags make it no network of kuryr-libnetwork's to be taken over.
		if _, found, err := b.driver.findNetwork(t.Context(), one.id); err != nil || found {
			t.Errorf("the network is found by its tags: %v, %v", found, err)
		}
		b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": one.id})
		three := b.uses(theirs)
		b.settleMarks()
		b.wears(theirs, two, three)
		b.remove(three)
		b.remove(two)
		again()
		b.linkless()
		b.settleMarks()
		if now := b.dump(); now != before {
			t.Errorf("before\n%s\nafter\n%s", before, now)
		}
	}
}

// What was made is deleted before its tags are written: none is ever.
func TestMarksDeletedAtOnce(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	theirs := b.theirs("net", marksRange)
	before := b.dump()
	for range 2 {
		b.remove(b.uses(theirs))
		calls := l.calls.Load()
		b.settleMarks()
		if asked := l.calls.Load() - calls; asked != 3 {
			t.Errorf("%d calls, want those for the link, the subnets and the network", asked)
		}
		if now := b.dump(); now != before {
			t.Errorf("before\n%s\nafter\n%s", before, now)
		}
		b.restart()
	}
}

// meddling is an SDN to which something happens right before a change.
type meddling struct {
	sdn.Provider
	network func() // before a network's tags are changed
	subnet  func() // before a subnet's are
	port    func(sdn.PortPatch)
}

func (p *meddling) UpdateNetwork(ctx context.Context, id sdn.ID, patch sdn.NetworkPatch) (sdn.Network, error) {
	if do := p.network; do != nil {
		p.network = nil
		do()
	}
	return p.Provider.UpdateNetwork(ctx, id, patch)
}

func (p *meddling) UpdateSubnet(ctx context.Context, id sdn.ID, patch sdn.SubnetPatch) (sdn.Subnet, error) {
	if do := p.subnet; do != nil {
		p.subnet = nil
		do()
	}
	return p.Provider.UpdateSubnet(ctx, id, patch)
}

func (p *meddling) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	if do := p.port; do != nil {
		do(patch)
	}
	return p.Provider.UpdatePort(ctx, id, patch)
}

// meddledBox is a box with folders on such an SDN.
func meddledBox(t *testing.T) (*box, *meddling) {
	t.Helper()
	p := &meddling{}
	return newBox(t, func(c *Config) {
		p.Provider = c.Provider
		c.Provider, c.Routed, c.StateDir, c.RunDir = p, false, t.TempDir(), t.TempDir()
	}), p
}

// A network is deleted, or another comes, or its owner tags it, while tags are written or taken off.
func TestMarksMeanwhile(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"network", "subnet"} {
		b, p := meddledBox(t)
		meanwhile := func(do func()) {
			if at == "network" {
				p.network = do
			} else {
				p.subnet = do
			}
		}
		theirs := b.theirs("net", marksRange)
		before := b.dump()
		one := b.uses(theirs)
		meanwhile(func() { b.remove(one) })
		b.must(b.driver.settleMarks(t.Context())) // on, while the network goes
		if due := b.driver.marks.due(); !slices.Equal(due, []string{one.id}) {
			t.Errorf("to be seen to: %v", due)
		}
		var two *network
		meanwhile(func() {
			two = b.uses(theirs)
			now, err := b.provider.Network(t.Context(), theirs.ID)
			b.must(err)
			tags := append(now.Tags, "green")
			_, err = b.provider.UpdateNetwork(t.Context(), theirs.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}})
			b.must(err)
		})
		b.must(b.driver.settleMarks(t.Context())) // off, while another comes
		b.settleMarks()
		want := slices.Sorted(slices.Values(append(append(useTags(two.id), two.v4[0].id), "blue", "green")))
		if got := b.tags(theirs); !slices.Equal(got, want) {
			t.Errorf("the tags are\n%v, want\n%v", got, want)
		}
		b.remove(two)
		b.settleMarks()
		blue := []string{"blue"}
		_, err := b.provider.UpdateNetwork(t.Context(), theirs.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &blue}})
		b.must(err)
		if now := b.dump(); now != before {
			t.Errorf("before\n%s\nafter\n%s", before, now)
		}
	}
}

// The SDN is away when tags are due: they are written when it is back, by this process or the next.
func TestMarksAway(t *testing.T) {
	t.Parallel()
	for after := int64(0); after < 6; after++ {
		b, l := awayBox(t)
		theirs := b.theirs("net", marksRange)
		before := b.dump()
		away := func() {
			t.Helper()
			if l.gone.Store(after == 0); after > 0 {
				l.after.Store(after)
			}
			if err := b.driver.settleMarks(t.Context()); after < 5 && (err == nil || len(b.driver.marks.due()) != 1) {
				t.Errorf("after %d calls: error %v, to be seen to: %v", after, err, b.driver.marks.due())
			}
			b.restart()
			l.after.Store(0)
			l.gone.Store(false)
		}
		n := b.uses(theirs)
		away()
		b.settleMarks()
		b.wears(theirs, n)
		b.remove(n)
		away()
		b.settleMarks()
		if now := b.dump(); now != before {
			t.Errorf("before\n%s\nafter\n%s", before, now)
		}
	}
}

// An owner may let nobody tag his network: that is no failure, and is not tried again.
func TestMarksRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider, c.StateDir = guarded{c.Provider}, t.TempDir() })
	theirs := b.theirs("net", marksRange)
	before := b.dump()
	n := b.uses(theirs)
	b.settleMarks()
	b.wears(theirs)
	b.stop(b.run(&endpoint{net: n}))
	b.restart()
	b.settleMarks()
	b.remove(n)
	b.settleMarks()
	if now := b.dump(); now != before {
		t.Errorf("before\n%s\nafter\n%s", before, now)
	}
}

// faulty is an SDN that is there and fails at the tags of subnets.
type faulty struct {
	sdn.Provider
	fails atomic.Bool
	tried atomic.Int64
}

func (p *faulty) UpdateSubnet(ctx context.Context, id sdn.ID, patch sdn.SubnetPatch) (sdn.Subnet, error) {
	if p.tried.Add(1); p.fails.Load() {
		return sdn.Subnet{}, sdn.Unavailable(errors.New("500 Internal Server Error"), "SDN", "the SDN fails")
	}
	return p.Provider.UpdateSubnet(ctx, id, patch)
}

// An SDN that is there and fails at a tag again and again is asked ever more seldom, and nothing else waits for it. What happens to the network is a new beginning.
func TestMarksFailed(t *testing.T) {
	t.Parallel()
	p := &faulty{}
	b := newBox(t, func(c *Config) {
		p.Provider = c.Provider
		c.Provider, c.StateDir = p, t.TempDir()
	})
	theirs := b.theirs("net", marksRange)
	before := b.dump()
	p.fails.Store(true)
	one := b.uses(theirs)
	for age, pause := range map[time.Duration]time.Duration{0: longestWait, 10 * time.Minute: 10 * time.Minute, 24 * time.Hour: longestPause} {
		what := b.driver.marks.all[one.id]
		if what.due = (time.Time{}); age > 0 {
			what.failed = time.Now().Add(-age)
		}
		b.driver.marks.all[one.id] = what
		tried := p.tried.Load()
		for range 2 {
			b.must(b.driver.settleMarks(t.Context()))
		}
		if n := p.tried.Load() - tried; n != 1 {
			t.Errorf("it is tried %d times", n)
		}
		if at, waits := b.driver.marks.nextLook(); !waits || time.Until(at) > pause+time.Second || time.Until(at) < pause-time.Minute/2 {
			t.Errorf("after %s: again in %s, want %s", age, time.Until(at), pause)
		}
		b.driver.marks.all[one.id] = marking{Network: what.Network, Pools: what.Pools, turn: what.turn}
	}
	b.must(b.driver.settleMarks(t.Context()))
	p.fails.Store(false)
	b.remove(one)
	b.settleMarks()
	if now := b.dump(); now != before {
		t.Errorf("before\n%s\nafter\n%s", before, now)
	}
}

// Where nothing can be written down the engine waits for the tags.
func TestMarksWithoutDisk(t *testing.T) {
	t.Parallel()
	b, p := meddledBox(t)
	theirs := b.theirs("net", marksRange)
	before := b.dump()
	one := b.uses(theirs)
	b.must(os.RemoveAll(filepath.Join(b.config.StateDir, marksFolder)))
	p.subnet = func() { b.remove(one) }
	b.must(b.driver.settleMarks(t.Context())) // on, while the network goes, of which a note was taken before
	b.settleMarks()
	if now := b.dump(); now != before {
		t.Errorf("before\n%s\nafter\n%s", before, now)
	}
	two := b.uses(theirs)
	b.wears(theirs, two)
	b.remove(two)
	if now := b.dump(); now != before {
		t.Errorf("before\n%s\nafter\n%s", before, now)
	}
	b.settleMarks()
}

// guarded is an SDN whose networks only their owners tag.
type guarded struct{ sdn.Provider }

func (g guarded) UpdateNetwork(context.Context, sdn.ID, sdn.NetworkPatch) (sdn.Network, error) {
	return sdn.Network{}, errDenied
}

// Run writes tags at once, as work that nobody waits for, and ends with its context.
func TestMarksRun(t *testing.T) {
	t.Parallel()
	tagged := make(chan bool)
	b := newBox(t, func(c *Config) {
		c.Provider, c.StateDir = telling{c.Provider, tagged}, t.TempDir()
	})
	theirs := b.theirs("net", marksRange)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.driver.Run(ctx) }()
	n := b.uses(theirs)
	expect := func() {
		t.Helper()
		if !<-tagged {
			t.Error("somebody waits for the tag")
		}
	}
	expect()
	b.remove(n)
	expect()
	stop()
	b.must(<-ended)
	// Nor does it wait where something else stays owed.
	b.uses(theirs)
	if !b.driver.rest(t.Context(), time.Hour) {
		t.Error("it is not woken")
	}
}

// telling tells of each change of a subnet's tags whether nobody waits for it.
type telling struct {
	sdn.Provider
	to chan bool
}

func (p telling) UpdateSubnet(ctx context.Context, id sdn.ID, patch sdn.SubnetPatch) (sdn.Subnet, error) {
	p.to <- sdn.IsUnawaited(ctx)
	return p.Provider.UpdateSubnet(ctx, id, patch)
}

// What kuryr-libnetwork made goes with the last use of it, which the tags tell, so one that says that it is used is there before the engine is answered, and they
// go before it is.
func TestMarksOfPeersSubnet(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	other := boxOn(t, b.provider, func(c *Config) { c.Routed, c.Host, c.StateDir = false, "crate", t.TempDir() })
	theirs := b.theirs("net")
	before := b.dump()
	p, err := b.provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{Base: sdn.Base{Name: poolTitle(netip.MustParsePrefix(marksRange))},
		Prefixes: []netip.Prefix{netip.MustParsePrefix(marksRange)}, DefaultLen: 24, MinLen: 24})
	b.must(err)
	s, err := b.provider.EnsureSubnet(t.Context(), sdn.SubnetSpec{Base: sdn.Base{Name: "kuryr-subnet-" + marksRange, Tags: []string{string(p.ID)}},
		Network: theirs.ID, CIDR: netip.MustParsePrefix(marksRange), Pool: p.ID})
	b.must(err)
	made, err := peertest.Use(t.Context(), b.provider, scattered(), theirs.ID)
	b.must(err)
	made.Ranges = []peertest.Range{{Subnet: s, Pool: p}}
	old := other.peers(made, nil)
	one := b.uses(theirs)
	if !slices.Contains(b.tags(theirs), existingTag(one.id)) {
		t.Error("the network does not tell that it is used")
	}
	other.remove(old)
	if _, err := b.provider.Subnet(t.Context(), s.ID); err != nil {
		t.Fatalf("the subnet that is used: %v", err)
	}
	b.stop(b.run(&endpoint{net: one}))
	b.remove(one)
	if now := b.dump(); now != before {
		t.Errorf("before\n%s\nafter\n%s", before, now)
	}
	b.settleMarks()
	other.settleMarks()
	if now := b.dump(); now != before {
		t.Errorf("before\n%s\nafter\n%s", before, now)
	}
}

// A network that kuryr-libnetwork made tells at once that another of the engine's is the same, whose end its own may follow right after: its pool goes with it.
func TestMarksOfPeersNetwork(t *testing.T) {
	t.Parallel()
	b, _ := meddledBox(t)
	peers := b.peers(peertest.Make(t.Context(), b.provider, scattered(), netip.MustParsePrefix(marksRange)))
	found, err := sdn.All(b.provider.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Tags: idTags(peers.id)}}))
	b.must(err)
	if len(found) != 1 {
		t.Fatalf("networks %+v", found)
	}
	_, err = b.provider.EnsureSubnet(t.Context(), sdn.SubnetSpec{Base: sdn.Base{Name: "theirs"}, Network: found[0].ID, CIDR: netip.MustParsePrefix("10.60.0.0/24")})
	b.must(err)
	other := b.zun(found[0], "10.60.0.0/24", "")
	other.id = scattered()
	b.create(other)
	if !slices.Contains(b.tags(found[0]), existingTag(other.id)) {
		t.Error("the network does not tell that it is used")
	}
	b.remove(other)
	b.remove(peers)
	b.settleMarks()
	b.clean()
}

// A user may tag his port while it is given back: that tag stays.
func TestTaggedWhileGivenBack(t *testing.T) {
	t.Parallel()
	for _, theirs := range [][]string{nil, {"mine"}} {
		for at := 1; at <= 2; at++ {
			b, p := meddledBox(t)
			n := b.create(&network{v4: []*pool{{cidr: marksRange}}})
			was := b.port(n, sdn.PortSpec{Base: sdn.Base{Tags: theirs}}, "10.50.0.77")
			e := b.run(&endpoint{net: n, ip4: "10.50.0.77", mac: was.MAC.String()})
			changes := 0
			p.port = func(sdn.PortPatch) {
				if changes++; changes == at {
					now, err := p.Provider.Port(t.Context(), was.ID)
					b.must(err)
					tags := append(now.Tags, "late")
					_, err = p.Provider.UpdatePort(t.Context(), was.ID, sdn.PortPatch{Patch: sdn.Patch{Tags: &tags}})
					b.must(err)
				}
			}
			b.stop(e)
			if changes < at {
				t.Errorf("a stop changes the port %d times", changes)
			}
			was.Tags = append(slices.Clone(theirs), "late")
			b.same(was)
		}
	}
}
