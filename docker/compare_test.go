package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/identity"
)

// What another engine had, or nobody was seen to have, stays until somebody says that it is gone for good.
func TestAnotherEngine(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n, never := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
	e := c.run(&endpoint{net: n})
	c.engine.has(n)
	c.engine.runs(e)
	c.compare(0)
	bare := &pool{cidr: "10.79.0.0/24"}
	c.requestPool(bare, false)
	c.requestGateway(bare)
	c.must(os.RemoveAll(filepath.Join(c.config.StateDir, begunFolder))) // the engine's answer is long ago
	clear(c.binder.plugged)
	c.again()
	other := newFakeEngine("two")
	c.engine = other
	c.again()
	full := c.dump()
	c.compare(0)
	c.compare(time.Hour)
	c.compare(time.Hour)
	if now := c.dump(); now != full {
		t.Errorf("another engine has removed something:\n%s", now)
	}
	c.wants("endpoint kept, network kept, network kept, pool kept")
	if _, err := c.memory.ForgetNow(t.Context(), true, "two"); err == nil {
		t.Error("the engine that answers is forgotten")
	}
	forget := func(engine string) {
		t.Helper()
		done, err := c.memory.ForgetNow(t.Context(), false, engine)
		c.must(err)
		for _, r := range done {
			if r.Err != nil {
				t.Error(r, r.Err)
			}
		}
	}
	forget("one")
	if text := c.dump(); strings.Contains(text, n.id) || !strings.Contains(text, never.id) {
		t.Errorf("after forgetting one:\n%s", text)
	}
	forget(unknownEngine)
	c.clean()
}

// That an endpoint was made on a network is noted once, and not where an engine was seen to have it.
func TestUseIsNoted(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n, seen := c.create(v4Network("10.77.0.0/24")), c.create(v4Network("10.78.0.0/24"))
	c.must(c.driver.Seen(t.Context(), "one", seen.id))
	for _, on := range []*network{n, seen, n} {
		c.run(&endpoint{net: on})
	}
	used, _, err := c.driver.findNetwork(t.Context(), n.id)
	c.must(err)
	if got := identity.Values(used.Tags, identity.TagUsed); len(got) != 1 {
		t.Errorf("the first has tags %v", used.Tags)
	}
	other, _, err := c.driver.findNetwork(t.Context(), seen.id)
	c.must(err)
	if got := identity.Values(other.Tags, identity.TagUsed); len(got) != 0 {
		t.Errorf("the second has tags %v", other.Tags)
	}
	c.must(c.driver.changeNetwork(t.Context(), used, func(tags []string) []string { return append(without(identity.TagUsed)(tags), identity.TagDeleted) }))
	e := &endpoint{net: n}
	c.take(e)
	c.contains(c.fails("NetworkDriver.CreateEndpoint", e.createBody()), "being deleted")
}

// A network that the engine has is its, whoever had it before.
func TestEngineIsRemembered(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.must(c.driver.Seen(t.Context(), "zero", n.id))
	c.must(c.driver.Seen(t.Context(), "zero", newID()))
	if !strings.Contains(c.dump(), identity.TagEngine+"zero") {
		t.Error(c.dump())
	}
	c.engine.has(n)
	c.compare(0)
	if text := c.dump(); !strings.Contains(text, identity.TagEngine+"one") || strings.Contains(text, "zero") {
		t.Error(text)
	}
	c.remove(n)
	c.clean()
}

// The ids of older engines are longer than a tag may be everywhere: it names them by their beginning and a digest, and they are known by it.
func TestLongEngine(t *testing.T) {
	t.Parallel()
	const id, other = "7TJZ:FRYT:OHKP:CEGW:SJ6A:LXAT:VVQH:MXEH:7PHO:IXNT:Q2TJ:WM2A", "7TJZ:FRYT:OHKP:CEGW:SJ6A:LXAT:VVQH:MXEH:7PHO:IXNT:Q2TJ:WM2B"
	if a, b := identity.EngineName(id), identity.EngineName(other); a == b ||
		len(identity.TagEngine+a) > identity.MaxTag || identity.EngineName(a) != a {
		t.Errorf("%s and %s", a, b)
	}
	c := newClocked(t)
	c.engine = newFakeEngine(id)
	c.again()
	n := c.create(v4Network("10.77.0.0/24"))
	c.must(c.driver.Seen(t.Context(), id, n.id))
	if text := c.dump(); !strings.Contains(text, identity.TagEngine+identity.EngineName(id)) ||
		strings.Contains(text, id) {
		t.Error(text)
	}
	if _, err := c.memory.ForgetNow(t.Context(), true, id); err == nil {
		t.Error("the engine that answers is forgotten")
	}
	c.compare(0)
	c.compare(time.Hour)
	c.compare(time.Hour)
	c.clean()
}

// A swarm's networks come and go on a node, and what one does not have others may.
func TestSwarmNetworksStay(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := v4Network("10.77.0.0/24")
	n.id = "x1w0slzlj5cy1pxqh2hwnebv9"
	c.create(n)
	c.engine.has(n)
	c.compare(0)
	c.engine.view.Swarm.Member = true
	c.take(&endpoint{net: n}) // a service's virtual address, say
	c.wants("")
	c.engine.forgets(n)
	c.wants("network kept")
	c.time = c.time.Add(time.Hour)
	if done, err := c.memory.ForgetNow(t.Context(), true, unknownEngine); err != nil || len(done) > 0 {
		t.Errorf("removed %v, %v", done, err)
	}
	c.engine.view.Swarm.Member = false
	c.wants("network")
	c.engine.view.Swarm.Member = true
	if done, err := c.memory.ForgetNow(t.Context(), false, swarmEngine); err != nil || len(done) != 1 {
		t.Errorf("removed %v, %v", done, err)
	}
	c.clean()
}

// What a swarm's manager or a node has noted on a network counts, whatever its id looks like.
func TestSwarmTagsStay(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{identity.TagSwarm, identity.TagAllocated, identity.TagAllocating + "a", identity.TagNode + "a", identity.TagLeaving + "a"} {
		c := newClocked(t)
		n := c.create(v4Network("10.77.0.0/24"))
		c.engine.has(n)
		c.compare(0)
		has, _, err := c.driver.findNetwork(t.Context(), n.id)
		c.must(err)
		c.must(c.driver.changeNetwork(t.Context(), has, func(tags []string) []string { return append(tags, tag) }))
		c.engine.forgets(n)
		c.wants("network")
		c.engine.view.Swarm.Member = true
		c.wants("network kept")
	}
}

// Something of another host is no affair of this one's engine.
func TestOtherHostsAreLeftAlone(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.run(&endpoint{net: n})
	c.take(&endpoint{net: n})
	c.requestPool(&pool{cidr: "10.78.0.0/24"}, false)
	c.config.Host = "another"
	c.again()
	clear(c.binder.plugged)
	c.wants("")
}

// An engine that fails in the middle, or does not say who it is, is no reason to remove anything.
func TestEngineThatDoesNotKnowItself(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	n := c.create(v4Network("10.77.0.0/24"))
	c.run(&endpoint{net: n})
	c.engine.has(n)
	for _, e := range []Engine{
		&fakeEngine{},
		halfEngine{c.engine},
	} {
		if got, err := c.driver.Forgotten(t.Context(), e); err == nil || len(got.Forgotten) > 0 {
			t.Errorf("%T: %v, %v", e, got, err)
		}
	}
}

// Networks that Docker has by this driver and the SDN does not.
func TestUnknownNetworks(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	c.engine.has(&network{id: newID()})
	got, err := c.driver.Forgotten(t.Context(), c.engine)
	c.must(err)
	if len(got.Unknown) != 1 || len(got.Forgotten) != 0 {
		t.Errorf("%+v", got)
	}
}
