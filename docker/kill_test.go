package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

var errKilled = errors.New("the plugin was killed")

// orphanTTL is how long a test looks for the object of a create that was not confirmed: once. The
// SDN of a test makes no object after it was killed.
const orphanTTL = time.Nanosecond

// crashAt is a box whose plugin is killed before or after its n-th change of the SDN or of an
// interface. What it stored until then is all that the next process has.
type crashAt struct {
	*box
	n, changes int // 0: it lives
	dead       bool
	saved      string // a copy of the state folder
}

// newCrashAt puts the faults around the provider and the binder of a box.
func newCrashAt(b *box) *crashAt {
	c := &crashAt{box: b}
	b.config.Provider = &dockertest.Provider{
		Provider: b.config.Provider,
		Before:   func(call dockertest.Call) error { return c.pass(call.Changes()) },
		After: func(call dockertest.Call, err error) error {
			return errors.Join(err, c.pass(call.Changes()))
		},
	}
	b.config.Binder = &crashBinder{b.binder, c}
	b.config.orphanTTL = orphanTTL
	b.restart()
	return c
}

// pass counts a moment at which the plugin can be killed. It fails when it is dead.
func (c *crashAt) pass(counts bool) error {
	if counts && !c.dead {
		if c.changes++; c.changes == c.n {
			c.dead = true
			c.saved = filepath.Join(c.t.TempDir(), "saved")
			c.must(os.CopyFS(c.saved, os.DirFS(c.config.StateDir)))
		}
	}
	if c.dead {
		return errKilled
	}
	return nil
}

// call sends a call, and reports whether it succeeded. If the plugin was killed, it is started
// again.
func (c *crashAt) call(method string, body m) bool {
	c.t.Helper()
	_, answer := c.post(method, encode(body))
	if !c.dead {
		if answer["Err"] != nil {
			c.t.Fatalf("change %d: %s: %v", c.n, method, answer)
		}
		return true
	}
	c.driver.proxy.Close() // the kernel closes its sockets
	c.dead, c.n = false, 0
	c.config.StateDir = c.saved
	d, err := New(c.config)
	c.must(err)
	c.driver = d
	c.t.Cleanup(d.closeDatabase)
	return false
}

// crashBinder is a Binder that a crashAt watches.
type crashBinder struct {
	*fakeBinder
	c *crashAt
}

func (b *crashBinder) Plug(ctx context.Context, i bind.Interface) (bind.Result, error) {
	if err := b.c.pass(true); err != nil {
		return bind.Result{}, err
	}
	r, err := b.fakeBinder.Plug(ctx, i)
	return r, errors.Join(err, b.c.pass(true))
}

func (b *crashBinder) Unplug(ctx context.Context, p sdn.Port) error {
	if err := b.c.pass(true); err != nil {
		return err
	}
	err := b.fakeBinder.Unplug(ctx, p)
	return errors.Join(err, b.c.pass(true))
}

// container starts a container and stops it, as the engine does: it takes back what it has
// after a failure, and ignores the failures of that. It reports whether the container was started.
func (c *crashAt) container(e *endpoint) bool {
	c.t.Helper()
	e.id = newID()
	e.mac = "02:42:" + e.id[56:58] + ":" + e.id[58:60] + ":" + e.id[60:62] + ":" + e.id[62:64]
	given := [2]string{e.ip4, e.ip6}
	for family, pools := range [][]*pool{e.net.v4, e.net.v6} {
		if len(pools) == 0 {
			continue
		}
		body := m{"PoolID": pools[0].id, "Address": given[family], "Options": m{optMAC: e.mac}}
		status, answer := c.post("IpamDriver.RequestAddress", encode(body))
		if (status != 200 || answer["Err"] != nil) && !c.dead {
			c.t.Fatalf("change %d: RequestAddress: %v", c.n, answer)
		}
		if c.dead {
			c.call("Plugin.Activate", nil) // starts the plugin again
			c.release4(e, family, given)
			return false
		}
		address := bareAddress(c.box, answer["Address"])
		if family == 0 {
			e.ip4 = address
		} else {
			e.ip6 = address
		}
	}
	defer func() { e.ip4, e.ip6 = given[0], given[1] }()
	release := func() {
		if e.ip4 != "" {
			c.call("IpamDriver.ReleaseAddress", m{"PoolID": e.net.v4[0].id, "Address": e.ip4})
		}
		if e.ip6 != "" {
			c.call("IpamDriver.ReleaseAddress", m{"PoolID": e.net.v6[0].id, "Address": e.ip6})
		}
	}
	defer release()
	if !c.call("NetworkDriver.CreateEndpoint", e.createBody()) {
		return false
	}
	defer func() { c.call("NetworkDriver.DeleteEndpoint", e.body()) }()
	if !c.call("NetworkDriver.Join", e.joinBody()) {
		return false
	}
	defer func() { c.call("NetworkDriver.Leave", e.body()) }()
	if !c.call("NetworkDriver.ProgramExternalConnectivity", e.programBody()) {
		return false
	}
	c.call("NetworkDriver.RevokeExternalConnectivity", e.body())
	return true
}

// release4 releases the IPv4 address of an endpoint whose IPv6 address was not answered.
func (c *crashAt) release4(e *endpoint, family int, given [2]string) {
	if family == 1 && e.ip4 != "" {
		c.call("IpamDriver.ReleaseAddress", m{"PoolID": e.net.v4[0].id, "Address": e.ip4})
	}
	e.ip4, e.ip6 = given[0], given[1]
}

// TestKilledAnywhere kills the plugin before and after every change that a container causes. The
// engine goes on with the next process, and the user starts another container. In the end nothing
// is left.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	tcp := []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}
	local := []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1"}}
	existing := func(c *crashAt, n *network) {
		c.port(n, usersPort, "10.50.0.77", "fd50::77")
	}
	for i, story := range []struct {
		name    string
		box     func(t *testing.T) *box
		net     func() *network
		e       endpoint
		prepare func(c *crashAt, n *network)
	}{
		{"own", func(t *testing.T) *box { return newBox(t) }, dualNetwork, endpoint{published: tcp}, nil},
		{"existing port", func(t *testing.T) *box { return newBox(t) }, dualNetwork,
			endpoint{ip4: "10.50.0.77", ip6: "fd50::77", published: tcp}, existing},
		{"floating IP", func(t *testing.T) *box { return newBox(t) }, dualNetwork,
			endpoint{driver: m{optFloatingIP: floatingAuto}}, nil},
		{"proxy", plainOnly, plainNetwork, endpoint{published: local}, nil},
		{"forwards", plainOnly, plainNetwork, endpoint{published: tcp, driver: m{optPublish: publishFloating}}, nil},
		{"exposed", plainOnly, plainNetwork, endpoint{exposed: []m{{"Proto": 6, "Port": 80}}}, nil},
	} {
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			for n := 1 + i%every(3); ; n += every(3) {
				c := newCrashAt(story.box(t))
				net := c.create(story.net())
				if story.prepare != nil {
					story.prepare(c, net)
				}
				before := c.dump()
				c.n, c.changes = n, 0
				e := story.e
				e.net = net
				started := c.container(&e)
				killed := c.n == 0
				if !started && !killed {
					t.Fatalf("change %d: not started", n)
				}
				c.n = 0
				if !c.container(&e) {
					t.Fatalf("change %d: no container can be started after the kill", n)
				}
				c.idle()
				c.idle()
				c.leftovers(n, net, before)
				if !killed {
					if n < 8 {
						t.Errorf("only %d changes were seen", n)
					}
					break
				}
			}
		})
	}
}

// leftovers checks that nothing of containers is left on a network but ports of requests that
// were not answered, which go with the network.
func (c *crashAt) leftovers(n int, net *network, before string) {
	c.t.Helper()
	ports, err := sdn.All(c.provider.FindPorts(c.t.Context(), sdn.PortQuery{Networks: []sdn.ID{c.networkOf(net).ID}}))
	c.must(err)
	var unanswered []sdn.ID
	for _, p := range ports {
		if c.driver.daemon.Names.Ours(p.Meta, identity.KindPort) && p.DeviceID == "" {
			unanswered = append(unanswered, p.ID)
		}
	}
	if len(unanswered) > 1 {
		c.t.Errorf("change %d: %d ports that no endpoint has", n, len(unanswered))
	}
	c.must(c.provider.DeletePorts(c.t.Context(), unanswered))
	c.unchanged(before, "change", n)
	if plugged := c.binder.count(); plugged != 0 {
		c.t.Errorf("change %d: %d interfaces are left", n, plugged)
	}
	c.nothingPlugged()
}

func plainOnly(t *testing.T) *box {
	b, _ := plainBox(t)
	return b
}

func plainNetwork() *network { return v4Network("10.1.0.0/24") }
