package docker

import (
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// another is an SDN as another installation of Kuryr sees it: it owns what it has made,
// and the rest is unmanaged.
type another struct{ sdn.Provider }

const anotherID = "0ther"

func newAnother(p sdn.Provider) another {
	return another{&dockertest.Provider{
		Provider: p,
		Found:    func(_ dockertest.Call, object any) { see(object) },
		After:    func(c dockertest.Call, err error) error { see(c.Result); return err },
	}}
}

func (another) Installation() string { return anotherID }

// see shows an object as the other installation sees it.
func see(object any) {
	var meta *sdn.Meta
	switch o := object.(type) {
	case *sdn.Network:
		meta = &o.Meta
	case *sdn.Subnet:
		meta = &o.Meta
	case *sdn.SubnetPool:
		meta = &o.Meta
	case *sdn.Port:
		meta = &o.Meta
	case *[]sdn.Port:
		for i := range *o {
			see(&(*o)[i])
		}
		return
	default:
		return
	}
	meta.Foreign = meta.Key.Owner != anotherID
}

// foreigner is a host of another installation on the SDN of a box.
func foreigner(b *box, host string) *box {
	b.t.Helper()
	other := *b
	other.binder = &fakeBinder{plugged: map[sdn.ID]bind.Interface{}}
	other.provider = newAnother(b.provider)
	other.config.Provider, other.config.Binder, other.config.Host = other.provider, other.binder, host
	other.forget()
	return &other
}

// Two installations in one project see each other's ports as in use, and neither takes
// nor deletes them, not even on one host.
func TestTwoInstallations(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	e := b.run(&endpoint{net: n})
	port := b.portOf(e.id)
	other := foreigner(b, testHost)
	for _, call := range []string{"Leave", "DeleteEndpoint", "RevokeExternalConnectivity"} {
		other.ok("NetworkDriver."+call, e.body())
	}
	b.same(port)
	s, err := b.provider.Subnet(t.Context(), port.Addresses[0].Subnet)
	b.must(err)
	r := &api.RequestAddressRequest{Address: port.Addresses[0].Addr, MAC: port.MAC}
	_, err = other.driver.ipam.RequestIn(t.Context(), s, "", r)
	if err == nil {
		t.Error("the other installation was given the address")
	} else {
		b.contains(err.Error(), "in use")
	}
	b.same(port)
	if b.binder.count() != 1 {
		t.Error("it was unplugged")
	}
}

// Two hosts, of one installation or of two, use one existing network, each with a Docker
// network, a container and a port of a user. Neither changes what the other has, and the
// network stays.
func TestTwoHostsOnOneNetwork(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]func(*box) *box{
		"of one installation":  func(b *box) *box { return widen(b, "two")[1] },
		"of two installations": func(b *box) *box { return foreigner(widen(b)[0], "two") },
	} {
		t.Run(name, func(t *testing.T) {
			one := newBox(t)
			two := second(one)
			theirs := one.theirs("net", "10.50.0.0/24", "fd50::/64")
			before := one.dump()
			n1, n2 := one.create(one.zun(theirs, "10.50.0.0/24", "fd50::/64")),
				two.create(two.zun(theirs, "10.50.0.0/24", "fd50::/64"))
			users := one.port(n1, usersPort, "10.50.0.94", "fd50::94")
			first, second := one.run(&endpoint{net: n1}), two.run(&endpoint{net: n2})
			lent := &endpoint{net: n2, ip4: "10.50.0.94", ip6: "fd50::94"}
			two.run(lent)
			one.contains(
				one.fails("IpamDriver.RequestAddress", m{
					"PoolID": n1.v4[0].id, "Address": second.ip4,
					"Options": m{optMAC: "02:00:00:00:00:11"},
				}),
				"in use",
			)
			one.contains(
				one.fails("IpamDriver.RequestAddress", m{
					"PoolID": n1.v4[0].id, "Address": lent.ip4,
					"Options": m{optMAC: "02:00:00:00:00:11"},
				}),
				"bound to host two",
			)
			kept := two.portOf(second.id)
			one.ok("IpamDriver.ReleaseAddress", m{"PoolID": n1.v4[0].id, "Address": second.ip4})
			one.ok("IpamDriver.ReleaseAddress", m{"PoolID": n1.v4[0].id, "Address": lent.ip4})
			one.stop(first)
			one.remove(n1)
			one.reconcile()
			two.same(kept)
			two.stop(two.run(&endpoint{net: n2}))
			two.stop(lent)
			two.same(users)
			two.stop(second)
			two.remove(n2)
			one.must(one.provider.DeletePorts(t.Context(), []sdn.ID{users.ID}))
			one.unchanged(before)
		})
	}
}
