package identity_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

var owner = strings.Repeat("f", 36)

func drawPrefix(r *rapid.T, name string, v6 bool) netip.Prefix {
	size := 4
	if v6 {
		size = 16
	}
	a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(r, name))
	if a.Is4In6() {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, rapid.IntRange(1, a.BitLen()).Draw(r, name+" length")).Masked()
}

// Every Key fits where an SDN keeps it, for the longest ids an engine may send.
func TestKeysFit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 128)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	rapid.Check(t, func(r *rapid.T) {
		n := identity.NewNamer(owner, "host", "store", rapid.Bool().Draw(r, "compat"))
		v6 := rapid.Bool().Draw(r, "IPv6")
		name := identity.PoolName{
			Host: n.Host, Nonce: n.Nonce(),
			Space: rapid.StringMatching(`[a-z_]{0,24}`).Draw(r, "space"),
			CIDR:  drawPrefix(r, "range", v6), Sub: drawPrefix(r, "sub", v6),
		}
		switch rapid.IntRange(0, 2).Draw(r, "of") {
		case 1:
			name.Sub, name.OfSubnet = netip.Prefix{}, sdn.ID(uuid.NewString())
		case 2:
			name.Sub, name.OfPool = netip.Prefix{}, sdn.ID(uuid.NewString())
		}
		if back, ok := identity.ParsePoolName(name.String()); !ok || back != name {
			r.Fatalf("%q was read as %+v", name, back)
		}
		o := reconcile.Object{
			Key: long, Incarnation: rapid.Uint64().Draw(r, "incarnation"),
			Earlier: rapid.Bool().Draw(r, "earlier"),
		}
		for _, k := range []sdn.Key{
			n.PoolKey(name),
			n.PortKey(sdn.ID(uuid.NewString()), mac, n.Nonce()),
			n.PortKey(sdn.ID(uuid.NewString()), nil, n.Nonce()),
			n.Key(identity.KindSubnet, long+"/4.9", o),
			n.Key(identity.KindEndpoint, long, o),
			n.Key(identity.KindPublish, long+"/6", o),
			n.Key(identity.KindRouter, long, o),
			n.GlobalKey(identity.KindNetwork, long),
			n.GlobalKey(identity.KindLink, n.Host+"/"+long),
		} {
			if err := k.Validate(); err != nil {
				r.Fatal(err)
			}
		}
	})
}

// The names that the previous version looks for are those of its own objects.
func TestKeyForms(t *testing.T) {
	t.Parallel()
	old, now := identity.NewNamer(owner, "host", "store", true), identity.NewNamer(owner, "host", "store", false)
	nonce, next := old.Nonce(), old.Nonce()
	if old.Host != "4740ae63" || len(old.Store) != 6 || len(nonce) != 16 || nonce == next {
		t.Errorf("%+v, nonces %q and %q", old, nonce, next)
	}
	id, own := strings.Repeat("a", 64), old.Host+"/"+old.Store+"/"
	first, second := reconcile.Object{Key: id, Incarnation: 7}, reconcile.Object{Key: id, Incarnation: 9, Earlier: true}
	for _, c := range []struct {
		got  sdn.Key
		want string
	}{
		{old.Key(identity.KindNetwork, id, first), "docker-network/" + id},
		{old.Key(identity.KindSubnet, id+"/4.0", first), "docker-subnet/" + id + "/4.0"},
		{old.Key(identity.KindSubnet, id+"/4.0", second), "docker-subnet/" + id + "/4.0~9"},
		{now.Key(identity.KindNetwork, id, first), "docker-network/" + own + id + "/7"},
		{now.Key(identity.KindSubnet, id+"/4.0", second), "docker-subnet/" + own + id + "/9/4.0"},
		{now.GlobalKey(identity.KindNetwork, id), "docker-network/" + id},
	} {
		if got := c.got.Kind + "/" + c.got.Name; got != c.want || c.got.Owner != owner {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
	for _, id := range []string{strings.Repeat("x", 65), strings.Repeat("x", 66)} {
		k := now.Key(identity.KindNetwork, id, first)
		if strings.Contains(k.Name, "x") || len(k.Name) != len(own)+64+2 {
			t.Errorf("a long id became %q", k.Name)
		}
	}
}

func TestWhoseObject(t *testing.T) {
	t.Parallel()
	here, there := identity.NewNamer(owner, "here", "store", true), identity.NewNamer(owner, "there", "store", true)
	pool := identity.PoolName{Host: here.Host, Nonce: here.Nonce(), CIDR: netip.MustParsePrefix("10.0.0.0/24")}
	key := func(k sdn.Key, tags ...string) sdn.Meta { return sdn.Meta{Base: sdn.Base{Key: k, Tags: tags}} }
	network := here.GlobalKey(identity.KindNetwork, strings.Repeat("a", 64))
	foreign := key(here.PoolKey(pool))
	foreign.Foreign = true
	for name, c := range map[string]struct {
		m          sdn.Meta
		ours, here bool
	}{
		"pool":              {key(here.PoolKey(pool)), true, true},
		"network":           {key(network), true, false},
		"tagged network":    {key(network, here.HostTag()), true, true},
		"another host's":    {key(network, there.HostTag()), true, false},
		"port":              {key(here.PortKey("n", nil, "x")), true, true},
		"another's port":    {key(there.PortKey("n", nil, "x")), true, false},
		"old port":          {key(here.GlobalKey(identity.KindPort, "n/02:00:00:00:00:01/x")), true, false},
		"link":              {key(here.GlobalKey(identity.KindLink, here.Host+"/a")), true, true},
		"another kind":      {key(here.GlobalKey(identity.KindRouter, "a"), here.HostTag()), false, false},
		"without a Key":     {key(sdn.Key{}, here.HostTag()), false, false},
		"another project's": {foreign, false, false},
		"another installation's": {
			key(sdn.Key{Owner: "other", Kind: identity.KindNetwork, Name: "a"}, here.HostTag()), false, false,
		},
		"strange pool": {key(here.GlobalKey(identity.KindPool, here.Host+"/a"), here.HostTag()), true, false},
	} {
		kinds := []string{identity.KindPool, identity.KindNetwork, identity.KindPort, identity.KindLink}
		if here.Ours(c.m, kinds...) != c.ours || here.OfThisHost(c.m, kinds...) != c.here {
			t.Errorf("%s: ours %v, of this host %v", name, !c.ours, here.OfThisHost(c.m, kinds...))
		}
	}
}

func FuzzPoolName(f *testing.F) {
	for _, s := range []string{
		"4740ae63,kuryr_local,0123456789abcdef,10.0.0.0/24,",
		"4740ae63,kuryr_local,0123456789abcdef,10.0.0.0/16,10.0.1.0/24,subnet=a",
		"4740ae63,kuryr_global,0123456789abcdef,fd00::/64,,pool=b",
		",,,10.0.0.0/24,,other=b", "a,b", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, ok := identity.ParsePoolName(s)
		if !ok {
			return
		}
		if back, ok := identity.ParsePoolName(name.String()); !ok || back != name {
			t.Errorf("%q was read as %+v, whose name %q as %+v", s, name, name, back)
		}
	})
}

func TestIDTags(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0123456789abcdef", 4)
	for _, c := range []struct {
		id   string
		want []string
	}{
		{"short", []string{"kuryr.net.uuid.lh:short"}},
		{id[:32], []string{"kuryr.net.uuid.lh:" + id[:32]}},
		{id[:33], []string{"kuryr.net.uuid.lh:" + id[:32], "kuryr.net.uuid.uh:0"}},
		{id, []string{"kuryr.net.uuid.lh:" + id[:32], "kuryr.net.uuid.uh:" + id[32:]}},
	} {
		tags := identity.IDTags(c.id)
		if !slices.Equal(tags, c.want) || identity.TaggedID(tags) != c.id || !identity.HasID(tags, c.id) {
			t.Errorf("%s: got %v, which is %q", c.id, tags, identity.TaggedID(tags))
		}
	}
	if identity.HasID(identity.IDTags(id), id[:32]) || identity.HasID(identity.IDTags(id[:32]), id) {
		t.Error("half of an id is the whole")
	}
	if got := identity.IDTags(id + "more"); !slices.Equal(got, identity.IDTags(id)) {
		t.Errorf("a longer id: %v", got)
	}
	for _, engine := range []string{strings.Repeat("e", 36), strings.Repeat("ABCD:", 12)} {
		if tag := identity.TagEngine + identity.EngineName(engine); len(tag) > identity.MaxTag {
			t.Errorf("%q has %d characters", tag, len(tag))
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sub, cidr, want string }{
		{"10.0.8.0/24", "10.0.0.0/16", "10.0.8.0-10.0.8.255"},
		{"10.0.0.0/24", "10.0.0.0/16", "10.0.0.1-10.0.0.255"},
		{"10.0.255.0/24", "10.0.0.0/16", "10.0.255.0-10.0.255.254"},
		{"10.0.0.0/24", "10.0.0.0/24", "10.0.0.1-10.0.0.254"},
		{"10.0.0.0/31", "10.0.0.0/31", "10.0.0.0-10.0.0.1"},
		{"10.0.0.0/32", "10.0.0.0/24", ""},
		{"fd00::/80", "fd00::/64", "fd00::1-fd00::ffff:ffff:ffff"},
		{"fd00::ff00/120", "fd00::/112", "fd00::ff00-fd00::ffff"},
	} {
		got := ""
		if r := identity.Within(netip.MustParsePrefix(c.sub), netip.MustParsePrefix(c.cidr)); len(r) == 1 {
			got = r[0].First.String() + "-" + r[0].Last.String()
		}
		if got != c.want {
			t.Errorf("%s in %s: %s, want %s", c.sub, c.cidr, got, c.want)
		}
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	notSent := sdn.Unavailable(sdn.ErrNotSent, "port", "no connection")
	denied := &sdn.Error{Kind: sdn.KindDenied}
	same := func(err error) error { return err }
	for _, c := range []struct {
		err     error
		changed bool
		want    func(error) error
	}{
		{notSent, false, reconcile.Refused}, {notSent, true, same},
		{sdn.Unavailable(nil, "port", "timeout"), false, reconcile.Unconfirmed},
		{sdn.Unavailable(nil, "port", "timeout"), true, reconcile.Unconfirmed},
		{fmt.Errorf("port: %w", context.DeadlineExceeded), false, reconcile.Unconfirmed},
		{context.Canceled, true, reconcile.Unconfirmed},
		{denied, false, reconcile.Refused}, {denied, true, same},
		{sdn.Invalid("port", "mac", "bad"), false, reconcile.Refused},
		{sdn.Unsupported("port", "no"), false, reconcile.Refused},
		{sdn.Exhausted(sdn.NoQuota, "port", "full"), false, reconcile.Refused},
		{sdn.NotFound("network", "a"), false, reconcile.Refused},
		{sdn.Conflict(sdn.MACInUse, "port", "mac", "used"), false, reconcile.Refused},
		{&sdn.Error{Kind: sdn.KindPending}, false, same},
		{errors.New("other"), false, same},
	} {
		if got := identity.Outcome(c.err, c.changed); !reflect.DeepEqual(got, c.want(c.err)) {
			t.Errorf("%v, changed %v: got %T", c.err, c.changed, got)
		}
	}
	if identity.Outcome(nil, false) != nil {
		t.Error("success became an error")
	}
}

func TestUsable(t *testing.T) {
	t.Parallel()
	id, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	with := func(p sdn.Port, tags ...string) sdn.Port {
		p.ID, p.Tags = "p", tags
		p.Addresses = []sdn.Address{{Addr: netip.MustParseAddr("10.0.0.5")}}
		return p
	}
	hidden, keyed := sdn.Port{VIF: sdn.VIF{Hidden: []string{"binding:vif_type"}}}, sdn.Port{}
	keyed.Key = sdn.Key{Owner: "other", Kind: identity.KindPort, Name: "x"}
	existing := func(id string) []string { return append(identity.IDTags(id), identity.TagExistingPort) }
	for name, c := range map[string]struct {
		port sdn.Port
		says string
	}{
		"free":             {with(sdn.Port{}), ""},
		"bound here":       {with(sdn.Port{Host: "here", DeviceID: "vm", DeviceOwner: sdn.OwnerContainer}), ""},
		"its own":          {with(sdn.Port{DeviceID: id, DeviceOwner: sdn.OwnerContainer, Host: "here"}), ""},
		"attached to it":   {with(sdn.Port{DeviceID: "zun"}, existing(id)...), ""},
		"bound elsewhere":  {with(sdn.Port{Host: "there"}), "is bound to host there"},
		"a router's":       {with(sdn.Port{DeviceOwner: "network:router"}), "is of network:router"},
		"another's":        {with(sdn.Port{DeviceID: other, DeviceOwner: sdn.OwnerContainer}), "another endpoint"},
		"attached already": {with(sdn.Port{}, existing(other)...), "another endpoint"},
		"hidden":           {with(hidden), "the right to read binding:vif_type"},
		"another Kuryr's":  {with(keyed), "not Docker's of this Kuryr"},
	} {
		err := identity.Usable(c.port, "here", id)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
