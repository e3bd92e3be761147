package local

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"go.etcd.io/bbolt"
)

func pfx(s ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(s))
	for i, p := range s {
		out[i] = prefix(p)
	}
	return out
}

// Each noun has a default quota, which limits a tenant alone: not the front ends in this
// process, not an administrator, not the project without a name.
func TestDefaultQuotas(t *testing.T) {
	t.Parallel()
	for _, noun := range countedNouns {
		if DefaultQuotas()[noun] < 1 {
			t.Errorf("%s has no default quota", noun)
		}
	}
	p := open(t, Options{Quotas: map[sdn.Noun]int64{sdn.NounNetwork: 2, sdn.NounPort: 1}})
	ctx := t.Context()
	tenant, admin := sdn.WithClient(ctx, sdn.Client{}), sdn.WithClient(ctx, sdn.Client{Admin: true})
	demo := sdn.NetworkSpec{Base: sdn.Base{Project: "demo"}}
	n, err := p.EnsureNetwork(tenant, demo)
	ok(t, err)
	_, err = p.EnsureNetwork(tenant, demo)
	ok(t, err)
	if _, err := p.EnsureNetwork(tenant, demo); sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("the third network: %v", err)
	}
	port := sdn.PortSpec{Base: demo.Base, Network: n.ID, WithoutGroups: true}
	if _, err := p.EnsureAllPorts(tenant, []sdn.PortSpec{port, port}); sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("two ports in one call: %v", err)
	}
	_, err = p.EnsureAllPorts(tenant, []sdn.PortSpec{port})
	ok(t, err)
	for range 3 {
		_, err = p.EnsureNetwork(admin, demo)
		ok(t, err)
		_, err = p.EnsureNetwork(ctx, demo)
		ok(t, err)
		_, err = p.EnsureNetwork(tenant, sdn.NetworkSpec{})
		ok(t, err)
	}
	if u, err := p.Usage(ctx, "demo"); err != nil || u[sdn.NounNetwork] != (sdn.Usage{Used: 8, Limit: 2, Default: true}) || u[sdn.NounRouter].Limit != -1 {
		t.Errorf("the usage is %+v, %v", u, err)
	}
	if u, err := p.Usage(ctx, ""); err != nil || u[sdn.NounNetwork].Limit != -1 {
		t.Errorf("the usage of no project is %+v, %v", u, err)
	}
	// A limit that is set holds for every caller, and -1 is none.
	ok(t, p.SetQuota(ctx, "demo", map[sdn.Noun]int64{sdn.NounNetwork: 8}))
	for what, who := range map[string]context.Context{"tenant": tenant, "administrator": admin, "front end": ctx} {
		if _, err := p.EnsureNetwork(who, demo); sdn.ReasonOf(err) != sdn.NoQuota {
			t.Errorf("%s beyond a limit that was set: %v", what, err)
		}
	}
	ok(t, p.SetQuota(ctx, "demo", map[sdn.Noun]int64{sdn.NounNetwork: -1}))
	_, err = p.EnsureNetwork(tenant, demo)
	ok(t, err)
}

// The migration counts the objects that had no quota before the sixth schema. It finds a
// Key in its project, and a project that has more than half of a default gets a limit of
// its own.
func TestMigrationToQuotasAndKeys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(ctx, Options{Path: path, Host: testHost})
	ok(t, err)
	key := sdn.Key{Owner: p.installation, Kind: "k", Name: "n"}
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{
		Base: sdn.Base{Project: "demo", Key: key},
		Subnets: []sdn.SubnetSpec{{
			Base: sdn.Base{Key: sdn.Key{Owner: p.installation, Kind: "k", Name: "s"}}, CIDR: prefix("10.0.0.0/24"),
		}},
	})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.external}})
	ok(t, err)
	ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID}})
	ok(t, err)
	f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: sdn.Base{Project: "demo"}, Network: p.external})
	ok(t, err)
	_, err = p.EnsureForwards(ctx, f.ID, []sdn.Forward{{
		Protocol: sdn.TCP, External: sdn.PortRange{First: 80}, Internal: sdn.PortRange{First: 80},
		Target: sdn.Target{Port: ports[0].ID},
	}})
	ok(t, err)
	_, err = p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: sdn.Base{Project: "demo"}})
	ok(t, err)
	ok(t, p.SetQuota(ctx, "limited", map[sdn.Noun]int64{sdn.NounPort: 5000}))
	ok(t, p.db.Update(func(b *bbolt.Tx) error {
		usage := b.Bucket([]byte(usageTable))
		var errs []error
		for _, noun := range []sdn.Noun{sdn.NounForward, sdn.NounAddressGroup} {
			errs = append(errs, usage.Delete(countKey("demo", noun)))
		}
		for project, ports := range map[string]uint64{"large": 700, "limited": 4000, "": 9000} {
			errs = append(errs, usage.Put(countKey(project, sdn.NounPort), binary.BigEndian.AppendUint64(nil, ports)))
		}
		// The fifth schema had the Key alone in the index, and no project in a
		// forwarding.
		errs = append(errs, networks.each(newBoltTx(b), func(r *networkRow) error {
			if r.Key.IsZero() {
				return nil
			}
			index := b.Bucket([]byte("network.key"))
			return errors.Join(index.Delete([]byte(identKey(r.Project, r.Key))), index.Put([]byte(r.Key.String()), []byte(r.ID)))
		}))
		rows, err := forwards.all(newBoltTx(b), "floatingip", string(f.ID))
		errs = append(errs, err)
		for _, row := range rows {
			old := *row
			row.Meta.Project = ""
			errs = append(errs, forwards.replace(newBoltTx(b), &old, row))
		}
		return errors.Join(append(errs, b.Bucket([]byte(metaTable)).Put(schemaKey, []byte("5")))...)
	}))
	ok(t, p.Close())
	p = open(t, Options{Path: path})
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
