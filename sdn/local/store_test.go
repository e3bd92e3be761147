package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// filled makes a store with something of every noun and closes it.
func filled(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(context.Background(), Options{Path: path, Host: testHost, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, p, 200)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func fill(t testing.TB, p *Provider, ports int) (network, router sdn.ID, portIDs []sdn.ID) {
	t.Helper()
	ctx := context.Background()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.0.0.0/16")}, {CIDR: netip.MustParsePrefix("fd00:1::/64")}}})
	ok(err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	ok(err)
	for _, s := range n.Subnets {
		ok(p.AttachSubnet(ctx, r.ID, s, netip.Addr{}))
	}
	specs := make([]sdn.PortSpec, ports)
	for i := range specs {
		specs[i] = sdn.PortSpec{Network: n.ID, Host: testHost}
	}
	made, err := p.EnsurePorts(ctx, specs)
	ok(err)
	for _, port := range made {
		portIDs = append(portIDs, port.ID)
	}
	_, err = p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Target: sdn.Target{Port: portIDs[0]}})
	ok(err)
	f, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Address: netip.IPv4Unspecified()})
	ok(err)
	_, err = p.EnsureForwards(ctx, f.ID, []sdn.Forward{{Protocol: sdn.TCP, External: sdn.PortRange{First: 80, Last: 90}, Target: sdn.Target{Port: portIDs[1]}, Internal: sdn.PortRange{First: 80}}})
	ok(err)
	return n.ID, r.ID, portIDs
}

func TestSecondOpenIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sdn.db")
	open(t, Options{Path: path})
	_, err := Open(context.Background(), Options{Path: path})
	if !errors.Is(err, errLocked) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "another kuryr") {
		t.Errorf("got error %v", err)
	}
	if _, err := Restore(context.Background(), path, strings.NewReader("")); !errors.Is(err, errLocked) {
		t.Errorf("Restore over an open store: %v", err)
	}
}

func TestStoreIsForItsOwnerAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "sdn.db")
	open(t, Options{Path: path})
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(p)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v (%v), want %v", p, info.Mode().Perm(), err, want)
		}
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	path := filled(t)
	from := currentSchema.version
	db, err := openStore(context.Background(), path, schema{version: from + 1, steps: map[int]func(engine.Tx) error{from: func(engine.Tx) error { return nil }}}, "", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(context.Background(), Options{Path: path})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("schema %d", from+1)) || !strings.Contains(err.Error(), fmt.Sprintf("up to %d", from)) || !strings.Contains(err.Error(), "restore") {
		t.Errorf("got error %v", err)
	}
	newer, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(context.Background(), filepath.Join(t.TempDir(), "sdn.db"), bytes.NewReader(newer)); err == nil {
		t.Error("a newer backup was restored")
	}
}

// TestMigration checks that the steps of a migration are one transaction behind one copy.
func TestMigration(t *testing.T) {
	t.Parallel()
	path := filled(t)
	ran := []string{}
	mark := func(name string, err error) func(engine.Tx) error {
		return func(b engine.Tx) error {
			ran = append(ran, name)
			return errors.Join(b.Put(engine.MetaTable, []byte(name), []byte("x")), err)
		}
	}
	broken := errors.New("broken")
	from := currentSchema.version
	steps := map[int]func(engine.Tx) error{from: mark("one", nil), from + 1: mark("two", broken)}
	next := schema{version: from + 2, steps: steps}
	if _, err := openStore(t.Context(), path, next, "", true); !errors.Is(err, broken) ||
		!strings.Contains(err.Error(), fmt.Sprintf("from schema %d to %d", from, from+2)) ||
		!strings.Contains(err.Error(), fmt.Sprintf("step from schema %d", from+1)) {
		t.Fatalf("got error %v", err)
	}
	p := open(t, Options{Path: path}) // the store is still of this program
	ok(t, p.view(func(b engine.Tx) error {
		if b.Get(engine.MetaTable, []byte("one")) != nil {
			t.Error("the first step of a failed migration is stored")
		}
		return nil
	}))
	ok(t, p.Close())
	steps[from+1] = mark("two", nil)
	db, err := openStore(t.Context(), path, next, "", true)
	ok(t, err)
	defer db.Close()
	if got := strings.Join(ran, " "); got != "one two one two" {
		t.Errorf("the steps that ran are %q", got)
	}
	if copies, _ := filepath.Glob(path + ".*"); len(copies) != 1 || copies[0] != fmt.Sprintf("%s.v%d.bak", path, from) {
		t.Errorf("beside the store there is %v, want one copy", copies)
	}
	f, err := os.Open(fmt.Sprintf("%s.v%d.bak", path, from))
	ok(t, err)
	defer f.Close()
	info, err := f.Stat()
	ok(t, err)
	ok(t, verify(f, info.Size()))
	if _, err := openStore(t.Context(), filled(t), schema{version: from + 1}, "", true); err == nil {
		t.Error("a store was migrated without a migration")
	}
}

// A store of the first schema finds its subnet pools by name and by range after the migration.
func TestMigrationOfFirstSchema(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(ctx, Options{Path: path})
	ok(t, err)
	made, err := p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Base: sdn.Base{Name: "blue"}, Prefixes: []netip.Prefix{prefix("10.1.0.0/16")}})
	ok(t, err)
	ok(t, p.db.Update(func(b *bbolt.Tx) error {
		return errors.Join(b.DeleteBucket([]byte("subnetpool.name")), b.DeleteBucket([]byte("subnetpool.prefix")),
			b.Bucket([]byte(engine.MetaTable)).Put(schemaKey, []byte("1")))
	}))
	ok(t, p.Close())
	p = open(t, Options{Path: path})
	for _, q := range []sdn.SubnetPoolQuery{{Match: sdn.Match{Names: []string{"blue"}}}, {Overlaps: []netip.Prefix{prefix("10.1.2.0/24")}}, {Overlaps: []netip.Prefix{prefix("10.0.0.0/8")}}} {
		if found, err := sdn.All(p.FindSubnetPools(ctx, q)); err != nil || len(found) != 1 || found[0].ID != made.ID {
			t.Errorf("%+v finds %v, %v", q, found, err)
		}
	}
}

// A store of the third schema finds what projects see after the migration.
func TestMigrationFindsWhatProjectsSee(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(ctx, Options{Path: path})
	ok(t, err)
	base, is := sdn.Base{Project: "a"}, true
	for _, shared := range []bool{true, false} {
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: base, Shared: shared})
		ok(t, err)
		_, err = p.EnsureSubnet(ctx, sdn.SubnetSpec{Base: base, Network: n.ID, CIDR: prefix("10.0.0.0/24")})
		ok(t, err)
		_, err = p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Base: base, Shared: shared, Prefixes: []netip.Prefix{prefix("10.0.0.0/16")}})
		ok(t, err)
		_, err = p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: base})
		ok(t, err)
	}
	ok(t, p.db.Update(func(b *bbolt.Tx) error {
		var errs []error
		for _, index := range []string{"network.shared", "subnet.project", "subnetpool.project", "subnetpool.shared", "address_group.project"} {
			errs = append(errs, b.DeleteBucket([]byte(index)))
		}
		return errors.Join(append(errs, b.Bucket([]byte(engine.MetaTable)).Put(schemaKey, []byte("3")))...)
	}))
	ok(t, p.Close())
	p = open(t, Options{Path: path})
	own := sdn.Match{Projects: []string{"a"}}
	for what, c := range map[string]struct {
		want int
		find func() (int, error)
	}{
		"shared networks":     {2, func() (int, error) { return count(p.FindNetworks(ctx, sdn.NetworkQuery{Shared: &is})) }}, // the built-in one is
		"own subnets":         {2, func() (int, error) { return count(p.FindSubnets(ctx, sdn.SubnetQuery{Match: own})) }},
		"own subnet pools":    {2, func() (int, error) { return count(p.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: own})) }},
		"shared subnet pools": {1, func() (int, error) { return count(p.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Shared: &is})) }},
		"own address groups":  {2, func() (int, error) { return count(p.FindAddressGroups(ctx, sdn.AddressGroupQuery{Match: own})) }},
	} {
		if n, err := c.find(); err != nil || n != c.want {
			t.Errorf("%d %s, %v; want %d", n, what, err, c.want)
		}
	}
}

func count[T any](found iter.Seq2[T, error]) (int, error) {
	all, err := sdn.All(found)
	return len(all), err
}

// A store of the second schema finds what projects have after the migration.
func TestMigrationFindsWhatProjectsHave(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(ctx, Options{Path: path})
	ok(t, err)
	for _, project := range []string{"a", "b"} {
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Project: project}})
		ok(t, err)
		_, err = p.EnsureRouter(ctx, sdn.RouterSpec{Base: sdn.Base{Project: project}})
		ok(t, err)
		_, err = p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: sdn.Base{Project: project}, Network: p.Capabilities().ExternalNetwork})
		ok(t, err)
		_, err = p.EnsurePorts(ctx, []sdn.PortSpec{{Base: sdn.Base{Project: project}, Network: n.ID, WithoutGroups: true}})
		ok(t, err)
	}
	ok(t, p.db.Update(func(b *bbolt.Tx) error {
		for _, noun := range []sdn.Noun{engine.Networks.Noun, engine.Routers.Noun, engine.FloatingIPs.Noun, engine.Ports.Noun} {
			if err := b.DeleteBucket([]byte(string(noun) + ".project")); err != nil {
				return err
			}
		}
		return b.Bucket([]byte(engine.MetaTable)).Put(schemaKey, []byte("2"))
	}))
	ok(t, p.Close())
	p = open(t, Options{Path: path})
	m := sdn.Match{Projects: []string{"a"}}
	for noun, found := range map[sdn.Noun]func() (int, error){
		engine.Networks.Noun: func() (int, error) {
			all, err := sdn.All(p.FindNetworks(ctx, sdn.NetworkQuery{Match: m}))
			return len(all), err
		},
		engine.Routers.Noun: func() (int, error) {
			all, err := sdn.All(p.FindRouters(ctx, sdn.RouterQuery{Match: m}))
			return len(all), err
		},
		engine.FloatingIPs.Noun: func() (int, error) {
			all, err := sdn.All(p.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: m}))
			return len(all), err
		},
		engine.Ports.Noun: func() (int, error) {
			all, err := sdn.All(p.FindPorts(ctx, sdn.PortQuery{Match: m}))
			return len(all), err
		},
	} {
		if n, err := found(); err != nil || n != 1 {
			t.Errorf("%d of the noun %s, %v", n, noun, err)
		}
	}
}

func TestDamageIsReportedAndNothingReplaced(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(filled(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"truncated to half": func(b []byte) []byte { return b[:len(b)/2] },
		"truncated a page":  func(b []byte) []byte { return b[:3*4096] },
		"truncated in meta": func(b []byte) []byte { return b[:50] },
		"emptied":           func([]byte) []byte { return nil },
		"zeroed head":       func(b []byte) []byte { clear(b[:8192]); return b },
		"zeroed pages":      func(b []byte) []byte { clear(b[8192:]); return b },
		"other file":        func([]byte) []byte { return bytes.Repeat([]byte("not a store\n"), 9999) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "sdn.db")
			bad := spoil(bytes.Clone(good))
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(context.Background(), Options{Path: path})
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "kuryr sdn restore") {
				t.Errorf("got error %v", err)
			}
			if strings.HasPrefix(name, "truncated to half") && !strings.Contains(err.Error(), "cut off") {
				t.Errorf("the error %v does not say that the file is cut off", err)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
				t.Error("the damaged file was changed")
			}
		})
	}
}

// TestMissingTableIsDamage checks that a store without one of its tables is not taken for one with an
// empty table.
func TestMissingTableIsDamage(t *testing.T) {
	t.Parallel()
	path := filled(t)
	db, err := openBolt(path, boltOptions(true))
	ok(t, err)
	ok(t, db.Update(func(b *bbolt.Tx) error { return b.DeleteBucket([]byte("port.mac")) }))
	ok(t, db.Close())
	_, err = Open(t.Context(), Options{Path: path})
	if err == nil || !strings.Contains(err.Error(), "port.mac") || !strings.Contains(err.Error(), "kuryr sdn restore") {
		t.Errorf("got error %v", err)
	}
}

// Whatever bytes are wrong, opening ends in an error or in a provider, never in a panic or a crash.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(filled(t))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 7))
	refused := 0
	for range 150 {
		bad := bytes.Clone(good)
		for range 1 + random.IntN(4) {
			at := random.IntN(len(bad))
			for i := at; i < min(at+1+random.IntN(16), len(bad)); i++ {
				bad[i] = byte(random.IntN(256))
			}
		}
		if openBytes(t, bad) != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no damage was found")
	}
}

// openBytes opens a store made of data and reads all of it.
func openBytes(t testing.TB, data []byte) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sdn.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Open(context.Background(), Options{Path: path, Host: testHost, NoSync: true})
	if err != nil {
		return err
	}
	defer p.Close()
	ctx := context.Background()
	_, err = sdn.All(p.FindPorts(ctx, sdn.PortQuery{}))
	_, err2 := sdn.All(p.FindSubnets(ctx, sdn.SubnetQuery{}))
	err3 := p.view(func(b engine.Tx) error { _, err := p.projectAll(b); return err })
	return errors.Join(err, err2, err3)
}

// A copy is the file as it is, of whatever schema, and leaves nothing changed; of an open, a damaged or a missing store there is none.
func TestCopy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filled(t)
	db, err := openBolt(path, boltOptions(true))
	ok(t, err)
	ok(t, db.Update(func(b *bbolt.Tx) error { return b.Bucket([]byte(engine.MetaTable)).Put(schemaKey, []byte("1")) }))
	if err := Copy(ctx, path, io.Discard); !errors.Is(err, errLocked) {
		t.Errorf("an open store is copied: %v", err)
	}
	ok(t, db.Close())
	before, err := os.ReadFile(path)
	ok(t, err)
	var copied bytes.Buffer
	ok(t, Copy(ctx, path, &copied))
	after, err := os.ReadFile(path)
	ok(t, err)
	if !bytes.Equal(before, after) || !bytes.Equal(before, copied.Bytes()) {
		t.Error("the copy is not the store, or the store has changed")
	}
	if beside, _ := filepath.Glob(path + ".*"); len(beside) > 0 {
		t.Errorf("beside it there is %v", beside)
	}
	ok(t, os.WriteFile(path, before[:len(before)/2], 0o600))
	if err := Copy(ctx, path, io.Discard); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged store is copied: %v", err)
	}
	if err := Copy(ctx, path+".none", io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing store is copied: %v", err)
	}
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p := open(t, Options{Path: path})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Name: "kept"}})
	if err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if err := p.Backup(ctx, &backup); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteNetwork(ctx, n.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(ctx, path, bytes.NewReader(backup.Bytes()[:backup.Len()/2])); err == nil {
		t.Error("half a backup was restored")
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, before) {
		t.Error("a failed Restore changed the store")
	}
	kept, err := Restore(ctx, path, &backup)
	if err != nil {
		t.Fatal(err)
	}
	if old, _ := os.ReadFile(kept); !bytes.Equal(old, before) {
		t.Error("the old store was not kept")
	}
	again := open(t, Options{Path: path})
	if got, err := again.Network(ctx, n.ID); err != nil || got.Name != "kept" {
		t.Errorf("the restored network is %+v, %v", got, err)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".kuryr-*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	fresh := filepath.Join(t.TempDir(), "new", "sdn.db")
	if kept, err := Restore(ctx, fresh, bytes.NewReader(before)); err != nil || kept != "" {
		t.Errorf("Restore where there was nothing: kept %q, %v", kept, err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("no file system to fill: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	ctx := context.Background()
	p := open(t, Options{Path: filepath.Join(dir, "sdn.db")})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.0.0.0/16")}}})
	if err != nil {
		t.Fatal(err)
	}
	specs := make([]sdn.PortSpec, 50)
	for i := range specs {
		specs[i] = sdn.PortSpec{Network: n.ID}
	}
	made := 0
	for range 100 {
		if _, err = p.EnsurePorts(ctx, specs); err != nil {
			break
		}
		made += len(specs)
	}
	if !sdn.IsExhausted(err) || sdn.ReasonOf(err) != sdn.NoSpace {
		t.Fatalf("after %d ports: got error %v, want exhausted space", made, err)
	}
	ports, err := sdn.All(p.FindPorts(ctx, sdn.PortQuery{}))
	if err != nil || len(ports) != made {
		t.Errorf("%d ports are there (%v), want %d", len(ports), err, made)
	}
	if usage, err := p.SubnetUsage(ctx, n.Subnets[0]); err != nil || usage.Used != int64(made) {
		t.Errorf("usage %+v, %v, want %d used", usage, err, made)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.EnsurePorts(ctx, specs); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

func TestBuiltInIsLeftAlone(t *testing.T) {
	t.Parallel()
	p := open(t, Options{UplinkRanges: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("100.65.0.0/24")}, HostRoutes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("100.64.9.0/24")}})
	ctx := context.Background()
	v4, v6, err := p.UplinkRanges()
	if err != nil || v4.String() != "100.65.0.0/24" || v6.Bits() != 64 || v6.Addr().As16()[0] != 0xfd {
		t.Errorf("the uplink ranges are %v and %v, %v", v4, v6, err)
	}
	n, err := p.Network(ctx, p.Capabilities().ExternalNetwork)
	if err != nil || !n.External || n.Name != "host" || n.Foreign {
		t.Fatalf("the external network is %+v, %v", n, err)
	}
	_, err = p.EnsureSubnet(ctx, sdn.SubnetSpec{Network: n.ID, CIDR: netip.MustParsePrefix("192.0.2.0/24")})
	for _, err := range []error{err, p.DeleteNetwork(ctx, n.ID), p.DeleteSubnet(ctx, n.Subnets[0])} {
		if !sdn.IsDenied(err) {
			t.Errorf("got error %v, want denied", err)
		}
	}
	_, err = Open(ctx, Options{Path: filepath.Join(t.TempDir(), "x.db"), UplinkRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, HostRoutes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	if !sdn.IsConflict(err) {
		t.Errorf("got error %v, want a conflict", err)
	}
}

// A store of the second schema has its ports, which have no groups, and can be given some; ports are found by their project.
func TestMigrationOfSecondSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sdn.db")
	p, err := Open(t.Context(), Options{Path: path, Host: testHost})
	ok(t, err)
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{})
	ok(t, err)
	made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Base: sdn.Base{Project: "p"}, Network: n.ID, WithoutGroups: true, Host: testHost}})
	ok(t, err)
	ok(t, p.db.Update(func(b *bbolt.Tx) error {
		var errs []error
		for _, name := range []string{
			"port.project", "port.group", "port.qos", "port.trunk", "trunk", "trunk.key", "trunk.parent", "trunk.project", "security_group", "security_group.key", "security_group.project", "security_group.default",
			"security_group.rule", "security_group.remote", "security_group.set", "address_group", "address_group.key", "qos_policy", "qos_policy.key",
		} {
			errs = append(errs, b.DeleteBucket([]byte(name)))
		}
		return errors.Join(append(errs, b.Bucket([]byte(engine.MetaTable)).Put(schemaKey, []byte("2")))...)
	}))
	ok(t, p.Close())
	p = open(t, Options{Path: path})
	found, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{Match: sdn.Match{Projects: []string{"p"}}}))
	if err != nil || len(found) != 1 || found[0].ID != made[0].ID || len(found[0].Groups) != 0 {
		t.Errorf("the project's ports are %+v, %v", found, err)
	}
	g, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{Rules: []sdn.Rule{egress(80)}})
	ok(t, err)
	ok(t, p.AddGroups(t.Context(), made[0].ID, []sdn.ID{g.ID}))
	if found, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{Groups: []sdn.ID{g.ID}})); err != nil || len(found) != 1 {
		t.Errorf("the group's ports are %+v, %v", found, err)
	}
	trunk, err := p.EnsureTrunk(t.Context(), sdn.TrunkSpec{Parent: made[0].ID})
	ok(t, err)
	ok(t, p.DeleteTrunk(t.Context(), trunk.ID))
}
