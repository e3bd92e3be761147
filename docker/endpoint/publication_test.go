package endpoint

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
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
