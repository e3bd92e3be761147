package docker

import (
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// mortal is a provider whose caller dies after one of its changes.
type mortal struct{ left int } // changes until then

func (m *mortal) of(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, After: func(c dockertest.Call, err error) error {
		if c.Changes() {
			if m.left--; m.left == 0 {
				panic("killed")
			}
		}
		return err
	}}
}

// TestEmptySubnetsKilledAnywhere kills the plugin after each change while the last
// container ends and the next one starts. The subnets are complete for the next
// container, whether a start has finished the calls or not, and deleted after it.
func TestEmptySubnetsKilledAnywhere(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]m{"own router": nil, "shared router": {optRouter: "edge"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reconciled := options != nil // by the next start, or by the next call
			change := 1
			for ; ; change += every(4) {
				p := &mortal{}
				b := newBox(t, deletesEmpty, func(c *Config) { c.Provider = p.of(c.Provider) })
				n := b.create(richNetwork(options))
				whole := b.whole(n)
				if p.left = change; !lives(b, n) {
					break
				}
				if reconciled {
					b.reconcile()
				}
				// It gets an address whose answer was lost.
				e := b.run(&endpoint{net: n, mac: containerMAC})
				b.wantSubnets(n, whole, "killed after change", change)
				b.stop(e)
				b.wantSubnets(n, "", "killed after change", change)
				b.remove(n)
				b.clean()
			}
			if change <= 20 {
				t.Errorf("there are only %d changes", change-1)
			}
		})
	}
}

const containerMAC = "02:00:00:00:00:01"

// lives starts and ends two containers one after the other, and reports whether the
// plugin died. The engine releases what it was answered, and forgets the rest.
func lives(b *box, n *network) (died bool) {
	for range 2 {
		e := &endpoint{net: n, id: newID(), mac: containerMAC}
		call := func(method string, body any) m {
			_, answer := b.post(method, encode(body))
			if answer["Err"] != nil {
				died = true
				b.restart()
				return nil
			}
			return answer
		}
		release := func(p *pool, address string) {
			call("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": address})
		}
		var taken []func()
		for family, p := range []*pool{n.v4[0], n.v6[0]} {
			a := call("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": "", "Options": m{optMAC: e.mac}})
			if a == nil {
				break
			}
			address := bareAddress(b, a["Address"])
			*[]*string{&e.ip4, &e.ip6}[family] = address
			taken = append(taken, func() { release(p, address) })
		}
		if len(taken) == 2 && call("NetworkDriver.CreateEndpoint", e.createBody()) != nil {
			call("NetworkDriver.Join", e.joinBody())
			call("NetworkDriver.Leave", e.body())
			call("NetworkDriver.DeleteEndpoint", e.body())
		}
		for _, free := range taken {
			free()
		}
	}
	return died
}
