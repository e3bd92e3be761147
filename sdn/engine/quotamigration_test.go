package engine

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func pfx(s ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(s))
	for i, p := range s {
		out[i] = prefix(p)
	}
	return out
}

// The migration counts the objects that had no quota before the sixth schema. It finds a
// Key in its project, and a project that has more than half of a default gets a limit of
// its own.
func TestMigrationToQuotasAndKeys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := newStore(t)
	p := openOn(t, store, Options{})
	key := sdn.Key{Owner: p.Installation(), Kind: "k", Name: "n"}
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{
		Base: sdn.Base{Project: "demo", Key: key},
		Subnets: []sdn.SubnetSpec{{
			Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "k", Name: "s"}}, CIDR: prefix("10.0.0.0/24"),
		}},
	})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork}})
	ok(t, err)
	ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID}})
	ok(t, err)
	f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: sdn.Base{Project: "demo"}, Network: p.Capabilities().ExternalNetwork})
	ok(t, err)
	_, err = p.EnsureForwards(ctx, f.ID, []sdn.Forward{{
		Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Internal: sdn.PortRange{First: 80},
		Target: sdn.Target{Port: ports[0].ID},
	}})
	ok(t, err)
	_, err = p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: sdn.Base{Project: "demo"}})
	ok(t, err)
	ok(t, p.SetQuota(ctx, "limited", map[sdn.Noun]int64{sdn.NounPort: 5000}))
	w := begin(t, store)
	for _, noun := range []sdn.Noun{sdn.NounForward, sdn.NounAddressGroup} {
		ok(t, w.Delete(usageTable, countKey("demo", noun)))
	}
	for project, ports := range map[string]uint64{"large": 700, "limited": 4000, "": 9000} {
		ok(t, w.Put(usageTable, countKey(project, sdn.NounPort), binary.BigEndian.AppendUint64(nil, ports)))
	}
	// The fifth schema had the Key alone in the index, and no project in a forwarding.
	index := Networks.indexTable("key")
	ok(t, Networks.Each(w, func(r *NetworkRow) error {
		if r.Key.IsZero() {
			return nil
		}
		return errors.Join(
			w.Delete(index, []byte(identKey(r.Project, r.Key))), w.Put(index, []byte(r.Key.String()), []byte(r.ID)),
		)
	}))
	rows, err := Forwards.All(w, "floatingip", string(f.ID))
	ok(t, err)
	for _, row := range rows {
		old := *row
		row.Meta.Project = ""
		ok(t, Forwards.replace(w, &old, row))
	}
	ok(t, Migrations[5](w))
	ok(t, w.Commit())
	p = openOn(t, store, Options{})
	u, err := p.Usage(ctx, "demo")
	ok(t, err)
	for _, noun := range []sdn.Noun{sdn.NounForward, sdn.NounAddressGroup} {
		if u[noun] != (sdn.Usage{Used: 1, Limit: DefaultQuotas()[noun], Default: true}) {
			t.Errorf("%s: %+v", noun, u[noun])
		}
	}
	for project, want := range map[string]int64{"large": 1400, "limited": 5000, "": -1, "other": 500} {
		if u, err := p.Usage(ctx, project); err != nil || u[sdn.NounPort].Limit != want {
			t.Errorf("%q may have %d ports, %v; want %d", project, u[sdn.NounPort].Limit, err, want)
		}
	}
	again, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Project: "demo", Key: key}})
	if err != nil || again.ID != n.ID {
		t.Errorf("the network of the Key is %s, %v; want %s", again.ID, err, n.ID)
	}
	other, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Key: key}})
	if err != nil || other.ID == n.ID {
		t.Errorf("the network of the Key in no project is %s, %v", other.ID, err)
	}
	ok(t, p.DeleteFloatingIP(ctx, f.ID))
	if u, err := p.Usage(ctx, "demo"); err != nil || u[sdn.NounForward].Used != 0 {
		t.Errorf("%d forwardings after the deletion, %v", u[sdn.NounForward].Used, err)
	}
}
