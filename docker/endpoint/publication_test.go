package endpoint

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// fakeSDN is an SDN whose objects have what the fields say. It has no ports. Its capabilities are
// unknown until Ping is answered.
type fakeSDN struct {
	sdn.Provider
	can         sdn.Capabilities
	unavailable bool
	reached     bool
	published   []sdn.PublishedPort
	floating    []sdn.FloatingIP
	groups      []sdn.SecurityGroup
	asked       func() // called by Publication
	calls       []string
}

func (f *fakeSDN) call(name string) error {
	if f.unavailable {
		return sdn.Unavailable(nil, "SDN", "it does not answer")
	}
	f.calls = append(f.calls, name)
	return nil
}

func (f *fakeSDN) Capabilities() sdn.Capabilities {
	if !f.reached {
		return sdn.Capabilities{}
	}
	return f.can
}

func (f *fakeSDN) Ping(context.Context) error {
	err := f.call("Ping")
	f.reached = f.reached || err == nil
	return err
}

func found[T any](list []T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err != nil {
			yield(*new(T), err)
			return
		}
		for _, v := range list {
			if !yield(v, nil) {
				return
			}
		}
	}
}

func (f *fakeSDN) FindPorts(context.Context, sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return found([]sdn.Port(nil), f.call("FindPorts"))
}

func (f *fakeSDN) FindFloatingIPs(context.Context, sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	return found(f.floating, f.call("FindFloatingIPs"))
}

func (f *fakeSDN) DeleteFloatingIP(context.Context, sdn.ID) error { return f.call("DeleteFloatingIP") }

func (f *fakeSDN) FindForwards(context.Context, sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	return found([]sdn.Forward(nil), f.call("FindForwards"))
}

func (f *fakeSDN) FindSecurityGroups(
	context.Context, sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	return found(f.groups, f.call("FindSecurityGroups"))
}

func (f *fakeSDN) ApplySecurityGroup(
	context.Context, sdn.SecurityGroupSpec,
) (sdn.SecurityGroup, error) {
	return sdn.SecurityGroup{}, f.call("ApplySecurityGroup")
}

func (f *fakeSDN) DeleteSecurityGroup(context.Context, sdn.ID) error {
	return f.call("DeleteSecurityGroup")
}

func (f *fakeSDN) Publication(context.Context, sdn.Key) (sdn.Publication, error) {
	if f.asked != nil {
		f.asked()
	}
	return sdn.Publication{Ports: f.published}, f.call("Publication")
}

func (f *fakeSDN) Unpublish(context.Context, sdn.Key) error { return f.call("Unpublish") }

// heldPorts are host ports by their owners.
type heldPorts map[string][]hostports.Port

func (h heldPorts) Reserve(owner string, p hostports.Port) error {
	h[owner] = append(h[owner], p)
	return nil
}

func (h heldPorts) Restore(owner string, p hostports.Port) error { return h.Reserve(owner, p) }
func (h heldPorts) ReleaseAll(owner string)                      { delete(h, owner) }
func (h heldPorts) Release(string, ...hostports.Port)            {}
func (h heldPorts) Retain(string, ...hostports.Port)             {}
func (h heldPorts) Users(hostports.Port) []hostports.Program     { return nil }

func atHostPort(port uint16) []sdn.PublishedPort {
	forward := sdn.Forward{Protocol: sdn.TCP, External: sdn.PortRange{First: port, Last: port}}
	return []sdn.PublishedPort{{Host: netip.IPv4Unspecified(), Forward: forward}}
}

// TestRestoreHostPorts checks that an endpoint that ends while its host ports are restored does not
// keep them.
func TestRestoreHostPorts(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	f := &fakeSDN{can: sdn.Capabilities{Forwards: true, HostAddresses: true}, published: atHostPort(8080)}
	host := heldPorts{}
	s.SDN, s.HostPorts = f, host
	for _, id := range []string{"ends", "runs"} {
		row := reconcile.Row[PublicationSpec, PublicationLast]{
			Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Done: true,
			Spec: PublicationSpec{Mode: modeHost},
		}
		if err := s.publications.Import(t.Context(), []reconcile.Row[PublicationSpec, PublicationLast]{row}); err != nil {
			t.Fatal(err)
		}
	}
	f.asked = func() {
		if err := s.publications.RemoveLater(t.Context(), "ends"); err != nil {
			t.Error(err)
		}
	}
	if err := s.RestoreHostPorts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(host["ends"]) > 0 || len(host["runs"]) != 1 {
		t.Errorf("host ports %v", host)
	}
}

// TestDeleteBeforeFirstAnswer checks that a deletion is not complete while the SDN has never
// answered, and that it deletes what the row has.
func TestDeleteBeforeFirstAnswer(t *testing.T) {
	t.Parallel()
	host := sdn.Capabilities{Forwards: true, FloatingIPs: true, SecurityGroups: true, HostAddresses: true}
	plain := host
	plain.HostAddresses = false
	exposed := []api.ExposedPort{{Proto: sdn.TCP, Port: 80}}
	for _, c := range []struct {
		name string
		can  sdn.Capabilities
		spec PublicationSpec
		last PublicationLast
		want string
	}{
		{"host", host, PublicationSpec{Mode: modeHost}, PublicationLast{Ports: atHostPort(8080)}, "Unpublish"},
		{
			"floating IP", plain, PublicationSpec{Mode: modeFloating}, PublicationLast{FloatingIP: "f"},
			"DeleteFloatingIP",
		},
		{"group", plain, PublicationSpec{Exposed: exposed}, PublicationLast{}, "DeleteSecurityGroup"},
		{"unknown at the host", host, PublicationSpec{}, PublicationLast{Unknown: true}, "Unpublish"},
		{"unknown", plain, PublicationSpec{}, PublicationLast{Unknown: true}, "DeleteFloatingIP"},
	} {
		s, _ := newService(t)
		f := &fakeSDN{
			can: c.can, unavailable: true, published: atHostPort(8080),
			floating: []sdn.FloatingIP{{Meta: sdn.Meta{ID: "f"}}},
			groups:   []sdn.SecurityGroup{{Meta: sdn.Meta{ID: "g"}}},
		}
		s.SDN = f
		o := reconcile.Object{Key: "e"}
		if err := (publicationTarget{s}).Delete(t.Context(), o, c.spec, c.last); !sdn.IsUnavailable(err) {
			t.Errorf("%s: %v while the SDN is unavailable", c.name, err)
		}
		f.unavailable = false
		err := publicationTarget{s}.Delete(t.Context(), o, c.spec, c.last)
		if err != nil || !slices.Contains(f.calls, c.want) {
			t.Errorf("%s: %v, calls %q, want %s", c.name, err, f.calls, c.want)
		}
	}
	for _, f := range []FloatingSpec{{}, {Asked: api.FloatingAuto}} {
		s, _ := newService(t)
		s.SDN = &fakeSDN{can: plain, unavailable: true}
		err := floatTarget{s}.Delete(t.Context(), reconcile.Object{Key: "e"}, f, FloatingLast{ID: "f"})
		if !sdn.IsUnavailable(err) {
			t.Errorf("floating IP %+v: %v while the SDN is unavailable", f, err)
		}
	}
}

// TestDeleteOfUnconfirmed checks that a Delete that finds nothing reports it, so that an object that
// the SDN may still make is looked for.
func TestDeleteOfUnconfirmed(t *testing.T) {
	t.Parallel()
	host := sdn.Capabilities{Forwards: true, FloatingIPs: true, SecurityGroups: true, HostAddresses: true}
	plain := host
	plain.HostAddresses = false
	exposed := []api.ExposedPort{{Proto: sdn.TCP, Port: 80}}
	for _, c := range []struct {
		name   string
		can    sdn.Capabilities
		spec   PublicationSpec
		last   PublicationLast
		there  fakeSDN
		absent bool
	}{
		{"host ports", host, PublicationSpec{Mode: modeHost}, PublicationLast{}, fakeSDN{}, true},
		{
			"host ports that the SDN made", host, PublicationSpec{Mode: modeHost}, PublicationLast{},
			fakeSDN{published: atHostPort(8080)}, false,
		},
		{"floating IP", plain, PublicationSpec{Mode: modeFloating}, PublicationLast{}, fakeSDN{}, true},
		{
			"floating IP of a group", plain, PublicationSpec{Mode: modeFloating, Exposed: exposed},
			PublicationLast{Group: "g"}, fakeSDN{}, true,
		},
		{
			"floating IP that the SDN made", plain, PublicationSpec{Mode: modeFloating}, PublicationLast{},
			fakeSDN{floating: []sdn.FloatingIP{{Meta: sdn.Meta{ID: "f"}}}}, false,
		},
		{
			"forwardings of a user's floating IP", plain, PublicationSpec{Mode: modeFloating, Existing: "f"},
			PublicationLast{FloatingIP: "f"}, fakeSDN{}, false,
		},
		{"group", plain, PublicationSpec{Exposed: exposed}, PublicationLast{}, fakeSDN{}, true},
		{
			"group that the SDN made", plain, PublicationSpec{Exposed: exposed}, PublicationLast{},
			fakeSDN{groups: []sdn.SecurityGroup{{Meta: sdn.Meta{ID: "g"}}}}, false,
		},
		{"proxy", plain, PublicationSpec{Mode: modeProxy}, PublicationLast{}, fakeSDN{}, false},
	} {
		s, _ := newService(t)
		f := c.there
		f.can, f.reached = c.can, true
		s.SDN = &f
		err := publicationTarget{s}.Delete(t.Context(), reconcile.Object{Key: "e"}, c.spec, c.last)
		if errors.Is(err, reconcile.ErrAbsent) != c.absent || err != nil && !c.absent {
			t.Errorf("%s: %v, want absent: %v", c.name, err, c.absent)
		}
	}
	s, _ := newService(t)
	s.SDN = &fakeSDN{can: plain, reached: true}
	own := FloatingSpec{Asked: api.FloatingAuto}
	err := floatTarget{s}.Delete(t.Context(), reconcile.Object{Key: "e"}, own, FloatingLast{})
	if !errors.Is(err, reconcile.ErrAbsent) {
		t.Errorf("own floating IP: %v", err)
	}
}

// TestDeleteOfReplaced checks that the search for what a call without an answer may have made leaves
// alone what the endpoint publishes since.
func TestDeleteOfReplaced(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	at := netip.MustParseAddrPort("127.0.0.1:0")
	forward := portproxy.Forward{Protocol: sdn.TCP, Listen: at, Namespace: "/proc/self/ns/net"}
	host := heldPorts{"e": {{Protocol: sdn.TCP, Address: at}}}
	s.SDN, s.HostPorts = &fakeSDN{reached: true}, host
	s.Records = t.TempDir()
	record := filepath.Join(s.Records, "e.json")
	if err := errors.Join(s.Proxy.Start("e", forward), os.WriteFile(record, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	row := reconcile.Row[PublicationSpec, PublicationLast]{
		Object: reconcile.Object{Key: "e"}, Phase: reconcile.Wanted, Done: true,
		Spec: PublicationSpec{Mode: modeHost},
	}
	if err := s.publications.Import(t.Context(), []reconcile.Row[PublicationSpec, PublicationLast]{row}); err != nil {
		t.Fatal(err)
	}
	now, _ := s.publications.Get("e")
	for _, replaced := range []bool{true, false} {
		if row.Object = now.Object; replaced {
			row.Incarnation--
		}
		err := publicationTarget{s}.Delete(t.Context(), row.Object, row.Spec, row.Last)
		s.deleteRecord(row)
		_, stat := os.Stat(record)
		proxied, held := len(s.Proxy.Forwards("e")) > 0, len(host["e"]) > 0
		if !errors.Is(err, reconcile.ErrAbsent) || proxied != replaced || held != replaced || (stat == nil) != replaced {
			t.Errorf("replaced %v: %v, proxied %v, host port held %v, record: %v", replaced, err, proxied, held, stat)
		}
	}
}

// TestForwardsTo checks that a floating IP is an endpoint's, of any incarnation.
func TestForwardsTo(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	for name, want := range map[string]bool{"e/4": true, "e~7/4": true, "host/store/e/7/4": true, "e2/4": false} {
		f := sdn.FloatingIP{Meta: sdn.Meta{Base: sdn.Base{Key: s.Names.GlobalKey(identity.KindPublish, name)}}}
		if got := s.forwardsTo(f, "e"); got != want {
			t.Errorf("forwards of %s to e: got %v, want %v", name, got, want)
		}
	}
}
