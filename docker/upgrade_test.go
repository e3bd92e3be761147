package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// importing notes what is imported. fail is the error of imports that contain a text.
type importing struct {
	noted []string
	fail  string
}

var errImport = errors.New("no room")

func (i *importing) note(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if i.fail != "" && strings.Contains(text, i.fail) {
		return errImport
	}
	i.noted = append(i.noted, text)
	return nil
}

type importedEndpoints struct{ *importing }

func (i importedEndpoints) ImportRecords(_ context.Context, folder string) error {
	return i.note("records in %s", filepath.Base(folder))
}

func (i importedEndpoints) ImportCleanup(_ context.Context, method, id string, port sdn.ID) error {
	return i.note("%s %s with port %q", method, id[60:], port)
}

func (i importedEndpoints) ImportUnconfirmed(_ context.Context, id string, _ sdn.ID, key sdn.Key) error {
	return i.note("unconfirmed endpoint %s, key %s", id[60:], key.Name)
}

func (i importedEndpoints) ImportPort(_ context.Context, network string, p sdn.Port) error {
	return i.note("endpoint %s on %s", identity.EndpointOf(p), network)
}

func (importedEndpoints) IsDeleting(id string) bool { return id == "deleting" }

type importedAddresses struct{ *importing }

func (i importedAddresses) ImportRelease(_ context.Context, port sdn.ID) error {
	return i.note("release of port %s", port)
}

func (i importedAddresses) ImportPoolRelease(_ context.Context, id api.PoolID) error {
	return i.note("release of pool %s", id)
}

func (i importedAddresses) ImportUnconfirmed(_ context.Context, network sdn.ID, key sdn.Key) error {
	return i.note("unconfirmed address on %s, key %s", network, key.Name)
}

func (i importedAddresses) LookUpPool(_ context.Context, id sdn.ID) (bool, error) {
	return true, i.note("pool %s", id)
}

func (i importedAddresses) ImportPort(_ context.Context, p sdn.Port) error {
	return i.note("address %s", identity.Addresses(p))
}

type importedNetworks struct{ *importing }

func (i importedNetworks) ImportDelete(_ context.Context, id string) error {
	return i.note("deletion of network %s", id[60:])
}

func (i importedNetworks) ImportTags(_ context.Context, id string, network sdn.ID, pools []sdn.ID) error {
	return i.note("tags of %s on %s, pools %v", id[60:], network, pools)
}

func (i importedNetworks) Import(_ context.Context, id string) error { return i.note("network %s", id) }

// upgrades returns an upgrade of a box, and what it imports.
func (b *box) upgrades() (*upgrade, *importing) {
	i := &importing{}
	return &upgrade{
		Daemon: identity.Daemon{
			SDN: b.provider, Names: b.driver.daemon.Names, Host: testHost, Log: slog.New(slog.DiscardHandler),
		},
		stateDir: b.config.StateDir, runDir: b.config.RunDir,
		endpoints: importedEndpoints{i}, addresses: importedAddresses{i}, networks: importedNetworks{i},
	}, i
}

// wrote has the records of the previous version, in their form.
func (b *box) wrote(folder, name, record string) {
	b.t.Helper()
	dir := filepath.Join(b.config.StateDir, folder)
	b.must(os.MkdirAll(dir, 0o700))
	b.must(os.WriteFile(filepath.Join(dir, name+".json"), []byte(record), 0o600))
}

func (b *box) hasFolders(want ...string) {
	b.t.Helper()
	var has []string
	for _, name := range []string{begunFolder, marksFolder, owedFolder} {
		if _, err := os.Stat(filepath.Join(b.config.StateDir, name)); err == nil {
			has = append(has, name)
		}
	}
	if !slices.Equal(has, want) {
		b.t.Errorf("the folders %v are left, want %v", has, want)
	}
}

func id64(n int) string { return fmt.Sprintf("%064d", n) }

// The records of the folders become rows in their order, and go with the commit of these.
func TestUpgradeRecords(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.RunDir = t.TempDir() })
	endpoint := `"Body":{"NetworkID":"` + id64(1) + `","EndpointID":"` + id64(2) + `"}`
	for i, record := range []string{
		`{"Method":"NetworkDriver.RevokeExternalConnectivity",` + endpoint + `,"At":"2026-11-01T10:00:00Z"}`,
		`{"Method":"NetworkDriver.Leave",` + endpoint + `}`,
		`{"Method":"NetworkDriver.DeleteEndpoint",` + endpoint +
			`,"Port":"p","MAC":"02:00:00:00:00:01","Addresses":["10.0.0.5"]}`,
		`{"Method":"IpamDriver.ReleaseAddress","Body":{"PoolID":"a","Address":"10.0.0.5"},"Port":"p"}`,
		`{"Method":"IpamDriver.ReleasePool","Body":{"PoolID":"a/node"}}`,
		`{"Method":"NetworkDriver.DeleteNetwork","Body":{"NetworkID":"` + id64(1) + `"}}`,
		`{"Method":"IpamDriver.ReleaseAddress","Body":{"PoolID":"a","Address":"10.0.0.6"},` +
			`"Addresses":["10.0.0.6"],"Late":{"Key":{"Owner":"o","Kind":"docker-port","Name":"n/x"},"Network":"n"}}`,
		`{"Method":"NetworkDriver.DeleteEndpoint",` + endpoint +
			`,"Late":{"Key":{"Owner":"o","Kind":"docker-endpoint","Name":"e"},"Network":"n","Endpoint":"` + id64(2) + `"}}`,
		`{"Method":"NetworkDriver.Leave","Body":{"NetworkID":1}}`,
		`{"Method":"NetworkDriver.Join",` + endpoint + `}`,
		`{"Meth`,
	} {
		b.wrote(owedFolder, fmt.Sprintf("%020d", i+8), record)
	}
	b.wrote(marksFolder, id64(3), `{"Network":"theirs","Pools":["x","y"]}`)
	b.wrote(begunFolder, "network-"+id64(4), `{"Kind":"docker-network","Name":"`+id64(4)+`"}`)
	u, i := b.upgrades()
	b.must(u.records(t.Context()))
	want := []string{
		"records in endpoints",
		`NetworkDriver.RevokeExternalConnectivity 0002 with port ""`,
		`NetworkDriver.Leave 0002 with port ""`,
		`NetworkDriver.DeleteEndpoint 0002 with port "p"`,
		"deletion of network 0001",
		"unconfirmed address on n, key n/x",
		"unconfirmed endpoint 0002, key e",
		"tags of 0003 on theirs, pools [x y]",
	}
	if !slices.Equal(i.noted, want) {
		t.Errorf("imported\n%s\nwant\n%s", strings.Join(i.noted, "\n"), strings.Join(want, "\n"))
	}
	b.hasFolders(owedFolder)
	i.noted = nil
	b.must(u.finish(t.Context()))
	b.must(u.records(t.Context()))
	b.must(u.finish(t.Context()))
	if want := []string{"release of pool a/node", "records in endpoints"}; !slices.Equal(i.noted, want) {
		t.Errorf("imported then: %v", i.noted)
	}
	b.hasFolders()
}

// The endpoints' package knows the methods of the records: each deletes what its call would have.
func TestUpgradeCleanups(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	want := map[string]bool{} // whether the row is being deleted
	for i, c := range []struct {
		method        string
		wanted, ended []string // kinds
	}{
		{"RevokeExternalConnectivity", []string{"plug", "floating"}, []string{"publication"}},
		{"Leave", nil, []string{"plug", "floating", "publication"}},
		{"DeleteEndpoint", nil, []string{"endpoint", "plug", "floating", "publication"}},
	} {
		b.wrote(owedFolder, fmt.Sprintf("%020d", i), `{"Method":"NetworkDriver.`+c.method+`",`+
			`"Body":{"NetworkID":"`+id64(9)+`","EndpointID":"`+id64(i)+`"}}`)
		for _, kind := range c.wanted {
			want[kind+"/"+id64(i)] = false
		}
		for _, kind := range c.ended {
			want[kind+"/"+id64(i)] = true
		}
	}
	u, _ := b.upgrades()
	u.endpoints = b.driver.endpoints
	b.must(u.records(t.Context()))
	got := map[string]bool{}
	for name, text := range b.driver.Intents() {
		var r struct{ Phase reconcile.Phase }
		b.must(json.Unmarshal(text, &r))
		got[name] = r.Phase == reconcile.Deleting
	}
	if !maps.Equal(got, want) {
		t.Errorf("rows, and whether they are being deleted: %v, want %v", got, want)
	}
}

// A record whose rows are not stored stays, and those after it.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	for fail, left := range map[string][]string{
		"records":  {begunFolder, marksFolder, owedFolder},
		"Leave":    {begunFolder, marksFolder, owedFolder},
		"deletion": {begunFolder, marksFolder, owedFolder},
		"tags":     {begunFolder, marksFolder, owedFolder},
		"":         nil,
	} {
		b := newBox(t)
		b.wrote(owedFolder, "1", `{"Method":"NetworkDriver.Leave",`+
			`"Body":{"NetworkID":"`+id64(1)+`","EndpointID":"`+id64(2)+`"}}`)
		b.wrote(owedFolder, "2", `{"Method":"NetworkDriver.DeleteNetwork","Body":{"NetworkID":"`+id64(1)+`"}}`)
		b.wrote(marksFolder, id64(3), `{"Network":"theirs"}`)
		b.wrote(begunFolder, "pool-1", `{}`)
		u, i := b.upgrades()
		i.fail = fail
		if err := u.records(t.Context()); (err == nil) != (fail == "") || err != nil && !errors.Is(err, errImport) {
			t.Errorf("%q failed: %v", fail, err)
		}
		b.hasFolders(left...)
		i.fail = ""
		b.must(u.records(t.Context()))
		calls := slices.DeleteFunc(i.noted, func(s string) bool { return strings.HasPrefix(s, "records") })
		if slices.Sort(calls); len(slices.Compact(calls)) != 3 {
			t.Errorf("%q: imported in all %v", fail, calls)
		}
		b.hasFolders()
	}
}

// A release waits for the SDN. It is not for a port that was created later, that an endpoint has, or
// that its user made, also if the record names the port.
func TestUpgradeReleases(t *testing.T) {
	t.Parallel()
	l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
	b := boxOn(t, l)
	n := b.create(v4Network("10.1.0.0/24"))
	released, again, bound := &endpoint{net: n}, &endpoint{net: n}, &endpoint{net: n}
	for _, e := range []*endpoint{released, again, bound} {
		b.take(e)
	}
	b.ok("NetworkDriver.CreateEndpoint", bound.createBody())
	port := b.portAt(released)
	record := func(name, address string, at time.Time) {
		body := m{"PoolID": n.v4[0].id, "Address": address}
		b.wrote(owedFolder, name, encode(m{"Method": "IpamDriver.ReleaseAddress", "At": at, "Body": body}))
	}
	record("1", released.ip4, time.Now().Add(time.Hour))
	record("2", again.ip4, time.Now().Add(-time.Hour))
	record("3", bound.ip4, time.Now().Add(time.Hour))
	record("4", "10.1.0.99", time.Now().Add(time.Hour))
	users := b.port(n, usersPort, "10.1.0.77")
	named := &endpoint{net: n}
	b.take(named)
	for i, id := range []sdn.ID{users.ID, b.portAt(named).ID, b.portAt(bound).ID, "none"} {
		b.wrote(owedFolder, fmt.Sprint("5", i), encode(m{
			"Method": "IpamDriver.ReleaseAddress", "At": time.Now(), "Port": string(id),
			"Body": m{"PoolID": n.v4[0].id, "Address": "10.1.0.77"},
		}))
	}
	u, i := b.upgrades()
	b.must(u.records(t.Context()))
	b.hasFolders(owedFolder)
	l.gone.Store(true)
	if err := u.finish(t.Context()); !sdn.IsUnavailable(err) {
		t.Errorf("an SDN that is unavailable: %v", err)
	}
	l.gone.Store(false)
	b.must(u.finish(t.Context()))
	want := []string{
		"records in .", "release of port " + string(port.ID), "release of port " + string(b.portAt(named).ID),
		"address " + bound.ip4,
	}
	if !slices.Equal(i.noted, want) {
		t.Errorf("imported %v, want %v", i.noted, want)
	}
	all, err := jsonstore.Load[any](jsonstore.Shared(filepath.Join(b.config.StateDir, owedFolder)))
	if b.must(err); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
}

// portAt is the port that has an endpoint's address.
func (b *box) portAt(e *endpoint) sdn.Port {
	b.t.Helper()
	for p, err := range b.provider.FindPorts(b.t.Context(), sdn.PortQuery{}) {
		b.must(err)
		if slices.ContainsFunc(p.Addresses, func(a sdn.Address) bool { return a.Addr == netip.MustParseAddr(e.ip4) }) {
			return p
		}
	}
	b.t.Fatalf("no port has %s", e.ip4)
	return sdn.Port{}
}

// The port of a user stays, whatever a record says.
func TestUpgradeReleaseOfExistingPort(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	was := b.port(n, usersPort, "10.50.0.77", "fd50::77")
	b.wrote(owedFolder, "1", encode(m{
		"Method": "IpamDriver.ReleaseAddress", "At": time.Now(), "Port": string(was.ID),
		"Body": m{"PoolID": n.v4[0].id, "Address": "10.50.0.77"},
	}))
	b.restart()
	b.idle()
	if _, err := b.provider.Port(t.Context(), was.ID); err != nil {
		t.Errorf("the user's port: %v", err)
	}
}

// All that this host has in the SDN is imported, and nothing of other hosts.
func TestUpgradeObjects(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	other := boxOn(t, b.provider, func(c *Config) { c.Host, c.Routed = "other", false })
	theirs := b.theirs("theirs", "10.2.0.0/24")
	var mine []string
	for at, host := range []*box{b, other} {
		own := host.create(&network{v4: []*pool{{cidr: fmt.Sprintf("10.1.%d.0/24", at)}}})
		existing := host.zun(theirs, "10.2.0.0/24", "")
		host.create(existing)
		hidden := &pool{cidr: fmt.Sprintf("10.3.%d.0/24", at)}
		host.requestPool(hidden, false)
		held := &endpoint{net: own}
		host.take(held)
		alone := &endpoint{net: &network{v4: []*pool{hidden}}}
		host.take(alone)
		if host == other {
			continue // its ports have no host that the embedded SDN knows
		}
		run, on := host.run(&endpoint{net: own}), host.run(&endpoint{net: existing})
		lent := host.port(existing, usersPort, "10.2.0.77")
		with := host.run(&endpoint{net: existing, ip4: "10.2.0.77", mac: lent.MAC.String()})
		mine = append(mine, "pool "+own.v4[0].id, "pool "+existing.v4[0].id, "pool "+hidden.id,
			"network "+own.id, "network "+existing.id, "address "+held.ip4, "address "+alone.ip4,
			"endpoint "+run.id+" on "+own.id, "endpoint "+on.id+" on "+existing.id,
			"endpoint "+with.id+" on "+existing.id)
	}
	mine = append(mine, "network listed")
	u, i := b.upgrades()
	b.must(u.objects(t.Context(), engine.List{Networks: []engine.Network{
		{ID: "listed", Ours: true}, {ID: "swarm", Ours: true, Scope: "swarm"}, {ID: "bridge"},
	}}))
	slices.Sort(i.noted)
	if slices.Sort(mine); !slices.Equal(i.noted, mine) {
		t.Errorf("imported\n%s\nwant\n%s", strings.Join(i.noted, "\n"), strings.Join(mine, "\n"))
	}
	// One that fails does not keep the others.
	i.noted, i.fail = nil, "pool"
	if err := u.objects(t.Context(), engine.List{}); !errors.Is(err, errImport) || len(i.noted) < 6 {
		t.Errorf("imported %v, error %v", i.noted, err)
	}
}

// Endpoints on networks of the engine's that are one of the SDN are imported with the network that
// the engine names. Those that it does not list are found by its calls.
func TestUpgradeSharedNetwork(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		has := newFakeEngine("one")
		b := newBox(t, func(c *Config) { c.Routed, c.Engine = false, has })
		theirs := b.theirs("net", "10.50.0.0/24")
		before := b.dump()
		var all []*endpoint
		for range 2 {
			n := b.create(b.zun(theirs, "10.50.0.0/24", ""))
			all = append(all, b.run(&endpoint{net: n}))
			has.has(n)
		}
		has.runs(all...)
		if !answers {
			has.change(func(e *fakeEngine) { e.err = errors.New("it starts") })
		}
		b.forget()
		b.reconcile()
		for _, e := range all {
			var row struct{ Spec struct{ Network string } }
			text, ok := b.driver.Intents()["endpoint/"+e.id]
			if ok {
				b.must(json.Unmarshal(text, &row))
			}
			if ok != answers || ok && row.Spec.Network != e.net.id {
				t.Errorf("Docker answers %t: the endpoint of network %s has the row %s", answers, e.net.id, text)
			}
			b.stop(e)
			b.remove(e.net)
		}
		b.idle()
		if now := b.dump(); now != before {
			t.Errorf("Docker answers %t: before\n%s\nafter\n%s", answers, before, now)
		}
	}
}
