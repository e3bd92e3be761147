package docker

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/peertest"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// tryTags runs what the engine does not wait for, until each row is done or has failed.
func (b *box) tryTags() {
	b.t.Helper()
	b.driver.database.Retry()
	b.runUntil(func(r tagRow) bool { return r.Phase == reconcile.Wanted && r.Done && !r.Redo || r.Tries > 0 })
}

// tagRow is the row of the tags of an existing network.
type tagRow struct {
	Key        string
	Phase      reconcile.Phase
	Done, Redo bool
	Tries      int
	Err        string
}

func (b *box) tagRows() (rows []tagRow) {
	b.t.Helper()
	for name, text := range b.driver.Intents() {
		if strings.HasPrefix(name, "network-tags/") {
			var r tagRow
			b.must(json.Unmarshal(text, &r))
			rows = append(rows, r)
		}
	}
	return rows
}

func (b *box) runUntil(met func(tagRow) bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { b.driver.database.Run(ctx) })
	b.await(ctx, met)
}

// await waits until a condition holds for all rows of tags.
func (b *box) await(ctx context.Context, met func(tagRow) bool) {
	b.t.Helper()
	for slices.ContainsFunc(b.tagRows(), func(r tagRow) bool { return !met(r) }) {
		select {
		case <-ctx.Done():
			b.t.Fatalf("the condition is not met: %+v", b.tagRows())
		case <-time.After(time.Millisecond):
		}
	}
}

// tags are those of an existing network and of its subnets.
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

// wears checks that the tags of an existing network name these uses and no others.
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

func useTags(id string) []string { return append(identity.IDTags(id), identity.ExistingTag(id)) }

// uses makes a network of the engine of an existing one.
func (b *box) uses(n sdn.Network) *network {
	b.t.Helper()
	made := b.zun(n, tagsRange, "")
	made.id = scattered()
	return b.create(made)
}

// linkless checks that there is no link to an existing network.
func (b *box) linkless() {
	b.t.Helper()
	match := sdn.Match{Owner: b.provider.Installation(), Kind: identity.KindLink}
	links, err := sdn.All(b.provider.FindSubnetPools(b.t.Context(), sdn.SubnetPoolQuery{Match: match}))
	b.must(err)
	if len(links) > 0 {
		b.t.Errorf("there are links: %+v", links)
	}
}

const tagsRange = "10.50.0.0/24"

// TestTags: no call waits for the tags of existing networks. They are written and deleted
// right after it, also if the plugin is killed before.
func TestTags(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		b, _ := awayBox(t)
		theirs := b.theirs("net", tagsRange)
		before := b.dump()
		again := func() {
			if kill {
				b.restart()
			}
		}
		one := b.uses(theirs)
		b.wears(theirs)
		again()
		b.idle()
		b.wears(theirs, one)

		two := b.uses(theirs)
		again()
		b.remove(one)
		b.wears(theirs, one)
		again()
		// The engine's network is gone: its tags make it no network of kuryr-libnetwork's to be taken over.
		if _, err := b.driver.networks.Find(t.Context(), one.id); err == nil {
			t.Error("the network is found by its tags")
		}
		b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": one.id})
		three := b.uses(theirs)
		b.idle()
		b.wears(theirs, two, three)
		b.remove(three)
		b.remove(two)
		again()
		b.linkless()
		b.idle()
		b.unchanged(before)
	}
}

// TestTagsDeletedFirst: a network that is deleted before its tags are written never gets
// them.
func TestTagsDeletedFirst(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	theirs := b.theirs("net", tagsRange)
	before := b.dump()
	for range 2 {
		b.remove(b.uses(theirs))
		b.idle()
		n, err := b.provider.Network(t.Context(), theirs.ID)
		b.must(err)
		if n.Revision != theirs.Revision {
			t.Errorf("the network was changed: revision %d, was %d", n.Revision, theirs.Revision)
		}
		b.unchanged(before)
		b.restart()
		b.idle() // the kill has lost that the deletion is complete
	}
}

// meddling is an SDN to which something happens right before a change.
type meddling struct {
	sdn.Provider
	network func() // before a network's tags are changed
	subnet  func() // before a subnet's are
	port    func(sdn.PortPatch)
	calls   sync.WaitGroup // of network and subnet
}

// during makes a call of the engine while the SDN is called. A call that the engine's interrupts
// does not wait for it.
func (p *meddling) during(ctx context.Context, do func()) {
	done := make(chan struct{})
	p.calls.Go(func() { defer close(done); do() })
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func newMeddling(of sdn.Provider) *meddling {
	p := &meddling{}
	once := func(ctx context.Context, do *func()) {
		if now := *do; now != nil {
			*do = nil
			p.during(ctx, now)
		}
	}
	p.Provider = &dockertest.Provider{Provider: of, Before: func(c dockertest.Call) error {
		switch patch, _ := dockertest.Arg[sdn.PortPatch](c); {
		case c.Method == "UpdateNetwork":
			once(c.Context, &p.network)
		case c.Method == "UpdateSubnet":
			once(c.Context, &p.subnet)
		case patch != nil && p.port != nil:
			p.port(*patch)
		}
		return nil
	}}
	return p
}

// meddledBox is a box with folders on such an SDN.
func meddledBox(t *testing.T) (*box, *meddling) {
	t.Helper()
	var p *meddling
	b := newBox(t, func(c *Config) {
		p = newMeddling(c.Provider)
		c.Provider, c.Routed, c.RunDir = p, false, t.TempDir()
	})
	return b, p
}

// A network is deleted, or another comes, or its owner tags it, while tags are written or deleted.
func TestTagsInterrupted(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"network", "subnet"} {
		b, p := meddledBox(t)
		during := func(do func()) {
			if at == "network" {
				p.network = do
			} else {
				p.subnet = do
			}
		}
		settle := func() {
			b.idle()
			p.calls.Wait()
			b.idle()
		}
		theirs := b.theirs("net", tagsRange)
		before := b.dump()
		owned := func(tags ...string) {
			_, err := b.provider.UpdateNetwork(t.Context(), theirs.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}})
			b.must(err)
		}
		one := b.uses(theirs)
		during(func() { b.remove(one) })
		settle()
		two := b.uses(theirs)
		during(func() { owned(append(b.tags(theirs), "green")...) })
		settle()
		var three *network
		b.remove(two)
		during(func() { three = b.uses(theirs) })
		settle()
		want := slices.Sorted(slices.Values(append(append(useTags(three.id), three.v4[0].id), "blue", "green")))
		if got := b.tags(theirs); !slices.Equal(got, want) {
			t.Errorf("the tags are\n%v, want\n%v", got, want)
		}
		b.remove(three)
		settle()
		owned("blue")
		b.unchanged(before)
	}
}

// TestTagsRefused: if the owner of a network does not allow tags, that is no failure and
// not tried again.
func TestTagsRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider = guarded(c.Provider) })
	theirs := b.theirs("net", tagsRange)
	before := b.dump()
	n := b.uses(theirs)
	b.idle()
	b.wears(theirs)
	b.stop(b.run(&endpoint{net: n}))
	b.restart()
	b.idle()
	b.remove(n)
	b.idle()
	b.unchanged(before)
}

// faulty is an SDN that is there and fails at the tags of subnets.
type faulty struct {
	fails atomic.Bool
	tried atomic.Int64
}

func (p *faulty) of(works sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: works, Before: func(c dockertest.Call) error {
		if c.Method != "UpdateSubnet" {
			return nil
		}
		if p.tried.Add(1); p.fails.Load() {
			return sdn.Unavailable(errors.New("500 Internal Server Error"), "SDN", "the SDN fails")
		}
		return nil
	}}
}

// An SDN that answers and fails at tags is tried again, and what happens to the network since is
// what counts.
func TestTagsFailed(t *testing.T) {
	t.Parallel()
	p := &faulty{}
	b := newBox(t, func(c *Config) { c.Provider = p.of(c.Provider) })
	theirs := b.theirs("net", tagsRange)
	before := b.dump()
	p.fails.Store(true)
	one := b.uses(theirs)
	b.tryTags()
	if rows := b.tagRows(); len(rows) != 1 || rows[0].Tries == 0 || !strings.Contains(rows[0].Err, "the SDN fails") {
		t.Errorf("rows %+v", rows)
	}
	two := b.uses(theirs)
	b.remove(one)
	p.fails.Store(false)
	b.idle()
	b.wears(theirs, two)
	b.remove(two)
	b.idle()
	b.unchanged(before)
}

// stuck is an SDN that is unavailable for the deletion of links.
type stuck struct{ links atomic.Bool }

func (p *stuck) of(works sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: works, Before: func(c dockertest.Call) error {
		if c.Method != "DeleteSubnetPool" || !p.links.Load() {
			return nil
		}
		id, _ := dockertest.Arg[sdn.ID](c)
		if found, err := works.SubnetPool(c.Context, *id); err == nil && found.Key.Kind == identity.KindLink {
			return sdn.Unavailable(errors.New("503"), "SDN", "the SDN fails")
		}
		return nil
	}}
}

// The tags may be deleted before the link is, and the plugin killed in between.
func TestTagsBeforeLink(t *testing.T) {
	t.Parallel()
	p := &stuck{}
	b := newBox(t, func(c *Config) {
		c.Provider, c.Routed = p.of(c.Provider), false
	})
	theirs := b.theirs("net", tagsRange)
	before := b.dump()
	for _, kill := range []bool{false, true} {
		n := b.uses(theirs)
		b.idle()
		p.links.Store(true)
		b.remove(n)
		if kill {
			b.restart()
		}
		b.runUntil(func(tagRow) bool { return false })
		b.wears(theirs)
		if kill {
			b.restart()
		}
		p.links.Store(false)
		b.idle()
		b.idle()
		b.linkless()
		b.unchanged(before)
	}
}

// An earlier version kept records of the networks whose tags were pending, and none of others.
func TestTagsUpgrade(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	theirs := b.theirs("net", tagsRange)
	before := b.dump()
	folder := filepath.Join(b.config.StateDir, marksFolder)
	earlier := func(n *network, pending bool) {
		t.Helper()
		b.must(os.Remove(DatabasePath(b.config.StateDir)))
		b.must(os.MkdirAll(folder, 0o700))
		b.must(os.WriteFile(filepath.Join(folder, "broken.json"), []byte("{"), 0o600))
		if pending {
			record := encode(m{"Network": theirs.ID, "Pools": []string{n.v4[0].id}})
			b.must(os.WriteFile(filepath.Join(folder, n.id+".json"), []byte(record), 0o600))
		}
		b.restart()
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder is still there: %v", err)
		}
	}
	n := b.uses(theirs)
	earlier(n, true) // the tags are pending
	b.reconcile()
	b.wears(theirs, n)
	earlier(n, false)
	b.remove(n)
	b.wears(theirs, n)
	earlier(n, true) // their deletion is pending
	b.reconcile()
	b.unchanged(before)
	n = b.uses(theirs)
	b.reconcile()
	earlier(n, false)
	b.remove(n)
	b.reconcile()
	b.linkless()
	b.unchanged(before)
}

// guarded is an SDN whose networks only their owners tag.
func guarded(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, Before: func(c dockertest.Call) error {
		if c.Method == "UpdateNetwork" {
			return errDenied
		}
		return nil
	}}
}

// TestTagsRun: Run writes tags immediately, as background work, and ends with its
// context.
func TestTagsRun(t *testing.T) {
	t.Parallel()
	tagged := make(chan bool)
	b := newBox(t, func(c *Config) {
		c.Provider = &dockertest.Provider{Provider: c.Provider, Before: func(call dockertest.Call) error {
			if call.Method == "UpdateSubnet" {
				tagged <- sdn.IsUnawaited(call.Context)
			}
			return nil
		}}
	})
	theirs := b.theirs("net", tagsRange)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.driver.Run(ctx) }()
	n := b.uses(theirs)
	expect := func() {
		t.Helper()
		if !<-tagged {
			t.Error("the tag is not background work")
		}
	}
	expect()
	b.await(ctx, func(r tagRow) bool { return r.Done && !r.Redo })
	b.remove(n)
	expect()
	stop()
	b.must(<-ended)
}

// TestTagsOfPeersSubnet: a subnet of kuryr-libnetwork is deleted with its last use, which
// the tags name. A tag for a use is there before the engine is answered, and deleted
// before that too.
func TestTagsOfPeersSubnet(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	other := boxOn(t, b.provider, func(c *Config) { c.Routed, c.Host, c.StateDir = false, "crate", t.TempDir() })
	theirs := b.theirs("net")
	before := b.dump()
	p, err := b.provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
		Base:     sdn.Base{Name: identity.PoolTitle(netip.MustParsePrefix(tagsRange))},
		Prefixes: []netip.Prefix{netip.MustParsePrefix(tagsRange)}, DefaultLen: 24, MinLen: 24})
	b.must(err)
	s, err := b.provider.EnsureSubnet(t.Context(), sdn.SubnetSpec{
		Base:    sdn.Base{Name: "kuryr-subnet-" + tagsRange, Tags: []string{string(p.ID)}},
		Network: theirs.ID, CIDR: netip.MustParsePrefix(tagsRange), Pool: p.ID})
	b.must(err)
	made, err := peertest.Use(t.Context(), b.provider, scattered(), theirs.ID)
	b.must(err)
	made.Ranges = []peertest.Range{{Subnet: s, Pool: p}}
	old := other.peers(made, nil)
	one := b.uses(theirs)
	if !slices.Contains(b.tags(theirs), identity.ExistingTag(one.id)) {
		t.Error("the network does not tell that it is used")
	}
	other.remove(old)
	if _, err := b.provider.Subnet(t.Context(), s.ID); err != nil {
		t.Fatalf("the subnet that is used: %v", err)
	}
	b.stop(b.run(&endpoint{net: one}))
	b.remove(one)
	b.unchanged(before)
	b.idle()
	other.idle()
	b.unchanged(before)
}

// TestTagsOfPeersNetwork: a network of kuryr-libnetwork has the tag of a second use
// immediately, since the first may end right after. Its pool is deleted with it.
func TestTagsOfPeersNetwork(t *testing.T) {
	t.Parallel()
	b, _ := meddledBox(t)
	peers := b.peers(peertest.Make(t.Context(), b.provider, scattered(), netip.MustParsePrefix(tagsRange)))
	found, err := sdn.All(b.provider.FindNetworks(
		t.Context(), sdn.NetworkQuery{Match: sdn.Match{Tags: identity.IDTags(peers.id)}},
	))
	b.must(err)
	if len(found) != 1 {
		t.Fatalf("networks %+v", found)
	}
	_, err = b.provider.EnsureSubnet(t.Context(), sdn.SubnetSpec{
		Base: sdn.Base{Name: "theirs"}, Network: found[0].ID,
		CIDR: netip.MustParsePrefix("10.60.0.0/24"),
	})
	b.must(err)
	other := b.zun(found[0], "10.60.0.0/24", "")
	other.id = scattered()
	b.create(other)
	if !slices.Contains(b.tags(found[0]), identity.ExistingTag(other.id)) {
		t.Error("the network does not tell that it is used")
	}
	b.remove(other)
	b.remove(peers)
	b.idle()
	b.clean()
}

// A user may tag his port while it is given back: that tag stays.
func TestTaggedWhileGivenBack(t *testing.T) {
	t.Parallel()
	for _, theirs := range [][]string{nil, {"mine"}} {
		for at := 1; at <= 2; at++ {
			b, p := meddledBox(t)
			n := b.create(&network{v4: []*pool{{cidr: tagsRange}}})
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
